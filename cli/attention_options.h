#pragma once
// The options that furlong attend and furlong bench attention share: which attention, and the numbers that belong to
// it.
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cli/arguments.h"
#include "layers/attention/mechanism.h"

namespace furlong::command_line {

std::vector<std::string> mechanism_names();
/// "NAME: what it is" for each.
std::string mechanism_help();
/// "--mechanism A or B": those with a capability.
std::string mechanisms_with(bool layers::MechanismInfo::*capability);
std::vector<std::string> feature_map_names();

/// Throws UserError naming `option` and where it belongs, when it was given although `applies` is false: no option does
/// nothing.
void refuse_unless(bool applies, const Option& option, const std::string& where);

/// Throws UserError where a value stands twice in the list of `option`.
template <class T>
void refuse_twice(const char* option, const std::vector<T>& values) {
  for (auto at = values.begin(); at != values.end(); ++at) {
    if (std::find(values.begin(), at, *at) != at)
      throw UserError("{} {}: {} stands there twice; leave out one", option, fmt::join(values, ","), *at);
  }
}

/// Values as they stand on the command line.
struct AttentionOptionValues {
  double kernel_epsilon = 0;
  std::int64_t window = 0;
  std::string normalizer = "sum", projection = "linear";

  /// Adds the options to `command`; those that are fields of `config` go straight into it, which has to live as long.
  /// `many_maps`: --feature-map takes a list, which its caller adds.
  void add(Command command, layers::AttentionConfig& config, bool many_maps = false);
  /// Throws UserError where an option was given that none of the mechanisms, or none of the maps, takes.
  void check(const std::vector<std::string>& mechanisms, const std::vector<std::string>& maps) const;
  /// Puts the other values into `config`, whose mechanism is chosen.
  void settle(layers::AttentionConfig& config) const;

 private:
  struct Given {
    Option option;
    bool (*takes)(const layers::MechanismInfo&);
  };
  std::vector<Given> options_;
  Option kernel_epsilon_;
  Option order_;
  Option most_features_;
  Option chunk_;
  Option guard_;
};

}  // namespace furlong::command_line
