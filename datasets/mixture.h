#pragma once
#include <string>
#include <vector>

#include "datasets/tokenized_dataset.h"

namespace furlong {

/// Several tokenized datasets for training. Validation and test splits are those of the first one.
class MixtureDataset : public Dataset {
 public:
  /// One weight for each dataset, not all 0. Throws UserError, naming both, if two datasets have different tokenizers
  /// or alphabets. Labels may differ.
  MixtureDataset(std::vector<TokenizedDataset> datasets, const std::vector<double>& weights);

  /// Returns all paths, separated by commas.
  const std::string& path() const override { return path_; }
  const Vocabulary& vocabulary() const override { return datasets_.front().vocabulary(); }
  /// Training: returns the sum over all datasets with a weight above 0.
  std::uint64_t size(Split split) const override;
  std::vector<const TokenizedDataset*> stores() const override;
  /// Returns the weights, with a sum of 1.
  std::vector<double> weights() const override { return weights_; }

 private:
  std::vector<TokenizedDataset> datasets_;
  std::vector<double> weights_;
  std::string path_;
};

}  // namespace furlong
