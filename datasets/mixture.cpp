#include "datasets/mixture.h"

#include "framework/core/error.h"

namespace furlong {

MixtureDataset::MixtureDataset(std::vector<TokenizedDataset> datasets) : datasets_(std::move(datasets)) {
  require(!datasets_.empty(), "a mixture of no datasets");
  const TokenizedDataset& first = datasets_.front();
  for (const TokenizedDataset& one : datasets_) {
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
  for (const TokenizedDataset& one : datasets_) sum += one.size(split);
  return sum;
}

std::vector<const TokenizedDataset*> MixtureDataset::stores() const {
  std::vector<const TokenizedDataset*> found;
  for (const TokenizedDataset& one : datasets_) found.push_back(&one);
  return found;
}

}  // namespace furlong
