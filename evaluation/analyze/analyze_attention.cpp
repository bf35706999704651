#include "evaluation/analyze/analyze_attention.h"

#include <algorithm>
#include <cmath>

#include "evaluation/statistics.h"
#include "framework/core/parallel.h"
#include "framework/core/random.h"
#include "framework/core/shape.h"
#include "framework/ops/attention/softmax/softmax_attention.h"
#include "framework/ops/attention/statistics/head_statistics.h"
#include "framework/primitives/dispatch.h"

namespace furlong {
namespace {

const Stream host{};

Tensor exact_output(const AttentionSample& sample) {
  ops::SoftmaxAttentionOptions options;
  options.n_heads = sample.n_heads;
  options.n_kv_heads = sample.n_kv_heads;
  options.causal = sample.causal;
  options.window = sample.window;
  Tape tape(host);
  const Tape::NoGradient guard(tape);
  return ops::softmax_attention(tape, Variable(sample.query), Variable(sample.key), Variable(sample.value), options,
                                sample.mask)
      .value();
}

/// Uniform attention at linear cost: elu(0) + 1 = 1, so rows of one zero give all visible keys equal weights.
Tensor uniform_output(const AttentionSample& sample) {
  AttentionSample constant = sample;
  constant.query = Tensor::zeros({sample.batch(), sample.n(), sample.n_heads}, DType::float64);
  constant.key = Tensor::zeros({sample.batch(), sample.n_key(), sample.n_kv_heads}, DType::float64);
  AttentionCandidate ones;
  ones.map = ops::FeatureMap::elu1;
  return candidate_output(constant, ones, {});
}

/// Adds the squares of the elements of [batch, n, heads·width] to the sum of each head. `kept` [batch·n] selects rows
/// with 1; empty: all rows.
void add_squares(const std::vector<double>& values, std::int64_t n_heads, std::int64_t width,
                 const std::vector<std::int32_t>& kept, std::vector<double>& sums) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (kept.empty() || kept[i / at(width * n_heads)] != 0) sums[i / at(width) % at(n_heads)] += values[i] * values[i];
  }
}

std::vector<RowNorms> row_norms(const std::vector<AttentionSample>& samples, bool keys) {
  const std::int64_t n_heads = samples[0].n_heads, group = n_heads / samples[0].n_kv_heads, d = samples[0].d();
  std::vector<RowNorms> norms(at(n_heads));
  std::int64_t rows = 0;
  for (const AttentionSample& sample : samples) {
    const Tensor& tensor = keys ? sample.key : sample.query;
    const std::vector<double> values = tensor.to_vector<double>();
    // Padding is no data of the model.
    const Tensor real = keys ? sample.real_keys() : sample.real_queries;
    const std::vector<std::int32_t> kept =
        real.defined() ? real.to_vector<std::int32_t>() : std::vector<std::int32_t>();
    const std::int64_t width = tensor.extent(2), tokens = tensor.extent(0) * tensor.extent(1);
    for (std::int64_t token = 0; token < tokens; ++token) {
      if (!kept.empty() && kept[at(token)] == 0) continue;
      ++rows;
      for (std::int64_t head = 0; head < n_heads; ++head) {
        const double* row = values.data() + token * width + (keys ? head / group : head) * d;
        double square = 0;
        for (std::int64_t i = 0; i < d; ++i) square += row[i] * row[i];
        norms[at(head)].mean += std::sqrt(square);
        norms[at(head)].largest = std::max(norms[at(head)].largest, std::sqrt(square));
      }
    }
  }
  for (RowNorms& norm : norms) norm.mean /= static_cast<double>(std::max<std::int64_t>(rows, 1));
  return norms;
}

Tensor gaussian(const Shape& shape, double deviation, std::uint64_t seed, const char* name) {
  std::vector<double> values(at(shape.elements()));
  const RandomKey key{seed, 0, random_stream(name)};
  parallel_ranges(shape.elements(), 4096, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      values[at(i)] = deviation * random_normal(key, static_cast<std::uint64_t>(i));
  });
  return Tensor::from(values, shape);
}

/// Adds sums and squares of the kept tokens of x [batch, n, heads·d], per head.
std::vector<double> statistics_of(const std::vector<AttentionSample>& samples, bool keys) {
  const std::int64_t heads = keys ? samples[0].n_kv_heads : samples[0].n_heads;
  const Tensor sums = Tensor::zeros({heads, ops::head_statistics_width(samples[0].d())}, DType::float64);
  for (const AttentionSample& sample : samples) {
    const Tensor& x = keys ? sample.key : sample.query;
    ops::add_head_statistics(host, x, x, keys ? sample.real_keys() : sample.real_queries, heads, heads, sums);
  }
  return sums.to_vector<double>();
}

}  // namespace

AttentionSample AttentionSample::of_head(std::int64_t head) const {
  const std::int64_t key_head = head / (n_heads / n_kv_heads);
  AttentionSample one = *this;
  one.n_heads = one.n_kv_heads = 1;
  one.query = query.narrow(2, head * d(), d());
  one.key = key.narrow(2, key_head * d(), d());
  one.value = value.narrow(2, key_head * d_value(), d_value());
  return one;
}

AttentionSample AttentionSample::first_sequence() const {
  AttentionSample one = *this;
  for (Tensor* tensor : {&one.query, &one.key, &one.value, &one.mask.keys, &one.mask.documents, &one.real_queries}) {
    if (tensor->defined()) *tensor = tensor->narrow(0, 0, 1);
  }
  return one;
}

Tensor AttentionSample::real_keys() const { return mask.keys.defined() || n() != n_key() ? mask.keys : real_queries; }

Visibility::Visibility(const AttentionSample& sample, std::int64_t sequence)
    : causal_(sample.causal), window_(sample.window) {
  if (sample.real_queries.defined()) queries_ = sample.real_queries.narrow(0, sequence, 1).to_vector<std::int32_t>();
  if (sample.mask.keys.defined()) keys_ = sample.mask.keys.narrow(0, sequence, 1).to_vector<std::int32_t>();
  if (sample.mask.documents.defined())
    documents_ = sample.mask.documents.narrow(0, sequence, 1).to_vector<std::int32_t>();
}

bool Visibility::operator()(std::int64_t query, std::int64_t key) const {
  if (causal_ && key > query) return false;
  if (window_ > 0 && std::abs(query - key) >= window_) return false;
  if (!queries_.empty() && queries_[at(query)] == 0) return false;
  if (!keys_.empty() && keys_[at(key)] == 0) return false;
  return documents_.empty() || documents_[at(query)] == documents_[at(key)];
}

Tensor as_float64(const Tensor& tensor) {
  Tensor converted;
  ops::with_float_type(tensor.dtype(), "analyze", [&](auto type) {
    using T = typename decltype(type)::type;
    const std::vector<T> values = tensor.to_vector<T>();
    std::vector<double> doubles(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) doubles[i] = static_cast<double>(static_cast<T>(values[i]));
    converted = Tensor::from(doubles, tensor.shape());
  });
  return converted;
}

AttentionData::AttentionData(std::vector<AttentionSample> samples, bool replicas)
    : samples_(std::move(samples)), replicas_(replicas) {
  require(!samples_.empty(), "attention data without a sample");
  for (const AttentionSample& sample : samples_) exact_.push_back(exact_output(sample));
  add_moments();
}

void AttentionData::add_moments() {
  const std::int64_t width = ops::head_statistics_width(d()), group = n_heads() / samples_[0].n_kv_heads;
  const std::vector<double> queries = statistics_of(samples_, false), keys = statistics_of(samples_, true);
  const auto part = [&](const std::vector<double>& statistics, std::int64_t head, std::int64_t which) {
    const double* row = statistics.data() + head * width;
    std::vector<double> means(row + 1 + which * d(), row + 1 + (which + 1) * d());
    for (double& mean : means) mean /= std::max(row[0], 1.0);
    return means;
  };
  for (std::int64_t head = 0; head < n_heads(); ++head)
    moments_.push_back(
        {part(queries, head, 0), part(keys, head / group, 0), part(queries, head, 2), part(keys, head / group, 2)});
}

AttentionData AttentionData::head(std::int64_t head) const {
  require(!replicas_, "head() of replicas");
  AttentionData one;
  for (std::size_t i = 0; i < samples_.size(); ++i) {
    one.samples_.push_back(samples_[i].of_head(head));
    one.exact_.push_back(exact_[i].narrow(2, head * samples_[i].d_value(), samples_[i].d_value()));
  }
  one.moments_ = {moments_[at(head)]};
  one.first_head_ = first_head_ + head;
  return one;
}

std::int64_t AttentionData::longest() const {
  std::int64_t n = 0;
  for (const AttentionSample& sample : samples_) n = std::max(n, sample.n_key());
  return n;
}

std::vector<double> AttentionData::grouped(std::vector<double> by_head) const {
  if (!replicas_) return by_head;
  return {median(std::move(by_head))};
}

std::vector<double> AttentionData::relative_errors(const std::vector<Tensor>& outputs) const {
  require(outputs.size() == samples_.size(), "{} outputs for {} samples", outputs.size(), samples_.size());
  std::vector<double> differences(at(n_heads())), squares(at(n_heads()));
  for (std::size_t i = 0; i < samples_.size(); ++i) {
    std::vector<double> difference = outputs[i].to_vector<double>();
    const std::vector<double> exact = exact_[i].to_vector<double>();
    require(difference.size() == exact.size(), "an output of {}, expected {}", outputs[i].shape().text(),
            exact_[i].shape().text());
    for (std::size_t k = 0; k < exact.size(); ++k) difference[k] -= exact[k];
    const Tensor& real = samples_[i].real_queries;
    const std::vector<std::int32_t> kept =
        real.defined() ? real.to_vector<std::int32_t>() : std::vector<std::int32_t>();
    add_squares(difference, n_heads(), samples_[i].d_value(), kept, differences);
    add_squares(exact, n_heads(), samples_[i].d_value(), kept, squares);
  }
  std::vector<double> errors;
  for (std::size_t head = 0; head < squares.size(); ++head)
    errors.push_back(differences[head] == 0 ? 0 : std::sqrt(differences[head] / squares[head]));
  return grouped(errors);
}

std::vector<double> AttentionData::uniform_errors() const {
  std::vector<Tensor> outputs;
  for (const AttentionSample& sample : samples_) outputs.push_back(uniform_output(sample));
  return relative_errors(outputs);
}

ops::LinearAttentionConstants AttentionData::constants(const AttentionCandidate& candidate) const {
  std::vector<double> query_center, key_center, scaling, oprf_a;
  for (const layers::HeadMoments& head : moments_) {
    const std::vector<double> psi = layers::saderf_scaling(head, candidate.centering);
    query_center.insert(query_center.end(), head.query_mean.begin(), head.query_mean.end());
    key_center.insert(key_center.end(), head.key_mean.begin(), head.key_mean.end());
    scaling.insert(scaling.end(), psi.begin(), psi.end());
    oprf_a.push_back(layers::oprf_constant(head, candidate.centering, candidate.saderf ? &psi : nullptr));
  }
  const Shape by_dimension{n_heads(), d()};
  ops::LinearAttentionConstants constants;
  if (candidate.centering) {
    constants.query_center = Tensor::from(query_center, by_dimension);
    constants.key_center = Tensor::from(key_center, by_dimension);
  }
  if (candidate.saderf) constants.scaling = Tensor::from(scaling, by_dimension);
  if (ops::feature_map_info(candidate.map).needs_oprf_a) constants.oprf_a = Tensor::from(oprf_a, {n_heads()});
  return constants;
}

Tensor AttentionData::random_projection(const AttentionCandidate& candidate, std::int64_t m, std::uint64_t seed,
                                        std::uint32_t draw) const {
  if (!candidate.is_random()) return {};
  const std::int64_t count = ops::projection_count(candidate.map, m);
  std::vector<double> all(at(n_heads() * count * d()));
  parallel_tasks(n_heads(), [&](std::int64_t head) {
    const RandomKey key{seed, draw, random_stream("analyze.directions." + std::to_string(first_head_ + head))};
    const std::vector<float> drawn = layers::draw_random_projection(candidate.kind, count, d(), key);
    std::copy(drawn.begin(), drawn.end(), all.begin() + head * count * d());
  });
  return Tensor::from(all, {n_heads(), count, d()});
}

AttentionData gaussian_attention(std::int64_t replicas, std::int64_t n, std::int64_t d, double deviation, bool causal,
                                 std::uint64_t seed) {
  AttentionSample sample;
  sample.n_heads = sample.n_kv_heads = replicas;
  sample.causal = causal;
  const Shape shape{1, n, replicas * d};
  sample.query = gaussian(shape, deviation, seed, "analyze.query");
  sample.key = gaussian(shape, deviation, seed, "analyze.key");
  sample.value = gaussian(shape, 1, seed, "analyze.value");
  return {{sample}, true};
}

Tensor candidate_output(const AttentionSample& sample, const AttentionCandidate& candidate,
                        const ops::LinearAttentionConstants& constants, ops::DenominatorReport* report,
                        const Tensor& values) {
  ops::LinearAttentionOptions options;
  options.n_heads = sample.n_heads;
  options.n_kv_heads = sample.n_kv_heads;
  options.feature_map = candidate.map;
  options.map_options = candidate.map_options;
  options.causal = sample.causal;
  options.window = sample.window;
  ops::LinearAttentionInputs inputs;
  inputs.query = Variable(sample.query);
  inputs.key = Variable(sample.key);
  inputs.value = Variable(values.defined() ? values : sample.value);
  inputs.constants = constants;
  inputs.mask = sample.mask;
  inputs.report = report;
  Tape tape(host);
  const Tape::NoGradient guard(tape);
  return ops::linear_attention(tape, inputs, options).value();
}

std::vector<double> candidate_errors(const AttentionData& data, const AttentionCandidate& candidate, std::int64_t m,
                                     std::int64_t draws, std::uint64_t seed, ops::DenominatorReport* report) {
  ops::LinearAttentionConstants constants = data.constants(candidate);
  const std::int64_t repeats = data.replicas() || !candidate.is_random() ? 1 : draws;
  std::vector<std::vector<double>> by_group(at(data.groups()));
  for (std::int64_t draw = 0; draw < repeats; ++draw) {
    constants.random_projection = data.random_projection(candidate, m, seed, static_cast<std::uint32_t>(draw));
    std::vector<Tensor> outputs;
    for (const AttentionSample& sample : data.samples())
      outputs.push_back(candidate_output(sample, candidate, constants, report));
    const std::vector<double> errors = data.relative_errors(outputs);
    for (std::size_t group = 0; group < errors.size(); ++group) by_group[group].push_back(errors[group]);
  }
  std::vector<double> medians;
  for (const std::vector<double>& errors : by_group) medians.push_back(median(errors));
  return medians;
}

std::vector<RowNorms> query_norms(const AttentionData& data) { return row_norms(data.samples(), false); }
std::vector<RowNorms> key_norms(const AttentionData& data) { return row_norms(data.samples(), true); }

}  // namespace furlong
