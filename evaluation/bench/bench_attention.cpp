#include "evaluation/bench/bench_attention.h"

#include <algorithm>
#include <cmath>

#include "evaluation/statistics.h"
#include "framework/core/arena.h"
#include "framework/core/clock.h"
#include "framework/core/gpu_engine.h"
#include "framework/core/random.h"
#include "framework/ops/attention/linformer/sequence_projection.h"
#include "framework/primitives/arithmetic.h"
#include "framework/primitives/dispatch.h"
#include "framework/primitives/gemm.h"
#include "layers/attention/linear/random_projection.h"

namespace furlong {
namespace {

/// Returns uniform values with variance 1, as after a layer norm. They repeat after a prime number of elements, which
/// is not a multiple of any row width: drawing all of them would take longer than most measurements.
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

/// Inputs of the longest sequence; shorter sequences use their start.
class Workload {
 public:
  explicit Workload(const BenchAttentionOptions& options)
      : options_(options), config_(options.config), mechanism_(layers::mechanism_info(config_.mechanism)) {
    config_.n_kv_heads = config_.n_heads;
    const std::int64_t longest = *std::max_element(options.lengths.begin(), options.lengths.end());
    const std::int64_t elements = options.batch * longest * config_.n_heads * config_.d_head;
    query_ = random_tensor(elements, options.dtype, "bench.query", options.device);
    key_ = random_tensor(elements, options.dtype, "bench.key", options.device);
    value_ = random_tensor(elements, options.dtype, "bench.value", options.device);
    if (options.train) d_output_ = random_tensor(elements, options.dtype, "bench.d_output", options.device);
    if (mechanism_.has_features) add_features();
  }

  std::int64_t features() const { return mechanism_.has_features ? config_.n_features : 0; }

  /// Runs once. Returns the time, and the peak memory in addition to the inputs.
  std::pair<double, std::int64_t> run(std::int64_t n) const {
    const AttentionOperands operands{variable(first(query_, n)), variable(first(key_, n)), variable(first(value_, n))};
    const BareAttention attention = attention_of(n);
    const Tensor d_output = options_.train ? first(d_output_, n) : Tensor{};
    Arena& memory = arena(options_.device);
    memory.reset_peak();
    const std::int64_t before = memory.counters().bytes_in_use;
    const Stream stream{options_.device};
    synchronize(stream);
    const auto begin = Clock::now();
    Tape tape(stream);
    const Variable output = attention.in_parallel(tape, operands);
    if (options_.train) tape.backward({output}, {d_output});
    synchronize(stream);
    return {seconds_since(begin), memory.counters().peak_bytes - before};
  }

 private:
  Tensor first(const Tensor& flat, std::int64_t n) const {
    const std::int64_t width = config_.n_heads * config_.d_head;
    return flat.narrow(0, 0, options_.batch * n * width).reshape({options_.batch, n, width});
  }
  Variable variable(const Tensor& tensor) const { return options_.train ? Variable::leaf(tensor) : Variable(tensor); }

  void add_features() {
    const ops::FeatureMapInfo& map = ops::feature_map_info(config_.feature_map);
    const std::int64_t random_projection =
        attend_projection_count(config_, map.needs_random_projection ? config_.n_features : 0);
    config_.n_features = attend_feature_count(config_, random_projection);
    if (random_projection > 0) {
      const RandomKey key{0, 0, random_stream("bench.directions")};
      constants_.random_projection =
          constant_tensor(layers::draw_random_projection(layers::RandomProjectionKind::orthogonal, random_projection,
                                                         config_.d_head, key),
                          {random_projection, config_.d_head}, options_.dtype, options_.device);
    }
    const std::vector<float> a(static_cast<std::size_t>(config_.n_heads), -0.05f);  // any value: the cost is the same
    if (map.needs_oprf_a) constants_.oprf_a = constant_tensor(a, {config_.n_heads}, options_.dtype, options_.device);
  }

  BareAttention attention_of(std::int64_t n) const {
    layers::AttentionConfig config = config_;
    config.max_sequence_length = n;
    config.projected_length = std::min(config_.projected_length, n);
    layers::AttentionTensors tensors;
    tensors.constants = constants_;
    if (mechanism_.projects_sequence) add_projections(config, tensors);
    return {config, tensors, options_.dtype, options_.device};
  }

  void add_projections(const layers::AttentionConfig& config, layers::AttentionTensors& tensors) const {
    ops::SequenceProjectionOptions projection;
    projection.kind = config.projection;
    projection.n_heads = config.n_heads;
    projection.projected_length = config.projected_length;
    projection.max_length = config.max_sequence_length;
    if (projection.kind == ops::SequenceProjection::mean) return;
    const Shape shape = ops::sequence_projection_weight_shape(projection, config.d_head, true);
    const auto weight = [&](const char* stream) {
      return variable(random_tensor(shape.elements(), options_.dtype, stream, options_.device).reshape(shape));
    };
    tensors.key_projection = weight("bench.key_projection");
    tensors.value_projection = weight("bench.value_projection");
  }

  const BenchAttentionOptions& options_;
  layers::AttentionConfig config_;
  const layers::MechanismInfo& mechanism_;
  Tensor query_, key_, value_, d_output_;
  ops::LinearAttentionConstants constants_;
};

}  // namespace

double attention_flops(const BenchAttentionOptions& options, std::int64_t n) {
  layers::AttentionConfig config = options.config;
  config.n_kv_heads = config.n_heads;
  config.max_sequence_length = n;
  config.projected_length = std::min(config.projected_length, n);
  const layers::MechanismInfo& mechanism = layers::mechanism_info(config.mechanism);
  if (mechanism.has_features) {  // throws with names of command-line options if m does not fit the map
    const bool random = ops::feature_map_info(config.feature_map).needs_random_projection;
    attend_feature_count(config, attend_projection_count(config, random ? config.n_features : 0));
  }
  const layers::AttentionCost cost = mechanism.cost(config, n);
  return options.train ? cost.with_backward : cost.forward;
}

PeakRate::PeakRate(DType dtype, const Device& device, std::int64_t rows, ProductPrecision products)
    : stream_{device, nullptr, products},
      sizes_(device.type == DeviceType::cuda ? std::vector<std::int64_t>{4096}
             : device.is_cpu()               ? std::vector<std::int64_t>{512, 1024, 2048}
                                             : std::vector<std::int64_t>{64}),  // small products for the simulator
      rows_(rows),
      a_(random_tensor(std::max(rows, sizes_.back()) * sizes_.back(), dtype, "peak.a", device)),
      b_(random_tensor(sizes_.back() * sizes_.back(), dtype, "peak.b", device)),
      c_(Tensor::empty({std::max(rows, sizes_.back()) * sizes_.back()}, dtype, device)) {
  require(dtype != DType::float64, "PeakRate: float64 has no peak");
}

void PeakRate::measure() {
  for (const std::int64_t size : sizes_) {
    const std::int64_t rows = rows_ > 0 ? rows_ : size;
    const auto matrix = [size](const Tensor& flat, std::int64_t extent) {
      return flat.narrow(0, 0, extent * size).reshape({extent, size});
    };
    const Tensor a = matrix(a_, rows), b = matrix(b_, size), c = matrix(c_, rows);
    const double flops = 2 * static_cast<double>(rows) * std::pow(static_cast<double>(size), 2);
    const auto begin = Clock::now();
    for (int attempt = 0; attempt < 2 || (seconds_since(begin) < 0.1 && attempt < 10); ++attempt) {
      synchronize(stream_);
      const auto start = Clock::now();
      ops::gemm(stream_, a, false, b, false, c, GradientMode::overwrite);
      synchronize(stream_);
      best_ = std::max(best_, flops / seconds_since(start));
    }
  }
}

double Roofline::flops(DType dtype) const {
  return dtype == DType::bfloat16 ? std::max(bfloat16_flops, bfloat16_packed_flops.value_or(0)) : float32_flops;
}

void Roofline::improve(const Roofline& other) {
  float32_flops = std::max(float32_flops, other.float32_flops);
  bfloat16_flops = std::max(bfloat16_flops, other.bfloat16_flops);
  bfloat16_packed_flops = std::max(bfloat16_packed_flops, other.bfloat16_packed_flops);
  memory_bytes = std::max(memory_bytes, other.memory_bytes);
  tf32 = other.tf32;
}

std::string Roofline::text() const {
  const std::string packed = bfloat16_packed_flops ? fmt::format("plain, {:.1f} packed", *bfloat16_packed_flops * 1e-9)
                                                   : "(products do not pack weights here)";
  return fmt::format("roofline: {} {:.1f} GFLOP/s; bfloat16 {:.1f} {}; memory {:.1f} GB/s",
                     tf32 ? "float32 as TF32" : "float32", float32_flops * 1e-9, bfloat16_flops * 1e-9, packed,
                     memory_bytes * 1e-9);
}

nlohmann::ordered_json Roofline::to_json() const {
  nlohmann::ordered_json packed;
  if (bfloat16_packed_flops) packed = *bfloat16_packed_flops;
  return {{"float32_flops_per_second", float32_flops},
          {"tf32", tf32},
          {"bfloat16_flops_per_second", bfloat16_flops},
          {"bfloat16_packed_flops_per_second", packed},
          {"memory_bytes_per_second", memory_bytes}};
}

Roofline measure_roofline(const Device& device, std::uint64_t usable_memory, ProductPrecision products) {
  const auto peak_of = [&](DType dtype, std::int64_t rows) {
    PeakRate peak(dtype, device, rows, products);
    peak.measure();
    return peak.flops_per_second();
  };
  Roofline roofline;
  roofline.float32_flops = peak_of(DType::float32, 0);
  roofline.tf32 = products.tf32 && device.is_gpu();
  // The same weights, with fewer rows than gemm packs them for, and with enough.
  const std::int64_t packs_from = ops::gemm_packs_from(device);
  roofline.bfloat16_flops = peak_of(DType::bfloat16, packs_from / 2);
  if (packs_from > 0) roofline.bfloat16_packed_flops = peak_of(DType::bfloat16, packs_from);
  // 256 MiB, more than the caches; small for the simulator.
  const std::uint64_t most = device.is_cpu() || device.type == DeviceType::cuda ? 256u << 20 : 1u << 14;
  const auto elements = static_cast<std::int64_t>((usable_memory > 0 ? std::min(most, usable_memory / 16) : most) / 4);
  const Stream stream{device};
  const Tensor target = Tensor::zeros({elements}, DType::float32, device),
               source = Tensor::zeros({elements}, DType::float32, device);
  for (int attempt = 0; attempt < 4; ++attempt) {
    synchronize(stream);
    const auto start = Clock::now();
    ops::add(stream, target, source, GradientMode::accumulate);
    synchronize(stream);
    roofline.memory_bytes = std::max(roofline.memory_bytes, 12 * static_cast<double>(elements) / seconds_since(start));
  }
  return roofline;
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
  check_attention(options.config);
  const Workload workload(options);
  BenchAttentionResult result;
  result.features = workload.features();
  for (const std::int64_t n : options.lengths) {
    BenchAttentionLength& length = result.lengths.emplace_back();
    length.n = n;
    length.projected_length =
        ops::SequenceProjectionOptions{.kind = options.config.projection,
                                       .projected_length = std::min(options.config.projected_length, n),
                                       .max_length = n}
            .rows(n);
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
