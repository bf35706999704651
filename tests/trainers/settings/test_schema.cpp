// The JSON schema that editors check configs with accepts what the program accepts.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>

#include "trainers/settings/settings.h"

namespace furlong {
namespace {

using Json = nlohmann::ordered_json;

/// A scalar without quotes, as YAML 1.2's core schema reads it.
Json scalar(const YAML::Node& node) {
  const std::string& text = node.Scalar();
  if (node.Tag() == "!") return text;  // quoted
  if (text.empty() || text == "null" || text == "~") return nullptr;
  if (text == "true" || text == "false") return text == "true";
  const auto number = [&](auto value) -> Json {
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
    return failure == std::errc() && end == text.data() + text.size() ? Json(value) : Json();
  };
  if (Json integer = number(std::int64_t{0}); !integer.is_null()) return integer;
  if (Json real = number(0.0); !real.is_null()) return real;
  return text;
}

Json json_of(const YAML::Node& node) {
  if (node.IsNull()) return nullptr;
  if (node.IsScalar()) return scalar(node);
  Json made = node.IsMap() ? Json::object() : Json::array();
  for (const auto& child : node)
    node.IsMap() ? void(made[child.first.Scalar()] = json_of(child.second)) : made.push_back(json_of(child));
  return made;
}

bool has_type(const Json& value, const std::string& type) {
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  return value.type_name() == type;  // object, array, string, boolean, null
}

/// Checks a value by the words of JSON schema (draft 7) that the program's schema uses. Throws for other words.
bool holds(const Json& schema, const Json& value) {
  if (schema.is_boolean()) return schema;
  const auto all = [&](const Json& several) {
    return std::all_of(several.begin(), several.end(), [&](const Json& one) { return holds(one, value); });
  };
  for (const auto& [word, rule] : schema.items()) {
    bool kept = true;
    if (word == "type") {
      const Json types = rule.is_array() ? rule : Json::array({rule});
      kept = std::any_of(types.begin(), types.end(), [&](const Json& type) { return has_type(value, type); });
    } else if (word == "properties") {
      for (const auto& [key, inner] : rule.items())
        kept = kept && (!value.is_object() || !value.contains(key) || holds(inner, value[key]));
    } else if (word == "additionalProperties") {
      for (const auto& [key, inner] : value.items()) kept = kept && (rule || schema["properties"].contains(key));
    } else if (word == "required") {
      for (const Json& key : rule) kept = kept && (!value.is_object() || value.contains(key.get<std::string>()));
    } else if (word == "items") {
      for (const Json& item : value) kept = kept && (!value.is_array() || holds(rule, item));
    } else if (word == "enum") {
      kept = std::find(rule.begin(), rule.end(), value) != rule.end();
    } else if (word == "const") {
      kept = value == rule;
    } else if (word == "pattern") {
      kept = !value.is_string() || std::regex_search(value.get<std::string>(), std::regex(rule.get<std::string>()));
    } else if (word == "minimum" || word == "exclusiveMinimum" || word == "maximum" || word == "exclusiveMaximum") {
      const double bound = rule, number = value.is_number() ? value.get<double>() : bound;
      kept = !value.is_number() || (word == "minimum"            ? number >= bound
                                    : word == "maximum"          ? number <= bound
                                    : word == "exclusiveMinimum" ? number > bound
                                                                 : number < bound);
    } else if (word == "anyOf") {
      kept = std::any_of(rule.begin(), rule.end(), [&](const Json& one) { return holds(one, value); });
    } else if (word == "allOf") {
      kept = all(rule);
    } else if (word == "not") {
      kept = !holds(rule, value);
    } else if (word == "if") {
      kept = !holds(rule, value) || holds(schema["then"], value);
    } else if (word != "then" && word != "$schema" && word != "title" && word != "description" && word != "default") {
      throw std::runtime_error("the test does not know the word " + word);
    }
    if (!kept) return false;
  }
  return true;
}

bool accepted(const std::string& yaml) {
  static const Json schema = json_schema();
  return holds(schema, json_of(YAML::Load(yaml)));
}

TEST(Schema, AcceptsEveryConfigOfTheProject) {
  int n_configs = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(FURLONG_SOURCE_DIR "/configs")) {
    if (entry.path().extension() != ".yaml") continue;
    static const Json schema = json_schema();
    EXPECT_TRUE(holds(schema, json_of(YAML::LoadFile(entry.path().string())))) << entry.path();
    ++n_configs;
  }
  EXPECT_GT(n_configs, 20);
}

TEST(Schema, AcceptsSmallConfigsAndRefusesMistakes) {
  for (const char* yaml :
       {"data: {dataset: d.h5}", "data: {dataset: d.h5}\nrun_directory: 2027", "data: {task: copy}",
        "data:\n  dataset: d.h5\nmodel:\n", "include: base.yaml",
        "data: {dataset: d.h5}\nteacher: {loss: distillation, checkpoint: runs/teacher}",
        "data: {dataset: d.h5}\nfinetune: {source: runs/a, stages: [task], benchmark_lengths: [128, 1k]}"})
    EXPECT_TRUE(accepted(yaml)) << yaml;
  for (const char* yaml :
       {"model: {n_layers: 2}", "data: {dataset: d.h5, datasets: e.h5}",
        "data: {dataset: d.h5}\nmodel: {n_layers: two}", "data: {dataset: d.h5}\nmodel: {n_layers: -1}",
        "data: {dataset: d.h5}\nmodel: {attention: {mechanism: lineer}}", "data: {dataset: d.h5}\nmodel: {dropout: 1}",
        "data: {dataset: [d.h5]}"})
    EXPECT_FALSE(accepted(yaml)) << yaml;
}

}  // namespace
}  // namespace furlong
