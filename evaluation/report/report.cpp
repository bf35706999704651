#include "evaluation/report/report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <set>

#include "framework/core/error.h"
#include "framework/core/json_output.h"
#include "framework/core/printable.h"
#include "framework/core/version.h"

namespace furlong {
namespace {

using Json = nlohmann::ordered_json;

/// Name and text of page.html, page.css and page.js.
const std::map<std::string, std::string>& page_sources() {
  static const std::map<std::string, std::string> sources{
#include "report_page.inc"
  };
  return sources;
}

Json column_json(const std::vector<double>& column, const std::vector<std::size_t>& rows) {
  Json values = Json::array();
  for (const std::size_t row : rows) values.push_back(column[row]);
  return values;
}

Json split_json(const MetricColumns& columns, std::size_t max_rows) {
  const std::vector<std::size_t> rows = thinned(columns, max_rows);
  Json split{{"lines", columns.step.size()},
             {"step", column_json(columns.step, rows)},
             {"tokens", column_json(columns.tokens, rows)},
             {"seconds", column_json(columns.seconds, rows)},
             {"values", Json::object()}};
  for (const auto& [key, column] : columns.values) {
    const bool measured = std::any_of(column.begin(), column.end(), [](double value) { return std::isfinite(value); });
    if (measured) split["values"][key] = column_json(column, rows);
  }
  return split;
}

Json run_json(const ReportRun& run, std::size_t max_rows) {
  const RunFiles& files = run.files;
  Json object{{"name", run.name},
              {"path", files.path.string()},
              {"state", name_of(files.state)},
              {"step", files.step},
              {"max_steps", files.max_steps},
              {"best_loss", files.best_loss},
              {"best_step", std::isfinite(files.best_loss) ? Json(files.best_step) : Json()},
              {"tokens", files.tokens()},
              {"seconds", files.seconds()},
              {"config", Json::object()},
              {"config_text", files.config_text},
              {"problems", files.problems},
              {"splits", Json::object()},
              {"peak_bytes", files.peak_bytes()},
              {"samples", Json::array()},
              {"sampled_at", run.sampled_at},
              {"attention", run.attention}};
  for (const auto& [key, value] : files.config) object["config"][key] = text_of_value(value);
  for (const auto& [split, columns] : files.splits) object["splits"][split] = split_json(columns, max_rows);
  for (const ReportSample& sample : run.samples)
    object["samples"].push_back({{"prompt", sample.prompt}, {"text", sample.text}});
  return object;
}

/// JSON inside a <script> element: "</script>" and "<!--" in a text would end or change it.
std::string script_json(const Json& object) {
  const std::string text = json_line(object);
  std::string escaped;
  escaped.reserve(text.size());
  for (const char c : text) {
    if (c == '<')
      escaped += "\\u003c";
    else
      escaped += c;
  }
  return escaped;
}

void replace_mark(std::string& page, const std::string& mark, const std::string& text) {
  const std::size_t place = page.find(mark);
  if (place == std::string::npos) throw ContractError("page.html has no {}", mark);
  page.replace(place, mark.size(), text);
}

/// The shortest ends of the paths, in whole components, that differ.
void name_runs(std::vector<ReportRun>& runs) {
  for (std::size_t parts = 1; parts <= 16; ++parts) {
    std::set<std::string> names;
    for (ReportRun& run : runs) {
      const std::filesystem::path path = std::filesystem::absolute(run.files.path).lexically_normal();
      std::vector<std::filesystem::path> components(path.begin(), path.end());
      if (!components.empty() && components.back().empty()) components.pop_back();  // "runs/a/"
      std::filesystem::path name;
      for (std::size_t i = components.size() - std::min(parts, components.size()); i < components.size(); ++i)
        name /= components[i];
      run.name = name.string();
      names.insert(run.name);
    }
    if (names.size() == runs.size()) return;
  }
}

}  // namespace

std::vector<std::size_t> thinned(const MetricColumns& columns, std::size_t max_rows) {
  const std::size_t rows = columns.step.size();
  std::set<std::size_t> kept;
  if (rows <= max_rows) {
    for (std::size_t row = 0; row < rows; ++row) kept.insert(row);
    return {kept.begin(), kept.end()};
  }
  const std::size_t intervals = std::max<std::size_t>(1, (max_rows - 2) / 3);
  kept = {0, rows - 1};
  const auto column = [&](const char* key) {
    const auto found = columns.values.find(key);
    return found == columns.values.end() ? nullptr : &found->second;
  };
  for (std::size_t i = 0; i < intervals; ++i) {
    const std::size_t begin = i * rows / intervals, end = (i + 1) * rows / intervals;
    for (const auto& [key, sign] : {std::pair{"loss", 1.0}, {"loss", -1.0}, {"gradient_norm", 1.0}}) {
      const std::vector<double>* values = column(key);
      std::size_t best = begin;
      for (std::size_t row = begin; values && row < end; ++row) {
        const double value = (*values)[row];
        if (!std::isnan(value) && !(sign * value <= sign * (*values)[best])) best = row;
      }
      kept.insert(best);
    }
  }
  return {kept.begin(), kept.end()};
}

std::vector<ReportRun> open_runs(const std::vector<std::string>& directories) {
  std::vector<ReportRun> runs;
  std::set<std::filesystem::path> seen;
  for (const std::string& directory : directories) {
    std::error_code code;
    std::vector<std::filesystem::path> found{directory};
    const bool is_run = std::filesystem::exists(std::filesystem::path(directory) / "metrics.jsonl", code);
    if (!is_run && is_finetune_directory(directory)) {
      found = find_runs(directory, 1);
      if (found.empty()) found = {directory};
    } else if (!is_run && std::filesystem::is_directory(directory, code)) {
      if (const auto inner = find_runs(directory); !inner.empty())
        throw UserError("{}: not a run directory; expected RUN..., such as {}; furlong runs {} lists them", directory,
                        inner.front().string(), directory);
    }
    for (const std::filesystem::path& path : found) {
      if (!seen.insert(std::filesystem::weakly_canonical(path, code)).second)
        throw UserError("{}: given twice; name each run once", path.string());
      ReportRun run;
      run.files = read_run(path);
      runs.push_back(std::move(run));
    }
  }
  name_runs(runs);
  return runs;
}

std::string report_page(const std::vector<ReportRun>& runs, const ReportTables& tables, const ReportOptions& options) {
  Json data{{"version", version()},
            {"commit", commit()},
            {"written", fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(std::time(nullptr)))},
            {"reload_seconds", options.reload_seconds},
            {"runs", Json::array()},
            {"recoveries", tables.recoveries},
            {"lra", tables.lra}};
  for (const ReportRun& run : runs) data["runs"].push_back(run_json(run, options.max_rows));
  std::string page = page_sources().at("page.html");
  replace_mark(page, "/*STYLE*/", page_sources().at("page.css"));
  replace_mark(page, "/*CODE*/", page_sources().at("page.js"));
  replace_mark(page, "/*DATA*/", script_json(data));
  return page;
}

}  // namespace furlong
