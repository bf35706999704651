#include "framework/config/writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

namespace furlong::config {
namespace {

using Json = nlohmann::ordered_json;

std::vector<std::string> words(const std::string& path) {
  std::vector<std::string> parts;
  std::istringstream stream(path);
  for (std::string part; std::getline(stream, part, '.');) parts.push_back(part);
  return parts;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

// Returns a key's value with $$ for each dollar sign in paths: reading YAML expands them.
Value escaped(const Key& key) {
  Value value = key.get();
  if (key.holds<std::filesystem::path>()) value = replaced(std::get<std::string>(value), "$", "$$");
  if (auto* items = std::get_if<std::vector<Item>>(&value))
    for (Item& item : *items)
      for (auto& [name, text] : item) text = replaced(text, "$", "$$");
  return value;
}

std::string condition_text(const Table& table, const Condition& condition) {
  const Key* key = table.find(condition.key);
  const char* something = key && key->is_number() ? " above 0" : "";
  std::string text = condition.key + (condition.values.empty() ? something : ": " + join(condition.values, " or "));
  if (!condition.or_key.empty())
    text += fmt::format(", or {}: {}", condition.or_key, join(condition.or_values, " or "));
  return text;
}

std::string comment(const Key& key) {
  std::string text = key.meaning();
  if (!key.unit().empty()) text += "; in " + key.unit();
  if (!key.zero_meaning().empty()) text += "; 0: " + key.zero_meaning();
  return text;
}

Json json_value(const Value& value) {
  if (const auto* items = std::get_if<std::vector<Item>>(&value)) {
    Json array = Json::array();
    for (const Item& item : *items) {
      Json& object = array.emplace_back(Json::object());
      for (const auto& [name, text] : item) {
        const std::optional<double> number = number_in(text);
        object[name] = number ? Json(*number) : Json(text);
      }
    }
    return array;
  }
  return std::visit(
      [](const auto& v) -> Json {
        if constexpr (std::is_same_v<std::decay_t<decltype(v)>, std::monostate>)
          return nullptr;
        else
          return v;
      },
      value);
}

// Returns text as lines of Markdown of at most 100 columns. A lone sign stays at the end of its line, because at the
// start Markdown reads it as a list.
std::string markdown_lines(const std::string& text) {
  constexpr std::ptrdiff_t max_columns = 100;
  std::string out;
  std::ptrdiff_t column = 0;
  std::istringstream stream(replaced(text, "<", "\\<"));
  for (std::string word; stream >> word;) {
    const auto columns =
        std::count_if(word.begin(), word.end(), [](unsigned char byte) { return (byte & 0xc0U) != 0x80U; });
    const bool is_sign = word.size() == 1 && std::ispunct(static_cast<unsigned char>(word[0]));
    const bool breaks = column > 0 && column + 1 + columns > max_columns && !is_sign;
    if (column > 0) out += breaks ? '\n' : ' ';
    out += word;
    column = (breaks || column == 0 ? 0 : column + 1) + columns;
  }
  return out + '\n';
}

std::string allowed_values(const Key& key) {
  if (!key.choices().empty()) return fmt::format("one of `{}`", join(key.choices(), "`, `"));
  const std::string range = key.range();
  return key.zero_meaning().empty()
             ? range
             : fmt::format("0 = {}{}{}", key.zero_meaning(), range.empty() ? "" : "; else ", range);
}

std::string meaning_and_conditions(const Table& table, const Key& key) {
  std::string text = key.meaning();
  std::vector<std::string> needs;
  for (const auto& condition : key.conditions()) needs.push_back(fmt::format("`{}`", condition_text(table, condition)));
  if (!needs.empty()) text += fmt::format("; only with {}", join(needs, " and "));
  return text;
}

// Returns an entry for each key of a section: a heading, type and values, and the meaning.
std::string key_entries(const Table& table, const std::string& section) {
  std::string out;
  for (const auto& key : table.keys()) {
    if (key.section() != section) continue;
    std::string facts = key.type();
    if (!key.unit().empty()) facts += " in " + key.unit();
    facts += key.is_required() ? ", required" : fmt::format(", default `{}`", to_text(key.get()));
    if (!key.alternative().empty()) facts += fmt::format(" unless `{}` is set", key.alternative());
    const std::string allowed = allowed_values(key);
    if (!allowed.empty()) facts += "; " + allowed;
    out += fmt::format("\n### {}\n\n{}\n{}", key.path(), markdown_lines(facts),
                       markdown_lines(meaning_and_conditions(table, key)));
  }
  return out;
}

Json item_schema(const Key& key) {
  Json schema{{"type", "object"}, {"additionalProperties", false}, {"required", key.field_names()}};
  for (const std::string& name : key.field_names()) schema["properties"][name] = {{"type", {"string", "number"}}};
  return schema;
}

Json key_schema(const Key& key) {
  Json schema;
  const Json text{"string", "number"};  // a name or a path can consist of digits
  if (key.holds<std::int64_t>())
    schema["type"] = "integer";
  else if (key.holds<double>())
    schema["type"] = "number";
  else if (key.holds<bool>())
    schema["type"] = "boolean";
  else if (key.holds<std::vector<std::string>>())
    schema["type"] = "array", schema["items"] = {{"type", text}};
  else if (key.holds<std::vector<Item>>())
    schema["type"] = "array", schema["items"] = item_schema(key);
  else
    schema["type"] = text;
  if (!key.pattern().empty())
    schema["pattern"] = "^(" + key.pattern() + ")$";
  else if (!key.choices().empty())
    schema["enum"] = key.choices();
  Json range = Json::object();
  const auto bound = [&](double value) {
    return key.holds<std::int64_t>() ? Json(static_cast<std::int64_t>(value)) : Json(value);
  };
  if (std::isfinite(key.lowest())) range[key.lowest_excluded() ? "exclusiveMinimum" : "minimum"] = bound(key.lowest());
  if (std::isfinite(key.highest()))
    range[key.highest_excluded() ? "exclusiveMaximum" : "maximum"] = bound(key.highest());
  if (!range.empty() && !key.zero_meaning().empty())
    schema["anyOf"] = {{{"const", 0}}, range};
  else
    schema.update(range);
  if (!key.is_required()) schema["default"] = json_value(key.get());
  schema["description"] = comment(key) + (key.is_required() ? " (required)" : "");
  return schema;
}

/// Returns a schema that requires the key of this path.
Json with_key(const std::string& path) {
  Json needed = Json::object();
  Json* object = &needed;
  for (const auto& word : words(path)) {
    if (object != &needed) *object = Json::object();
    (*object)["required"].push_back(word);
    object = &(*object)["properties"][word];
  }
  if (object != &needed) *object = true;
  return needed;
}

Json& object_at(Json& root, const std::string& section, bool as_schema) {
  Json* object = &root;
  for (const auto& word : words(section)) object = as_schema ? &(*object)["properties"][word] : &(*object)[word];
  return *object;
}

}  // namespace

std::string to_yaml(const Table& table, bool comments, const Origins* only) {
  std::string out;
  std::vector<std::string> open;  // section of the preceding lines
  for (const auto& key : table.keys()) {
    const Condition* unmet = table.unmet(key);
    if (only && (unmet || !only->contains(key.path()))) continue;
    const auto section = words(key.section());
    std::size_t shared = 0;
    while (shared < std::min(open.size(), section.size()) && open[shared] == section[shared]) ++shared;
    for (std::size_t depth = shared; depth < section.size(); ++depth)
      out += std::string(2 * depth, ' ') + section[depth] + ":\n";
    open = section;
    out += std::string(2 * section.size(), ' ') + (unmet ? "# " : "") + key.name() + ": " + to_text(escaped(key));
    if (unmet)
      out += "  # requires " + condition_text(table, *unmet);
    else if (comments)
      out += "  # " + comment(key);
    out += '\n';
  }
  return out;
}

Json to_json(const Table& table, const Origins* only) {
  Json root = Json::object();
  for (const auto& key : table.keys()) {
    if (table.unmet(key) || (only && !only->contains(key.path()))) continue;
    object_at(root, key.section(), false)[key.name()] = json_value(key.get());
  }
  return root;
}

Json json_schema(const Table& table, const std::string& title) {
  Json root = {{"$schema", "http://json-schema.org/draft-07/schema#"},
               {"title", title},
               {"type", "object"},
               {"additionalProperties", false},
               {"properties", Json::object()}};
  const Json file = {{"type", "string"}};
  root["properties"]["include"] = {
      {"description", "other files whose keys this file adds to and overrides, relative to this file"},
      {"anyOf", {file, {{"type", "array"}, {"items", file}}}}};
  for (const auto& section : table.sections()) {
    Json& object = object_at(root, section.path, true);
    // A section header without keys parses as an empty section.
    object = {{"type", {"object", "null"}},
              {"description", section.meaning},
              {"additionalProperties", false},
              {"properties", Json::object()}};
  }
  Json needed = Json::array();  // keys required in a file without includes
  for (const auto& key : table.keys()) {
    object_at(root, key.section(), true)["properties"][key.name()] = key_schema(key);
    if (!key.is_required() || table.unmet(key)) continue;  // the others depend on settings that are off by default
    // Or the file sets a key on which the required one depends, and may not need it.
    Json alternatives = {with_key(key.path())};
    for (const auto& condition : key.conditions()) alternatives.push_back(with_key(condition.key));
    if (!key.alternative().empty()) alternatives.push_back(with_key(key.alternative()));
    needed.push_back({{"anyOf", alternatives}});
  }
  if (!needed.empty()) root["if"] = {{"not", {{"required", {"include"}}}}}, root["then"] = {{"allOf", needed}};
  return root;
}

std::string reference_markdown(const Table& table) {
  std::string out = "## Top level\n" + key_entries(table, "");
  for (const auto& section : table.sections()) {
    std::string meaning = section.meaning + '.';
    meaning[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(meaning[0])));
    out += fmt::format("\n## {}\n\n{}{}", section.path, markdown_lines(meaning), key_entries(table, section.path));
  }
  return out;
}

}  // namespace furlong::config
