#pragma once
// Generated sequences with labels. `furlong prepare listops` and `furlong prepare pathfinder` write them to a dataset.
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "datasets/split.h"
#include "datasets/tasks/draws.h"
#include "datasets/vocabulary.h"

namespace furlong {

/// A sequence and its class.
struct LabeledSequence {
  std::vector<std::int32_t> tokens;
  std::int32_t label = 0;
};

/// A task that classifies generated sequences. Sample `index` of a split depends on the task's options, its seed, the
/// split and the index alone.
class LabeledTask {
 public:
  virtual ~LabeledTask() = default;
  /// Returns the task's name.
  virtual std::string name() const = 0;
  virtual Vocabulary vocabulary() const = 0;
  /// Returns the names of the classes 0, 1, ...
  virtual std::vector<std::string> labels() const = 0;
  /// Returns a sample. Thread-safe. Throws UserError if the options make samples too rare.
  virtual LabeledSequence sample(Split split, std::uint64_t index) const = 0;
  /// Returns all options, as a dataset records them.
  virtual nlohmann::ordered_json options() const = 0;

 protected:
  /// Returns the random numbers of one sample: 2^30 words that no other sample of the task uses.
  Draws draws(std::uint64_t seed, Split split, std::uint64_t index) const {
    return Draws({seed, static_cast<std::uint32_t>(split), random_stream(name())}, index << 30);
  }
};

}  // namespace furlong
