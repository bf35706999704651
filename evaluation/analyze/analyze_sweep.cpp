#include "evaluation/analyze/analyze_sweep.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "evaluation/attend/attend_tensors.h"
#include "framework/primitives/arithmetic.h"

namespace furlong {
namespace {

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

Tensor scaled(const Tensor& x, double factor) {
  const Tensor result = Tensor::empty(x.shape(), x.dtype());
  ops::add(Stream{}, result, x, GradientMode::overwrite, factor);
  return result;
}

void check_finite(const std::filesystem::path& file, const char* name, const Tensor& tensor) {
  const double* const values = tensor.data<double>();
  if (!std::all_of(values, values + tensor.elements(), [](double value) { return std::isfinite(value); }))
    throw UserError("{}: HDF5 dataset '{}' has a value that is not finite; errors are undefined for it", file.string(),
                    name);
}

AttentionSample given_attention(const SweepOptions& options) {
  layers::AttentionConfig config;
  config.causal = options.causal;
  const AttendTensors tensors = read_attend_tensors(options.input.string(), config, DType::float64, false, 0, Device{});
  AttentionSample sample;
  check_finite(options.input, "query", tensors.query);
  check_finite(options.input, "key", tensors.key);
  check_finite(options.input, "value", tensors.value);
  sample.query = tensors.query;
  sample.key = tensors.key;
  sample.value = tensors.value;
  sample.n_heads = tensors.n_heads;
  sample.n_kv_heads = tensors.n_kv_heads;
  sample.causal = options.causal;
  sample.mask = tensors.mask;
  if (sample.n() == sample.n_key())
    sample.real_queries = sample.mask.keys;  // self-attention: the query of a masked key is padding too
  return sample;
}

/// Returns each candidate with each kind of random projection and each number of features that apply to it.
std::vector<std::pair<AttentionCandidate, std::int64_t>> cases_of(const SweepOptions& options, std::int64_t d) {
  std::vector<std::pair<AttentionCandidate, std::int64_t>> cases;
  for (AttentionCandidate candidate : options.candidates) {
    if (!candidate.is_random()) {
      cases.emplace_back(candidate, candidate.features(0, d));
      continue;
    }
    for (const layers::RandomProjectionKind kind : options.kinds) {
      candidate.kind = kind;
      for (const std::int64_t m : options.features) cases.emplace_back(candidate, candidate.features(m, d));
    }
  }
  return cases;
}

std::vector<RequiredFeatures> required_of_groups(const AttentionData& data, const AttentionCandidate& candidate,
                                                 const AdviceOptions& options) {
  if (data.replicas()) return {required_features(data, candidate, options)};
  std::vector<RequiredFeatures> required;
  for (std::int64_t head = 0; head < data.n_heads(); ++head)
    required.push_back(required_features(data.head(head), candidate, options));
  return required;
}

void fill(SweepSetting& setting, const AttentionData& data, const SweepOptions& options) {
  const AttentionSample& sample = data.samples()[0];
  setting.batch = sample.batch();
  setting.n_heads = data.replicas() ? 1 : data.n_heads();
  setting.n = sample.n();
  setting.d = data.d();
  const auto mean_norm = [](const std::vector<RowNorms>& norms) {
    double sum = 0;
    for (const RowNorms& norm : norms) sum += norm.mean;
    return sum / static_cast<double>(norms.size());
  };
  setting.query_norm = mean_norm(query_norms(data));
  setting.key_norm = mean_norm(key_norms(data));
  setting.uniform_error_of_heads = data.uniform_errors();
  setting.uniform_error = mean(setting.uniform_error_of_heads);
  for (const auto& [candidate, m] : cases_of(options, data.d())) {
    const bool same = !setting.results.empty() && setting.results.back().candidate.name() == candidate.name() &&
                      setting.results.back().candidate.kind == candidate.kind;
    const std::vector<RequiredFeatures> known =
        same ? setting.results.back().required : std::vector<RequiredFeatures>();
    SweepResult& result = setting.results.emplace_back();
    result.candidate = candidate;
    result.m = m;
    result.error_of_heads = candidate_errors(data, candidate, m, options.draws, options.seed, &result.denominators);
    result.error = mean(result.error_of_heads);
    if (options.kernel_draws > 0)
      result.kernel = kernel_statistics(data, candidate, m, options.kernel_draws, options.seed);
    if (options.find_features && candidate.is_random())
      result.required = same ? known : required_of_groups(data, candidate, options.advice);
  }
  if (options.advise) setting.advice = advise(data, options.advice);
}

}  // namespace

void sweep_attention(const SweepOptions& options, const std::function<void(const SweepSetting&)>& done) {
  if (!options.input.empty()) {
    const AttentionSample given = given_attention(options);
    cases_of(options, given.d());
    for (const double scale : options.norm_scales) {
      AttentionSample sample = given;
      sample.query = scaled(given.query, scale);
      sample.key = scaled(given.key, scale);
      SweepSetting setting;
      setting.norm_scale = scale;
      fill(setting, AttentionData({sample}, false), options);
      done(setting);
    }
    return;
  }
  for (const std::int64_t d : options.widths) cases_of(options, d);
  for (const std::int64_t d : options.widths) {
    for (const std::int64_t n : options.lengths) {
      for (const double deviation : options.deviations) {
        for (const double scale : options.norm_scales) {
          SweepSetting setting;
          setting.deviation = deviation;
          setting.norm_scale = scale;
          fill(setting, gaussian_attention(options.draws, n, d, deviation * scale, options.causal, options.seed),
               options);
          done(setting);
        }
      }
    }
  }
}

}  // namespace furlong
