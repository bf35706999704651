#pragma once
// Documents with labels as batches: one document a sample, or a pair of them.
#include <optional>

#include "datasets/batch.h"
#include "datasets/token_store.h"

namespace furlong {

struct LabelledOptions {
  std::int64_t sequence_length = 0;  ///< longest row; documents are cut behind it
  bool shuffled = true;              ///< each epoch in an order of its own; else as the store has them
  bool pairs = false;                ///< two documents make a sample, in rows 2i and 2i + 1
  bool pad_to_longest = true;        ///< rows as long as the batch's longest, rounded up to 64; else sequence_length
  std::optional<std::int32_t>
      first_token{};  ///< put in front of each document (a class token), unless it begins with it already
  std::uint64_t seed = 0;
};

/// Whole documents of a split, padded behind with zeros under a mask. A document of which the split has only a part is
/// left out. The order of epoch e is a permutation drawn from (seed, e): each sample comes once in each.
class LabelledSource : public BatchSource {
 public:
  /// Throws UserError when the store has no labels, has them for single documents where pairs are wanted (or the other
  /// way round), or the split has no whole document.
  LabelledSource(const TokenStore& store, Split split, const LabelledOptions& options);

  std::uint64_t n_samples() const override { return samples_.size(); }
  /// Documents that are longer than a row has room for.
  std::uint64_t n_cut() const { return n_cut_; }
  Batch batch(std::uint64_t first, std::int64_t samples) const override;
  Batch batch_of_one_pass(std::uint64_t first, std::int64_t samples) const override;
  std::string note() const override;

 private:
  struct Document {
    std::uint64_t position;  // in the split
    std::int64_t length;     // tokens that a row takes of it
    bool fronted;            // first_token comes in front of them
    std::int64_t tokens() const { return length + (fronted ? 1 : 0); }
  };
  struct Sample {
    std::array<Document, 2> documents;
    std::int32_t label;
  };
  std::uint64_t rows_per_sample() const { return options_.pairs ? 2 : 1; }
  bool needs_front(std::uint64_t position) const;
  void find_samples();
  const Sample& sample(std::uint64_t index) const;
  Batch make_batch(std::uint64_t first, std::int64_t samples, std::uint64_t end) const;

  const TokenStore* store_;
  Split split_;
  LabelledOptions options_;
  std::vector<Sample> samples_;
  std::uint64_t n_cut_ = 0;
};

/// Place `index` of a permutation of [0, size) drawn from (seed, epoch).
std::uint64_t permuted(std::uint64_t index, std::uint64_t size, std::uint64_t seed, std::uint64_t epoch);

}  // namespace furlong
