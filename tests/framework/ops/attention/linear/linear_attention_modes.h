#pragma once
// Every combination of feature map, causality and options of linear attention, for tests that loop over them.
#include "tests/framework/ops/attention/linear/linear_attention_testing.h"

namespace furlong::testing {

/// Options besides the map and causality; tests loop over all modes.
enum class Mode {
  plain,
  window,
  mask,
  documents,
  everything_masked,
  centered,
  rms,
  hybrid,
  hybrid_masked,
  rotated,
  rotated_masked,
  rotated_window
};
inline const std::vector<std::pair<Mode, const char*>> modes{{Mode::plain, "plain"},
                                                             {Mode::window, "window"},
                                                             {Mode::mask, "mask"},
                                                             {Mode::documents, "documents"},
                                                             {Mode::everything_masked, "window_mask_documents"},
                                                             {Mode::centered, "centered_scaled"},
                                                             {Mode::rms, "rms"},
                                                             {Mode::hybrid, "hybrid"},
                                                             {Mode::hybrid_masked, "hybrid_mask_documents_centered"},
                                                             {Mode::rotated, "rotated"},
                                                             {Mode::rotated_masked, "rotated_mask_documents_rms"},
                                                             {Mode::rotated_window, "rotated_window_centered"}};

inline bool possible(FeatureMap map, Mode mode) {
  return mode != Mode::centered || feature_map_info(map).estimates_softmax;
}

inline void add_mask(AttentionProblem& p) {
  for (std::int64_t i = 0; i < p.batch * p.n_key; ++i) p.mask.push_back((i * 7 + 3) % 5 != 0 || p.n_key == 1 ? 1 : 0);
}
/// Sets the number of keys to the number of queries.
inline void make_square(AttentionProblem& p) {
  p.n_key = p.n;
  p.key.resize(static_cast<std::size_t>(p.key_shape().elements()));
  p.value.resize(static_cast<std::size_t>(p.value_shape().elements()));
}
inline void add_documents(AttentionProblem& p) {
  make_square(p);
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t i = 0; i < p.n_key; ++i)
      p.documents.push_back(i < p.n / 3 ? 9 : i < p.n / 3 + 1 ? 4 : i < p.n - 2 ? 5 : 6);
  }
}
inline void add_centers(AttentionProblem& p) {
  p.query_center = normal_values(p.heads() * p.d, 21, 0.4);
  p.key_center = normal_values(p.heads() * p.d, 22, 0.4);
  for (double value : normal_values(p.heads() * p.d, 23, 0.3)) p.scaling.push_back(std::exp(value));
}

inline void apply(Mode mode, AttentionProblem& p) {
  p.options.rotate_numerator = mode == Mode::rotated || mode == Mode::rotated_masked || mode == Mode::rotated_window;
  p.options.rotary_base = 50;  // so that short sequences have large angles, all different
  if (mode == Mode::window || mode == Mode::everything_masked || mode == Mode::rotated_window) {
    p.options.window = p.n > 40 ? 21 : 5;
    make_square(p);
  }
  if (mode == Mode::hybrid || mode == Mode::hybrid_masked) {
    p.options.softmax_window = p.n > 40 ? 23 : 4;
    p.gate = normal_values(p.heads(), 24, 0.5);
    make_square(p);
  }
  if (mode == Mode::documents || mode == Mode::everything_masked || mode == Mode::hybrid_masked ||
      mode == Mode::rotated_masked)
    add_documents(p);
  if (mode == Mode::mask || mode == Mode::everything_masked || mode == Mode::hybrid_masked ||
      mode == Mode::rotated_masked)
    add_mask(p);
  if (mode == Mode::centered || ((mode == Mode::hybrid_masked || mode == Mode::rotated_window) &&
                                 feature_map_info(p.options.feature_map).estimates_softmax))
    add_centers(p);
  if (mode == Mode::rms || mode == Mode::rotated_masked) p.options.normalizer = ops::Normalizer::rms;
}

/// Returns a problem with this combination.
inline AttentionProblem attention_problem(const std::tuple<FeatureMap, bool, Mode>& what, const ProblemShape& shape,
                                          double scale = 1) {
  const auto [map, causal, mode] = what;
  AttentionProblem p = attention_problem(map, causal, shape, scale);
  apply(mode, p);
  if (!is_positive(p) || (p.options.rotate_numerator && feature_map_info(map).can_vanish)) keep_denominators_large(p);
  return p;
}

inline std::vector<std::tuple<FeatureMap, bool, Mode>> every_attention(
    const std::function<bool(const AttentionProblem&)>& wanted) {
  std::vector<std::tuple<FeatureMap, bool, Mode>> all;
  for (const FeatureMap map : every_feature_map()) {
    for (const bool causal : {true, false}) {
      for (const auto& [mode, name] : modes) {
        const std::tuple what{map, causal, mode};
        if (possible(map, mode) && wanted(attention_problem(what, {1, 1, 1, 8, 2, 2, 4, 4}))) all.push_back(what);
      }
    }
  }
  return all;
}
inline bool any_problem(const AttentionProblem&) { return true; }
inline bool is_causal(const AttentionProblem& p) { return p.options.causal; }
inline bool is_masked(const AttentionProblem& p) { return !p.mask.empty(); }
inline bool is_packed(const AttentionProblem& p) { return !p.documents.empty(); }
/// Returns whether the CPU splits sequences into segments if there are fewer heads than threads.
inline bool is_split(const AttentionProblem& p) {
  return p.options.window == 0 && p.options.softmax_window == 0 && !p.options.rotate_numerator && !is_packed(p);
}
inline std::string name_of_combination(const std::tuple<FeatureMap, bool, Mode>& what) {
  const auto [map, causal, mode] = what;
  return std::string(feature_map_info(map).name) + (causal ? "_causal_" : "_bidirectional_") +
         modes[static_cast<std::size_t>(mode)].second;
}

}  // namespace furlong::testing
