#pragma once
// Combinations of keys that cannot be: what ranges and the table's conditions cannot express. model_checks.cpp has
// those of the model, settings_checks.cpp the others.
#include <fmt/format.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "framework/core/error.h"
#include "layers/attention/mechanism.h"
#include "trainers/settings/settings.h"

namespace furlong {

/// Throws UserError for the first combination that cannot be, naming its keys and where they were set.
class SettingsChecker {
 public:
  SettingsChecker(const Settings& settings, const config::Origins& origins)
      : copy_(settings), table_(settings_table(copy_)), origins_(origins), default_table_(settings_table(defaults_)) {}

  std::vector<std::string> run() const;

 private:
  using Mechanism = layers::MechanismInfo;

  // Cites keys as seen from the place of the first of them that somebody has set, which is where the message begins.
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

  /// "softmax or linear": the mechanisms with a capability.
  static std::string names(bool Mechanism::*capability);
  Citation citing(std::initializer_list<const char*> keys) const;

  // Of the model.
  std::int64_t head_width() const {
    const auto& model = copy_.model;
    return model.attention.d_head > 0 ? model.attention.d_head : model.d_model / model.attention.n_heads;
  }
  void heads() const;
  void rotary_scaling() const;
  void embeddings() const;
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

  // Of data, objective and training.
  void objective() const;
  void task() const;
  void documents() const;
  void packing() const;
  void carried_state() const;
  void lengths() const;
  void teacher() const;
  void output_layer() const;
  void finetune() const;
  void steps() const;

  Settings copy_, defaults_;
  config::Table table_;
  const config::Origins& origins_;
  config::Table default_table_;
};

}  // namespace furlong
