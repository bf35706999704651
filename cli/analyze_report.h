#pragma once
// What furlong analyze attention says: tables for people, JSON for programs, and a plot.
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "evaluation/analyze/analyze_model.h"
#include "evaluation/analyze/analyze_plot.h"
#include "evaluation/analyze/analyze_sweep.h"

namespace furlong::command_line {

using Json = nlohmann::ordered_json;

/// `target`, where given, is what the columns of required m and the advice are for.
void print_setting(const SweepSetting& setting, const SweepOptions& options);
void print_layer(const LayerAnalysis& layer, const ModelAnalysisOptions& options);

Json as_json(const SweepSetting& setting);
Json as_json(const LayerAnalysis& layer);

/// Error against what varies: m, else the deviation, the norms' scale, n or d; whatever else varies is in the names of
/// the lines.
Plot plot_of(const std::vector<SweepSetting>& settings);
/// Error of each head, in the order of layers.
Plot plot_of(const std::vector<LayerAnalysis>& layers);

}  // namespace furlong::command_line
