#include "conversion/foreign_config.h"

#include <fmt/ranges.h>

#include <cmath>
#include <fstream>

#include "formats/json_text.h"
#include "framework/core/error.h"
#include "framework/core/printable.h"
#include "framework/io/atomic_file.h"
#include "framework/io/text_file.h"

namespace furlong {
namespace {

using layers::Activation;

struct ActivationName {
  const char* theirs;
  Activation ours;
  std::optional<Activation> gated;
};
// If several foreign names have one meaning, the first is written on export.
constexpr ActivationName activation_names[] = {
    {"gelu", Activation::gelu, Activation::geglu},        {"gelu_new", Activation::gelu_tanh, {}},
    {"gelu_pytorch_tanh", Activation::gelu_tanh, {}},     {"gelu_fast", Activation::gelu_tanh, {}},
    {"gelu_python", Activation::gelu, Activation::geglu}, {"relu", Activation::relu, {}},
    {"silu", Activation::silu, Activation::swiglu},       {"swish", Activation::silu, Activation::swiglu}};

/// Formats a value for messages: short and on one line.
std::string shown(const nlohmann::ordered_json& value) { return foreign::printable(value.dump()); }

}  // namespace

ForeignConfig::ForeignConfig(nlohmann::ordered_json json, std::string origin)
    : json_(std::move(json)), origin_(std::move(origin)) {}

ForeignConfig ForeignConfig::read(const std::filesystem::path& file) {
  const std::string text = read_text_file(file, std::uint64_t{16} << 20);
  foreign::check_ordered_json(text, file.string());
  auto json = nlohmann::ordered_json::parse(text, nullptr, false);
  if (!json.is_object())
    throw UserError("{}: expected a JSON object that describes a model (Hugging Face's config.json)", file.string());
  return {std::move(json), file.string()};
}

void ForeignConfig::fail(const std::string& key, const std::string& message) const {
  throw UserError("{}: {}{}: {}", origin_, prefix_, key, message);
}

bool ForeignConfig::has(const std::string& key) const {
  const auto found = json_.find(key);
  return found != json_.end() && !found->is_null();
}

const nlohmann::ordered_json& ForeignConfig::at(const std::string& key) const {
  if (!has(key)) fail(key, "this key is missing, and the model cannot be built without it");
  return json_.at(key);
}

std::int64_t ForeignConfig::size(const std::string& key) const {
  const auto& value = at(key);
  if (!value.is_number_integer() || value.get<double>() < 1 || value.get<double>() > 0x1p31)
    fail(key, fmt::format("found {}; expected an integer from 1 to 2^31", shown(value)));
  return value.get<std::int64_t>();
}
std::int64_t ForeignConfig::size(const std::string& key, std::int64_t fallback) const {
  return has(key) ? size(key) : fallback;
}

double ForeignConfig::real(const std::string& key) const {
  const auto& value = at(key);
  if (!value.is_number() || !std::isfinite(value.get<double>()))
    fail(key, fmt::format("found {}; expected a number", shown(value)));
  return value.get<double>();
}
double ForeignConfig::real(const std::string& key, double fallback) const { return has(key) ? real(key) : fallback; }

bool ForeignConfig::boolean(const std::string& key, bool fallback) const {
  if (!has(key)) return fallback;
  const auto& value = json_.at(key);
  if (!value.is_boolean()) fail(key, fmt::format("found {}; expected true or false", shown(value)));
  return value.get<bool>();
}

std::string ForeignConfig::text(const std::string& key) const {
  const auto& value = at(key);
  if (!value.is_string()) fail(key, fmt::format("found {}; expected a string", shown(value)));
  return value.get<std::string>();
}
std::string ForeignConfig::text(const std::string& key, const std::string& fallback) const {
  return has(key) ? text(key) : fallback;
}

ForeignConfig ForeignConfig::section(const std::string& key) const {
  if (has(key) && !json_.at(key).is_object())
    fail(key, fmt::format("found {}; expected an object", shown(json_.at(key))));
  ForeignConfig inner(has(key) ? json_.at(key) : nlohmann::ordered_json::object(), origin_);
  inner.prefix_ = prefix_ + key + ".";
  return inner;
}

void ForeignConfig::only(const std::string& key, const nlohmann::ordered_json& supported,
                         const std::string& why) const {
  if (!has(key) || json_.at(key) == supported) return;
  fail(key, fmt::format("found {}, which Furlong does not support; expected {}: {}", shown(json_.at(key)),
                        shown(supported), why));
}

Activation ForeignConfig::activation(const std::string& key, const std::string& fallback, bool gated) const {
  const std::string name = text(key, fallback);
  std::vector<std::string> known;
  for (const ActivationName& one : activation_names) {
    const std::optional<Activation> ours = gated ? one.gated : one.ours;
    if (ours && name == one.theirs) return *ours;
    if (ours) known.emplace_back(one.theirs);
  }
  fail(key, fmt::format("found {}; expected one of {}", foreign::printable(name), fmt::join(known, ", ")));
}

std::string foreign_activation(Activation activation) {
  for (const ActivationName& one : activation_names) {
    if (activation == one.ours || activation == one.gated) return one.theirs;
  }
  return {};
}

}  // namespace furlong
