#pragma once
// Tasks of Long Range Arena: their data, and the published accuracies.
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "datasets/tasks/labeled_task.h"
#include "datasets/tokenized_dataset.h"

namespace furlong {

/// What a dataset made of the official files of a task looks like.
struct OfficialFiles {
  std::string_view name{};                 ///< of the data
  std::vector<std::string_view> labels{};  ///< ascending; empty: any names
  std::size_t n_labels = 2;
  std::uint64_t documents_per_label = 1;
  std::uint64_t n_documents = 0;          ///< 0: any
  std::uint64_t may_lack = 0;             ///< documents that the preparation may have left out
  std::uint64_t tokens_per_document = 0;  ///< 0: any
  std::int32_t vocabulary_size = 257;     ///< bytes, with or without <document>
  std::string_view command{};             ///< that prepares it, without --output
};

/// A task whose data are generated (`make`) or come from files.
struct LraTask {
  std::string_view name;
  std::vector<std::int64_t> sequence_lengths;  ///< as published
  std::array<std::uint64_t, 3> samples{};      ///< as published, of generated data
  std::unique_ptr<LabeledTask> (*make)(std::int64_t sequence_length) = nullptr;
  OfficialFiles files{};
};

/// Returns all tasks.
const std::vector<LraTask>& all_lra_tasks();
/// Returns the task of this name, which must exist.
const LraTask& lra_task(std::string_view name);
/// Returns the accuracy in Table 1 of Tay et al. 2020 (arXiv:2011.04006), or nullopt if it has none.
std::optional<double> published_accuracy(const std::string& task, const std::string& mechanism);

/// Returns how a dataset differs from one of the official files, in words; empty: it can be that.
std::string difference_from(const OfficialFiles& files, const TokenizedDataset& data);
/// Returns the options in which a dataset differs from the one that `expected` would generate, in words; empty: none. A
/// dataset of other samples is of the same distribution.
std::string difference_from(const LabeledTask& expected, const TokenizedDataset& data);
/// Returns the options in a dataset's provenance; null: none.
nlohmann::ordered_json options_of(const TokenizedDataset& data);

}  // namespace furlong
