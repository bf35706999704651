#include "cli/attention_options.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace furlong::command_line {
namespace {

bool is_polynomial(const ops::FeatureMapInfo& map) { return map.highest_order > 0; }
bool has_epsilon(const ops::FeatureMapInfo& map) { return map.uses_kernel_epsilon; }
bool is_guarded(const ops::FeatureMapInfo& map) { return map.can_cancel; }

/// Returns "--feature-map A or B": the maps with a property.
std::string maps_with(bool (*property)(const ops::FeatureMapInfo&)) {
  return fmt::format("--feature-map {}", fmt::join(ops::feature_maps_where(property), " or "));
}

template <class Wanted>
bool any_map(const std::vector<std::string>& maps, const Wanted& wanted) {
  return std::any_of(maps.begin(), maps.end(),
                     [&](const std::string& map) { return wanted(ops::feature_map_info(map)); });
}

}  // namespace

std::vector<std::string> mechanism_names() {
  return layers::mechanisms_where([](const layers::MechanismInfo&) { return true; });
}

std::string mechanism_help() {
  std::vector<std::string> lines;
  for (const layers::MechanismInfo& info : layers::attention_mechanisms())
    lines.push_back(fmt::format("{}: {}", info.name, info.summary));
  return fmt::format("{}", fmt::join(lines, ";\n"));
}

std::string mechanisms_with(bool layers::MechanismInfo::*capability) {
  const auto names = layers::mechanisms_where([=](const layers::MechanismInfo& one) { return one.*capability; });
  return fmt::format("--mechanism {}", fmt::join(names, " or "));
}

std::vector<std::string> feature_map_names() {
  return ops::feature_maps_where([](const ops::FeatureMapInfo&) { return true; });
}

void refuse_unless(bool applies, const Option& option, const std::string& where) {
  if (!applies && option.is_given())
    throw UserError("{} applies only to {}; remove it, or change the other options", option.name(), where);
}

void AttentionOptionValues::add(Command command, layers::AttentionConfig& config, bool many_maps) {
  using Mechanism = layers::MechanismInfo;
  const auto has_features = [](const Mechanism& one) { return one.has_features; };
  const auto keep = [&](Option option, bool (*takes)(const Mechanism&)) {
    options_.push_back({option, takes});
    return option;
  };
  if (!many_maps) {
    keep(command.add_option("--feature-map", config.feature_map, "Feature map of queries and keys")
             .shows_default()
             .one_of(feature_map_names())
             .value_name("NAME"),
         has_features);
  }
  keep(command
           .add_option(
               "--window", window,
               "With softmax or linear: sliding window, query i attends to keys j with i - j < TOKENS (bidirectional: "
               "|i - j| < TOKENS; default: no window).\nRequired with windowed: keys "
               "in the window have softmax weights, all others a feature map")
           .range(1, 1 << 30)
           .value_name("TOKENS"),
       [](const Mechanism& one) { return one.window != nullptr; });
  chunk_ = keep(
      command.add_option("--chunk", config.chunk_size, "Tokens in a tile. Affects speed, and rounding of the results")
          .shows_default()
          .range(1, 1 << 16)
          .value_name("TOKENS"),
      has_features);
  order_ = keep(command
                    .add_option("--order", config.map_options.order,
                                fmt::format("With {}: order of the polynomial, {}", maps_with(is_polynomial),
                                            ops::polynomial_orders()))
                    .shows_default(),
                has_features);
  kernel_epsilon_ = keep(command
                             .add_option("--kernel-epsilon", config.map_options.kernel_epsilon,
                                         fmt::format("With {}: constant added to each feature", maps_with(has_epsilon)))
                             .shows_default()
                             .positive(),
                         has_features);
  max_features_ = keep(command
                           .add_option("--max-features", config.map_options.max_features,
                                       fmt::format("With {}: largest number of features", maps_with(is_polynomial)))
                           .shows_default()
                           .positive(),
                       has_features);
  keep(command
           .add_option("--normalizer", normalizer,
                       "With linear or windowed. sum: divide each head's output row by the sum of its weights; none "
                       "(linear only): apply RMSNorm without gain instead of dividing by the sum")
           .shows_default()
           .one_of(names_of_all<ops::Normalizer>()),
       has_features);
  guard_ =
      keep(command
               .add_option("--denominator-guard", config.denominator_guard,
                           "For feature maps with negative values: zero an output row if its denominator is below X "
                           "times Σ|φ(q)||φ(k)|. Zeroed rows are counted")
               .shows_default("2^-20")
               .range(0.0, 1.0),
           has_features);
  keep(command
           .add_option("--projection", projection,
                       "With --mechanism linformer: how keys and values are projected to fewer rows")
           .shows_default()
           .one_of(names_of_all<ops::SequenceProjection>())
           .value_name("KIND"),
       [](const Mechanism& one) { return one.projects_sequence; });
}

void AttentionOptionValues::check(const std::vector<std::string>& mechanisms,
                                  const std::vector<std::string>& maps) const {
  for (const Given& given : options_) {
    const std::vector<std::string> takers = layers::mechanisms_where(given.takes);
    const bool applies =
        std::find_first_of(mechanisms.begin(), mechanisms.end(), takers.begin(), takers.end()) != mechanisms.end();
    refuse_unless(applies, given.option, fmt::format("--mechanism {}", fmt::join(takers, " or ")));
  }
  for (const Option& option : {order_, max_features_})
    refuse_unless(any_map(maps, is_polynomial), option, maps_with(is_polynomial));
  refuse_unless(any_map(maps, has_epsilon), kernel_epsilon_, maps_with(has_epsilon));
  refuse_unless(any_map(maps, is_guarded), guard_,
                fmt::format("feature maps whose sums of weights can cancel: {}",
                            fmt::join(ops::feature_maps_where(is_guarded), ", ")));
  refuse_unless(normalizer == "sum", guard_, "--normalizer sum");
}

void AttentionOptionValues::settle(layers::AttentionConfig& config) const {
  if (const auto place = layers::mechanism_info(config.mechanism).window) config.*place = window;
  config.normalizer = value_named<ops::Normalizer>(normalizer, "--normalizer");
  config.projection = value_named<ops::SequenceProjection>(projection, "--projection");
}

}  // namespace furlong::command_line
