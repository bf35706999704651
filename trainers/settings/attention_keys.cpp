#include "trainers/settings/keys.h"

#include <fmt/format.h>

#include "layers/attention/mechanism.h"

namespace furlong {

namespace {

// Conditions of attention keys: on mechanisms (also those of the lists layers and heads) and on feature maps.
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

/// Returns "NAME: summary; NAME: summary".
template <class Info>
std::string summaries(const std::vector<Info>& all) {
  std::string text;
  for (const Info& one : all) text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", one.name, one.summary);
  return text;
}

}  // namespace

void add_attention_keys(config::Table& t, layers::AttentionConfig& a) {
  const auto names = [](const auto& list) {
    std::vector<std::string> result;
    for (const auto& item : list) result.emplace_back(item.name);
    return result;
  };
  const auto random_maps = ops::feature_maps_where([](const auto& map) { return map.needs_random_projection; });
  const auto pair_maps = ops::feature_maps_where([](const auto& map) { return map.features_per_projection == 2; });
  const auto polynomials = ops::feature_maps_where([](const auto& map) { return map.highest_order > 0; });
  const auto epsilon_maps = ops::feature_maps_where([](const auto& map) { return map.uses_kernel_epsilon; });
  t.section("model.attention",
            "exact attention, or attention with a cost linear in the sequence length; docs/internals/numerics.md has "
            "definitions and measured errors");
  t.key("model.attention.mechanism", &a.mechanism, "", summaries(layers::attention_mechanisms()))
      .one_of(names(layers::attention_mechanisms()))
      .choice_hint(layers::attention_name_hint)
      .elsewhere({"attention_type", "attn_type", "kind"});
  t.key("model.attention.layers", &a.layer_mechanisms, "",
        "mechanism of each layer, instead of mechanism: [softmax, linear, ...]; an item may name one mechanism per "
        "head, separated by spaces: [softmax linear linear softmax, linear, ...]")
      .elsewhere({"layer_types", "attention_layers", "attn_layers"});
  t.key("model.attention.heads", &a.head_mechanisms, "",
        "mechanism of each head, the same in every layer, instead of mechanism: [softmax, linear, ...]");
  with_window(t.key("model.attention.window", &a.window, "tokens",
                    "sliding window of softmax and linear; query i attends to keys j with i - j < window (encoders: |i "
                    "- j| < window); with layers or heads it applies to every layer and head with these mechanisms")
                  .within(1, 1e12)
                  .zero_means("no window"),
              &layers::AttentionConfig::window)
      .elsewhere({"sliding_window", "window_size", "attention_window"});
  with_window(t.key("model.attention.softmax_window", &a.softmax_window, "tokens",
                    "number of nearest tokens, including the token itself, with exact softmax weights (encoders: on "
                    "either side); other tokens use the feature map; with layers or heads it applies to every layer "
                    "and head with windowed")
                  .within(1, 1e12)
                  .zero_means("none; windowed requires a value above 0"),
              &layers::AttentionConfig::softmax_window)
      .elsewhere({"local_window", "local_window_size"});
  with_features(t.key("model.attention.feature_map", &a.feature_map, "", summaries(ops::feature_maps()))
                    .one_of(names(ops::feature_maps()))
                    .choice_hint(layers::attention_name_hint))
      .elsewhere({"kernel", "kernel_fn"});
  with_features(t.key("model.attention.n_features", &a.n_features, "",
                      fmt::format("number m of features of each head, for feature maps with a random projection ({}): "
                                  "more approximate softmax better and cost more; {} need an even number; other maps "
                                  "have a fixed number, docs/internals/numerics.md",
                                  config::join(random_maps, ", "), config::join(pair_maps, " and ")))
                    .within(1, 65536)
                    .zero_means("2 × d_head, or the fixed number"))
      .elsewhere({"nb_features", "num_features", "n_random_features"});
  with_maps(t.key("model.attention.order", &a.map_options.order, "",
                  fmt::format("degree of the polynomial, {}; odd degrees can give negative weights",
                              ops::polynomial_orders()))
                .within(1, 4),
            polynomials);
  with_features(t.key("model.attention.kernel_epsilon", &a.map_options.kernel_epsilon, "",
                      fmt::format("constant added to every feature of {}, so that weights and their sum are above 0; "
                                  "other feature maps ignore the default and reject other values",
                                  config::join(epsilon_maps, " and ")))
                    .above(0)
                    .within(0, 1)
                    .zero_means("0.001"));
  with_maps(t.key("model.attention.max_features", &a.map_options.max_features, "",
                  "largest number of polynomial features; a map with more is an error; values above 65536 count as "
                  "65536")
                .within(1, 1e6),
            polynomials);
  with_mechanisms(t.key("model.attention.normalizer", &a.normalizer, "",
                        "sum: divide by the sum of weights, so that outputs are weighted means; none: divide each "
                        "head's output row by its own root mean square instead, then multiply it by a learned gain"),
                  &Mechanism::chooses_normalizer);
  with_features(t.key("model.attention.centering", &a.centering, "",
                      "subtract each head's mean query and mean key, measured in earlier optimizer steps; softmax is "
                      "unchanged, and random features have less variance"));
  with_features(
      t.key("model.attention.scaling", &a.scaling, "",
            "none: off; saderf: rescale query and key dimensions to equal mean squares (SADERF, Likhosherstov et al. "
            "2023), measured in earlier optimizer steps; q·k is unchanged, and random features have less variance"));
  with_maps(t.key("model.attention.denominator_guard", &a.denominator_guard, "",
                  "these feature maps can give weights of both signs, which may cancel: a token's output is zero if "
                  "the sum of its weights is below this fraction of the sum of |φ(q)| |φ(k)|; the default is 2^-20")
                .within(0, 1)
                .below(1),
            ops::feature_maps_where([](const auto& map) { return map.can_cancel; }))
      .only_with("model.attention.normalizer", {"sum"});
  with_maps(t.key("model.attention.random_projection", &a.random_projection, "",
                  "random projection of the features; orthogonal: orthogonal blocks with norms of Gaussian rows (less "
                  "variance than iid); orthogonal_fixed_norm: with norms √d_head; norm_stratified: with norms at "
                  "quantiles; structured: random signs and Hadamard transforms; iid: independent Gaussian rows"),
            random_maps);
  with_maps(
      t.key("model.attention.redraw_every", &a.redraw_every, "steps", "optimizer steps between new random projections")
          .within(1, 1e12)
          .zero_means("never"),
      random_maps)
      .elsewhere({"feature_redraw_interval"});
  with_features(t.key("model.attention.chunk_size", &a.chunk_size, "tokens",
                      "chunk length of causal linear attention; within a chunk, weights are computed directly")
                    .within(16, 256))
      .elsewhere({"chunk_len", "chunk_length"});
  for (const auto& [name, ignored] : {std::pair{"compat", "none"}, std::pair{"compat_stabilize", "false"}})
    t.removed(std::string("model.attention.") + name, ignored,
              "linear attention has one definition, without the epsilons of other libraries "
              "(docs/internals/numerics.md); remove the key, and finetune a model that was trained with it");
  with_mechanisms(t.key("model.attention.projected_length", &a.projected_length, "rows",
                        "length that keys and values are projected to (k in the Linformer paper)")
                      .within(1, 1e9)
                      .zero_means("a quarter of max_sequence_length, at most 256"),
                  &Mechanism::projects_sequence)
      .elsewhere({"linformer_k", "proj_k", "compressed"});
  with_mechanisms(t.key("model.attention.projection", &a.projection, "",
                        "projection along the sequence; linear: learned matrix; mean: means of neighboring tokens; "
                        "convolution: learned strided convolution"),
                  &Mechanism::projects_sequence);
  with_mechanisms(t.key("model.attention.sharing", &a.sharing, "",
                        "sharing of the projection; none: separate per head, for keys and for values; heads: shared by "
                        "a layer's heads; key_value: also by keys and values; layers: also by all layers"),
                  &Mechanism::projects_sequence)
      .only_with("model.attention.projection", {"linear", "convolution"});
}

}  // namespace furlong
