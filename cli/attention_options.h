#pragma once
// Options that furlong attend and furlong bench attention share: the attention and its parameters.
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cli/arguments.h"
#include "layers/attention/mechanism.h"

namespace furlong::command_line {

/// Returns the names of all mechanisms.
std::vector<std::string> mechanism_names();
/// Returns one "NAME: summary" line for each mechanism.
std::string mechanism_help();
/// Returns "--mechanism A or B": the mechanisms with a capability.
std::string mechanisms_with(bool layers::MechanismInfo::*capability);
/// Returns the names of all feature maps.
std::vector<std::string> feature_map_names();

/// Throws UserError if `option` was given and `applies` is false, so that no option is ignored silently. `where` names
/// what the option applies to, such as "--mechanism linear".
void refuse_unless(bool applies, const Option& option, const std::string& where);

/// Throws UserError if `option` lists a value twice.
template <class T>
void refuse_twice(const char* option, const std::vector<T>& values) {
  for (auto at = values.begin(); at != values.end(); ++at) {
    if (std::find(values.begin(), at, *at) != at)
      throw UserError("{} {}: {} is listed twice; remove one", option, fmt::join(values, ","), *at);
  }
}

/// Values of the command line. Call add() before parsing, then check() and settle() afterwards.
struct AttentionOptionValues {
  std::int64_t window = 0;
  std::string normalizer = "sum", projection = "linear";

  /// Adds the options to `command`. Options that are fields of `config` are stored there; `config` has to live as long
  /// as the program. `many_maps`: the caller adds --feature-map, which takes a list.
  void add(Command command, layers::AttentionConfig& config, bool many_maps = false);
  /// Throws UserError if an option was given that none of the mechanisms, or none of the feature maps, takes.
  void check(const std::vector<std::string>& mechanisms, const std::vector<std::string>& maps) const;
  /// Stores the other values in `config`, whose mechanism is set.
  void settle(layers::AttentionConfig& config) const;

 private:
  struct Given {
    Option option;
    bool (*takes)(const layers::MechanismInfo&);
  };
  std::vector<Given> options_;
  Option kernel_epsilon_;
  Option order_;
  Option max_features_;
  Option chunk_;
  Option guard_;
};

}  // namespace furlong::command_line
