#include "framework/config/scalar.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>

#include "framework/config/nearest.h"
#include "framework/core/error.h"
#include "framework/core/json_output.h"

namespace furlong::config {
namespace {

using namespace std::string_literals;

bool is_quoted(const YAML::Node& node) { return node.Tag() == "!"; }

[[noreturn]] void mistake(const Key& key, const YAML::Node& node, const YamlSource& source,
                          const std::string& hint = "", const std::string& expected = "") {
  throw UserError("{}: {}: found {}; expected {}{}{}", source.at(node.Mark()).text(), key.path(), describe(node),
                  expected.empty() ? key.expected() : expected, hint.empty() ? "" : "; ", hint);
}

// YAML 1.2 has more number formats (octal, hexadecimal, .inf, .nan); none is a deliberate way to write a setting.
bool is_decimal(const std::string& text) {
  static const std::regex form(R"([-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?)");
  return text.size() < 100 && std::regex_match(text, form);
}

bool has_leading_zero(const std::string& text) {
  static const std::regex form("[-+]?0[0-9].*");
  return std::regex_match(text, form);
}

std::string number_hint(const YAML::Node& node) {
  const std::string& text = node.Scalar();
  if (text.size() > 100) return "";  // std::regex recurses per character
  if (is_quoted(node)) return is_decimal(text) ? "remove the quotes" : "";
  if (text.find("${") != std::string::npos) return "environment variables are expanded in paths only";
  if (has_leading_zero(text)) return "remove the leading zero, which some YAML parsers read as octal";
  static const std::regex separated("[-+]?[0-9]{1,3}([_,' ][0-9]{3})+"), comma("[-+]?[0-9]+,[0-9]+"),
      prefixed("[-+]?0[xXoObB][0-9a-fA-F]+"), special(R"([-+]?\.?(inf|infinity|nan))", std::regex::icase),
      suffixed(R"([-+]?[0-9.]+ ?([kKmMgG]i?[bB]?|%))");
  if (std::regex_match(text, comma)) return "write a point for decimals, and no separators";
  if (std::regex_match(text, separated)) return "write the digits without separators";
  if (std::regex_match(text, prefixed)) return "write it in decimal";
  if (std::regex_match(text, special)) return "it must be finite";
  if (std::regex_match(text, suffixed)) return "write the number out, without a suffix (1e6 is a million)";
  return "";
}

double parse_number(const Key& key, const YAML::Node& node, const YamlSource& source) {
  std::string text = node.Scalar();
  if (is_quoted(node) || !is_decimal(text) || has_leading_zero(text)) mistake(key, node, source, number_hint(node));
  if (text.front() == '+') text.erase(0, 1);  // from_chars accepts no plus sign
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(number))
    mistake(key, node, source, "it does not fit a 64-bit floating-point number");
  return number;
}

std::int64_t parse_integer(const Key& key, const YAML::Node& node, const YamlSource& source) {
  std::string text = node.Scalar();
  const double number = parse_number(key, node, source);
  if (text.front() == '+') text.erase(0, 1);
  std::int64_t integer = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), integer);
  if (error == std::errc() && end == text.data() + text.size()) return integer;
  if (error == std::errc::result_out_of_range) mistake(key, node, source, "it does not fit a 64-bit integer");
  if (number != std::floor(number)) mistake(key, node, source);
  if (std::abs(number) > 0x1p53) mistake(key, node, source, "write all digits: above 2^53 this form is not exact");
  return static_cast<std::int64_t>(number);
}

bool parse_boolean(const Key& key, const YAML::Node& node, const YamlSource& source) {
  const std::string& text = node.Scalar();
  if (!is_quoted(node) && text == "true") return true;
  if (!is_quoted(node) && text == "false") return false;
  static const std::regex yes("yes|on|y|true|1", std::regex::icase), no("no|off|n|false|0", std::regex::icase);
  mistake(key, node, source,
          std::regex_match(text, yes)  ? "write true"
          : std::regex_match(text, no) ? "write false"
                                       : "");
}

std::vector<std::string> parse_list(const Key& key, const YAML::Node& node, const YamlSource& source) {
  if (!node.IsSequence())
    mistake(key, node, source, node.IsScalar() ? fmt::format("write [{}]", text_in_yaml(node.Scalar())) : "");
  constexpr std::size_t max_list_bytes = std::size_t{16} << 20;
  std::size_t bytes = 0;
  std::vector<std::string> items;
  for (const auto& item : node) {
    if (!item.IsScalar()) mistake(key, item, source, "", "text as an item of the list");
    source.check_quotes(item);
    bytes += item.Scalar().size();  // aliases repeat what the file has once
    if (bytes > max_list_bytes)
      throw UserError("{}: {}: a list of more than {} MiB of text", source.at(node.Mark()).text(), key.path(),
                      max_list_bytes >> 20);
    items.push_back(item.Scalar());
  }
  return items;
}

std::vector<Item> parse_items(const Key& key, const YAML::Node& node, const YamlSource& source) {
  if (!node.IsSequence()) mistake(key, node, source);
  std::vector<Item> items;
  for (const auto& map : node) {
    if (!map.IsMap()) mistake(key, map, source, "", "a map with " + join(key.field_names(), " and "));
    Item item;
    for (const auto& field : map) {
      const std::string name = field.first.IsScalar() ? field.first.Scalar() : describe(field.first);
      const auto refuse = [&](const std::string& what) {
        throw UserError("{}: {}: {}; expected {}", source.at(field.first.Mark()).text(), key.path(), what,
                        join(key.field_names(), " and "));
      };
      if (std::find(key.field_names().begin(), key.field_names().end(), name) == key.field_names().end())
        refuse("unknown field " + name);
      if (!field.second.IsScalar() || field.second.Scalar().empty())
        refuse(fmt::format("found {} for {}", describe(field.second), name));
      source.check_quotes(field.second);
      if (!item.emplace(name, field.second.Scalar()).second) refuse(name + " is set twice");
    }
    for (const std::string& name : key.field_names())
      if (!item.contains(name))
        throw UserError("{}: {}: {} is missing; expected {}", source.at(map.Mark()).text(), key.path(), name,
                        join(key.field_names(), " and "));
    items.push_back(std::move(item));
  }
  return items;
}

std::string choice_hint(const Key& key, const YAML::Node& node) {
  if (const std::string hint = key.hint_for(node.Scalar()); !hint.empty()) return hint;
  if (key.choices().size() == 1) return "";  // the message names the one choice
  const std::string close = nearest(node.Scalar(), key.choices());
  return close.empty() ? "" : fmt::format("did you mean {}?", close);
}

bool is_variable_name(const std::string& name) {
  const auto is_part = [](unsigned char c) { return c == '_' || (c < 0x80 && std::isalnum(c)); };
  return !name.empty() && std::all_of(name.begin(), name.end(), is_part) && !(name[0] >= '0' && name[0] <= '9');
}

}  // namespace

std::string describe(const YAML::Node& node) {
  if (!node.IsDefined() || node.IsNull()) return "nothing";
  if (node.IsMap()) return "a section (key: value)";
  if (node.IsSequence()) return "a list";
  std::string text = node.Scalar();
  if (text.size() > 60) {
    std::size_t cut = 57;
    while (cut > 0 && (text[cut] & 0xC0) == 0x80) --cut;  // not inside a UTF-8 character
    text = text.substr(0, cut) + "...";
  }
  const bool plain = !is_quoted(node) && text.find_first_of("\n\r\t") == std::string::npos;
  return plain ? text : "the text " + json_line(nlohmann::json(text));
}

Value parse_value(const Key& key, const YAML::Node& node, const YamlSource& source) {
  if (node.IsNull()) return std::monostate{};
  if (!node.Tag().empty() && node.Tag() != "?" && node.Tag() != "!")
    throw UserError("{}: {}: found the tag {}; expected {} without a tag", source.at(node.Mark()).text(), key.path(),
                    std::regex_replace(node.Tag(), std::regex("^tag:yaml.org,2002:"), "!!"), key.expected());
  if (key.holds<std::vector<std::string>>()) return parse_list(key, node, source);
  if (key.holds<std::vector<Item>>()) return parse_items(key, node, source);
  if (!node.IsScalar()) mistake(key, node, source);
  source.check_quotes(node);
  Value value = node.Scalar();
  if (key.holds<std::int64_t>()) value = parse_integer(key, node, source);
  if (key.holds<double>()) value = parse_number(key, node, source);
  if (key.holds<bool>()) value = parse_boolean(key, node, source);
  if (!key.accepts(value)) mistake(key, node, source, choice_hint(key, node));
  return value;
}

std::string expand_path(const std::string& text, const std::string& where) {
  const auto variable = [&](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value && *value ? std::optional<std::string>(value) : std::nullopt;
  };
  std::string out;
  std::size_t i = 0;
  if (text.starts_with("~/")) {
    const auto home = variable("HOME");
    if (!home)
      throw UserError(
          "{}: found ~/ in the path {}, but the environment variable HOME is not set; write the path in full", where,
          text);
    out = *home, i = 1;
  }
  while (i < text.size()) {
    if (text[i] != '$') {
      out += text[i++];
      continue;
    }
    if (text.compare(i, 2, "$$") == 0) {
      out += '$', i += 2;
      continue;
    }
    const auto close = text.find('}', i);
    const std::string inside =
        text.compare(i, 2, "${") == 0 && close != std::string::npos ? text.substr(i + 2, close - i - 2) : "";
    const auto split = inside.find(":-");
    const std::string name = inside.substr(0, split);
    if (!is_variable_name(name))
      throw UserError(
          "{}: found a '$' in the path {} that does not start a variable; expected ${{NAME}} or ${{NAME:-default}} ($$ "
          "is a dollar sign)",
          where, text);
    const auto value = variable(name);
    const std::string standard = split == std::string::npos ? "" : inside.substr(split + 2);
    if (standard.starts_with('~') || standard.find('$') != std::string::npos)
      throw UserError(
          "{}: the default of {} in the path {} has a '$', or a '~' in front, which are not replaced there; "
          "write it in full",
          where, name, text);
    if (!value && split == std::string::npos)
      throw UserError("{}: the environment variable {} in the path {} is not set; set it, or write ${{{}:-default}}",
                      where, name, text, name);
    out += value.value_or(standard);
    i = close + 1;
  }
  return out;
}

}  // namespace furlong::config
