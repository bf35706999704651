#pragma once
// The options that furlong attend and furlong bench attention share: which attention, and the numbers that belong to
// it.
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cli/arguments.h"
#include "evaluation/attend/attend_operation.h"

namespace furlong::command_line {

std::vector<std::string> mechanism_names();
std::vector<std::string> feature_map_names();
std::vector<std::string> directions_kind_names();
AttendMechanism mechanism_from_name(const std::string& name);

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
  std::string feature_map = "favor_positive", normalizer = "sum", projection = "linear";
  double kernel_epsilon = 0;

  /// Adds the options to `command`; those without a name of their own go straight into `choice`, which has to live as
  /// long. `many_maps`: --feature-map takes a list, which its caller adds.
  void add(Command command, AttentionChoice& choice, bool many_maps = false);
  /// Throws UserError where an option was given that none of the mechanisms, or none of the maps, takes. `choice` is
  /// what add() was given.
  void check(const std::vector<AttendMechanism>& mechanisms, const std::vector<std::string>& maps,
             const AttentionChoice& choice) const;
  /// Puts the values into `choice`, whose `compat` is settled.
  void settle(AttentionChoice& choice) const;

 private:
  struct Given {
    Option option;
    std::vector<AttendMechanism> takers;
  };
  std::vector<Given> options_;
  Option kernel_epsilon_;
  Option order_;
  Option most_features_;
  Option chunk_;
  Option guard_;
  // None in a command for many maps.
  Option compat_;
  Option stabilize_;
};

}  // namespace furlong::command_line
