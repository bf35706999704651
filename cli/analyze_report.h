#pragma once
// Output of furlong analyze attention: tables, JSON and a plot.
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "evaluation/analyze/analyze_model.h"
#include "evaluation/analyze/analyze_plot.h"
#include "evaluation/analyze/analyze_sweep.h"

namespace furlong::command_line {

using Json = nlohmann::ordered_json;

/// Prints one setting of a sweep, or one layer of a model, as a table.
void print_setting(const SweepSetting& setting, const SweepOptions& options);
void print_layer(const LayerAnalysis& layer, const ModelAnalysisOptions& options);

Json as_json(const SweepSetting& setting);
Json as_json(const LayerAnalysis& layer);

/// Plots the error over the first of these that varies: m, standard deviation, norm scale, n, d. The legend names the
/// values of the others.
Plot plot_of(const std::vector<SweepSetting>& settings);
/// Plots the error of each head, in the order of layers.
Plot plot_of(const std::vector<LayerAnalysis>& layers);

}  // namespace furlong::command_line
