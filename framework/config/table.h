#pragma once
// The table of configuration keys. One line describes everything about a key: parsing, range checks, printing, the JSON
// Schema and the reference page all use it. This code does not depend on what the keys mean.
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <limits>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "framework/core/enum_names.h"

namespace furlong::config {

/// Where a value was set: a file with line and column (from 1), or, with line 0, another source such as "--set a.b=c".
struct Place {
  std::string source;
  int line = 0;
  int column = 0;
  /// Returns "file:line:column", or the source alone.
  std::string text() const;
};

/// The place of each key that is set. Keys that are missing here have their defaults.
using Origins = std::map<std::string, Place>;

/// An item of a list of maps: a text or number, as text, for each field.
using Item = std::map<std::string, std::string>;

/// A value of any type that a key can have; paths are text. monostate is null, which unsets a value of an included
/// file.
using Value =
    std::variant<std::monostate, std::int64_t, double, bool, std::string, std::vector<std::string>, std::vector<Item>>;

/// Returns the value as YAML, with text quoted if necessary.
std::string to_text(const Value& value);

/// Returns the value of a finite decimal number without leading zeros; nothing of another text.
std::optional<double> number_in(const std::string& text);

/// Returns text as YAML: plain if every YAML reader parses it as text, else in double quotes. Throws UserError
/// if it is not UTF-8, as a path may be.
std::string text_in_yaml(const std::string& text);

/// Returns the parts joined by `separator`. (fmt::join causes a false warning of g++ 12 at -O3.)
std::string join(const std::vector<std::string>& parts, const std::string& separator);

/// A condition for a key to have an effect: another key has one of `values`. Without values: the other key is not 0,
/// false or empty.
struct Condition {
  std::string key;
  std::vector<std::string> values;
  /// List keys that override `key`: the first non-empty list is tested instead. One of its elements must be among
  /// `values`; an element may be several names separated by spaces.
  std::vector<std::string> lists{};
  /// An alternative key, if not empty: the condition also holds if it has one of `or_values`.
  std::string or_key{};
  std::vector<std::string> or_values{};
};

/// Binds an enumeration member as the text that names its value. Enumerations with a table of names
/// (framework/core/enum_names.h) need no list.
class Choice {
 public:
  template <NamedEnum E>
  Choice(E* target) : Choice(target, all_values<E>()) {}
  /// Allows only `values`.
  template <class E>
  Choice(E* target, const std::vector<E>& values) : value_(reinterpret_cast<std::uint8_t*>(target)) {
    static_assert(sizeof(E) == 1);
    for (const E value : values) names_.emplace_back(static_cast<std::uint8_t>(value), name_of(value));
  }
  std::vector<std::string> names() const;
  std::string get() const;
  void set(const std::string& name) const;

 private:
  std::uint8_t* value_;
  std::vector<std::pair<std::uint8_t, std::string>> names_;
};

/// One key, bound to the settings member that holds its value. The settings object must outlive the key.
class Key {
 public:
  using Target = std::variant<std::int64_t*, double*, bool*, std::string*, Choice, std::filesystem::path*,
                              std::vector<std::string>*, std::vector<Item>*>;

  /// The choices of an enumeration are its names.
  Key(std::string path, Target target, std::string unit, std::string meaning);

  // Properties that a line of the table adds to a key. Each returns the key, for chaining.
  Key& within(double lowest, double highest);   ///< lowest ≤ value ≤ highest
  Key& at_least(double bound);                  ///< value ≥ bound
  Key& above(double bound);                     ///< value > bound
  Key& below(double bound);                     ///< value < bound
  Key& zero_means(std::string what);            ///< 0 is allowed outside the range and has this meaning
  Key& one_of(std::vector<std::string> names);  ///< text that must be one of these
  /// Text that must match `pattern` (ECMAScript, the whole text). Messages show `forms` instead of the pattern.
  Key& like(std::string pattern, std::vector<std::string> forms);
  /// Unless a condition of only_with makes it ineffective, or the list `alternative` is not empty.
  Key& required(std::string alternative = "");
  Key& fields(std::vector<std::string> names);  ///< of the items of a list of maps; all of them must be set
  Key& only_with(std::string key, std::vector<std::string> values = {});
  /// Adds lists to the last condition.
  Key& or_in_lists(std::vector<std::string> keys);
  /// Extends the last condition: it also holds if another key has one of these values.
  Key& or_with(std::string key, std::vector<std::string> values);
  /// Names of this key in other programs. Errors for them suggest this key.
  Key& elsewhere(std::vector<std::string> names);
  /// Sets a function that returns the end of the error for a text that is no choice, such as a name in the
  /// literature: "did you mean ...?", or "" for other texts.
  Key& choice_hint(std::function<std::string(const std::string&)> hint);

  const std::string& path() const { return path_; }
  std::string section() const;  ///< the path without its last part: "model.attention"; "" at the top level
  std::string name() const;     ///< the last part of the path
  const std::string& unit() const { return unit_; }
  const std::string& meaning() const { return meaning_; }
  const std::string& zero_meaning() const { return zero_meaning_; }
  const std::vector<std::string>& choices() const { return choices_; }
  const std::string& pattern() const { return pattern_; }
  const std::vector<Condition>& conditions() const { return conditions_; }
  const std::vector<std::string>& names_elsewhere() const { return names_elsewhere_; }
  /// Returns what the function of choice_hint() does; "" without one.
  std::string hint_for(const std::string& text) const { return choice_hint_ ? choice_hint_(text) : ""; }
  bool is_required() const { return required_; }
  const std::string& alternative() const { return alternative_; }
  const std::vector<std::string>& field_names() const { return fields_; }
  double lowest() const { return lowest_; }
  double highest() const { return highest_; }
  bool lowest_excluded() const { return lowest_excluded_; }
  bool highest_excluded() const { return highest_excluded_; }

  template <class T>
  bool holds() const {
    return std::holds_alternative<T*>(target_);
  }
  bool is_text() const { return holds<std::string>() || std::holds_alternative<Choice>(target_); }
  bool is_number() const { return holds<std::int64_t>() || holds<double>(); }
  std::string type()
      const;  ///< "integer", "number", "boolean", "choice", "string", "path", "list of strings" or "list of maps"
  std::string range() const;     ///< "from 1 to 8", "above 0 and below 1"; "" if unrestricted
  std::string expected() const;  ///< for errors: "an integer from 1 to 8", "one of a, b, c"

  Value get() const;
  /// Throws ContractError if the value does not have the key's type.
  void set(const Value& value) const;
  /// Whether the value, which has the key's type, is in range or among the choices.
  bool accepts(const Value& value) const;

 private:
  std::string path_;
  Target target_;
  std::string unit_, meaning_, zero_meaning_, pattern_, alternative_;
  std::vector<std::string> choices_, names_elsewhere_, fields_;
  std::vector<Condition> conditions_;
  std::function<std::string(const std::string&)> choice_hint_;
  double lowest_ = -std::numeric_limits<double>::infinity(), highest_ = std::numeric_limits<double>::infinity();
  bool lowest_excluded_ = false, highest_excluded_ = false, required_ = false;
};

struct Section {
  std::string path;
  std::string meaning;
};

/// A removed key of earlier versions. Its value `ignored`, which had no effect, is still accepted because configs in
/// checkpoints contain it. Any other value is an error that ends with `instead`.
struct RemovedKey {
  std::string path, ignored, instead;
};

/// A key or value of earlier versions that has another name now. Settings with the old name are read as if they had the
/// new one, and Reading::renamed lists them.
struct Renaming {
  std::string old_path;
  std::string path;  ///< old_path itself if only values have new names
  /// Old and new names of values, as text; also of the items of a list. Other values stay as they are.
  std::vector<std::pair<std::string, std::string>> values;
};

/// All keys in display order. A section's keys are adjacent; its subsections follow them.
class Table {
 public:
  /// Adds a section. Keys whose path starts with it belong to it.
  void section(std::string path, std::string meaning);
  /// Adds a key. Its type is the type of `target`; its default is the value of `target` in a default-constructed
  /// settings object. `unit` may be empty; `meaning` is a phrase without a full stop. Throws ContractError for a
  /// duplicate path.
  Key& key(std::string path, Key::Target target, std::string unit, std::string meaning);
  void removed(std::string path, std::string ignored, std::string instead);
  /// Adds a renaming. Throws ContractError if `path` is not a key, or if `old_path` is a key of another name.
  void renamed(std::string old_path, std::string path, std::vector<std::pair<std::string, std::string>> values = {});

  const std::deque<Key>& keys() const& { return keys_; }
  void keys() const&& = delete;  // references would dangle
  const std::vector<Section>& sections() const { return sections_; }
  const Key* find(const std::string& path) const;
  const RemovedKey* find_removed(const std::string& path) const;
  const Renaming* find_renamed(const std::string& old_path) const;
  const std::vector<Renaming>& renamings() const { return renamings_; }
  /// Whether keys of earlier versions stood in a section of this path.
  bool is_old_section(const std::string& path) const;
  bool is_section(const std::string& path) const;
  /// Whether a key is 0, false or empty.
  bool is_empty(const std::string& path) const;
  /// Returns the keys and subsections directly inside a section ("" is the top level) by the last part of their paths.
  std::vector<std::string> names_in(const std::string& section) const;

  /// Returns the first condition of `key` that the current settings do not meet; nullptr if the key has an effect.
  const Condition* unmet(const Key& key) const;
  /// Returns the key that a condition currently tests: its own or one of its lists.
  const Key& asked(const Condition& condition) const;

  /// Checks that every key that was set (or, after changes in code, differs from its value in `defaults`) has an effect
  /// in this combination. Returns a warning for each key of a file that the command line made ineffective, as
  /// `--set model.attention.mechanism=softmax` does to a file's feature map. Throws UserError for the first other one.
  std::vector<std::string> check_effects(const Table& defaults, const Origins& origins) const;

 private:
  std::deque<Key> keys_;  // a deque keeps references for chaining valid
  std::vector<Section> sections_;
  std::vector<RemovedKey> removed_;
  std::vector<Renaming> renamings_;
};

/// Returns "model.position: learned (line 4)" for messages: a key, its value and where it was set relative to `from`.
/// The place is omitted if equal to `from`, only the line in the same file, else complete; "(the default)" if the key
/// is not set.
std::string cite(const Table& table, const Origins& origins, const std::string& key, const Place& from);

}  // namespace furlong::config
