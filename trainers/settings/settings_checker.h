#pragma once
// Checks of combinations of keys that ranges and conditions of the table cannot express. model_checks.cpp checks the
// model, settings_checks.cpp everything else.
#include <fmt/format.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "framework/core/error.h"
#include "layers/attention/mechanism.h"
#include "trainers/settings/settings.h"

namespace furlong {

/// Checks settings as a whole. run() throws UserError for the first impossible combination, with its keys and their
/// places, and returns the warnings of Table::check_effects.
class SettingsChecker {
 public:
  SettingsChecker(const Settings& settings, const config::Origins& origins)
      : copy_(settings), table_(settings_table(copy_)), origins_(origins), default_table_(settings_table(defaults_)) {}

  std::vector<std::string> run() const;
  /// Checks the section finetune alone, which does not depend on the model.
  void finetune() const;

 private:
  using Mechanism = layers::MechanismInfo;

  // Cites keys relative to `from`, the place of the first key that is set. Messages start with that place.
  struct Citation {
    const SettingsChecker& checker;
    config::Place from;
    std::string operator()(const std::string& key) const {
      return config::cite(checker.table_, checker.origins_, key, from);
    }
    [[noreturn]] void fail(const std::string& message) const {
      throw UserError("{}{}", from.source.empty() ? "" : from.text() + ": ", message);
    }
  };

  /// Returns the mechanisms with a capability, such as "softmax or linear".
  static std::string names(bool Mechanism::*capability);
  Citation citing(std::initializer_list<const char*> keys) const;

  // Checks of the model.
  std::int64_t head_width() const {
    const auto& model = copy_.model;
    return model.attention.d_head > 0 ? model.attention.d_head : model.d_model / model.attention.n_heads;
  }
  void heads() const;
  void rotary_scaling() const;
  void embeddings() const;
  void token_dropout() const;
  void attention() const;
  void mechanisms() const;
  void known_mechanism(const char* key, const std::string& where, const std::string& name) const;
  void mechanisms_of_heads(const char* key, const std::string& where, const std::vector<std::string>& names) const;
  void rotary_placement() const;
  void features() const;
  void softmax_only() const;
  void kernel_epsilon() const;
  void causality() const;
  void projected_length() const;

  // Checks of data, objective and training.
  void objective() const;
  void task() const;
  void recall() const;
  void mixture() const;
  void documents() const;
  void packing() const;
  void stateful() const;
  void lengths() const;
  void teacher() const;
  void stage_names() const;
  void output_layer() const;
  void steps() const;

  Settings copy_, defaults_;
  config::Table table_;
  const config::Origins& origins_;
  config::Table default_table_;
};

}  // namespace furlong
