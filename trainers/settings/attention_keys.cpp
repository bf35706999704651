#include "trainers/settings/keys.h"

#include <fmt/format.h>

#include "layers/attention/mechanism.h"

namespace furlong {

namespace {

// Conditions of the keys of attention: on mechanisms, which layers and heads may name too, and on feature maps.
using Mechanism = layers::MechanismInfo;
config::Key& with_mechanisms(config::Key& key, const std::function<bool(const Mechanism&)>& wanted) {
  return key.only_with("model.attention.mechanism", layers::mechanisms_where(wanted))
      .or_in_lists({"model.attention.layers", "model.attention.heads"});
}
config::Key& with_mechanisms(config::Key& key, bool Mechanism::*capability) {
  return with_mechanisms(key, [=](const Mechanism& mechanism) { return mechanism.*capability; });
}
config::Key& with_window(config::Key& key, std::int64_t layers::AttentionConfig::*window) {
  return with_mechanisms(key, [=](const Mechanism& mechanism) { return mechanism.window == window; });
}
config::Key& with_features(config::Key& key) { return with_mechanisms(key, &Mechanism::has_features); }
config::Key& with_maps(config::Key& key, std::vector<std::string> maps) {
  return with_features(key).only_with("model.attention.feature_map", std::move(maps));
}

/// NAME: what it is; NAME: what it is.
template <class Info>
std::string summaries(const std::vector<Info>& all) {
  std::string text;
  for (const Info& one : all) text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", one.name, one.summary);
  return text;
}

template <class Wanted>
std::vector<std::string> maps_that(const Wanted& wanted) {
  std::vector<std::string> names;
  for (const ops::FeatureMapInfo& map : ops::feature_maps())
    if (wanted(map)) names.emplace_back(map.name);
  return names;
}

}  // namespace

void add_attention_keys(config::Table& t, layers::AttentionConfig& a) {
  const auto names = [](const auto& list) {
    std::vector<std::string> result;
    for (const auto& item : list) result.emplace_back(item.name);
    return result;
  };
  const auto random_maps = maps_that([](const ops::FeatureMapInfo& map) { return map.needs_directions; });
  const auto polynomials = maps_that([](const ops::FeatureMapInfo& map) { return map.highest_order > 0; });
  t.section("model.attention",
            "exact attention, or attention whose cost grows linearly with length; definitions and measured errors are "
            "in docs/numerics.md");
  t.key("model.attention.mechanism", &a.mechanism, "", summaries(layers::attention_mechanisms()))
      .one_of(names(layers::attention_mechanisms()))
      .elsewhere({"attention_type", "attn_type", "kind"});
  t.key("model.attention.layers", &a.layer_mechanisms, "",
        "the mechanism of each layer, in the place of mechanism: [softmax, linear, linear, ...]; where heads of a "
        "layer differ, one for each head of it, separated by spaces: [softmax linear linear softmax, linear, ...]")
      .elsewhere({"layer_types", "attention_layers", "attn_layers"});
  t.key("model.attention.heads", &a.head_mechanisms, "",
        "the mechanism of each head, the same in every layer, in the place of mechanism: [softmax, linear, ...]");
  with_window(t.key("model.attention.window", &a.window, "tokens",
                    "softmax, linear: keys so far away are not seen, so that a token sees this many, itself included "
                    "(encoders: on either side)")
                  .within(1, 1e12)
                  .zero_means("all are seen"),
              &layers::AttentionConfig::window)
      .elsewhere({"sliding_window", "window_size", "attention_window"});
  with_window(t.key("model.attention.softmax_window", &a.softmax_window, "tokens",
                    "windowed: how many of the nearest tokens, itself included, get softmax's exact weights "
                    "(encoders: on either side); all others get the feature map's")
                  .within(1, 1e12)
                  .zero_means("none; windowed needs some"),
              &layers::AttentionConfig::softmax_window)
      .elsewhere({"local_window", "local_window_size"});
  with_features(t.key("model.attention.feature_map", &a.feature_map, "", summaries(ops::feature_maps()))
                    .one_of(names(ops::feature_maps())))
      .elsewhere({"kernel", "kernel_fn"});
  with_features(t.key("model.attention.n_features", &a.n_features, "features",
                      "features of each head; more approximate softmax better and cost more")
                    .within(1, 65536)
                    .zero_means("2 × d_head with random features, else what the feature map has"))
      .elsewhere({"nb_features", "num_features", "n_random_features"});
  with_maps(
      t.key("model.attention.order", &a.map_options.order, "",
            "degree of the polynomial, 1 to 3 for taylor, 1 to 4 for limit; weights can be negative with odd ones")
          .within(1, 4),
      polynomials);
  with_features(t.key("model.attention.kernel_epsilon", &a.map_options.kernel_epsilon, "",
                      "favor_relu: added to every feature, part of the kernel's definition")
                    .above(0)
                    .within(0, 1)
                    .zero_means("0.001"));
  with_maps(t.key("model.attention.most_features", &a.map_options.most_features, "features",
                  "polynomials that have more are refused")
                .within(1, 1e6),
            polynomials);
  with_mechanisms(t.key("model.attention.normalizer", &a.normalizer, "",
                        "sum: outputs are weighted means of values; none: weighted sums, of which each head is divided "
                        "by its root mean square and multiplied by a learned gain"),
                  &Mechanism::chooses_normalizer);
  with_features(t.key("model.attention.centering", &a.centering, "",
                      "take the mean query and the mean key of each head away, of earlier optimizer steps; softmax is "
                      "unchanged by it, and random features have less variance"));
  with_features(
      t.key("model.attention.scaling", &a.scaling, "",
            "saderf: scale dimensions of queries up and of keys down, or the reverse, until both have the same mean "
            "square, that of earlier optimizer steps; q·k is unchanged by it, and random features have less variance"));
  with_maps(t.key("model.attention.denominator_guard", &a.denominator_guard, "",
                  "with features of both signs: an output is zero where the sum of its weights is smaller than this "
                  "share of the sum of magnitudes")
                .within(0, 1)
                .below(1),
            maps_that([](const ops::FeatureMapInfo& map) { return ops::can_cancel(map.map); }))
      .only_with("model.attention.normalizer", {"sum"});
  with_maps(t.key("model.attention.directions", &a.directions, "",
                  "random directions of the features: orthogonal in blocks (smaller variance) with norms as of "
                  "Gaussian rows; orthogonal_fixed_norm: norms √d_head; norm_stratified: norms at the quantiles; "
                  "structured: random signs and Hadamard transforms; iid: independent"),
            random_maps);
  with_maps(t.key("model.attention.redraw_every", &a.redraw_every, "steps",
                  "optimizer steps after which new directions are drawn")
                .within(1, 1e12)
                .zero_means("never"),
            random_maps)
      .elsewhere({"feature_redraw_interval"});
  with_features(t.key("model.attention.chunk_size", &a.chunk_size, "tokens",
                      "length of a chunk, inside which the causal form is computed directly")
                    .within(16, 256))
      .elsewhere({"chunk_len", "chunk_length"});
  for (const auto& [name, ignored] : {std::pair{"compat", "none"}, std::pair{"compat_stabilize", "false"}})
    t.removed(std::string("model.attention.") + name, ignored,
              "linear attention has one definition, without the epsilons of other libraries (docs/numerics.md); remove "
              "the key, and finetune a model that was trained with it");
  with_mechanisms(t.key("model.attention.projected_length", &a.projected_length, "rows",
                        "length that keys and values are projected to (k in the paper)")
                      .within(1, 1e9)
                      .zero_means("a quarter of max_sequence_length, at most 256"),
                  &Mechanism::projects_sequence)
      .elsewhere({"linformer_k", "proj_k", "compressed"});
  with_mechanisms(
      t.key("model.attention.projection", &a.projection, "",
            "along the sequence: a learned matrix, means of neighbouring tokens, or a learned strided convolution"),
      &Mechanism::projects_sequence);
  with_mechanisms(t.key("model.attention.sharing", &a.sharing, "",
                        "who shares a projection: none: each head has its own for keys and for values; heads: the "
                        "heads of a layer; key_value: keys and values too; layers: all layers too"),
                  &Mechanism::projects_sequence)
      .only_with("model.attention.projection", {"linear", "convolution"});
}

}  // namespace furlong
