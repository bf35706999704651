// furlong runs: a table of the training runs in a directory.
#include <fmt/chrono.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command_line.h"
#include "cli/common_options.h"
#include "cli/text_output.h"
#include "evaluation/report/run_files.h"
#include "framework/config/nearest.h"
#include "framework/config/table.h"
#include "framework/core/error.h"
#include "framework/core/log.h"

namespace furlong::command_line {
namespace {

struct RunsArguments {
  std::filesystem::path folder = "runs";
  std::string sort = "run";
  std::vector<std::string> where, columns;
  bool reverse = false, json = false;
};

/// A run's value in a column: a number, or text.
struct Cell {
  std::string text;
  double number = std::numeric_limits<double>::quiet_NaN();
  bool numeric = false;
};

Cell number_cell(double value, const std::string& format = "{:.5g}") {
  return {std::isfinite(value) ? fmt::format(fmt::runtime(format), value) : "-", value, true};
}
Cell text_cell(const std::string& text) {
  Cell cell{text};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), cell.number);
  cell.numeric = error == std::errc() && end == text.data() + text.size() && !text.empty();
  return cell;
}

const std::vector<std::string>& own_columns() {
  static const std::vector<std::string> names{"run",        "state",     "step", "tokens", "loss",
                                              "validation", "best_step", "best", "rate",   "changed"};
  return names;
}

/// `column` is one of own_columns() or a key of the config.
Cell cell_of(const RunFiles& run, const std::filesystem::path& folder, const std::string& column) {
  if (column == "run") {
    const std::string name = run.path.lexically_relative(folder).string();
    return {name == "." ? run.path.string() : name};
  }
  if (column == "state") return {std::string(name_of(run.state))};
  if (column == "step") {
    const std::string of = run.max_steps > 0 ? fmt::format("{}/{}", run.step, run.max_steps) : std::to_string(run.step);
    return {of, static_cast<double>(run.step), true};
  }
  if (column == "tokens") return number_cell(run.tokens(), "{:.0f}");
  if (column == "loss") return number_cell(run.last("train", "loss"));
  if (column == "validation") return number_cell(run.last("validation", "loss"));
  if (column == "best") return number_cell(run.best_loss);
  if (column == "best_step") return number_cell(static_cast<double>(run.best_step), "{:.0f}");
  if (column == "rate") return number_cell(run.last("train", "tokens_per_second"), "{:.0f}");
  if (column == "changed") {
    const auto since = std::chrono::system_clock::to_time_t(std::chrono::file_clock::to_sys(run.changed));
    return {fmt::format("{:%Y-%m-%d %H:%M}", fmt::localtime(since)), static_cast<double>(since), false};
  }
  const auto found = run.config.find(column);
  return found == run.config.end() ? Cell{"-"} : text_cell(found->second);
}

/// A condition of --where.
struct Filter {
  std::string column, comparison, value;

  bool holds(const Cell& cell) const {
    const Cell wanted = text_cell(value);
    if (comparison == "=")
      return cell.text == value || (cell.numeric && wanted.numeric && cell.number == wanted.number);
    if (comparison == "!=") return !Filter{column, "=", value}.holds(cell);
    return comparison == "<" ? cell.number < wanted.number : cell.number > wanted.number;
  }
};

Filter filter_of(const std::string& text) {
  const std::size_t at = text.find_first_of("=<>!");
  const std::size_t length = at != std::string::npos && text.compare(at, 2, "!=") == 0 ? 2 : 1;
  if (at == 0 || at == std::string::npos || at + length >= text.size() || (text[at] == '!' && length == 1))
    throw UserError(
        "--where {}: expected COLUMN=VALUE, COLUMN!=VALUE, COLUMN<NUMBER or COLUMN>NUMBER, such as "
        "model.attention.mechanism=linear",
        text);
  Filter filter{text.substr(0, at), text.substr(at, length), text.substr(at + length)};
  if ((filter.comparison == "<" || filter.comparison == ">") && !text_cell(filter.value).numeric)
    throw UserError("--where {}: '{}' is not a number", text, filter.value);
  return filter;
}

/// Throws UserError for a column that no run has.
void check_column(const std::string& column, const std::string& option, const std::vector<RunFiles>& runs) {
  std::vector<std::string> known = own_columns();
  for (const RunFiles& run : runs) {
    for (const auto& [key, value] : run.config) known.push_back(key);
  }
  if (std::find(known.begin(), known.end(), column) != known.end()) return;
  const std::string hint = config::nearest(column, known);
  throw UserError("{}: '{}' is neither a column ({}) nor a key in the config of a run{}", option, column,
                  config::join(own_columns(), ", "), hint.empty() ? "" : "; did you mean " + hint + "?");
}

bool comes_before(const Cell& a, const Cell& b) {
  if (std::isfinite(a.number) && std::isfinite(b.number)) return a.number < b.number;
  if (std::isfinite(a.number) != std::isfinite(b.number)) return std::isfinite(a.number);  // missing values last
  return a.text < b.text;
}

void print_table(const std::vector<std::vector<Cell>>& rows, const std::vector<std::string>& columns) {
  std::vector<std::size_t> widths;
  std::vector<bool> right;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    widths.push_back(columns[c].size());
    right.push_back(!rows.empty() && std::all_of(rows.begin(), rows.end(), [&](const auto& row) {
      return row[c].numeric || row[c].text == "-";
    }));
    for (const auto& row : rows) widths[c] = std::max(widths[c], row[c].text.size());
  }
  const auto line = [&](const auto& text_of) {
    std::string text;
    for (std::size_t c = 0; c < columns.size(); ++c)
      text += fmt::format(fmt::runtime(right[c] ? "{:>{}}  " : "{:<{}}  "), text_of(c), widths[c]);
    text.erase(text.find_last_not_of(' ') + 1);
    fmt::print("{}\n", terminal_text(text));
  };
  line([&](std::size_t c) { return columns[c]; });
  for (const auto& row : rows) line([&](std::size_t c) { return row[c].text; });
}

nlohmann::ordered_json json_value(const Cell& cell) {
  if (!cell.numeric) return cell.text;
  if (cell.number == std::floor(cell.number) && std::fabs(cell.number) < 0x1p53)
    return static_cast<std::int64_t>(cell.number);
  return cell.number;
}

void print_json(const std::vector<std::vector<Cell>>& rows, const std::vector<std::string>& columns) {
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  for (const auto& row : rows) {
    nlohmann::ordered_json object;
    for (std::size_t c = 0; c < columns.size(); ++c) {
      if (row[c].text == "-")
        object[columns[c]] = nullptr;
      else
        object[columns[c]] = json_value(row[c]);
    }
    array.push_back(std::move(object));
  }
  fmt::print("{}\n", array.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
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
    check_column(filters.back().column, "--where", runs);
  }
  std::vector<std::string> columns{"run", "state", "step", "tokens", "loss", "validation", "best", "rate", "changed"};
  for (const std::string& column : options.columns) {
    check_column(column, "--columns", runs);
    if (std::find(columns.begin(), columns.end(), column) == columns.end()) columns.push_back(column);
  }
  check_column(options.sort, "--sort", runs);
  std::erase_if(runs, [&](const RunFiles& run) {
    return !std::all_of(filters.begin(), filters.end(), [&](const Filter& filter) {
      return filter.holds(cell_of(run, options.folder, filter.column));
    });
  });
  std::stable_sort(runs.begin(), runs.end(), [&](const RunFiles& a, const RunFiles& b) {
    const Cell left = cell_of(a, options.folder, options.sort), right = cell_of(b, options.folder, options.sort);
    return options.reverse ? comes_before(right, left) : comes_before(left, right);
  });
  std::vector<std::vector<Cell>> rows;
  for (const RunFiles& run : runs) {
    rows.emplace_back();
    for (const std::string& column : columns) rows.back().push_back(cell_of(run, options.folder, column));
  }
  if (options.json)
    print_json(rows, columns);
  else
    print_table(rows, columns);
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
  command.add_option("--columns", options->columns, "Further columns, separated by commas: config keys, or best_step")
      .separated_by(',')
      .one_argument()
      .value_name("COLUMNS");
  add_json(command, options->json);
  command.footer(
      "Columns: run, state (running, finished or stopped), step, tokens, loss and validation (latest loss and "
      "validation "
      "loss), best (lowest validation loss), best_step, rate (training tokens per second), changed (time of the last "
      "line in metrics.jsonl).");
  command.examples({
      "furlong runs runs --sort best",
      "furlong runs runs --where model.attention.mechanism=linear --columns model.attention.n_features,seed",
  });
  command.action([options] { run(*options); });
}

}  // namespace furlong::command_line
