#include "evaluation/sweep/sweep_file.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "framework/config/nearest.h"
#include "framework/config/scalar.h"
#include "framework/config/yaml_source.h"
#include "framework/core/error.h"
#include "framework/core/printable.h"

namespace furlong {
namespace {

constexpr std::size_t max_parts = 65536;  // of a value
constexpr int max_depth = 8;              // of lists in it

namespace fs = std::filesystem;
using Combination = std::vector<SweepValue>;

struct Entry {
  std::string key;
  YAML::Node value;
  config::Place place;  // of the value; of the key if there is no value
};

class SweepReader {
 public:
  explicit SweepReader(const fs::path& file)
      : file_(file), source_(file.string(), config::read_config_file(file, "")), sweep_{{}, "runs" / file.stem(), {}} {}

  SweepFile read() {
    std::vector<Combination> grid, list;
    for (const Entry& entry : entries(source_.root(), "", "a sweep")) {
      if (entry.key == "base")
        sweep_.base = path_of(entry);
      else if (entry.key == "output")
        sweep_.output = path_of(entry);
      else if (entry.key == "grid")
        grid = read_grid(entry);
      else if (entry.key == "list")
        list = read_list(entry);
      else
        refuse_key(entry);
    }
    if (sweep_.base.empty())
      throw UserError("{}: base is missing; expected the path of a config, relative to this file", source_.name());
    if (sweep_.base.is_relative()) sweep_.base = (file_.parent_path() / sweep_.base).lexically_normal();
    if (grid.empty() && list.empty())
      throw UserError(
          "{}: grid and list are missing; expected settings to combine, such as 'grid: {{optimizer.learning_rate: "
          "[1e-3, 3e-3]}}'",
          source_.name());
    if (grid.empty()) grid.resize(1);
    if (list.empty()) list.resize(1);
    for (const Combination& one : grid) {
      for (const Combination& other : list) add_run(one, other);
    }
    return std::move(sweep_);
  }

 private:
  /// Returns the entries of a map. Throws UserError for another node and for repeated keys.
  std::vector<Entry> entries(const YAML::Node& map, const std::string& name, const std::string& expected) const {
    const std::string prefix = name.empty() ? "" : name + ": ";
    if (!map.IsMap())
      throw UserError("{}: {}found {}; expected {} as keys and values", source_.at(map.Mark()).text(), prefix,
                      config::describe(map), expected);
    std::vector<Entry> found;
    std::map<std::string, config::Place> seen;
    for (const auto& pair : map) {
      const config::Place place = source_.at(pair.first.Mark());
      if (!pair.first.IsScalar())
        throw UserError("{}: {}found {} as a key; expected a word", place.text(), prefix, config::describe(pair.first));
      source_.check_quotes(pair.first);
      const std::string& key = pair.first.Scalar();
      const auto [earlier, is_new] = seen.emplace(key, place);
      if (!is_new)
        throw UserError("{}: {}{} is set twice, first at line {}, column {}; remove one of the two", place.text(),
                        prefix, key, earlier->second.line, earlier->second.column);
      // In yaml-cpp a null has no position of its own.
      found.push_back({key, pair.second, pair.second.IsNull() ? place : source_.at(pair.second.Mark())});
    }
    return found;
  }

  [[noreturn]] static void refuse_key(const Entry& entry) {
    const std::vector<std::string> known{"base", "output", "grid", "list"};
    const std::string close = config::nearest(entry.key, known);
    const bool is_setting = entry.key.find('.') != std::string::npos;
    throw UserError("{}: unknown key {}; {}", entry.place.text(), entry.key,
                    is_setting      ? "write settings under grid: or list:, and those of all runs in the base config"
                    : close.empty() ? "a sweep has base, output, grid and list"
                                    : "did you mean " + close + "?");
  }

  fs::path path_of(const Entry& entry) const {
    if (!entry.value.IsScalar() || entry.value.Scalar().empty())
      throw UserError("{}: {}: found {}; expected a path", entry.place.text(), entry.key,
                      config::describe(entry.value));
    source_.check_quotes(entry.value);
    return config::expand_path(entry.value.Scalar(), entry.place.text() + ": " + entry.key);
  }

  /// Returns the items of a list that is not empty.
  static std::vector<YAML::Node> items(const Entry& entry, const std::string& name, const std::string& expected) {
    if (!entry.value.IsSequence() || entry.value.size() == 0)
      throw UserError("{}: {}: found {}; expected {}", entry.place.text(), name,
                      entry.value.IsSequence() ? "an empty list" : config::describe(entry.value), expected);
    std::vector<YAML::Node> found;
    for (const auto& item : entry.value) found.push_back(item);
    return found;
  }

  /// Returns a value as YAML on one line. `budget` bounds its length, because aliases can repeat lists, or contain
  /// themselves.
  std::string text_of(const YAML::Node& value, const config::Place& place, std::size_t& budget, int depth = 0) const {
    const bool in_list = depth > 0;
    if (budget == 0 || depth == max_depth)
      throw UserError("{}: a value has more than {} parts of up to 16 bytes, or is nested more than {} deep",
                      place.text(), max_parts, max_depth);
    --budget;
    if (value.IsNull()) return "null";
    if (value.IsScalar()) {
      source_.check_quotes(value);
      const std::string& text = value.Scalar();
      budget -= std::min(budget, text.size() / 16);
      const bool is_plain = value.Tag() != "!" && (!in_list || text.find_first_of(",[]{}") == std::string::npos);
      return is_plain ? text : nlohmann::json(text).dump();
    }
    std::vector<std::string> texts;
    for (const auto& item : value)
      texts.push_back(value.IsMap() ? text_of(item.first, place, budget, depth + 1) + ": " +
                                          text_of(item.second, place, budget, depth + 1)
                                    : text_of(item, place, budget, depth + 1));
    return (value.IsMap() ? "{" : "[") + config::join(texts, ", ") + (value.IsMap() ? "}" : "]");
  }

  SweepValue setting(const std::string& key, const YAML::Node& value, const config::Place& place) const {
    if (key == "run_directory")
      throw UserError("{}: run_directory is set for each run; write output: with the folder of all runs", place.text());
    std::size_t budget = max_parts;
    return {key, text_of(value, place, budget), place};
  }

  std::vector<Combination> read_grid(const Entry& grid) const {
    std::vector<Combination> combinations(1);
    const std::vector<Entry> keys = entries(grid.value, "grid", "config keys with lists of values");
    if (keys.empty()) throw UserError("{}: grid: is empty; write at least one key, or remove it", grid.place.text());
    for (const Entry& entry : keys) {
      std::vector<Combination> longer;
      const auto values = items(entry, "grid: " + entry.key,
                                entry.value.IsMap() ? "a list of values; join sections and keys by dots, such as "
                                                      "optimizer.learning_rate: [1e-3, 3e-3]"
                                                    : "a list of values, such as [1e-3, 3e-3]");
      for (const Combination& one : combinations) {
        for (const YAML::Node& value : values) {
          check_count(longer.size() + 1);
          longer.push_back(one);
          longer.back().push_back(setting(entry.key, value, value.IsNull() ? entry.place : source_.at(value.Mark())));
        }
      }
      combinations = std::move(longer);
    }
    return combinations;
  }

  std::vector<Combination> read_list(const Entry& list) const {
    std::vector<Combination> found;
    for (const YAML::Node& item : items(list, "list", "a list of maps, such as [{seed: 1}, {seed: 2}]")) {
      found.emplace_back();
      for (const Entry& entry : entries(item, "list", "config keys of one run"))
        found.back().push_back(setting(entry.key, entry.value, entry.place));
    }
    return found;
  }

  void check_count(std::size_t count) const {
    if (count > max_sweep_runs)
      throw UserError("{}: more than {} runs; use fewer values", source_.name(), max_sweep_runs);
  }

  void add_run(const Combination& grid, const Combination& entry) {
    check_count(sweep_.runs.size() + 1);
    Combination run = grid;
    for (const SweepValue& setting : entry) {
      const auto twice =
          std::find_if(grid.begin(), grid.end(), [&](const SweepValue& one) { return one.key == setting.key; });
      if (twice != grid.end())
        throw UserError("{}: {} is set twice, also in grid at line {}; remove one of the two", setting.place.text(),
                        setting.key, twice->place.line);
      run.push_back(setting);
    }
    sweep_.runs.push_back(std::move(run));
  }

  const fs::path& file_;
  config::YamlSource source_;
  SweepFile sweep_;
};

}  // namespace

SweepFile read_sweep_file(const fs::path& file) {
  return foreign::with_single_line_errors([&] { return SweepReader(file).read(); });
}

}  // namespace furlong
