#include <algorithm>

#include "trainers/settings/settings_checker.h"

namespace furlong {

std::string SettingsChecker::names(bool Mechanism::*capability) {
  return config::join(layers::mechanisms_where([=](const Mechanism& one) { return one.*capability; }), " or ");
}

void SettingsChecker::heads() const {
  const auto& model = copy_.model;
  const auto& attention = model.attention;
  if (attention.d_head == 0 && model.d_model % attention.n_heads != 0) {
    const auto cite = citing({"model.d_model", "model.n_heads"});
    cite.fail(fmt::format("{} is not a multiple of {}; change one of the two, or set model.d_head",
                          cite("model.d_model"), cite("model.n_heads")));
  }
  if (attention.n_kv_heads > 0 && attention.n_heads % attention.n_kv_heads != 0) {
    const auto cite = citing({"model.n_key_value_heads", "model.n_heads"});
    cite.fail(fmt::format(
        "{} does not divide {}; expected a divisor, so that each key and value head serves equally many query heads",
        cite("model.n_key_value_heads"), cite("model.n_heads")));
  }
  const std::int64_t d_head = head_width();
  if (model.rotates(layers::RotaryPlacement::before_features) && d_head % 2 != 0) {
    const auto cite = citing({"model.d_head", "model.d_model", "model.n_heads", "model.position"});
    const std::string width = attention.d_head > 0 ? cite("model.d_head")
                                                   : fmt::format("{} and {} give a head width of {}, which",
                                                                 cite("model.d_model"), cite("model.n_heads"), d_head);
    cite.fail(fmt::format("{} is odd; expected an even head width with {}, which rotates pairs", width,
                          cite("model.position")));
  }
}

void SettingsChecker::rotary_scaling() const {
  const auto& model = copy_.model;
  const auto& scaling = model.rotary_scaling;
  if (model.position != layers::Position::rotary || scaling.kind == ops::RotaryScalingKind::none) return;
  const auto wrong = [&](const char* key, const char* other, const std::string& message) {
    const auto cite = citing({key, other});
    cite.fail(fmt::format("{} cannot be combined with {}; {}", cite(key), cite(other), message));
  };
  if (scaling.factor == 1 && ops::rotary_attention_factor(scaling) == 1)
    wrong("model.rotary_scaling_factor", "model.rotary_scaling", "expected a factor above 1, or rotary_scaling: none");
  if (scaling.kind == ops::RotaryScalingKind::llama3 && scaling.high_frequency_factor <= scaling.low_frequency_factor)
    wrong("model.rotary_high_frequency_factor", "model.rotary_low_frequency_factor",
          "expected the first above the second");
  if (scaling.kind == ops::RotaryScalingKind::yarn && scaling.beta_fast <= scaling.beta_slow)
    wrong("model.rotary_beta_fast", "model.rotary_beta_slow", "expected the first above the second");
}

// Checks widths at the output layer, and shared layers.
void SettingsChecker::embeddings() const {
  const auto& model = copy_.model;
  const bool predicts = !copy_.objective.learns_labels() && model.prediction_head != layers::PredictionHead::none;
  const bool transform = model.prediction_head == layers::PredictionHead::transform;
  if (predicts && transform && layers::is_gated(model.activation)) {
    const auto cite = citing({"model.prediction_head", "model.activation"});
    cite.fail(
        fmt::format("{} cannot be combined with {}, which is gated; expected gelu, gelu_tanh, relu or silu, or "
                    "prediction_head: linear",
                    cite("model.prediction_head"), cite("model.activation")));
  }
  const bool narrow = model.d_embedding > 0 && model.d_embedding != model.d_model;
  if (predicts && narrow && !transform && model.tied_embeddings) {
    const auto cite = citing({"model.d_embedding", "model.d_model", "model.tied_embeddings"});
    cite.fail(fmt::format(
        "{} and {} cannot be combined with {}: the tied output layer has another width than the hidden states; "
        "set prediction_head: transform or tied_embeddings: false",
        cite("model.d_embedding"), cite("model.d_model"), cite("model.tied_embeddings")));
  }
  if (model.shared_layers && !model.attention.layer_mechanisms.empty()) {
    const auto cite = citing({"model.shared_layers", "model.attention.layers"});
    cite.fail(fmt::format("{} cannot be combined with {}: shared layers have the same mechanism; remove one of the two",
                          cite("model.shared_layers"), cite("model.attention.layers")));
  }
}

// Checks that a row of the batch is one sequence, whose embeddings are those of tokens alone.
void SettingsChecker::token_dropout() const {
  const auto& model = copy_.model;
  if (!model.token_dropout || model.architecture != layers::Architecture::encoder) return;
  const auto refuse = [&](const char* key, const char* reason) {
    const auto cite = citing({"model.token_dropout", key});
    cite.fail(fmt::format("{} cannot be combined with {}: {}", cite("model.token_dropout"), cite(key), reason));
  };
  if (model.position == layers::Position::learned || model.position == layers::Position::sinusoidal)
    refuse("model.position", "it would also scale the positions; expected rotary or none");
  if (copy_.data.packing != "none")
    refuse("data.packing", "its factor is that of one sequence for each row; expected none");
  if (copy_.parallel.context_parallel_size > 1)
    refuse("parallel.context_parallel_size", "its factor needs the whole sequence on one rank; expected 1");
}

void SettingsChecker::attention() const {
  mechanisms();
  rotary_placement();
  const auto& attention = copy_.model.attention;
  if (layers::uses(attention, &Mechanism::has_features)) {
    features();
    softmax_only();
    kernel_epsilon();
  }
  causality();
  if (layers::uses(attention, &Mechanism::projects_sequence)) projected_length();
  const Mechanism* hybrid = layers::first_mechanism(attention, &Mechanism::is_hybrid);
  if (!hybrid) return;
  if (attention.normalizer != ops::Normalizer::sum) {
    const auto cite = citing(
        {"model.attention.normalizer", "model.attention.mechanism", "model.attention.layers", "model.attention.heads"});
    cite.fail(fmt::format("{} cannot be combined with the mechanism {}, whose exact weights need the sum; expected sum",
                          cite("model.attention.normalizer"), hybrid->name));
  }
  if (hybrid->window_in(attention) > 0) return;
  const auto cite = citing({"model.attention.softmax_window", "model.attention.mechanism", "model.attention.layers",
                            "model.attention.heads"});
  cite.fail(
      fmt::format("{} cannot be combined with the mechanism {}; expected the number of nearest tokens with exact "
                  "weights, such as 128",
                  cite("model.attention.softmax_window"), hybrid->name));
}

// Checks lists of mechanisms: one known mechanism for each layer or head, and no other key that sets them.
void SettingsChecker::mechanisms() const {
  const auto& model = copy_.model;
  const auto& attention = model.attention;
  const bool by_layers = !attention.layer_mechanisms.empty();
  const auto& list = by_layers ? attention.layer_mechanisms : attention.head_mechanisms;
  if (list.empty()) return;
  const char* key = by_layers ? "model.attention.layers" : "model.attention.heads";
  const auto cite = citing({key});
  if (by_layers && !attention.head_mechanisms.empty())
    cite.fail(fmt::format("{} cannot be combined with {}; remove one of the two", cite("model.attention.layers"),
                          cite("model.attention.heads")));
  if (attention.mechanism != layers::AttentionConfig{}.mechanism)
    cite.fail(fmt::format("{} overrides {}; remove one of the two", cite(key), cite("model.attention.mechanism")));
  const char* of = by_layers ? "model.n_layers" : "model.n_heads";
  const std::int64_t wanted = by_layers ? model.n_layers : attention.n_heads;
  if (static_cast<std::int64_t>(list.size()) != wanted)
    cite.fail(fmt::format("{} lists {} mechanisms; expected one for each of {}", cite(key), list.size(), cite(of)));
  if (!by_layers) {
    mechanisms_of_heads(key, key, list);
    return;
  }
  for (std::size_t layer = 0; layer < list.size(); ++layer) {
    const std::vector<std::string> names = layers::mechanisms_in(list[layer]);
    const std::string where = fmt::format("{}: layer {} (from 0)", key, layer);
    if (names.size() > 1) {
      mechanisms_of_heads(key, where, names);
    } else {
      known_mechanism(key, where, list[layer]);
    }
  }
}

void SettingsChecker::known_mechanism(const char* key, const std::string& where, const std::string& name) const {
  const config::Key& known = *table_.find("model.attention.mechanism");
  if (known.accepts(name)) return;
  const std::string hint = known.hint_for(name);
  citing({key}).fail(
      fmt::format("{}: found {}; expected {}{}{}", where, name, known.expected(), hint.empty() ? "" : "; ", hint));
}

// Checks one mechanism per head. Heads that share keys and values must have the same mechanism.
void SettingsChecker::mechanisms_of_heads(const char* key, const std::string& where,
                                          const std::vector<std::string>& names) const {
  const auto& attention = copy_.model.attention;
  const auto cite = citing({key});
  for (const std::string& name : names) known_mechanism(key, where, name);
  if (static_cast<std::int64_t>(names.size()) != attention.n_heads)
    cite.fail(fmt::format("{} lists {} mechanisms; expected one, or one for each of {}", where, names.size(),
                          cite("model.n_heads")));
  const std::int64_t group = attention.n_kv_heads > 0 ? attention.n_heads / attention.n_kv_heads : 1;
  for (std::int64_t head = 0; head < attention.n_heads; ++head) {
    const std::int64_t first = head / group * group;
    if (names[static_cast<std::size_t>(head)] == names[static_cast<std::size_t>(first)]) continue;
    cite.fail(fmt::format(
        "{}: heads {} and {} (from 0) share a key and value head but have different mechanisms; expected the "
        "same mechanism in each group of {} heads, because of {}",
        where == key ? cite(key) : where, first, head, group, cite("model.n_key_value_heads")));
  }
}

// Checks rotary_placement: numerator, which rotates features; exact weights have no features.
void SettingsChecker::rotary_placement() const {
  const auto& model = copy_.model;
  if (!model.rotates(layers::RotaryPlacement::numerator)) return;
  const auto cite = citing(
      {"model.rotary_placement", "model.attention.mechanism", "model.attention.layers", "model.attention.heads"});
  if (const Mechanism* other = layers::first_mechanism(model.attention, &Mechanism::rotates_numerator, false))
    cite.fail(
        fmt::format("{} cannot be combined with the mechanism {}, whose exact weights have no features to rotate; use "
                    "before_features, or {} attention only",
                    cite("model.rotary_placement"), other->name, names(&Mechanism::rotates_numerator)));
}

void SettingsChecker::features() const {
  const auto& attention = copy_.model.attention;
  const std::int64_t d_head = head_width();
  const ops::FeatureMapInfo& map = ops::feature_map_info(attention.feature_map);
  if (map.needs_random_projection) {
    if (attention.n_features % map.features_per_projection == 0) return;
    const auto cite = citing({"model.attention.n_features"});
    cite.fail(fmt::format("{} is odd; expected an even number with {}, which computes two features per projection",
                          cite("model.attention.n_features"), cite("model.attention.feature_map")));
  }
  std::int64_t features = 0;
  try {
    features = ops::feature_count(map.map, attention.map_options, d_head, 0);
  } catch (const UserError& error) {
    const auto cite = citing({"model.attention.order", "model.attention.max_features", "model.attention.feature_map"});
    cite.fail(fmt::format("{}: {}", cite("model.attention.order"), error.what()));
  }
  if (attention.n_features == 0 || attention.n_features == features) return;
  const auto cite = citing({"model.attention.n_features"});
  const std::string number = features == d_head ? fmt::format("as many features as the head width ({})", d_head)
                                                : fmt::format("{} features for a head width of {}", features, d_head);
  cite.fail(fmt::format("{} cannot be combined with {}, which has {}; remove n_features",
                        cite("model.attention.n_features"), cite("model.attention.feature_map"), number));
}

// Centering and scaling leave exp(q·k) unchanged, but not other kernels.
void SettingsChecker::softmax_only() const {
  const auto& attention = copy_.model.attention;
  if (ops::feature_map_info(attention.feature_map).estimates_softmax ||
      (!attention.centering && attention.scaling == layers::Scaling::none))
    return;
  const char* key = attention.centering ? "model.attention.centering" : "model.attention.scaling";
  const auto cite = citing({key, "model.attention.feature_map"});
  cite.fail(fmt::format(
      "{} cannot be combined with {}: it preserves only the kernel exp(q·k) of softmax, which this map does not "
      "approximate; remove it, or use a map such as favor_positive",
      cite(key), cite("model.attention.feature_map")));
}

void SettingsChecker::kernel_epsilon() const {
  const auto& attention = copy_.model.attention;
  const double epsilon = attention.map_options.kernel_epsilon, usual = ops::FeatureMapOptions{}.kernel_epsilon;
  if (epsilon == 0 || epsilon == usual || ops::feature_map_info(attention.feature_map).uses_kernel_epsilon) return;
  const auto cite = citing({"model.attention.kernel_epsilon", "model.attention.feature_map"});
  const auto maps = ops::feature_maps_where([](const ops::FeatureMapInfo& map) { return map.uses_kernel_epsilon; });
  cite.fail(fmt::format("{} cannot be combined with {}, whose kernel has no epsilon; remove kernel_epsilon, or use {}",
                        cite("model.attention.kernel_epsilon"), cite("model.attention.feature_map"),
                        config::join(maps, " or ")));
}

void SettingsChecker::causality() const {
  const auto& model = copy_.model;
  const Mechanism* mechanism = layers::first_mechanism(model.attention, &Mechanism::can_be_causal, false);
  if (!mechanism || model.architecture != layers::Architecture::decoder) return;
  const auto cite = citing({"model.attention.projected_length", "model.attention.mechanism", "model.attention.layers",
                            "model.attention.heads"});
  cite.fail(fmt::format(
      "the mechanism {} cannot be combined with {}: {}, so tokens would attend to later tokens; use linear, or "
      "an encoder",
      mechanism->name, cite("model.architecture"), mechanism->limits));
}

void SettingsChecker::projected_length() const {
  const auto& model = copy_.model;
  const std::int64_t longest = model.max_sequence_length > 0 ? model.max_sequence_length : copy_.data.sequence_length;
  if (model.attention.projected_length <= longest) return;
  const auto cite = citing({"model.attention.projected_length", "model.attention.mechanism", "model.attention.layers",
                            "model.attention.heads"});
  cite.fail(fmt::format("{} exceeds the longest sequence ({}); expected at most that length",
                        cite("model.attention.projected_length"), longest));
}

}  // namespace furlong
