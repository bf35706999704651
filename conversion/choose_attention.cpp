#include "conversion/choose_attention.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "conversion/approximation.h"
#include "evaluation/analyze/analyze_advice.h"
#include "framework/core/shape.h"
#include "layers/attention/mechanism.h"

namespace furlong {
namespace {

/// Name of a feature map, and its number of features.
using MapAndFeatures = std::pair<std::string, std::int64_t>;

/// Advice for the heads of one layer, from the first pass.
struct LayerAdvice {
  std::int64_t layer = 0;
  std::vector<Advice> heads;
};

struct Search {
  std::vector<LayerAdvice> advice;
  std::map<MapAndFeatures, LinearChoice> tried;                                  // with the cost of one head
  std::map<MapAndFeatures, std::map<std::int64_t, std::vector<double>>> errors;  // by layer and head
};

AdviceOptions advice_options(const AutomaticOptions& options) {
  AdviceOptions advice;
  advice.target_error = options.target_error;
  advice.max_features = options.max_features;
  advice.limits_polynomials = options.limits_polynomials;
  advice.draws = options.draws;
  advice.seed = options.seed;
  advice.length = options.length;
  return advice;
}

/// Adds the map and m that a head would choose alone.
void collect(const Advice& advice, Search& search) {
  if (!advice.linear || advice.takes_softmax()) return;
  search.tried.emplace(MapAndFeatures{advice.linear->candidate.name(), advice.linear->m}, *advice.linear);
}

class Chooser {
 public:
  Chooser(const layers::ModelConfig& model, const AutomaticOptions& options, const Search& search)
      : options_(options), search_(search) {
    group_ = model.attention.n_heads /
             (model.attention.n_kv_heads > 0 ? model.attention.n_kv_heads : model.attention.n_heads);
    // With one block shared by all layers, a head is linear in all layers or in none.
    shared_ = model.shared_layers;
  }

  /// Returns for each head of a layer whether it becomes linear with this map and m.
  std::vector<bool> linear_heads(const MapAndFeatures& map, const LayerAdvice& layer) const {
    const double flops = search_.tried.at(map).flops_per_token;
    const auto fits = [&](const LayerAdvice& of, std::size_t head) {
      const bool within = search_.errors.at(map).at(of.layer)[head] <= options_.target_error;
      return within && !options_.keep_softmax[at(of.layer)][head] && flops < of.heads[head].softmax_flops_per_token;
    };
    std::vector<bool> linear(layer.heads.size());
    for (std::size_t head = 0; head < linear.size(); ++head) {
      const std::size_t first = head / at(group_) * at(group_);
      bool all = true;
      for (std::size_t other = first; other < first + at(group_); ++other) {
        all = all && fits(layer, other);
        for (std::size_t i = 0; shared_ && i < search_.advice.size(); ++i) all = all && fits(search_.advice[i], other);
      }
      linear[head] = all;
    }
    return linear;
  }

  double flops(const MapAndFeatures& map) const {
    double total = 0;
    for (const LayerAdvice& layer : search_.advice) {
      const std::vector<bool> linear = linear_heads(map, layer);
      for (std::size_t head = 0; head < linear.size(); ++head)
        total += linear[head] ? search_.tried.at(map).flops_per_token : layer.heads[head].softmax_flops_per_token;
    }
    return total;
  }

  std::string reason(const MapAndFeatures* map, const LayerAdvice& layer, std::size_t head) const {
    const Advice& advice = layer.heads[head];
    if (options_.keep_softmax[at(layer.layer)][head]) return "asked for";
    if (!advice.linear)
      return fmt::format("no map reaches the target error with up to {} {}; the nearest, {}, has error {:.3g}",
                         options_.max_features, options_.limits_polynomials ? "features" : "random features",
                         advice.nearest.candidate.name(), advice.nearest.error);
    if (advice.takes_softmax())
      return advice.cheaper_from > 0 ? fmt::format("softmax costs less up to n = {}", advice.cheaper_from)
                                     : advice.linear->candidate.name() + " costs as much or more at every n";
    if (!map) return "no map serves";
    const double error = search_.errors.at(*map).at(layer.layer)[head];
    if (error > options_.target_error)
      return fmt::format("alone it would use {}, m = {}; with the model's map its error is {:.3g}",
                         advice.linear->candidate.name(), advice.linear->m, error);
    return shared_ ? "another use of this block, or a head that shares its keys and values, needs softmax"
                   : "a head that shares its keys and values needs softmax";
  }

 private:
  const AutomaticOptions& options_;
  const Search& search_;
  std::int64_t group_ = 1;
  bool shared_ = false;
};

Search search_of(ObservedModel& teacher, const AutomaticOptions& options) {
  Search search;
  const AdviceOptions advice = advice_options(options);
  // Two passes over the data: what each head would choose alone, then the error of each such choice in every head.
  sample_layers(teacher, options.layers, nullptr, [&](LayerSample&& sample) {
    LayerAdvice& layer = search.advice.emplace_back();
    layer.layer = sample.layer;
    layer.heads = advise(sample.data, advice);
    for (const Advice& head : layer.heads) collect(head, search);
  });
  if (search.tried.empty()) return search;
  sample_layers(teacher, options.layers, nullptr, [&](LayerSample&& sample) {
    for (const auto& [name, choice] : search.tried)
      search.errors[name][sample.layer] =
          candidate_errors(sample.data, choice.candidate, choice.m, options.draws, options.seed);
  });
  return search;
}

std::string map_text(const LinearChoice& map) { return fmt::format("{}, m = {}", map.candidate.name(), map.m); }
std::string kilo(double flops) { return fmt::format("{:.1f} kFLOP", flops * 1e-3); }

}  // namespace

AutomaticChoice choose_attention(ObservedModel& teacher, const layers::ModelConfig& model,
                                 const AutomaticOptions& options) {
  AutomaticChoice choice;
  choice.mechanisms = head_mechanisms(model);
  for (std::size_t layer = 0; layer < options.layers.size(); ++layer) {
    for (const std::string& name : choice.mechanisms[layer]) {
      if (options.layers[layer] && !layers::mechanism_info(name).is_softmax)
        throw UserError(
            "--attention auto: layer {} (from 0) has {}; expected softmax in every selected layer, so exclude the "
            "others with --layers",
            layer, name);
    }
  }
  const Search search = search_of(teacher, options);
  const Chooser chooser(model, options, search);
  const MapAndFeatures* best = nullptr;
  for (const auto& [name, map] : search.tried) {
    const double flops = chooser.flops(name);
    if (best && flops >= choice.flops) continue;
    best = &name;
    choice.flops = flops;
    choice.map = map;
  }
  bool any = false;
  for (const LayerAdvice& layer : search.advice) {
    std::vector<bool> linear(layer.heads.size());
    if (best) linear = chooser.linear_heads(*best, layer);
    for (std::size_t head = 0; head < linear.size(); ++head) {
      const Advice& advice = layer.heads[head];
      HeadChoice& one = choice.heads.emplace_back();
      one.layer = layer.layer;
      one.head = static_cast<std::int64_t>(head);
      const bool leaves = advice.linear && !advice.takes_softmax();
      one.own = leaves ? map_text(*advice.linear) : layers::softmax_attention;
      one.own_error = leaves ? advice.linear->error : 0;
      one.own_flops = leaves ? advice.linear->flops_per_token : advice.softmax_flops_per_token;
      one.linear = linear[head];
      if (best) one.error = search.errors.at(*best).at(layer.layer)[head];
      if (!linear[head]) one.why_softmax = chooser.reason(best, layer, head);
      if (linear[head]) choice.mechanisms[at(layer.layer)][head] = layers::linear_attention;
      any = any || linear[head];
      choice.length = advice.length;
      choice.softmax_flops += advice.softmax_flops_per_token;
      choice.ideal_flops += one.own_flops;
    }
  }
  if (!any) choice.map.reset();
  if (!choice.map) choice.flops = choice.softmax_flops;
  return choice;
}

std::string AutomaticChoice::text() const {
  const auto linear = std::count_if(heads.begin(), heads.end(), [](const HeadChoice& one) { return one.linear; });
  std::string result =
      map ? fmt::format("chosen: {} in {} of {} heads, softmax in the others\n", map_text(*map), linear, heads.size())
          : fmt::format("chosen: softmax in all {} heads\n", heads.size());
  result += fmt::format(
      "  cost of these attention layers at n = {}: {} per token, {} with softmax everywhere, {} with a separate map "
      "for each head\n",
      length, kilo(flops), kilo(softmax_flops), kilo(ideal_flops));
  result +=
      "  a model has one feature map, m, centering and scaling for all heads; 'alone' is what each head would choose "
      "by itself\n";
  for (const HeadChoice& one : heads) {
    const std::string got =
        one.linear ? fmt::format("linear, error {:.3g}", one.error) : "softmax (" + one.why_softmax + ")";
    result += fmt::format("  layer {:>2} head {:>2}: {}; alone: {}{}\n", one.layer, one.head, got, one.own,
                          one.own == layers::softmax_attention ? "" : fmt::format(", error {:.3g}", one.own_error));
  }
  return result;
}

nlohmann::ordered_json AutomaticChoice::json() const {
  auto list = nlohmann::ordered_json::array();
  for (const HeadChoice& one : heads) {
    nlohmann::ordered_json head{{"layer", one.layer},
                                {"head", one.head},
                                {"mechanism", one.linear ? layers::linear_attention : layers::softmax_attention},
                                {"error", map ? nlohmann::ordered_json(one.error) : nlohmann::ordered_json()},
                                {"alone", one.own}};
    if (!one.why_softmax.empty()) head["why_softmax"] = one.why_softmax;
    list.push_back(head);
  }
  return {{"map", map ? nlohmann::ordered_json(map->candidate.name()) : nlohmann::ordered_json()},
          {"m", map ? nlohmann::ordered_json(map->m) : nlohmann::ordered_json()},
          {"n", length},
          {"flops_per_token", flops},
          {"softmax_flops_per_token", softmax_flops},
          {"flops_per_token_with_a_map_for_each_head", ideal_flops},
          {"heads", list}};
}

}  // namespace furlong
