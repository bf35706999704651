#pragma once
// config.json of a Hugging Face directory, read strictly: what changes the arithmetic is honoured or refused by name.
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>

#include "layers/model_config.h"

namespace furlong {

class ForeignConfig {
 public:
  /// `origin` names the file in errors.
  ForeignConfig(nlohmann::ordered_json json, std::string origin);
  /// Throws UserError where the file is missing, not JSON, or no object.
  static ForeignConfig read(const std::filesystem::path& file);

  const std::string& origin() const { return origin_; }
  const nlohmann::ordered_json& json() const { return json_; }
  /// Whether the key is there and not null.
  bool has(const std::string& key) const;
  /// Values by key; throw UserError where one is missing (without a fallback) or of another type. Sizes are from 1 to
  /// 2^31.
  std::int64_t size(const std::string& key) const;
  std::int64_t size(const std::string& key, std::int64_t fallback) const;
  double real(const std::string& key) const;
  double real(const std::string& key, double fallback) const;
  bool boolean(const std::string& key, bool fallback) const;
  std::string text(const std::string& key) const;
  std::string text(const std::string& key, const std::string& fallback) const;
  /// An object inside, under its dotted name in errors; an empty one where there is none.
  ForeignConfig section(const std::string& key) const;

  /// Throws UserError, naming the key, what is there and what this model could be, where a key is there, not null, and
  /// other than what is `supported`; `why` ends the message.
  void only(const std::string& key, const nlohmann::ordered_json& supported, const std::string& why) const;
  /// Our name of an activation ("gelu_new" is gelu_tanh). `gated`: the feedforward multiplies by a gate (swiglu).
  layers::Activation activation(const std::string& key, const std::string& fallback, bool gated) const;
  /// Throws UserError "ORIGIN: KEY: message".
  [[noreturn]] void fail(const std::string& key, const std::string& message) const;

 private:
  const nlohmann::ordered_json& at(const std::string& key) const;
  nlohmann::ordered_json json_;
  std::string origin_, prefix_;
};

/// The name that Hugging Face gives to one of our activations, of a gated one to its nonlinearity; empty where it has
/// none.
std::string foreign_activation(layers::Activation activation);

}  // namespace furlong
