#include "evaluation/bench/bench_attention.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "evaluation/statistics.h"
#include "framework/core/arena.h"
#include "framework/core/gpu_engine.h"
#include "framework/core/random.h"
#include "framework/primitives/dispatch.h"
#include "framework/primitives/gemm.h"
#include "layers/attention/linear/directions.h"

namespace furlong {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

/// Independent values, uniform with variance 1 (as after a layer norm). They repeat after a prime number of elements,
/// which no row width divides: drawing every one would take longer than most of what is measured.
Tensor random_tensor(std::int64_t elements, DType dtype, const char* name, const Device& device) {
  constexpr std::int64_t period = 1048573;
  const RandomKey key{0, 0, random_stream(name)};
  std::vector<float> drawn(static_cast<std::size_t>(std::min(period, elements)));
  for (std::size_t i = 0; i < drawn.size(); ++i) drawn[i] = (random_uniform(key, i) - 0.5f) * 3.4641016f;
  Tensor tensor;
  ops::with_float_type(dtype, "bench attention", [&](auto type) {
    using T = typename decltype(type)::type;
    std::vector<T> values(static_cast<std::size_t>(elements));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = T(drawn[i % drawn.size()]);
    tensor = Tensor::from(values, {elements}, device);
  });
  return tensor;
}

Tensor constant_tensor(const std::vector<float>& values, const Shape& shape, DType dtype, const Device& device) {
  if (accumulate_dtype(dtype) == DType::float64)
    return Tensor::from(std::vector<double>(values.begin(), values.end()), shape, device);
  return Tensor::from(values, shape, device);
}

/// The inputs of the longest sequence, of which shorter ones take the beginning.
class Workload {
 public:
  explicit Workload(const BenchAttentionOptions& options) : options_(options) {
    const std::int64_t longest = *std::max_element(options.lengths.begin(), options.lengths.end());
    const std::int64_t elements = options.batch * longest * options.n_heads * options.d;
    query_ = random_tensor(elements, options.dtype, "bench.query", options.device);
    key_ = random_tensor(elements, options.dtype, "bench.key", options.device);
    value_ = random_tensor(elements, options.dtype, "bench.value", options.device);
    if (options.train) d_output_ = random_tensor(elements, options.dtype, "bench.d_output", options.device);
    if (!options.choice.uses_features()) return;
    const std::int64_t wanted =
        ops::feature_map_info(options.choice.feature_map).needs_directions ? options.features : 0;
    n_directions_ = attend_direction_count(options.choice, wanted, options.d);
    features_ = attend_feature_count(options.choice, options.d, n_directions_);
    if (n_directions_ > 0) {
      const RandomKey key{0, 0, random_stream("bench.directions")};
      constants_.directions =
          constant_tensor(layers::draw_directions(layers::DirectionsKind::orthogonal, n_directions_, options.d, key),
                          {n_directions_, options.d}, options.dtype, options.device);
    }
    const std::vector<float> a(static_cast<std::size_t>(options.n_heads), -0.05f);  // any value: the cost is the same
    if (ops::feature_map_info(options.choice.feature_map).needs_oprf_a)
      constants_.oprf_a = constant_tensor(a, {options.n_heads}, options.dtype, options.device);
  }

  std::int64_t features() const { return features_; }
  std::int64_t n_directions() const { return n_directions_; }

  /// One run; what it took, and the peak beyond the inputs.
  std::pair<double, std::int64_t> run(std::int64_t n) const {
    const AttentionOperands operands = operands_of(n);
    const Tensor d_output = options_.train ? first(d_output_, n) : Tensor{};
    Arena& memory = arena(options_.device);
    memory.reset_peak();
    const std::int64_t before = memory.counters().bytes_in_use;
    const Stream stream{options_.device};
    synchronize(stream);
    const auto begin = Clock::now();
    Tape tape(stream);
    const Variable output = attend_in_parallel(tape, operands, options_.choice, nullptr);
    if (options_.train) tape.backward({output}, {d_output});
    synchronize(stream);
    return {since(begin), memory.counters().peak_bytes - before};
  }

 private:
  Tensor first(const Tensor& flat, std::int64_t n) const {
    const std::int64_t width = options_.n_heads * options_.d;
    return flat.narrow(0, 0, options_.batch * n * width).reshape({options_.batch, n, width});
  }
  Variable variable(const Tensor& tensor) const { return options_.train ? Variable::leaf(tensor) : Variable(tensor); }

  AttentionOperands operands_of(std::int64_t n) const {
    AttentionOperands operands;
    operands.query = variable(first(query_, n));
    operands.key = variable(first(key_, n));
    operands.value = variable(first(value_, n));
    operands.n_heads = operands.n_kv_heads = options_.n_heads;
    operands.constants = constants_;
    if (options_.choice.mechanism == AttendMechanism::linformer) add_projections(n, operands);
    return operands;
  }

  void add_projections(std::int64_t n, AttentionOperands& operands) const {
    ops::SequenceProjectionOptions projection;
    projection.kind = options_.choice.projection;
    projection.n_heads = options_.n_heads;
    projection.projected_length = operands.projected_length = std::min(options_.projected_length, n);
    projection.max_length = operands.max_length = n;
    if (projection.kind == ops::SequenceProjection::mean) return;
    const Shape shape = ops::sequence_projection_weight_shape(projection, options_.d, true);
    operands.key_projection = variable(
        random_tensor(shape.elements(), options_.dtype, "bench.key_projection", options_.device).reshape(shape));
    operands.value_projection = variable(
        random_tensor(shape.elements(), options_.dtype, "bench.value_projection", options_.device).reshape(shape));
  }

  const BenchAttentionOptions& options_;
  Tensor query_, key_, value_, d_output_;
  ops::LinearAttentionConstants constants_;
  std::int64_t features_ = 0, n_directions_ = 0;
};

/// Pairs of tokens that see each other.
double pairs(bool causal, std::int64_t n, std::int64_t window) {
  const double tokens = static_cast<double>(n), width = static_cast<double>(window > 0 ? std::min(window, n) : n);
  const double to_the_left = width * tokens - width * (width - 1) / 2;
  return causal ? to_the_left : 2 * to_the_left - tokens;
}

/// Pairs of a causal chunk as linear attention takes them: 16 queries at a time, each block over the keys up to its
/// last one's.
double pairs_in_blocks(double chunk) {
  double count = 0;
  for (double row = 0; row < chunk; row += 16) count += std::min(16.0, chunk - row) * std::min(row + 16, chunk);
  return count;
}

double softmax_flops(double pairs, double d, bool train) { return pairs * (train ? 14 : 4) * d; }

struct FeatureSizes {
  double directions, features;
};
FeatureSizes feature_sizes(const BenchAttentionOptions& options) {
  const ops::FeatureMapInfo& info = ops::feature_map_info(options.choice.feature_map);
  const std::int64_t directions =
      attend_direction_count(options.choice, info.needs_directions ? options.features : 0, options.d);
  return {static_cast<double>(directions),
          static_cast<double>(attend_feature_count(options.choice, options.d, directions))};
}

double linear_flops(const BenchAttentionOptions& options, double n, double m, double directions, std::int64_t window) {
  const double d = static_cast<double>(options.d),
               c = static_cast<double>(std::min<std::int64_t>(options.choice.chunk_size, static_cast<std::int64_t>(n)));
  const bool causal = options.choice.causal, train = options.train;
  if (window > 0) {
    const double seen = pairs(causal, static_cast<std::int64_t>(n), window);
    return (train ? 12 : 4) * n * directions * d + seen * 2 * (m + d) + (train ? seen * 2 * (3 * m + 2 * d) : 0);
  }
  double count = 4 * n * directions * d + 4 * n * m * d;
  // Both sweeps make the features of queries and keys again; gradients go back through the directions once for each,
  // and causal once more for queries, whose gradient comes from the state in one sweep and from pairs in the other.
  if (train) count += (causal ? 14 : 12) * n * directions * d + 10 * n * m * d;
  if (!causal) return count;
  const double in_blocks = n / c * pairs_in_blocks(c);
  return count + in_blocks * 2 * (m + d) + (train ? in_blocks * 2 * (3 * m + 2 * d) : 0);
}

}  // namespace

double attention_flops(const BenchAttentionOptions& options, std::int64_t n) {
  const AttentionChoice& choice = options.choice;
  const double tokens = static_cast<double>(n), d = static_cast<double>(options.d),
               heads = static_cast<double>(options.n_heads);
  if (choice.mechanism == AttendMechanism::softmax)
    return heads * softmax_flops(pairs(choice.causal, n, choice.window), d, options.train);
  if (choice.mechanism == AttendMechanism::linformer) {
    const double r = static_cast<double>(std::min(options.projected_length, n));
    const double projection =
        choice.projection == ops::SequenceProjection::linear ? (options.train ? 12 : 4) * tokens * r * d : 0;
    return heads * (projection + softmax_flops(tokens * r, d, options.train));
  }
  const FeatureSizes sizes = feature_sizes(options);
  const bool windowed = choice.mechanism == AttendMechanism::windowed;
  const double inside = windowed ? softmax_flops(pairs(choice.causal, n, choice.window), d, options.train) : 0;
  return heads *
         (inside + linear_flops(options, tokens, sizes.features, sizes.directions, windowed ? 0 : choice.window));
}

double segment_flops(const BenchAttentionOptions& options, std::int64_t n) {
  require(options.choice.mechanism == AttendMechanism::linear && options.choice.window == 0,
          "segments of other than linear attention");
  const FeatureSizes sizes = feature_sizes(options);
  return static_cast<double>(options.n_heads) * 2 * static_cast<double>(n * options.d) *
         (sizes.directions + sizes.features);
}

PeakRate::PeakRate(DType dtype, const Device& device)
    : stream_{device},
      size_(device.type == DeviceType::cuda ? 4096
            : device.is_cpu()               ? 2048
                                            : 64),  // what fills the engine
      a_(random_tensor(size_ * size_, dtype, "peak.a", device).reshape({size_, size_})),
      b_(random_tensor(size_ * size_, dtype, "peak.b", device).reshape({size_, size_})),
      c_(Tensor::empty({size_, size_}, dtype, device)) {
  require(dtype != DType::float64, "PeakRate: products of float64 are written for exactness");
}

void PeakRate::measure() {
  const auto size = static_cast<double>(size_), flops = 2 * size * size * size;
  const auto begin = Clock::now();
  for (int attempt = 0; attempt < 2 || (since(begin) < 0.1 && attempt < 10); ++attempt) {
    synchronize(stream_);
    const auto start = Clock::now();
    ops::gemm(stream_, a_, false, b_, false, c_, GradientMode::overwrite);
    synchronize(stream_);
    best_ = std::max(best_, flops / since(start));
  }
}

double fitted_exponent(const std::vector<std::pair<double, double>>& points) {
  double mean_x = 0, mean_y = 0;
  for (const auto& [x, y] : points) mean_x += std::log(x), mean_y += std::log(y);
  mean_x /= static_cast<double>(points.size());
  mean_y /= static_cast<double>(points.size());
  double covariance = 0, variance = 0;
  for (const auto& [x, y] : points) {
    covariance += (std::log(x) - mean_x) * (std::log(y) - mean_y);
    variance += (std::log(x) - mean_x) * (std::log(x) - mean_x);
  }
  require(variance > 0, "fitted_exponent: points at one x only");
  return covariance / variance;
}

BenchAttentionResult bench_attention(const BenchAttentionOptions& options, PeakRate* peak) {
  options.choice.check();
  const Workload workload(options);
  BenchAttentionResult result;
  result.features = workload.features();
  for (const std::int64_t n : options.lengths) {
    BenchAttentionLength& length = result.lengths.emplace_back();
    length.n = n;
    length.projected_length = std::min(options.projected_length, n);
    length.flops = static_cast<double>(options.batch) * attention_flops(options, n);
    length.peak_bytes = workload.run(n).second;
  }
  for (std::int64_t repetition = 0; repetition < options.repeat; ++repetition) {
    if (peak) peak->measure();
    for (BenchAttentionLength& length : result.lengths) {
      const auto [seconds, bytes] = workload.run(length.n);
      length.seconds.push_back(seconds);
      length.peak_bytes = std::max(length.peak_bytes, bytes);
    }
  }
  if (peak) peak->measure();
  std::vector<std::pair<double, double>> points;
  for (BenchAttentionLength& length : result.lengths) {
    length.median_seconds = median(length.seconds);
    points.emplace_back(static_cast<double>(length.n), length.median_seconds);
  }
  if (points.size() >= 2) result.exponent = fitted_exponent(points);
  return result;
}

}  // namespace furlong
