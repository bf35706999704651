#include "evaluation/analyze/analyze_advice.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "layers/attention/mechanism.h"

namespace furlong {
namespace {

/// Rounds m up to a number that the map can have and that fills vectors, at most `most`.
std::int64_t rounded_features(double m, const AttentionCandidate& candidate, std::int64_t most) {
  const std::int64_t step = std::max<std::int64_t>(8, ops::feature_map_info(candidate.map).features_per_projection);
  const std::int64_t up =
      static_cast<std::int64_t>(std::ceil(std::min(m, static_cast<double>(most)) / static_cast<double>(step))) * step;
  return std::clamp(up, std::min(step, most), most);
}

/// Rounds M down to a number that the map can have.
std::int64_t most_features_of(const AttentionCandidate& candidate, std::int64_t most) {
  const std::int64_t step = ops::feature_map_info(candidate.map).features_per_projection;
  return std::max(step, most / step * step);
}

double flops_per_token(layers::AttentionConfig config, std::int64_t d, std::int64_t n, bool causal,
                       std::int64_t window) {
  config.causal = causal;
  config.window = window;
  config.d_head = d;
  return layers::mechanism_info(config.mechanism).cost(config, n).forward / static_cast<double>(n);
}

/// An attention to try, before its error is known.
struct Trial {
  std::size_t candidate;
  LinearChoice choice;
};

std::vector<Trial> trials_of(const std::vector<AttentionCandidate>& candidates, const AttentionData& data,
                             const AdviceOptions& options, std::int64_t n) {
  const bool causal = data.samples()[0].causal;
  const std::int64_t d = data.d(), window = data.samples()[0].window;
  std::vector<Trial> trials;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const AttentionCandidate& candidate = candidates[i];
    std::set<std::int64_t> ladder;
    if (!candidate.is_random()) {
      try {
        const std::int64_t m = candidate.features(0, d);
        if (options.limits_polynomials && options.candidates.empty() && m > options.max_features) continue;
        ladder.insert(m);
      } catch (const UserError&) {
        if (!options.candidates.empty())
          throw;  // requested by name; default candidates that are too large for d are skipped
      }
    } else {
      const std::int64_t most = most_features_of(candidate, options.max_features);
      for (double m = 8; m < static_cast<double>(most); m *= std::sqrt(2.0))
        ladder.insert(rounded_features(m, candidate, most));
      ladder.insert(most);
    }
    for (const std::int64_t m : ladder)
      trials.push_back({i, {candidate, m, 0, linear_flops_per_token(candidate, m, d, n, causal, window)}});
  }
  std::stable_sort(trials.begin(), trials.end(),
                   [](const Trial& a, const Trial& b) { return a.choice.flops_per_token < b.choice.flops_per_token; });
  return trials;
}

/// Returns the smallest n with linear cost below that of softmax, or 0 if there is none. Both are monotone in n.
std::int64_t crossover(const LinearChoice& choice, std::int64_t d, bool causal, std::int64_t window) {
  const auto cheaper = [&](std::int64_t n) {
    return linear_flops_per_token(choice.candidate, choice.m, d, n, causal, window) <
           softmax_flops_per_token(d, n, causal, window);
  };
  std::int64_t high = 1;
  while (!cheaper(high)) {  // without a window, the cost of softmax per token grows without bound
    if (window > 0 && high > std::int64_t{1} << 40) return 0;
    high *= 2;
  }
  std::int64_t low = high / 2;  // not cheaper, or 0
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (cheaper(middle) ? high : low) = middle;
  }
  return high;
}

}  // namespace

double linear_flops_per_token(const AttentionCandidate& candidate, std::int64_t m, std::int64_t d, std::int64_t n,
                              bool causal, std::int64_t window) {
  layers::AttentionConfig config;
  config.mechanism = layers::linear_attention;
  config.feature_map = ops::feature_map_info(candidate.map).name;
  config.map_options = candidate.map_options;
  config.n_features = m;
  return flops_per_token(config, d, n, causal, window);
}

double softmax_flops_per_token(std::int64_t d, std::int64_t n, bool causal, std::int64_t window) {
  return flops_per_token({}, d, n, causal, window);
}

RequiredFeatures required_features(const AttentionData& data, const AttentionCandidate& candidate,
                                   const AdviceOptions& options) {
  require(candidate.is_random() && data.groups() == 1, "required_features: {} on {} groups", candidate.name(),
          data.groups());
  const std::int64_t most = most_features_of(candidate, options.max_features);
  const auto measured = [&](std::int64_t m) {
    return candidate_errors(data, candidate, m, options.draws, options.seed)[0];
  };
  double log_constant = 0;  // of error = constant · m^(-1/2), least squares over logarithms
  int points = 0;
  for (const std::int64_t m : {32, 64, 128}) {
    const std::int64_t fitted = rounded_features(static_cast<double>(m), candidate, most);
    log_constant += std::log(measured(fitted)) + std::log(static_cast<double>(fitted)) / 2;
    ++points;
  }
  const double constant = std::exp(log_constant / points);
  const auto scaled = [&](std::int64_t m, double factor) {
    return rounded_features(static_cast<double>(m) * factor, candidate, most);
  };
  RequiredFeatures found;
  found.tried =
      std::isfinite(constant) ? rounded_features(std::pow(constant / options.target_error, 2), candidate, most) : most;
  found.error = measured(found.tried);
  while (!(found.error <= options.target_error) && found.tried < most) {
    found.tried = scaled(found.tried, std::clamp(std::pow(found.error / options.target_error, 2), 1.2, 4.0));
    found.error = measured(found.tried);
  }
  if (!(found.error <= options.target_error)) return found;
  // Errors of few features can be far above the curve, which then predicts too large an m. Decrease m by the curve
  // through the current error.
  for (;;) {
    found.m = found.tried;
    const std::int64_t fewer = scaled(found.tried, std::pow(found.error / options.target_error, 2));
    if (static_cast<double>(fewer) > 0.9 * static_cast<double>(found.tried)) return found;
    const double error = measured(fewer);
    if (!(error <= options.target_error)) return found;
    found.tried = fewer;
    found.error = error;
  }
}

const std::vector<AttentionCandidate>& default_advice_candidates() {
  static const std::vector<AttentionCandidate> candidates = [] {
    std::vector<AttentionCandidate> made;
    for (const char* name : {"taylor:1", "taylor:1+centering", "taylor:2", "taylor:2+centering", "limit:2",
                             "limit:2+centering", "favor_trig", "favor_positive", "favor_positive+centering+saderf",
                             "favor_hyperbolic", "favor_hyperbolic+centering+saderf", "oprf", "oprf+centering+saderf"})
      made.push_back(attention_candidate(name));
    return made;
  }();
  return candidates;
}

std::vector<Advice> advise(const AttentionData& data, const AdviceOptions& options) {
  std::vector<AttentionCandidate> candidates =
      options.candidates.empty() ? default_advice_candidates() : options.candidates;
  for (AttentionCandidate& candidate : candidates) candidate.kind = options.kind;
  const std::int64_t n = options.length > 0 ? options.length : data.longest();
  const bool causal = data.samples()[0].causal;
  const std::int64_t window = data.samples()[0].window;
  const std::vector<double> uniform = data.uniform_errors();
  std::vector<Advice> advice(static_cast<std::size_t>(data.groups()));
  for (std::size_t group = 0; group < advice.size(); ++group) {
    Advice& one = advice[group];
    one.uniform_suffices = uniform[group] <= options.target_error;
    one.length = n;
    one.softmax_flops_per_token = softmax_flops_per_token(data.d(), n, causal, window);
    one.nearest.error = HUGE_VAL;
  }
  std::vector<bool> hopeless(candidates.size());
  for (const Trial& trial : trials_of(candidates, data, options, n)) {
    if (hopeless[trial.candidate]) continue;
    std::vector<std::size_t> open;
    for (std::size_t group = 0; group < advice.size(); ++group) {
      if (!advice[group].linear) open.push_back(group);
    }
    if (open.empty()) break;
    // If only one head is left, the others are not computed.
    const bool alone = open.size() == 1 && data.groups() > 1;
    const AttentionCandidate& candidate = trial.choice.candidate;
    const std::vector<double> errors = candidate_errors(alone ? data.head(static_cast<std::int64_t>(open[0])) : data,
                                                        candidate, trial.choice.m, options.draws, options.seed);
    double least = HUGE_VAL;
    for (const std::size_t group : open) {
      Advice& one = advice[group];
      LinearChoice choice = trial.choice;
      choice.error = errors[alone ? 0 : group];
      least = std::min(least, choice.error);
      if (choice.error < one.nearest.error) one.nearest = choice;
      if (choice.error <= options.target_error) one.linear = choice;
    }
    const double at_most =
        least * std::sqrt(static_cast<double>(trial.choice.m) / static_cast<double>(options.max_features));
    hopeless[trial.candidate] = at_most > 2 * options.target_error;
  }
  for (Advice& one : advice) {
    if (one.linear) one.cheaper_from = crossover(*one.linear, data.d(), causal, window);
  }
  return advice;
}

}  // namespace furlong
