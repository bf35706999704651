#pragma once
// Tables of training runs: furlong runs, furlong sweep.
#include <cstdint>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "evaluation/report/run_files.h"

namespace furlong::command_line {

/// A run's value in a column: a number, or text.
struct Cell {
  std::string text;
  double number = std::numeric_limits<double>::quiet_NaN();
  bool numeric = false;
  std::optional<std::int64_t> integer{};  ///< exact, if the text of a config is one
  nlohmann::ordered_json value{};         ///< of a config key; null for other columns
};

/// Returns the cell of a text. It is numeric if the whole text is a number.
Cell text_cell(const std::string& text);
/// Returns the cell of a config's value.
Cell config_cell(const nlohmann::ordered_json& value);

/// Returns the cell of a number; "-" if it is not finite.
Cell number_cell(double value, const std::string& format = "{:.5g}");

/// Returns the names of columns that all runs have.
const std::vector<std::string>& run_columns();

/// Returns a run's value in a column of run_columns(), or its value of a config key, "-" if it has none. Names of runs
/// are relative to `folder`.
Cell cell_of(const RunFiles& run, const std::filesystem::path& folder, const std::string& column);

/// Orders cells by number, then by text. Missing values come last in both directions.
bool comes_before(const Cell& a, const Cell& b, bool descending = false);

/// Returns lines with the columns in aligned form.
std::string table_text(std::vector<std::vector<Cell>> rows, const std::vector<std::string>& columns);

/// Returns a row as an object with the columns as keys; null for missing values.
nlohmann::ordered_json as_json(const std::vector<Cell>& row, const std::vector<std::string>& columns);

}  // namespace furlong::command_line
