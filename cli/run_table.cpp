#include "cli/run_table.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>

#include "framework/core/printable.h"

namespace furlong::command_line {
namespace {

nlohmann::ordered_json json_value(const Cell& cell) {
  if (!cell.value.is_null()) return cell.value;
  if (!cell.numeric) return cell.text;
  if (cell.integer) return *cell.integer;
  if (cell.number == std::floor(cell.number) && std::fabs(cell.number) < 0x1p53)
    return static_cast<std::int64_t>(cell.number);
  return cell.number;
}

}  // namespace

Cell number_cell(double value, const std::string& format) {
  return {std::isfinite(value) ? fmt::format(fmt::runtime(format), value) : "-", value, true};
}

Cell text_cell(const std::string& text) {
  Cell cell{text};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), cell.number);
  cell.numeric = error == std::errc() && end == text.data() + text.size() && !text.empty();
  std::int64_t integer = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), integer);
  if (parsed.ec == std::errc() && parsed.ptr == text.data() + text.size()) cell.integer = integer;
  return cell;
}

Cell config_cell(const nlohmann::ordered_json& value) {
  Cell cell = text_cell(text_of_value(value));
  cell.value = value;
  return cell;
}

const std::vector<std::string>& run_columns() {
  static const std::vector<std::string> names{"run",       "state", "step", "tokens",  "loss",   "validation",
                                              "best_step", "best",  "rate", "seconds", "changed"};
  return names;
}

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
  if (column == "best_step")
    return number_cell(std::isfinite(run.best_loss) ? static_cast<double>(run.best_step) : run.best_loss, "{:.0f}");
  if (column == "rate") return number_cell(run.tokens() / run.seconds(), "{:.0f}");
  if (column == "seconds") return number_cell(run.seconds(), "{:.4g}");
  if (column == "changed") {
    const auto since = std::chrono::system_clock::to_time_t(std::chrono::file_clock::to_sys(run.changed));
    return {fmt::format("{:%Y-%m-%d %H:%M}", fmt::localtime(since)), static_cast<double>(since), false};
  }
  const auto found = run.config.find(column);
  return found == run.config.end() ? Cell{"-"} : config_cell(found->second);
}

bool comes_before(const Cell& a, const Cell& b, bool descending) {
  const bool missing_a = a.text == "-", missing_b = b.text == "-";
  if (missing_a != missing_b) return missing_b;
  if (descending) return comes_before(b, a);
  if (std::isfinite(a.number) && std::isfinite(b.number)) return a.number < b.number;
  if (std::isfinite(a.number) != std::isfinite(b.number)) return std::isfinite(a.number);
  return a.text < b.text;
}

std::string table_text(std::vector<std::vector<Cell>> rows, const std::vector<std::string>& columns) {
  for (auto& row : rows)
    for (Cell& cell : row) cell.text = foreign::single_line(cell.text);
  std::vector<std::size_t> widths;
  std::vector<bool> right;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    widths.push_back(columns[c].size());
    right.push_back(!rows.empty() && std::all_of(rows.begin(), rows.end(), [&](const auto& row) {
      return row[c].numeric || row[c].text == "-";
    }));
    for (const auto& row : rows) widths[c] = std::max(widths[c], row[c].text.size());
  }
  std::string table;
  const auto line = [&](const auto& text_of) {
    std::string text;
    for (std::size_t c = 0; c < columns.size(); ++c)
      text += fmt::format(fmt::runtime(right[c] ? "{:>{}}  " : "{:<{}}  "), text_of(c), widths[c]);
    text.erase(text.find_last_not_of(' ') + 1);
    table += text + "\n";
  };
  line([&](std::size_t c) { return columns[c]; });
  for (const auto& row : rows) line([&](std::size_t c) { return row[c].text; });
  return table;
}

nlohmann::ordered_json as_json(const std::vector<Cell>& row, const std::vector<std::string>& columns) {
  nlohmann::ordered_json object;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    if (row[c].text == "-")
      object[columns[c]] = nullptr;
    else
      object[columns[c]] = json_value(row[c]);
  }
  return object;
}

}  // namespace furlong::command_line
