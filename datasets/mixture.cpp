#include "datasets/mixture.h"

#include <numeric>

#include "framework/core/error.h"

namespace furlong {

MixtureDataset::MixtureDataset(std::vector<TokenizedDataset> datasets, const std::vector<double>& weights)
    : datasets_(std::move(datasets)), weights_(weights) {
  require(!datasets_.empty() && weights.size() == datasets_.size(), "a mixture of {} datasets with {} weights",
          datasets_.size(), weights.size());
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& weight : weights_) weight /= sum;
  const TokenizedDataset& first = datasets_.front();
  for (const TokenizedDataset& one : datasets_) {
    if (one.vocabulary().kind() == first.vocabulary().kind() && !one.vocabulary().tokenizer() &&
        one.vocabulary().document_id() != first.vocabulary().document_id())
      throw UserError(
          "data.sources: {} marks the ends of documents, but {} does not; prepare both with --document-separator",
          (one.vocabulary().document_id() ? one : first).path(), (one.vocabulary().document_id() ? first : one).path());
    if (!(one.vocabulary().with_labels({}) == first.vocabulary().with_labels({})))
      throw UserError(
          "data.sources: {} has the vocabulary {}, but {} has {}; expected datasets of one tokenizer, so prepare them "
          "with the same --tokenizer or alphabet",
          one.path(), one.vocabulary().description(), first.path(), first.vocabulary().description());
    path_ += (path_.empty() ? "" : ", ") + one.path();
  }
}

std::uint64_t MixtureDataset::size(Split split) const {
  if (split != Split::train) return datasets_.front().size(split);
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < datasets_.size(); ++i) {
    if (weights_[i] > 0) sum += datasets_[i].size(split);
  }
  return sum;
}

std::vector<const TokenizedDataset*> MixtureDataset::stores() const {
  std::vector<const TokenizedDataset*> found;
  for (const TokenizedDataset& one : datasets_) found.push_back(&one);
  return found;
}

}  // namespace furlong
