#pragma once
#include <string>
#include <vector>

#include "datasets/tokenized_dataset.h"

namespace furlong {

/// Several tokenized datasets for training. Validation and test splits are those of the first one.
class MixtureDataset : public Dataset {
 public:
  /// Throws UserError, naming both, if two datasets have different tokenizers or alphabets. Labels may differ.
  explicit MixtureDataset(std::vector<TokenizedDataset> datasets);

  /// Returns all paths, separated by commas.
  const std::string& path() const override { return path_; }
  const Vocabulary& vocabulary() const override { return datasets_.front().vocabulary(); }
  /// Training: returns the sum over all datasets.
  std::uint64_t size(Split split) const override;
  std::vector<const TokenizedDataset*> stores() const override;

 private:
  std::vector<TokenizedDataset> datasets_;
  std::string path_;
};

}  // namespace furlong
