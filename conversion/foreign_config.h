#pragma once
// Strict reader of a Hugging Face config.json: a key that changes the computation is either honored or rejected by
// name.
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>

#include "layers/model_config.h"

namespace furlong {

/// A config.json, or an object inside it. Copies are independent.
class ForeignConfig {
 public:
  /// `origin` names the file in error messages.
  ForeignConfig(nlohmann::ordered_json json, std::string origin);
  /// Reads a file. Throws UserError if it is missing or is not a JSON object.
  static ForeignConfig read(const std::filesystem::path& file);

  const std::string& origin() const { return origin_; }
  const nlohmann::ordered_json& json() const { return json_; }
  /// Returns true if the key exists and is not null.
  bool has(const std::string& key) const;
  /// Return a value by key. Throw UserError if the key is missing and has no fallback, or if the value has another
  /// type. Sizes are integers from 1 to 2^31.
  std::int64_t size(const std::string& key) const;
  std::int64_t size(const std::string& key, std::int64_t fallback) const;
  double real(const std::string& key) const;
  double real(const std::string& key, double fallback) const;
  bool boolean(const std::string& key, bool fallback) const;
  std::string text(const std::string& key) const;
  std::string text(const std::string& key, const std::string& fallback) const;
  /// Returns a nested object; error messages show its dotted name. Returns an empty object if the key is missing.
  ForeignConfig section(const std::string& key) const;

  /// Throws UserError if the key exists, is not null, and has another value than `supported`. The message names the
  /// key, both values, and ends with `why`.
  void only(const std::string& key, const nlohmann::ordered_json& supported, const std::string& why) const;
  /// Returns Furlong's name of an activation: "gelu_new" is gelu_tanh. `gated`: the feedforward has a gate (swiglu).
  layers::Activation activation(const std::string& key, const std::string& fallback, bool gated) const;
  /// Throws UserError with the text "ORIGIN: KEY: message".
  [[noreturn]] void fail(const std::string& key, const std::string& message) const;

 private:
  const nlohmann::ordered_json& at(const std::string& key) const;
  nlohmann::ordered_json json_;
  std::string origin_, prefix_;
};

/// Returns Hugging Face's name of an activation; for a gated activation, the name of its nonlinearity. Returns an empty
/// string if it has no name there.
std::string foreign_activation(layers::Activation activation);

}  // namespace furlong
