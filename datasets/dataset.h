#pragma once
#include <string>

#include "datasets/split.h"
#include "datasets/vocabulary.h"

namespace furlong {

/// What a run trains on: a token store, or a task that makes its sequences itself.
class Dataset {
 public:
  virtual ~Dataset() = default;
  /// For messages: the path of the store, or which task it is.
  virtual const std::string& path() const = 0;
  virtual const Vocabulary& vocabulary() const = 0;
  /// Tokens in a split; of a task whose sequences have no end, the largest number.
  virtual std::uint64_t size(Split split) const = 0;
};

}  // namespace furlong
