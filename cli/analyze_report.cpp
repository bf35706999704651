#include "cli/analyze_report.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

namespace furlong::command_line {
namespace {

std::string kind_name(const AttentionCandidate& candidate) {
  return candidate.is_random() ? name_of(candidate.kind) : "";
}

/// Formats three significant digits.
std::string number(double value) {
  return value != 0 && std::abs(value) < 0.0005 ? fmt::format("{:.1e}", value) : fmt::format("{:.3g}", value);
}
std::string number(const std::optional<double>& value) { return value ? number(*value) : "-"; }

Json json_number(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

std::string required_text(const RequiredFeatures& required) {
  return required.m ? std::to_string(*required.m) : fmt::format("> {}", required.tried);
}
Json as_json(const RequiredFeatures& required) {
  return {{"m", required.m ? Json(*required.m) : Json()},
          {"tried", required.tried},
          {"error", json_number(required.error)}};
}

std::string thousands(double flops) { return fmt::format("{:.1f} kFLOP", flops * 1e-3); }

std::string choice_text(const LinearChoice& choice) {
  const char* const sign =
      ops::can_be_negative(choice.candidate.map, choice.candidate.map_options) ? ", weights can be negative" : "";
  return fmt::format("{}, m = {}, error {}{}", choice.candidate.name(), choice.m, number(choice.error), sign);
}

std::string advice_text(const Advice& advice, double target) {
  const std::string softmax =
      fmt::format("softmax ({} per token at n = {})", thousands(advice.softmax_flops_per_token), advice.length);
  if (!advice.linear)
    return fmt::format("only {} reaches error {}; the nearest alternative is {}", softmax, number(target),
                       choice_text(advice.nearest));
  const std::string trivial = advice.uniform_suffices ? "; uniform attention also reaches it" : "";
  const std::string linear =
      fmt::format("{} ({} per token)", choice_text(*advice.linear), thousands(advice.linear->flops_per_token));
  if (!advice.takes_softmax()) return fmt::format("{}; {} costs more{}", linear, softmax, trivial);
  const std::string from = advice.cheaper_from > 0 ? fmt::format("and costs less for n >= {}", advice.cheaper_from)
                                                   : "but costs as much or more at every n";
  return fmt::format("{}; {} also reaches error {}, {}{}", softmax, linear, number(target), from, trivial);
}

Json as_json(const LinearChoice& choice) {
  return {{"map", choice.candidate.name()},
          {"random_projection", kind_name(choice.candidate)},
          {"m", choice.m},
          {"error", json_number(choice.error)},
          {"flops_per_token", choice.flops_per_token}};
}
Json as_json(const Advice& advice) {
  return {{"advised", advice.takes_softmax() ? Json(layers::softmax_attention) : Json(advice.linear->candidate.name())},
          {"m", advice.takes_softmax() ? Json() : Json(advice.linear->m)},
          {"uniform_suffices", advice.uniform_suffices},
          {"only_softmax", !advice.linear.has_value()},
          {"cheapest_linear", advice.linear ? as_json(*advice.linear) : Json()},
          {"cheaper_than_softmax_from_n", advice.cheaper_from > 0 ? Json(advice.cheaper_from) : Json()},
          {"nearest", as_json(advice.nearest)},
          {"n", advice.length},
          {"softmax_flops_per_token", advice.softmax_flops_per_token}};
}

/// Formats the m of each head, separated by commas.
std::string required_column(const std::vector<RequiredFeatures>& required) {
  std::vector<std::string> texts;
  for (const RequiredFeatures& one : required) texts.push_back(required_text(one));
  return texts.empty() ? "-" : fmt::format("{}", fmt::join(texts, ", "));
}

std::string norm_text(const RowNorms& norm) {
  return fmt::format("{} (max {})", number(norm.mean), number(norm.largest));
}

}  // namespace

void print_setting(const SweepSetting& setting, const SweepOptions& options) {
  std::string what = fmt::format("n {}, d {}", setting.n, setting.d);
  if (setting.deviation) {
    what += fmt::format(", entries of q and k with standard deviation {}", number(*setting.deviation));
  } else {
    what += fmt::format(", batch {}, {} head{}", setting.batch, setting.n_heads, setting.n_heads == 1 ? "" : "s");
  }
  if (options.norm_scales.size() > 1 || setting.norm_scale != 1)
    what += fmt::format(" times {}", number(setting.norm_scale));
  fmt::print("\n{}: |q| {}, |k| {}\n", what, number(setting.query_norm), number(setting.key_norm));
  const std::string target =
      options.find_features ? fmt::format("  m for error {}", number(options.advice.target_error)) : "";
  fmt::print("  {:<30} {:<21} {:>5} {:>9} {:>10} {:>9} {:>9}{}\n", "attention", "random projection", "m", "error",
             "kernel var", "kernel", "effective", target);
  fmt::print("  {:<30} {:<21} {:>5} {:>9} {:>10} {:>9} {:>9}\n", "", "", "", "", "/kernel²", "error", "features");
  fmt::print("  {:<30} {:<21} {:>5} {:>9}\n", "uniform", "", "", number(setting.uniform_error));
  bool all_resolved = true;
  for (const SweepResult& result : setting.results) {
    const std::optional<double> none,
        effective = result.kernel ? std::optional(result.kernel->effective_features) : none;
    const bool is_resolved = !result.kernel || result.kernel->is_resolved;
    all_resolved = all_resolved && is_resolved;
    const std::string mark = is_resolved ? "" : "?";
    fmt::print("  {:<30} {:<21} {:>5} {:>9} {:>10} {:>9} {:>9}{}{}\n", result.candidate.name(),
               kind_name(result.candidate), result.m, number(result.error),
               number(result.kernel ? result.kernel->relative_variance : none) + mark,
               number(result.kernel ? result.kernel->relative_error : none) + mark, number(effective),
               options.find_features ? "  " + required_column(result.required) : "",
               worse_than_uniform(result.error, setting.uniform_error) ? "  worse than uniform" : "");
  }
  if (!all_resolved)
    fmt::print(
        "  ?: rare draws determine this mean, which is probably far larger (more than 2% is from one pair and draw)\n");
  for (std::size_t group = 0; group < setting.advice.size(); ++group) {
    const std::string head = setting.advice.size() > 1 ? fmt::format("head {}", group) : "advice";
    fmt::print("  {}: {}\n", head, advice_text(setting.advice[group], options.advice.target_error));
  }
}

void print_layer(const LayerAnalysis& layer, const ModelAnalysisOptions& options) {
  fmt::print("\n{} (d {}, n {})\n", layer.layer, layer.d, layer.n);
  const std::string target =
      options.find_features ? fmt::format("  m for error {}", number(options.advice.target_error)) : "";
  for (const HeadAnalysis& head : layer.heads) {
    fmt::print("  head {}: |q| {}, |k| {}\n", head.head, norm_text(head.query_norm), norm_text(head.key_norm));
    fmt::print("    {:<42} {:<21} {:>5} {:>9} {:>10} {:>10}{}\n", "attention", "random projection", "m", "error",
               "TV softmax", "TV uniform", target);
    fmt::print("    {:<42} {:<21} {:>5} {:>9}\n", "uniform", "", "", number(head.uniform_error));
    for (const HeadAttention& one : head.attentions) {
      fmt::print("    {:<42} {:<21} {:>5} {:>9} {:>10} {:>10}{}{}\n", one.own ? "model: " + one.name : one.name,
                 one.random_projection, one.m > 0 ? std::to_string(one.m) : "", number(one.error),
                 number(one.total_variation_to_softmax), number(one.total_variation_to_uniform),
                 options.find_features ? "  " + (one.required ? required_text(*one.required) : std::string("-")) : "",
                 worse_than_uniform(one.error, head.uniform_error) ? "  worse than uniform" : "");
    }
    if (std::any_of(head.attentions.begin(), head.attentions.end(),
                    [](const auto& one) { return !one.total_variation_to_softmax; }))
      fmt::print("    TV -: the weights are not a distribution, they can be negative or need not sum to 1\n");
    if (head.advice) fmt::print("    advice: {}\n", advice_text(*head.advice, options.advice.target_error));
  }
}

Json as_json(const SweepSetting& setting) {
  Json object{{"n", setting.n},
              {"d", setting.d},
              {"batch", setting.batch},
              {"n_heads", setting.n_heads},
              {"std", json_number(setting.deviation)},
              {"norm_scale", setting.norm_scale},
              {"query_norm", json_number(setting.query_norm)},
              {"key_norm", json_number(setting.key_norm)},
              {"uniform_error", json_number(setting.uniform_error)}};
  if (!setting.deviation) object["uniform_error_of_heads"] = setting.uniform_error_of_heads;
  object["attention"] = Json::array();
  for (const SweepResult& result : setting.results) {
    Json one{{"map", result.candidate.name()},
             {"random_projection", kind_name(result.candidate)},
             {"m", result.m},
             {"error", json_number(result.error)}};
    if (!setting.deviation) one["error_of_heads"] = result.error_of_heads;
    if (result.kernel) {
      one["kernel_relative_variance"] = json_number(result.kernel->relative_variance);
      one["kernel_relative_error"] = json_number(result.kernel->relative_error);
      one["kernel_is_resolved"] = result.kernel->is_resolved;
      one["effective_features"] = json_number(result.kernel->effective_features);
    }
    one["guarded_rows"] = result.denominators.guarded;
    one["rows"] = result.denominators.rows;
    for (const RequiredFeatures& required : result.required) one["required"].push_back(as_json(required));
    object["attention"].push_back(one);
  }
  for (const Advice& advice : setting.advice) object["advice"].push_back(as_json(advice));
  return object;
}

Json as_json(const LayerAnalysis& layer) {
  Json object{{"layer", layer.layer}, {"d", layer.d}, {"n", layer.n}, {"heads", Json::array()}};
  for (const HeadAnalysis& head : layer.heads) {
    Json one{{"head", head.head},
             {"query_norm",
              {{"mean", json_number(head.query_norm.mean)}, {"largest", json_number(head.query_norm.largest)}}},
             {"key_norm", {{"mean", json_number(head.key_norm.mean)}, {"largest", json_number(head.key_norm.largest)}}},
             {"uniform_error", json_number(head.uniform_error)},
             {"attention", Json::array()}};
    for (const HeadAttention& attention : head.attentions) {
      Json row{{"name", attention.name},
               {"own", attention.own},
               {"random_projection", attention.random_projection},
               {"m", attention.m},
               {"error", json_number(attention.error)},
               {"total_variation_to_softmax", json_number(attention.total_variation_to_softmax)},
               {"total_variation_to_uniform", json_number(attention.total_variation_to_uniform)}};
      if (attention.required) row["required"] = as_json(*attention.required);
      one["attention"].push_back(row);
    }
    if (head.advice) one["advice"] = as_json(*head.advice);
    object["heads"].push_back(one);
  }
  return object;
}

namespace {

/// A quantity that a sweep can vary.
struct Axis {
  const char* name;
  const char* label;
  std::function<double(const SweepSetting&, const SweepResult*)> value;  // no result: the uniform baseline
  std::set<double> values{};
};

std::vector<Axis> axes_of(const std::vector<SweepSetting>& settings) {
  std::vector<Axis> axes{
      {"m", "features m",
       [](const SweepSetting&, const SweepResult* result) { return result ? static_cast<double>(result->m) : 0.0; }},
      {"std", "standard deviation of the entries of q and k",
       [](const SweepSetting& setting, const SweepResult*) { return setting.deviation.value_or(0); }},
      {"scale", "factor on the norms of q and k",
       [](const SweepSetting& setting, const SweepResult*) { return setting.norm_scale; }},
      {"n", "n", [](const SweepSetting& setting, const SweepResult*) { return static_cast<double>(setting.n); }},
      {"d", "d", [](const SweepSetting& setting, const SweepResult*) { return static_cast<double>(setting.d); }}};
  for (const SweepSetting& setting : settings) {
    for (const SweepResult& result : setting.results) {
      for (Axis& axis : axes) {
        // Feature maps without a choice of m do not vary m.
        if (axis.name != std::string("m") || result.candidate.is_random())
          axis.values.insert(axis.value(setting, &result));
      }
    }
  }
  return axes;
}

}  // namespace

Plot plot_of(const std::vector<SweepSetting>& settings) {
  const std::vector<Axis> axes = axes_of(settings);
  std::size_t across = 1;
  for (std::size_t i = axes.size(); i-- > 0;) {
    if (axes[i].values.size() > 1) across = i;
  }
  const bool by_features = axes[across].name == std::string("m");
  Plot plot;
  plot.title = "Error of attention against exact softmax";
  plot.x_label = axes[across].label;
  plot.y_label = "relative error of the output";
  plot.log_x = by_features || axes[across].name == std::string("n");
  std::set<std::string> kinds;
  for (const SweepSetting& setting : settings)
    for (const SweepResult& result : setting.results)
      if (result.candidate.is_random()) kinds.insert(kind_name(result.candidate));
  std::map<std::string, std::size_t> known;
  const auto add = [&](const SweepSetting& setting, const SweepResult* result) {
    std::string label = result ? result->candidate.name() : "uniform";
    if (result && result->candidate.is_random() && kinds.size() > 1) label += " " + kind_name(result->candidate);
    for (std::size_t i = 0; i < axes.size(); ++i) {
      if (i == across || axes[i].values.size() < 2 || (i == 0 && !(result && result->candidate.is_random()))) continue;
      label += fmt::format(", {} {:.4g}", axes[i].name, axes[i].value(setting, result));
    }
    const auto [place, fresh] = known.try_emplace(label, plot.series.size());
    if (fresh) plot.series.push_back({label, {}, result == nullptr});
    auto& points = plot.series[place->second].points;
    const double error = result ? result->error : setting.uniform_error;
    if (!result && by_features) {
      // A horizontal line: the baseline has no features.
      points = {{*axes[across].values.begin(), error}, {*axes[across].values.rbegin(), error}};
    } else {
      points.emplace_back(axes[across].value(setting, result), error);
    }
  };
  for (const SweepSetting& setting : settings) {
    add(setting, nullptr);
    for (const SweepResult& result : setting.results) add(setting, &result);
  }
  return plot;
}

Plot plot_of(const std::vector<LayerAnalysis>& layers) {
  Plot plot;
  plot.title = "Error of attention against exact softmax, head by head";
  plot.x_label = "layer.head";
  plot.y_label = "relative error of the output";
  plot.series.push_back({"uniform", {}, true});
  std::map<std::string, std::size_t> known;
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    for (const HeadAnalysis& head : layers[layer].heads) {
      const double x = static_cast<double>(plot.categories.size());
      plot.categories.push_back(fmt::format("{}.{}", layer, head.head));
      plot.series[0].points.emplace_back(x, head.uniform_error);
      for (const HeadAttention& one : head.attentions) {
        std::string label = one.own ? "model: " + one.name : one.name;
        if (one.m > 0) label += fmt::format(", m {}", one.m);
        if (!one.own && !one.random_projection.empty()) label += " " + one.random_projection;
        const auto [place, fresh] = known.try_emplace(label, plot.series.size());
        if (fresh) plot.series.push_back({label, {}, false});
        plot.series[place->second].points.emplace_back(x, one.error);
      }
    }
  }
  return plot;
}

}  // namespace furlong::command_line
