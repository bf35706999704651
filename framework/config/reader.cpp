#include "framework/config/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>

#include "framework/config/nearest.h"
#include "framework/config/scalar.h"
#include "framework/config/yaml_source.h"
#include "framework/core/error.h"
#include "framework/core/printable.h"

namespace furlong::config {
namespace {

struct Entry {
  Value value;
  Place place;
};
using Layer = std::map<std::string, Entry>;  // key path -> merged entry of one or several files

std::string joined(const std::string& section, const std::string& name) {
  return section.empty() ? name : section + "." + name;
}

// Returns the key that other programs call `name`, preferring keys of `section`; nullptr if there is none.
const Key* named_elsewhere(const Table& table, const std::string& section, const std::string& name) {
  const Key* ours = nullptr;
  for (const auto& key : table.keys()) {
    const auto& others = key.names_elsewhere();
    const bool matches = std::find(others.begin(), others.end(), name) != others.end();
    if (matches && (!ours || (ours->section() != section && key.section() == section))) ours = &key;
  }
  return ours;
}

// Returns the end of the error for an unknown key in a file: a suggestion.
std::string unknown_key_hint(const Table& table, const std::string& section, const std::string& name) {
  if (name == "<<") return "YAML's merge keys are not supported; use include: to share settings between files";
  if (table.find(name) || (section.empty() && name.find('.') != std::string::npos && table.is_section(name)))
    return name.find('.') == std::string::npos
               ? fmt::format("{} belongs at the top level, without indentation", name)
               : fmt::format("write {} under {}:, not joined by dots", name.substr(name.rfind('.') + 1),
                             name.substr(0, name.rfind('.')));
  if (name == "include") return "include: belongs at the top level, without indentation";
  if (const Key* ours = named_elsewhere(table, section, name))
    return fmt::format("did you mean {}?", ours->section() == section ? ours->name() : ours->path());
  std::vector<std::string> elsewhere;
  for (const auto& key : table.keys()) {
    if (key.name() == name) return fmt::format("did you mean {}? (indent it under {}:)", key.path(), key.section());
    elsewhere.push_back(key.name());
  }
  const auto siblings = table.names_in(section);
  if (const std::string close = nearest(name, siblings); !close.empty()) return fmt::format("did you mean {}?", close);
  if (table.is_section(name)) return fmt::format("the section {} belongs at the top level, without indentation", name);
  if (const std::string close = nearest(name, elsewhere); !close.empty())
    for (const auto& key : table.keys())
      if (key.name() == close) return fmt::format("did you mean {}?", key.path());
  return fmt::format("{} has {}", section.empty() ? "the top level" : section, join(siblings, ", "));
}

// As above for the path of a --set, where keys are known by their whole paths.
std::string unknown_override_hint(const Table& table, const std::string& path) {
  const auto dot = path.rfind('.');
  const std::string section = dot == std::string::npos ? "" : path.substr(0, dot),
                    name = path.substr(dot + 1);  // npos + 1 is 0
  std::vector<std::string> same_end, same_name, names;
  for (const auto& key : table.keys()) {
    if (key.path().ends_with("." + path)) same_end.push_back(key.path());
    if (key.name() == name) same_name.push_back(key.path());
    names.push_back(key.name());
  }
  // Among keys with that name, keep those of top-level sections rather than subsections.
  const auto depth = [](const std::string& key) { return std::count(key.begin(), key.end(), '.'); };
  const auto least = std::min_element(same_name.begin(), same_name.end(),
                                      [&](const auto& a, const auto& b) { return depth(a) < depth(b); });
  if (least != same_name.end())
    std::erase_if(same_name, [&, most = depth(*least)](const auto& key) { return depth(key) > most; });
  if (!same_end.empty()) return fmt::format("did you mean {}?", join(same_end, " or "));
  if (const Key* ours = named_elsewhere(table, section, name)) return fmt::format("did you mean {}?", ours->path());
  if (!same_name.empty()) return fmt::format("did you mean {}?", join(same_name, " or "));
  // Section and name are compared separately: in a long path, the edits that nearest() allows reach every short name.
  std::vector<std::string> sections;
  for (const auto& known : table.sections()) sections.push_back(known.path);
  const std::string own =
      section.empty() || table.is_section(section) ? section : nearest(section, sections);  // "" if none is close
  const auto siblings = table.names_in(own);
  if (const std::string close = nearest(name, siblings); !close.empty())
    return fmt::format("did you mean {}?", joined(own, close));
  if (const std::string close = nearest(name, names); !close.empty())
    for (const auto& key : table.keys())
      if (key.name() == close) return fmt::format("did you mean {}?", key.path());
  return fmt::format("{} has {}", own.empty() ? "the top level" : own, join(siblings, ", "));
}

// As YAML parsers read booleans: True, TRUE and true are one value.
bool equal_ignoring_case(const std::string& a, const std::string& b) {
  const auto lower = [](char c) { return std::tolower(static_cast<unsigned char>(c)); };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](char x, char y) { return lower(x) == lower(y); });
}

// Gives the node of a key the value's present name. Returns "old is now new" for what changed, or "".
std::string rename_values(const Renaming& renaming, YAML::Node node) {
  const auto rename = [&](YAML::Node item) -> std::string {
    if (!item.IsScalar()) return "";
    for (const auto& [old_value, value] : renaming.values) {
      if (!equal_ignoring_case(item.Scalar(), old_value)) continue;
      item = value;
      return fmt::format("{}: {} is now {}: {}", renaming.old_path, old_value, renaming.path, value);
    }
    return "";
  };
  if (!node.IsSequence()) return rename(node);
  std::string found;
  for (const auto& item : node)
    if (const std::string one = rename(item); found.empty()) found = one;
  return found;
}

// Reads an old name as the present one: returns the key's present path and reports what changed.
std::string present_path(const Table& table, const std::string& path, const YAML::Node& node, const Place& place,
                         std::vector<std::string>& renamed) {
  const Renaming* renaming = table.find_renamed(path);
  if (!renaming) return path;
  std::string change = rename_values(*renaming, node);
  if (change.empty() && renaming->path != path) change = fmt::format("{} is now {}", path, renaming->path);
  if (!change.empty()) renamed.push_back(fmt::format("{}: {}", place.text(), change));
  return renaming->path;
}

// Walks a parsed text and collects its keys; each value is checked where it is found.
class Collector {
 public:
  Collector(const Table& table, const YamlSource& source, std::vector<std::string>& renamed)
      : table_(table), source_(source), renamed_(renamed) {}

  // `included` receives the value of a top-level include:, which is not a key of the table.
  Layer collect(YAML::Node* included) {
    included_ = included;
    const YAML::Node& root = source_.root();
    if (root.IsScalar()) {
      const bool space_missing = root.Scalar().find(':') != std::string::npos;
      throw UserError("{}: found {}; expected keys and values{}", source_.at(root.Mark()).text(), describe(root),
                      space_missing ? "; write a space after the colon" : "");
    }
    if (root.IsSequence())
      throw UserError("{}: found a list; expected keys and values, such as 'seed: 1'", source_.at(root.Mark()).text());
    if (root.IsMap()) walk(root, "");
    return std::move(layer_);
  }

 private:
  void walk(const YAML::Node& map, const std::string& section) {
    std::map<std::string, Place> seen;  // yaml-cpp stores both of two equal keys and finds the first
    for (const auto& pair : map) {
      const Place place = source_.at(pair.first.Mark());
      if (!pair.first.IsScalar())
        throw UserError("{}: found {} as a key; expected a word", place.text(), describe(pair.first));
      source_.check_quotes(pair.first);
      const std::string& name = pair.first.Scalar();
      const auto [earlier, is_new] = seen.emplace(name, place);
      if (!is_new)
        throw UserError("{}: {} is set twice, first at line {}, column {}; remove one of the two", place.text(),
                        joined(section, name), earlier->second.line, earlier->second.column);
      if (section.empty() && name == "include" && included_)
        *included_ = pair.second;
      else
        take(section, name, pair.second, place);
    }
  }

  void take(const std::string& section, const std::string& name, const YAML::Node& node, const Place& place) {
    const std::string path = joined(section, name);
    const bool is_word = name.find('.') == std::string::npos;
    if (is_word && (table_.is_section(path) || table_.is_old_section(path))) {
      if (node.IsNull()) return;  // a heading whose keys are all commented out
      if (!node.IsMap()) {
        const bool space_missing = node.IsScalar() && node.Scalar().find(':') != std::string::npos;
        throw UserError("{}: {}: found {}; expected a section with keys and values{}", source_.at(node.Mark()).text(),
                        path, describe(node), space_missing ? "; write a space after the colon" : "");
      }
      walk(node, path);
      return;
    }
    const Place value_place = source_.at(node.Mark());  // a renamed value has no mark
    const std::string present = is_word ? present_path(table_, path, node, place, renamed_) : path;
    const Key* key = is_word ? table_.find(present) : nullptr;
    if (const RemovedKey* removed = key ? nullptr : table_.find_removed(path)) {
      if (node.IsScalar() && node.Scalar() == removed->ignored) return;
      throw UserError("{}: {}: found {}, but this key was removed; {}", place.text(), path, describe(node),
                      removed->instead);
    }
    if (!key)
      throw UserError("{}: unknown key {}; {}", place.text(), joined(section, foreign::printable(name)),
                      unknown_key_hint(table_, section, name));
    // In yaml-cpp a null has no position of its own: its mark is that of the next token.
    const auto [entry, is_new] =
        layer_.try_emplace(present, Entry{parse_value(*key, node, source_), node.IsNull() ? place : value_place});
    if (!is_new)
      throw UserError("{}: {} is set twice, under its old and its present name, also at {}; remove one of the two",
                      place.text(), present, entry->second.place.text());
  }

  const Table& table_;
  const YamlSource& source_;
  std::vector<std::string>& renamed_;
  YAML::Node* included_ = nullptr;
  Layer layer_;
};

// Merges `above` over `below`. A null unsets the value below; if there is none, a value was forgotten.
void merge(const Table& table, Layer& below, const Layer& above) {
  for (const auto& [path, entry] : above) {
    if (!std::holds_alternative<std::monostate>(entry.value))
      below[path] = entry;
    else if (below.erase(path) == 0)
      throw UserError("{}: {}: found no value; expected {}; give a value, or remove the key to use the default",
                      entry.place.text(), path, table.find(path)->expected());
  }
}

class FileReader {
 public:
  FileReader(const Table& table, Reading& reading) : table_(table), reading_(reading) {}

  Layer read(const std::filesystem::path& file, const std::string& from) {
    std::error_code code;
    auto identity = std::filesystem::weakly_canonical(file, code);
    if (code) identity = file;
    const auto open =
        std::find_if(open_.begin(), open_.end(), [&](const auto& entry) { return entry.first == identity; });
    if (open != open_.end()) {
      std::string way;
      for (auto it = open; it != open_.end(); ++it) way += it->second.string() + " -> ";
      throw UserError("{}the files include each other: {}{}; remove one of these includes", from, way,
                      open->second.string());
    }
    open_.emplace_back(identity, file);
    // Limits recursive includes.
    constexpr std::size_t most_files = 64;
    if (reading_.files.size() >= most_files)
      throw UserError("{}more than {} files are included; remove some of the includes", from, most_files);
    reading_.files.push_back(file);
    const YamlSource source(file.string(), read_config_file(file, from));
    YAML::Node included(YAML::NodeType::Null);
    const Layer own = Collector(table_, source, reading_.renamed).collect(&included);
    Layer merged;
    for (const auto& node : included_files(included, source)) {
      const std::string where = source.at(node.Mark()).text() + ": include";
      std::filesystem::path other = expand_path(node.Scalar(), where);
      if (other.is_relative()) other = (file.parent_path() / other).lexically_normal();
      merge(table_, merged, read(other, where + ": "));
    }
    merge(table_, merged, own);
    open_.pop_back();
    return merged;
  }

 private:
  static std::vector<YAML::Node> included_files(const YAML::Node& included, const YamlSource& source) {
    std::vector<YAML::Node> nodes;
    if (included.IsNull()) return nodes;
    if (included.IsSequence())
      for (const auto& node : included) nodes.push_back(node);
    else
      nodes.push_back(included);
    for (const auto& node : nodes) {
      if (!node.IsScalar() || node.Scalar().empty())
        throw UserError("{}: include: found {}; expected the path of a YAML file, or a list of such paths",
                        source.at(node.Mark()).text(), describe(node));
      source.check_quotes(node);
    }
    return nodes;
  }

  const Table& table_;
  Reading& reading_;
  std::vector<std::pair<std::filesystem::path, std::filesystem::path>>
      open_;  // files being read: canonical path, path as written
};

/// Throws UserError if YAML reads less than the whole text as a scalar without quotes: a comment, an anchor, a tag.
void check_plain_text(const YAML::Node& node, const std::string& text, const std::string& name) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n"), end = text.find_last_not_of(" \t\r\n");
  if (!node.IsScalar() || begin == std::string::npos || text[begin] == '\'' || text[begin] == '"') return;
  if (text.compare(begin, end + 1 - begin, node.Scalar()) != 0)
    throw UserError(
        "{}: YAML reads the value as '{}'; put it in quotes inside those of the shell: --set \"KEY='VALUE'\"", name,
        node.Scalar());
}

// `given` maps the present path of each key that earlier overrides set to the override's text.
void apply_override(const Table& table, Layer& layer, const std::string& override_text,
                    std::map<std::string, std::string>& given, std::vector<std::string>& renamed) {
  const std::string name = "--set " + override_text;
  const auto equals = override_text.find('=');
  if (equals == std::string::npos || equals == 0)
    throw UserError("{}: expected KEY=VALUE, such as --set trainer.max_steps=1000", name);
  const std::string text = override_text.substr(equals + 1);
  const YamlSource source(name, text, false);
  check_plain_text(source.root(), text, name);
  const std::string written = override_text.substr(0, equals),
                    path = present_path(table, written, source.root(), Place{name, 0, 0}, renamed);
  if (const auto [earlier, is_new] = given.try_emplace(path, override_text);
      !is_new && !earlier->second.starts_with(written + "="))
    throw UserError("{}: {} is set twice, under its old and its present name, also by --set {}; remove one of the two",
                    name, path, earlier->second);
  const Key* key = table.find(path);
  if (!key && table.is_section(path))
    throw UserError("{}: {} is a section; set one of its keys: {}", name, path, join(table.names_in(path), ", "));
  if (!key && path == "include")
    throw UserError("{}: include works in files only; expected a key such as trainer.max_steps", name);
  if (const RemovedKey* removed = key ? nullptr : table.find_removed(path))
    throw UserError("{}: {} was removed; {}", name, path, removed->instead);
  if (!key) throw UserError("{}: unknown key {}; {}", name, path, unknown_override_hint(table, path));
  const bool is_empty = source.root().IsNull() ? text.find_first_of("~nN") == std::string::npos
                                               : text.find_first_not_of(" \t") == std::string::npos;
  if (is_empty)
    throw UserError("{}: {}: found no value; expected {}; write null to use the default", name, path, key->expected());
  const Value value = parse_value(*key, source.root(), source);
  if (std::holds_alternative<std::monostate>(value))
    layer.erase(path);
  else
    layer[path] = {value, Place{name, 0, 0}};
}

void apply(const Table& table, Layer& layer, const std::string& name, const std::vector<std::string>& overrides,
           Reading& reading) {
  std::map<std::string, std::string> given;
  for (const auto& text : overrides) apply_override(table, layer, text, given, reading.renamed);
  for (const auto& key : table.keys()) {
    const auto it = layer.find(key.path());
    if (it == layer.end()) continue;
    auto& [value, place] = it->second;
    if (key.holds<std::filesystem::path>())
      value = expand_path(std::get<std::string>(value), place.text() + ": " + key.path());
    if (auto* items = std::get_if<std::vector<Item>>(&value))
      for (Item& item : *items)
        for (auto& [name, text] : item) text = expand_path(text, place.text() + ": " + key.path());
    key.set(value);
    reading.origins[key.path()] = place;
  }
  // After all keys are set, because a required key may have no effect, or an alternative.
  for (const auto& key : table.keys()) {
    const auto it = layer.find(key.path());
    if (!key.is_required() || (it != layer.end() && it->second.value != Value(std::string()))) continue;
    if (!key.alternative().empty() && !table.is_empty(key.alternative())) continue;
    if (it != layer.end())
      throw UserError("{}: {} is empty; expected {}: {}", it->second.place.text(), key.path(), key.expected(),
                      key.meaning());
    if (table.unmet(key)) continue;
    // An empty list instead of it, which perhaps unsets that of the file.
    if (const auto other = layer.find(key.alternative()); other != layer.end())
      throw UserError("{}: {} is empty; expected items, or {}", other->second.place.text(), key.alternative(),
                      key.path());
    throw UserError("{}: {} is missing; expected {}: {}; write it under {}:, or add --set {}=...", name, key.path(),
                    key.expected(), key.meaning(), key.section(), key.path());
  }
}

/// Returns the text that expand_path() expands to `path`, in which only $$ stands for another text.
std::string escaped_path(const std::string& path) {
  std::string out = path.starts_with("~/") ? "./" : "";
  for (std::size_t i = 0; i < path.size(); ++i) {
    out += path[i];
    if (path[i] != '$') continue;
    out += '$';
    if (path.compare(i, 2, "$$") == 0) ++i;
  }
  return out;
}

/// Makes expand_path() keep the paths of a layer as they are.
void escape_paths(const Table& table, Layer& layer) {
  for (const auto& key : table.keys()) {
    const auto it = layer.find(key.path());
    if (it == layer.end()) continue;
    Value& value = it->second.value;
    if (key.holds<std::filesystem::path>()) value = escaped_path(std::get<std::string>(value));
    if (auto* items = std::get_if<std::vector<Item>>(&value))
      for (Item& item : *items)
        for (auto& [name, text] : item) text = escaped_path(text);
  }
}

}  // namespace

std::string path_of_key(const Table& table, const std::string& name) {
  const Key* found = nullptr;
  for (const auto& key : table.keys()) {
    if (key.name() != name && key.path() != name) continue;
    if (!found || key.section().size() < found->section().size()) found = &key;
  }
  if (!found) found = named_elsewhere(table, "", name);
  return found ? found->path() : "";
}

Reading read_settings(const Table& table, const std::filesystem::path& file,
                      const std::vector<std::string>& overrides) {
  return foreign::with_single_line_errors([&] {
    Reading reading;
    Layer layer = FileReader(table, reading).read(file, "");
    apply(table, layer, file.string(), overrides, reading);
    return reading;
  });
}

Reading read_settings_text(const Table& table, const std::string& text, const std::string& name,
                           const std::vector<std::string>& overrides, PathExpansion expansion) {
  return foreign::with_single_line_errors([&] {
    Reading reading;
    const YamlSource source(name, text);
    YAML::Node included(YAML::NodeType::Null);
    const Layer own = Collector(table, source, reading.renamed).collect(&included);
    if (!included.IsNull())
      throw UserError("{}: include works in files only; expected the settings themselves",
                      source.at(included.Mark()).text());
    Layer layer;
    merge(table, layer, own);
    if (expansion == PathExpansion::off) escape_paths(table, layer);
    apply(table, layer, name, overrides, reading);
    return reading;
  });
}

}  // namespace furlong::config
