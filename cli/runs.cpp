// furlong runs: a table of the training runs in a directory.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>

#include "cli/command_line.h"
#include "cli/common_options.h"
#include "cli/json_output.h"
#include "cli/run_table.h"
#include "evaluation/report/run_files.h"
#include "framework/config/nearest.h"
#include "framework/config/table.h"
#include "framework/core/error.h"
#include "framework/core/log.h"
#include "trainers/settings/settings.h"

namespace furlong::command_line {
namespace {

struct RunsArguments {
  std::filesystem::path folder = "runs";
  std::string sort = "run";
  std::vector<std::string> where, columns;
  bool reverse = false, json = false;
};

/// A condition of --where.
struct Filter {
  std::string column, comparison, value;

  bool holds(const Cell& cell) const {
    if (column == "changed") return holds_for_date(cell.text);
    const Cell wanted = text_cell(value);
    if (comparison == "=" && cell.integer && wanted.integer) return *cell.integer == *wanted.integer;
    if (comparison == "=")
      return cell.text == value || (cell.numeric && wanted.numeric && cell.number == wanted.number);
    if (comparison == "!=") return !Filter{column, "=", value}.holds(cell);
    return comparison == "<" ? cell.number < wanted.number : cell.number > wanted.number;
  }

 private:
  /// A day is equal to all its times, and a month to all its days. Dates of the table sort as text.
  bool holds_for_date(const std::string& time) const {
    const int order = time.compare(0, value.size(), value);
    return comparison == "=" ? order == 0 : comparison == "!=" ? order != 0 : comparison == "<" ? order < 0 : order > 0;
  }
};

/// Whether the text is a date as in the column `changed`, from its year to its minute.
bool is_date(std::string_view text) {
  constexpr std::string_view form = "0000-00-00 00:00";
  if (text.size() != 4 && text.size() != 7 && text.size() != 10 && text.size() != form.size()) return false;
  return std::equal(text.begin(), text.end(), form.begin(), [](char found, char wanted) {
    return wanted == '0' ? found >= '0' && found <= '9' : found == wanted;
  });
}

Filter filter_of(const std::string& text) {
  const std::size_t at = text.find_first_of("=<>!");
  const std::size_t length = at != std::string::npos && text.compare(at, 2, "!=") == 0 ? 2 : 1;
  if (at == 0 || at == std::string::npos || at + length >= text.size() || (text[at] == '!' && length == 1) ||
      text[at + length] == '=')
    throw UserError(
        "--where {}: expected COLUMN=VALUE, COLUMN!=VALUE, COLUMN<NUMBER or COLUMN>NUMBER, such as "
        "model.attention.mechanism=linear",
        text);
  Filter filter{text.substr(0, at), text.substr(at, length), text.substr(at + length)};
  if (filter.column == "changed") {
    if (is_date(filter.value)) return filter;
    throw UserError("--where {}: found '{}'; expected a date or time such as 2027-01-31 or '2027-01-31 18:30'", text,
                    filter.value);
  }
  if ((filter.comparison == "<" || filter.comparison == ">") && !text_cell(filter.value).numeric)
    throw UserError("--where {}: '{}' is not a number", text, filter.value);
  return filter;
}

/// Throws UserError for a text that is neither a column nor a config key. A key without effect in a run has no value.
void check_column(const std::string& column, const std::string& option) {
  std::vector<std::string> known = run_columns();
  Settings settings;
  const config::Table table = settings_table(settings, false);
  for (const config::Key& key : table.keys()) known.push_back(key.path());
  if (std::find(known.begin(), known.end(), column) != known.end()) return;
  const std::string hint = config::nearest(column, known);
  throw UserError("{}: '{}' is neither a column ({}) nor a config key{}", option, column,
                  config::join(run_columns(), ", "), hint.empty() ? "" : "; did you mean " + hint + "?");
}

void run(const RunsArguments& options) {
  std::vector<RunFiles> runs;
  for (const std::filesystem::path& path : find_runs(options.folder)) {
    try {
      runs.push_back(read_run(path));
    } catch (const UserError& error) {
      log_warn("{}", error.what());
      continue;
    }
    for (const std::string& problem : runs.back().problems) log_warn("{}", problem);
  }
  if (runs.empty()) throw UserError("{}: no run directories in this directory", options.folder.string());
  std::vector<Filter> filters;
  for (const std::string& text : options.where) {
    filters.push_back(filter_of(text));
    check_column(filters.back().column, "--where");
  }
  std::vector<std::string> columns{"run", "state", "step", "tokens", "loss", "validation", "best", "rate", "changed"};
  for (const std::string& column : options.columns) {
    check_column(column, "--columns");
    if (std::find(columns.begin(), columns.end(), column) == columns.end()) columns.push_back(column);
  }
  check_column(options.sort, "--sort");
  std::erase_if(runs, [&](const RunFiles& run) {
    return !std::all_of(filters.begin(), filters.end(), [&](const Filter& filter) {
      return filter.holds(cell_of(run, options.folder, filter.column));
    });
  });
  if (runs.empty()) log_info("no run matches --where");
  std::stable_sort(runs.begin(), runs.end(), [&](const RunFiles& a, const RunFiles& b) {
    const Cell left = cell_of(a, options.folder, options.sort), right = cell_of(b, options.folder, options.sort);
    return comes_before(left, right, options.reverse);
  });
  std::vector<std::vector<Cell>> rows;
  for (const RunFiles& run : runs) {
    rows.emplace_back();
    for (const std::string& column : columns) rows.back().push_back(cell_of(run, options.folder, column));
  }
  if (!options.json) return fmt::print("{}", table_text(rows, columns));
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    array.push_back(as_json(rows[i], columns));
    array.back()["run_directory"] = runs[i].path.string();
  }
  print_json(array);
}

}  // namespace

void add_runs(Command program, int& /*status*/) {
  const Command command = program.add_subcommand("runs", "List the training runs in a directory, sorted and filtered");
  const auto options = std::make_shared<RunsArguments>();
  command.add_option("folder", options->folder, "Directory that is searched for runs, four levels deep")
      .shows_default()
      .value_name("DIR");
  command
      .add_option("--where", options->where,
                  "Only runs with this value of a column or config key: =, !=, < or >. Repeatable")
      .repeatable()
      .value_name("COLUMN=VALUE");
  command.add_option("--sort", options->sort, "Column or config key to sort by; missing values come last")
      .shows_default()
      .value_name("COLUMN");
  command.add_flag("--reverse", options->reverse, "Sort in descending order");
  command
      .add_option("--columns", options->columns,
                  "Further columns, separated by commas: config keys, best_step or seconds")
      .separated_by(',')
      .value_name("COLUMNS");
  add_json(command, options->json);
  command.footer(
      "Columns: run, state (running, finished or stopped), step, tokens, loss and validation (latest loss and "
      "validation loss), best (lowest validation loss since best.h5 exists), rate (training tokens per second, of all "
      "steps), changed (time "
      "of the last line in metrics.jsonl; --where compares it with dates such as 2027-01-31). With --columns also "
      "best_step and seconds (of training, without validation).");
  command.examples({
      "furlong runs runs --sort best",
      "furlong runs runs --where model.attention.mechanism=linear --columns model.attention.n_features,seed",
  });
  command.action([options] { run(*options); });
}

}  // namespace furlong::command_line
