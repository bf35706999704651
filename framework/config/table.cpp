#include "framework/config/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "framework/core/error.h"
#include "framework/core/lower_case.h"
#include "framework/core/printable.h"

namespace furlong::config {

std::string Place::text() const { return line > 0 ? fmt::format("{}:{}:{}", source, line, column) : source; }

std::string join(const std::vector<std::string>& parts, const std::string& separator) {
  std::string out;
  for (const auto& part : parts) {
    if (&part != parts.data()) out += separator;
    out += part;
  }
  return out;
}

std::string text_in_yaml(const std::string& text) {
  static const std::set<std::string> other_meaning = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"};
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  const auto is_plain = [&](char c) {
    return is_letter(c) || (c >= '0' && c <= '9') || c == '.' || c == '/' || c == '-';
  };
  const bool plain = !text.empty() && is_letter(text[0]) && std::all_of(text.begin(), text.end(), is_plain) &&
                     !other_meaning.contains(lower_case(text));
  if (plain) return text;
  if (!foreign::is_utf8(text))
    throw UserError("'{}' is not UTF-8 text, as a config must be; rename the file or folder", foreign::printable(text));
  return nlohmann::json(text).dump();  // JSON strings are valid double-quoted YAML
}

std::optional<double> number_in(const std::string& text) {
  const std::size_t digits = text.starts_with('-') ? 1 : 0;  // some YAML parsers read 010 as octal
  if (text.size() > digits + 1 && text[digits] == '0' && text[digits + 1] >= '0' && text[digits + 1] <= '9') return {};
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || rest != end || !std::isfinite(number)) return {};
  return number;
}

std::string to_text(const Value& value) {
  struct Visitor {
    std::string operator()(std::monostate) const { return "null"; }
    std::string operator()(std::int64_t v) const { return fmt::format("{}", v); }
    std::string operator()(double v) const {
      return fmt::format("{}", v);
    }  // the shortest text that parses to the same value
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(const std::string& v) const { return text_in_yaml(v); }
    std::string operator()(const std::vector<std::string>& v) const {
      std::vector<std::string> items;
      for (const auto& item : v) items.push_back(text_in_yaml(item));
      return fmt::format("[{}]", join(items, ", "));
    }
    std::string operator()(const std::vector<Item>& v) const {
      std::vector<std::string> items;
      for (const Item& item : v) {
        std::vector<std::string> fields;
        for (const auto& [name, text] : item)
          fields.push_back(name + ": " + (number_in(text) ? text : text_in_yaml(text)));
        items.push_back("{" + join(fields, ", ") + "}");
      }
      return fmt::format("[{}]", join(items, ", "));
    }
  };
  return std::visit(Visitor{}, value);
}

std::vector<std::string> Choice::names() const {
  std::vector<std::string> names;
  for (const auto& [value, name] : names_) names.push_back(name);
  return names;
}

std::string Choice::get() const {
  for (const auto& [value, name] : names_)
    if (value == *value_) return name;
  throw ContractError("value {} is not one of {}", *value_, join(names(), ", "));
}

void Choice::set(const std::string& name) const {
  for (const auto& [value, its_name] : names_)
    if (name == its_name) return void(*value_ = value);
  throw ContractError("'{}' is not one of {}", name, join(names(), ", "));
}

Key::Key(std::string path, Target target, std::string unit, std::string meaning)
    : path_(std::move(path)), target_(std::move(target)), unit_(std::move(unit)), meaning_(std::move(meaning)) {
  if (const auto* choice = std::get_if<Choice>(&target_)) choices_ = choice->names();
}

Key& Key::within(double lowest, double highest) { return lowest_ = lowest, highest_ = highest, *this; }
Key& Key::at_least(double bound) { return lowest_ = bound, *this; }
Key& Key::above(double bound) { return lowest_ = bound, lowest_excluded_ = true, *this; }
Key& Key::below(double bound) { return highest_ = bound, highest_excluded_ = true, *this; }
Key& Key::zero_means(std::string what) { return zero_meaning_ = std::move(what), *this; }
Key& Key::one_of(std::vector<std::string> names) { return choices_ = std::move(names), *this; }
Key& Key::required(std::string alternative) { return required_ = true, alternative_ = std::move(alternative), *this; }
Key& Key::fields(std::vector<std::string> names) { return fields_ = std::move(names), *this; }
Key& Key::elsewhere(std::vector<std::string> names) { return names_elsewhere_ = std::move(names), *this; }

Key& Key::choice_hint(std::function<std::string(const std::string&)> hint) {
  return choice_hint_ = std::move(hint), *this;
}

Key& Key::like(std::string pattern, std::vector<std::string> forms) {
  pattern_ = std::move(pattern);
  return one_of(std::move(forms));
}

Key& Key::only_with(std::string key, std::vector<std::string> values) {
  conditions_.push_back({std::move(key), std::move(values)});
  return *this;
}

Key& Key::or_in_lists(std::vector<std::string> keys) {
  require(!conditions_.empty(), "{}: or_in_lists() requires a condition", path_);
  conditions_.back().lists = std::move(keys);
  return *this;
}

Key& Key::or_with(std::string key, std::vector<std::string> values) {
  require(!conditions_.empty(), "{}: or_with() requires a condition", path_);
  conditions_.back().or_key = std::move(key);
  conditions_.back().or_values = std::move(values);
  return *this;
}

std::string Key::section() const {
  const auto dot = path_.rfind('.');
  return dot == std::string::npos ? "" : path_.substr(0, dot);
}

std::string Key::name() const {
  const auto dot = path_.rfind('.');
  return dot == std::string::npos ? path_ : path_.substr(dot + 1);
}

std::string Key::type() const {
  if (holds<std::int64_t>()) return "integer";
  if (holds<double>()) return "number";
  if (holds<bool>()) return "boolean";
  if (holds<std::filesystem::path>()) return "path";
  if (is_text()) return choices_.empty() ? "string" : "choice";
  return holds<std::vector<Item>>() ? "list of maps" : "list of strings";
}

namespace {
// Returns a bound as messages show it: 4096, 1e6, 1e12.
std::string bound_text(double bound) {
  std::string text = std::abs(bound) < 1e6 ? fmt::format("{}", bound) : fmt::format("{:g}", bound);
  if (const auto plus = text.find("e+"); plus != std::string::npos) text.erase(plus + 1, text[plus + 2] == '0' ? 2 : 1);
  return text;
}
}  // namespace

std::string Key::range() const {
  const bool low = std::isfinite(lowest_), high = std::isfinite(highest_);
  if (low && high && !lowest_excluded_ && !highest_excluded_)
    return fmt::format("from {} to {}", bound_text(lowest_), bound_text(highest_));
  std::string text;
  if (low) text = fmt::format("{} {}", lowest_excluded_ ? "above" : "of at least", bound_text(lowest_));
  if (high)
    text +=
        fmt::format("{}{} {}", low ? " and " : "", highest_excluded_ ? "below" : "of at most", bound_text(highest_));
  return text;
}

std::string Key::expected() const {
  if (holds<bool>()) return "true or false";
  if (holds<std::filesystem::path>()) return "a path";
  if (holds<std::vector<std::string>>()) return "a list of strings";
  if (holds<std::vector<Item>>()) return "a list of maps with " + join(fields_, " and ");
  if (is_text())
    return choices_.empty() ? "text" : fmt::format("{}{}", choices_.size() > 1 ? "one of " : "", join(choices_, ", "));
  const std::string zero = zero_meaning_.empty() ? "" : fmt::format("0 ({}) or ", zero_meaning_);
  const std::string interval = range();
  return zero + (holds<std::int64_t>() ? "an integer" : "a number") + (interval.empty() ? "" : " " + interval);
}

Value Key::get() const {
  return std::visit(
      [](const auto& target) -> Value {
        using Target = std::decay_t<decltype(target)>;
        if constexpr (std::is_same_v<Target, std::filesystem::path*>)
          return target->string();
        else if constexpr (std::is_same_v<Target, Choice>)
          return target.get();
        else
          return *target;
      },
      target_);
}

void Key::set(const Value& value) const {
  const auto assign = [&](const auto& target, const auto& v) {
    using Target = std::decay_t<decltype(target)>;
    using Given = std::decay_t<decltype(v)>;
    if constexpr (std::is_same_v<Target, Choice> && std::is_same_v<Given, std::string>)
      target.set(v);
    else if constexpr (std::is_same_v<Target, Given*>)
      *target = v;
    else if constexpr (std::is_same_v<Target, std::filesystem::path*> && std::is_same_v<Given, std::string>)
      *target = v;
    else
      throw ContractError("{}: the value has another type than the key", path_);
  };
  std::visit(assign, target_, value);
}

bool Key::accepts(const Value& value) const {
  if (const auto* text = std::get_if<std::string>(&value)) {
    if (!pattern_.empty()) return std::regex_match(*text, std::regex(pattern_));
    return choices_.empty() || std::find(choices_.begin(), choices_.end(), *text) != choices_.end();
  }
  const auto* integer = std::get_if<std::int64_t>(&value);
  const auto* number = std::get_if<double>(&value);
  if (!integer && !number) return true;
  const double v = integer ? static_cast<double>(*integer) : *number;
  if (v == 0 && !zero_meaning_.empty()) return true;
  return (lowest_excluded_ ? v > lowest_ : v >= lowest_) && (highest_excluded_ ? v < highest_ : v <= highest_);
}

void Table::section(std::string path, std::string meaning) {
  sections_.push_back({std::move(path), std::move(meaning)});
}

Key& Table::key(std::string path, Key::Target target, std::string unit, std::string meaning) {
  require(!find(path), "the key {} is in the table twice", path);
  keys_.emplace_back(std::move(path), target, std::move(unit), std::move(meaning));
  const std::string section = keys_.back().section();
  require(section.empty() || is_section(section), "the key {} belongs to a section that was not declared",
          keys_.back().path());
  return keys_.back();
}

const Key* Table::find(const std::string& path) const {
  const auto it = std::find_if(keys_.begin(), keys_.end(), [&](const Key& key) { return key.path() == path; });
  return it == keys_.end() ? nullptr : &*it;
}

void Table::removed(std::string path, std::string ignored, std::string instead) {
  removed_.push_back({std::move(path), std::move(ignored), std::move(instead)});
}

const RemovedKey* Table::find_removed(const std::string& path) const {
  const auto it = std::find_if(removed_.begin(), removed_.end(), [&](const auto& key) { return key.path == path; });
  return it == removed_.end() ? nullptr : &*it;
}

void Table::renamed(std::string old_path, std::string path, std::vector<std::pair<std::string, std::string>> values) {
  require(find(path), "{} is the new name of {}, and no key", path, old_path);
  require(old_path == path || !find(old_path), "{} is a key, and cannot be an old name", old_path);
  renamings_.push_back({std::move(old_path), std::move(path), std::move(values)});
}

const Renaming* Table::find_renamed(const std::string& old_path) const {
  const auto it = std::find_if(renamings_.begin(), renamings_.end(),
                               [&](const Renaming& renaming) { return renaming.old_path == old_path; });
  return it == renamings_.end() ? nullptr : &*it;
}

bool Table::is_old_section(const std::string& path) const {
  return std::any_of(renamings_.begin(), renamings_.end(),
                     [&](const Renaming& renaming) { return renaming.old_path.starts_with(path + "."); });
}

bool Table::is_section(const std::string& path) const {
  return std::any_of(sections_.begin(), sections_.end(), [&](const Section& section) { return section.path == path; });
}

std::vector<std::string> Table::names_in(const std::string& section) const {
  std::vector<std::string> names;
  for (const auto& key : keys_)
    if (key.section() == section) names.push_back(key.name());
  for (const auto& [path, meaning] : sections_) {
    const auto dot = path.rfind('.');
    const std::string parent = dot == std::string::npos ? "" : path.substr(0, dot);
    if (parent == section) names.push_back(dot == std::string::npos ? path : path.substr(dot + 1));
  }
  return names;
}

namespace {
bool is_nothing(const Value& value) {
  return std::visit(
      [](const auto& v) {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::monostate>)
          return true;
        else if constexpr (std::is_arithmetic_v<T>)
          return v == T(0);
        else
          return v.empty();
      },
      value);
}
}  // namespace

bool Table::is_empty(const std::string& path) const {
  const Key* key = find(path);
  require(key, "{} is not in the table", path);
  return is_nothing(key->get());
}

const Key& Table::asked(const Condition& condition) const {
  const auto existing = [&](const std::string& path) -> const Key& {
    const Key* key = find(path);
    require(key, "a condition tests {}, which is not in the table", path);
    return *key;
  };
  for (const auto& list : condition.lists)
    if (const Key& key = existing(list); !is_nothing(key.get())) return key;
  return existing(condition.key);
}

const Condition* Table::unmet(const Key& key) const {
  for (const auto& condition : key.conditions()) {
    const Key* other = condition.or_key.empty() ? nullptr : find(condition.or_key);
    if (other && std::find(condition.or_values.begin(), condition.or_values.end(), to_text(other->get())) !=
                     condition.or_values.end())
      continue;
    const Value value = asked(condition).get();
    const auto allowed = [&](const std::string& text) {
      return std::find(condition.values.begin(), condition.values.end(), text) != condition.values.end();
    };
    if (condition.values.empty()) {
      if (is_nothing(value)) return &condition;
    } else if (const auto* list = std::get_if<std::vector<std::string>>(&value)) {
      const bool met = std::any_of(list->begin(), list->end(), [&](const std::string& element) {
        std::istringstream words(element);  // an element may be several names
        return std::any_of(std::istream_iterator<std::string>(words), {}, allowed);
      });
      if (!met) return &condition;
    } else if (!allowed(to_text(value))) {
      return &condition;
    }
  }
  return nullptr;
}

std::vector<std::string> Table::check_effects(const Table& defaults, const Origins& origins) const {
  std::vector<std::string> warnings;
  for (const auto& key : keys_) {
    const auto origin = origins.find(key.path());
    const Value value = key.get();
    const bool is_default = value == defaults.find(key.path())->get();
    // To switch off what is off is what happens anyway.
    const bool is_off = is_default && (value == Value(false) || (!key.zero_meaning().empty() && is_nothing(value)));
    const bool touched = (origin != origins.end() || !is_default) && !is_off;
    const Condition* condition = touched ? unmet(key) : nullptr;
    if (!condition) continue;
    const Place place = origin == origins.end() ? Place{} : origin->second;
    std::string needed = condition->values.empty() ? (asked(*condition).is_number() ? "above 0" : "a value")
                                                   : join(condition->values, " or ");
    if (!condition->or_key.empty())
      needed += fmt::format(", or {}: {}", condition->or_key, join(condition->or_values, " or "));
    std::string hint = "remove " + key.name();
    const std::string& asked_key = asked(*condition).path();
    const auto other = origins.find(asked_key);
    if (place.line > 0 && other != origins.end() && other->second.line == 0) {
      warnings.push_back(fmt::format("{}: {} has no effect with {}", place.text(), key.path(),
                                     cite(*this, origins, asked_key, place)));
      continue;
    }
    if (place.line > 0 && other != origins.end() && other->second.source != place.source)
      hint += fmt::format(", or unset it with {}: null", key.name());
    throw UserError("{}{} has no effect with {}; it requires {}: {}; {}",
                    place.source.empty() ? "" : place.text() + ": ", key.path(), cite(*this, origins, asked_key, place),
                    asked_key, needed, hint);
  }
  return warnings;
}

std::string cite(const Table& table, const Origins& origins, const std::string& key, const Place& from) {
  const Key* found = table.find(key);
  require(found, "no key {} in the table", key);
  const std::string text = fmt::format("{}: {}", key, foreign::single_line(to_text(found->get())));
  const auto origin = origins.find(key);
  if (origin == origins.end()) return text + " (the default)";
  const Place& place = origin->second;
  if (place.source != from.source) return fmt::format("{} ({})", text, place.text());
  if (place.line == from.line && place.column == from.column) return text;
  return fmt::format("{} (line {})", text, place.line);
}

}  // namespace furlong::config
