#pragma once
// furlong report: one self-contained HTML page about one or several trainings.
#include <cstdint>
#include <string>
#include <vector>

#include "evaluation/report/run_files.h"

namespace furlong {

/// Text that a model generated for the report.
struct ReportSample {
  std::string prompt, text;
};

/// One run of a report.
struct ReportRun {
  RunFiles files;
  std::string name;                   ///< shown in legends and tables
  std::vector<ReportSample> samples;  ///< may be empty
  std::int64_t sampled_at = 0;        ///< step of the checkpoint that generated them
  nlohmann::ordered_json attention =
      {};  ///< layers as furlong analyze attention --json writes them; null: not analyzed
};

struct ReportOptions {
  /// Rows that the page has of each split of a run. Longer ones are thinned: of each interval the lines with the lowest
  /// and highest loss and the highest gradient norm remain.
  std::size_t max_rows = 3000;
  std::int64_t reload_seconds = 0;  ///< the page reloads itself while a run is active; 0: never
};

/// Results that are tables of the page.
struct ReportTables {
  std::vector<nlohmann::ordered_json> recoveries;  ///< of furlong finetune (read_recovery)
  std::vector<nlohmann::ordered_json> lra;         ///< of furlong bench lra (read_lra)
};

/// Returns the page. It needs no network and no other file.
std::string report_page(const std::vector<ReportRun>& runs, const ReportTables& tables, const ReportOptions& options);

/// Expands furlong finetune directories into their stages, and names the runs: the shortest ends of their paths that
/// differ. Throws UserError if a directory is neither a run nor one of furlong finetune with stages, or is given twice.
std::vector<ReportRun> open_runs(const std::vector<std::string>& directories);

/// Indices of the rows that remain (ReportOptions::max_rows), ascending; the first and last row are among them.
std::vector<std::size_t> thinned(const MetricColumns& columns, std::size_t max_rows);

}  // namespace furlong
