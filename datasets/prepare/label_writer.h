#pragma once
// Writes the labels of a tokenized dataset. docs/file_formats.md describes the layout.
#include <algorithm>
#include <string>
#include <vector>

#include "datasets/prepare/dataset_writer.h"
#include "framework/io/hdf5.h"

namespace furlong {

/// Appends to one dataset of a file, in blocks.
template <class T>
class BufferedRows {
 public:
  BufferedRows(hdf5::Dataset dataset, std::size_t width) : dataset_(std::move(dataset)), width_(width) {}
  void push(std::span<const T> values) {
    buffer_.insert(buffer_.end(), values.begin(), values.end());
    if (buffer_.size() >= block * width_) flush();
  }
  void flush() {
    dataset_.append(buffer_.data(), buffer_.size() / width_);
    buffer_.clear();
  }
  /// Changes all values of a flushed dataset of width 1.
  template <class Action>
  void change_each(const Action& action) {
    for (std::uint64_t begin = 0, size = dataset_.shape()[0]; begin < size; begin += block) {
      std::vector<T> values(std::min(block, size - begin));
      dataset_.read_rows(begin, begin + values.size(), values.data(), values.size() * sizeof(T));
      for (T& value : values) action(value);
      dataset_.write_block({begin}, {values.size()}, values.data(), values.size() * sizeof(T));
    }
  }
  static constexpr std::uint64_t block = std::uint64_t{1} << 11;  // rows

 private:
  hdf5::Dataset dataset_;
  std::size_t width_;
  std::vector<T> buffer_;
};

/// The datasets `labels` and, for LabelKind::sets, `label_ends`.
class LabelWriter {
 public:
  /// `drops_unused`: see DatasetWriterOptions.
  LabelWriter(hdf5::File& file, LabelKind kind, std::uint64_t documents_per_label, bool drops_unused = false);

  /// Adds the label of the documents that end at token `end` and belong to `split`; nullopt: the splits are spans.
  /// Throws ContractError if the label does not match the kind.
  void push(const DocumentLabel& label, std::uint64_t end, std::optional<Split> split);
  /// Completes the labels of all documents of `summary` and adds their counts to it. Returns the scales of
  /// LabelKind::numbers: mean and standard deviation over the training split. Throws ContractError if the number of
  /// labels does not match that of documents, or if a label has no name.
  std::vector<LabelScale> finish(const std::vector<std::string>& names, DatasetSummary& summary);

 private:
  /// Running mean and sum of squared deviations (Welford 1962).
  struct Moments {
    double count = 0, mean = 0, squares = 0, minimum = 0, maximum = 0;
    bool any = false;
  };
  void push_ids(std::span<const std::int32_t> ids, std::optional<Split> split);
  /// Removes labels without a document from counts_, and renumbers the others.
  void drop_unused();
  void push_numbers(std::span<const float> numbers, bool train);

  hdf5::File& file_;
  LabelKind kind_;
  bool drops_unused_;
  std::uint64_t documents_per_label_, n_labels_ = 0, n_ids_ = 0;
  std::optional<BufferedRows<std::int32_t>> ids_;
  std::optional<BufferedRows<std::uint64_t>> ends_;
  std::optional<BufferedRows<float>> numbers_;  // from the first label on, which sets their number
  std::vector<LabelSummary> counts_;            // of each label, without its name
  std::vector<Moments> moments_;                // of each number
};

}  // namespace furlong
