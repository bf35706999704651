#pragma once
#include <memory>
#include <string>
#include <vector>

#include "datasets/batch.h"
#include "datasets/split.h"
#include "datasets/vocabulary.h"

namespace furlong {

class TokenizedDataset;

/// The data of a run: a tokenized dataset, or a task that generates its sequences.
class Dataset {
 public:
  virtual ~Dataset() = default;
  /// Returns the path of the tokenized dataset, or the name of the task, for messages.
  virtual const std::string& path() const = 0;
  /// Returns the vocabulary of the token ids.
  virtual const Vocabulary& vocabulary() const = 0;
  /// Returns the number of tokens in a split. A task without end returns the largest number.
  virtual std::uint64_t size(Split split) const = 0;
  /// Returns the tokenized datasets: one, or those of a mixture; none for a task. Validation and tests use the first.
  virtual std::vector<const TokenizedDataset*> stores() const { return {}; }
  /// Returns the weight of each store in training, with a sum of 1; empty if there is one store or none.
  virtual std::vector<double> weights() const { return {}; }
  /// Returns the source of training samples if the dataset makes its own, such as random tokens; otherwise null.
  virtual std::unique_ptr<BatchSource> own_samples() const { return nullptr; }
};

}  // namespace furlong
