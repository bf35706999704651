// float32 and bfloat16 products use oneDNN's matmul. Without AMX it reaches 85 to 95% of the CPU's peak on transformer
// shapes for every combination of transposed operands (with AMX: docs/internals/performance.md). One or two float32
// rows, as in generation, use oneDNN's sgemm. bfloat16 products use float32 tiles (gemm_tiles_cpu.cpp) where these are
// faster. oneDNN has no float64 on the CPU: gradient checks use the small template at the end.
#include <algorithm>
#include <cmath>
#include <dnnl.hpp>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "framework/core/parallel.h"
#include "framework/primitives/activation_kernels.h"
#include "framework/primitives/arithmetic.h"
#include "framework/primitives/cpu_isa.h"
#include "framework/primitives/dispatch.h"
#include "framework/primitives/gemm_kernels.h"

namespace furlong::ops {
namespace {

using Activation = GemmEpilogue::Activation;

/// Returns the device on which the product runs: the host, also for operands of a device with host memory.
Device compute_device(const Tensor& c) { return c.device().has_host_memory() ? Device{} : c.device(); }

dnnl::engine& cpu_engine() {
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

dnnl::memory::data_type type_of(DType dtype) {
  return dtype == DType::bfloat16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

/// Everything that a compiled product depends on.
struct Key {
  std::int64_t rows, columns, inner, row_stride_a, row_stride_b, row_stride_c;
  DType dtype, dtype_c, dtype_bias;
  bool transpose_a, transpose_b, accumulate, bias;
  bool packed;  // oneDNN chooses the layout of b
  Activation activation;
  bool operator==(const Key&) const = default;
};
struct KeyHash {
  std::size_t operator()(const Key& key) const {
    std::size_t hash = 0;
    for (std::int64_t value : {key.rows, key.columns, key.inner, key.row_stride_a, key.row_stride_b, key.row_stride_c,
                               static_cast<std::int64_t>(key.dtype) * 64 + static_cast<std::int64_t>(key.dtype_c) * 8 +
                                   static_cast<std::int64_t>(key.dtype_bias),
                               static_cast<std::int64_t>(key.transpose_a) + 2 * key.transpose_b + 4 * key.accumulate +
                                   8 * key.bias + 16 * key.packed + 32 * static_cast<std::int64_t>(key.activation)}) {
      hash = (hash ^ static_cast<std::size_t>(value)) * 0x9E3779B97F4A7C15ull;
      hash ^= hash >> 29;
    }
    return hash;
  }
};

struct Product {
  dnnl::memory::desc a, b, c, bias, scratch;  // bias: empty if there is none
  dnnl::matmul primitive;
};

dnnl::memory::desc matrix(std::int64_t rows, std::int64_t columns, DType dtype, std::int64_t row_stride,
                          bool transposed) {
  const dnnl::memory::dims strides = transposed ? dnnl::memory::dims{1, row_stride} : dnnl::memory::dims{row_stride, 1};
  return dnnl::memory::desc({rows, columns}, type_of(dtype), strides);
}

#if DNNL_VERSION_MAJOR >= 3  // Debian 13; Debian 12 has version 2
void append_function(dnnl::post_ops& steps, dnnl::algorithm function, float alpha) {
  steps.append_eltwise(function, alpha, 0.f);
}
dnnl::matmul::primitive_desc describe(const Product& product, const dnnl::primitive_attr& attributes) {
  return {cpu_engine(), product.a, product.b, product.bias, product.c, attributes};
}
#else
void append_function(dnnl::post_ops& steps, dnnl::algorithm function, float alpha) {
  steps.append_eltwise(1.f, function, alpha, 0.f);
}
dnnl::matmul::primitive_desc describe(const Product& product, const dnnl::primitive_attr& attributes) {
  return {dnnl::matmul::desc(product.a, product.b, product.bias, product.c), attributes, cpu_engine()};
}
#endif

void append_activation(dnnl::post_ops& steps, Activation activation) {
  switch (activation) {
    case Activation::none:
      return;
    case Activation::relu:
      return append_function(steps, dnnl::algorithm::eltwise_relu, 0.f);
    case Activation::gelu:
      return append_function(steps, dnnl::algorithm::eltwise_gelu_erf, 0.f);
    case Activation::gelu_tanh:
      return append_function(steps, dnnl::algorithm::eltwise_gelu_tanh, 0.f);
    case Activation::silu:
      return append_function(steps, dnnl::algorithm::eltwise_swish, 1.f);
  }
}

std::shared_ptr<const Product> compile(const Key& key) {
  auto product = std::make_shared<Product>();
  product->a = matrix(key.rows, key.inner, key.dtype, key.row_stride_a, key.transpose_a);
  product->b = key.packed
                   ? dnnl::memory::desc({key.inner, key.columns}, type_of(key.dtype), dnnl::memory::format_tag::any)
                   : matrix(key.inner, key.columns, key.dtype, key.row_stride_b, key.transpose_b);
  product->c = matrix(key.rows, key.columns, key.dtype_c, key.row_stride_c, false);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);  // from the arena: no allocation inside a step
  dnnl::post_ops steps;
  if (key.accumulate) steps.append_sum(1.f);
  append_activation(steps, key.activation);
  attributes.set_post_ops(steps);
  if (key.bias)
    product->bias = dnnl::memory::desc({1, key.columns}, type_of(key.dtype_bias), dnnl::memory::dims{key.columns, 1});
  const dnnl::matmul::primitive_desc primitive = describe(*product, attributes);
  product->b = primitive.weights_desc();
  product->scratch = primitive.scratchpad_desc();
  product->primitive = dnnl::matmul(primitive);
  return product;
}

/// Returns the product for `key`, compiled on first use; null if this CPU has no code for it (bfloat16 without
/// AVX-512).
std::shared_ptr<const Product> find(const Key& key) {
  static std::mutex mutex;
  static std::unordered_map<Key, std::shared_ptr<const Product>, KeyHash> products;
  const std::lock_guard lock(mutex);
  const auto known = products.find(key);
  if (known != products.end()) return known->second;
  if (products.size() > 4096) products.clear();  // bounds memory if evaluation uses many lengths
  std::shared_ptr<const Product> product;
  try {
    product = compile(key);
  } catch (const dnnl::error& error) {
    if (error.status != dnnl_unimplemented)
      throw MachineError("oneDNN rejected a product of {} x {} x {}: {}", key.rows, key.inner, key.columns,
                         error.what());
  }
  products.emplace(key, product);
  return product;
}

/// Returns b, transposed if requested, in the layout that oneDNN chose.
Tensor pack(const Tensor& b, bool transpose_b, const dnnl::memory::desc& layout, const Device& device) {
  const Tensor packed = Tensor::empty({static_cast<std::int64_t>(layout.get_size())}, DType::uint8, device);
  if (device.is_shape_only()) return packed;
  const auto source =
      matrix(b.extent(transpose_b ? 1 : 0), b.extent(transpose_b ? 0 : 1), b.dtype(), b.strides()[0], transpose_b);
  dnnl::memory from(source, cpu_engine(), b.address()), to(layout, cpu_engine(), packed.address());
  thread_local dnnl::stream stream(cpu_engine());
  dnnl::reorder(from, to).execute(stream, from, to);
  stream.wait();
  return packed;
}

/// c (+)= op(a) · op(b) and the epilogue. If `packs`, b is first converted to the layout of oneDNN's choice. Returns
/// false if this CPU has no code for the product.
bool run_onednn(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c, bool accumulate,
                const GemmEpilogue& epilogue, bool packs = false) {
  const Key key{c.extent(0),
                c.extent(1),
                a.extent(transpose_a ? 0 : 1),
                a.strides()[0],
                packs ? 0 : b.strides()[0],
                c.strides()[0],
                a.dtype(),
                c.dtype(),
                epilogue.bias ? epilogue.bias->dtype() : c.dtype(),
                transpose_a,
                transpose_b && !packs,
                accumulate,
                epilogue.bias != nullptr,
                packs,
                epilogue.activation};
  const auto product = find(key);
  if (!product) return false;
  const Tensor right = packs ? pack(b, transpose_b, product->b, compute_device(c)) : b;
  const auto& engine = cpu_engine();
  const auto scratch_bytes = static_cast<std::int64_t>(product->scratch.get_size());
  const Tensor scratch = Tensor::empty({scratch_bytes}, DType::uint8, compute_device(c));
  if (c.device().is_shape_only()) return true;
  std::unordered_map<int, dnnl::memory> arguments{
      {DNNL_ARG_SRC, dnnl::memory(product->a, engine, a.address())},
      {DNNL_ARG_WEIGHTS, dnnl::memory(product->b, engine, right.address())},
      {DNNL_ARG_DST, dnnl::memory(product->c, engine, c.address())},
      {DNNL_ARG_SCRATCHPAD, dnnl::memory(product->scratch, engine, scratch.address())}};
  if (epilogue.bias) arguments.emplace(DNNL_ARG_BIAS, dnnl::memory(product->bias, engine, epilogue.bias->address()));
  thread_local dnnl::stream stream(engine);
  product->primitive.execute(stream, arguments);
  stream.wait();
  return true;
}

/// Initializes c with the bias, for a product that is then added to c.
void begin_with_bias(const Tensor& bias, const Tensor& c) {
  const float* values = bias.data<float>();
  for (std::int64_t row = 0; row < c.extent(0); ++row)
    std::copy_n(values, c.extent(1), c.data<float>() + row * c.strides()[0]);
}
void activate(const Tensor& c, Activation activation) {
  for (const ActivationName& entry : activation_names) {
    if (epilogue_activation(entry.kind) == activation) activation_cpu(c, c, entry.kind);
  }
}

/// c = a · bᵀ for one or two rows. matmul would first reorder all of b into blocks, to use each block once or twice,
/// and would sum each element in one chain. sgemm reads b directly, in half the time, and sums many partial sums in
/// parallel. Its rounding error is a third to a half, which matters if one term is much larger than all others (a
/// transformer's massive activations).
bool run_few_rows(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c,
                  bool accumulate, const GemmEpilogue& epilogue) {
  const std::int64_t rows = c.extent(0), columns = c.extent(1), inner = a.extent(1);
  const bool all_float32 = a.dtype() == DType::float32 && (!epilogue.bias || epilogue.bias->dtype() == DType::float32);
  if (rows > 2 || transpose_a || !transpose_b || !all_float32) return false;
  if (c.device().is_shape_only()) return true;
  if (epilogue.bias) begin_with_bias(*epilogue.bias, c);
  // The stride of a single row is arbitrary and may be less than the row's length.
  const auto stride = [](const Tensor& matrix) { return std::max(matrix.strides()[0], matrix.extent(1)); };
  const dnnl_status_t status =
      dnnl_sgemm('N', 'T', rows, columns, inner, 1.f, a.data<float>(), stride(a), b.data<float>(), stride(b),
                 accumulate || epilogue.bias ? 1.f : 0.f, c.data<float>(), stride(c));
  if (status != dnnl_success)
    throw MachineError("oneDNN rejected a product of {} x {} x {}: status {}", rows, inner, columns,
                       static_cast<int>(status));
  activate(c, epilogue.activation);
  return true;
}

/// See ProductPrecision::short_sums.
bool run_in_short_sums(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c,
                       bool accumulate, const GemmEpilogue& epilogue) {
  constexpr std::int64_t chain = 256;
  const std::int64_t inner = a.extent(transpose_a ? 0 : 1);
  const bool all_float32 = a.dtype() == DType::float32 && (!epilogue.bias || epilogue.bias->dtype() == DType::float32);
  if (inner <= chain || !all_float32 || !c.device().has_host_memory()) return false;
  if (epilogue.bias) begin_with_bias(*epilogue.bias, c);
  for (std::int64_t first = 0; first < inner; first += chain) {
    const std::int64_t count = std::min(chain, inner - first);
    const bool adds = accumulate || epilogue.bias != nullptr || first > 0;
    const bool done = run_onednn(a.narrow(transpose_a ? 0 : 1, first, count), transpose_a,
                                 b.narrow(transpose_b ? 1 : 0, first, count), transpose_b, c, adds, {});
    require(done, "oneDNN has no float32 product for {} by {}", a.shape().text(), b.shape().text());
  }
  activate(c, epilogue.activation);
  return true;
}

constexpr std::int64_t packed_rows = 2048;

/// Returns whether oneDNN multiplies faster if b is first packed: packing costs little compared with a product of many
/// rows.
bool packing_pays(const Tensor& a, bool transpose_a, const Tensor& c) {
  return a.dtype() == DType::bfloat16 && multiplies_bfloat16() && !transpose_a && c.extent(0) >= packed_rows;
}

/// Returns whether a product is faster in float32. With few rows, reading b takes the time.
bool in_float32(const Tensor& a, const Tensor& c) {
  return a.dtype() == DType::bfloat16 && !multiplies_bfloat16() && c.extent(0) >= 64;
}

double activated(double x, Activation activation) {
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::relu:
      return x > 0 ? x : 0;
    case Activation::gelu:
      return 0.5 * x * (1 + std::erf(x * 0.70710678118654752440));
    case Activation::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
    case Activation::silu:
      return x / (1 + std::exp(-x));
  }
  return x;
}

void gemm_double(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c, bool accumulate,
                 const GemmEpilogue& epilogue) {
  const std::int64_t rows = c.extent(0), columns = c.extent(1), inner = a.extent(transpose_a ? 0 : 1);
  const double *left = a.data<double>(), *right = b.data<double>();
  const double* bias = epilogue.bias ? epilogue.bias->data<double>() : nullptr;
  const std::int64_t step_i = transpose_a ? 1 : a.strides()[0], step_k = transpose_a ? a.strides()[0] : 1;
  parallel_ranges(rows, 8, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      double* out = c.data<double>() + i * c.strides()[0];
      for (std::int64_t j = 0; j < columns; ++j) {
        double sum = bias ? bias[j] : 0;
        const double* line = right + (transpose_b ? j * b.strides()[0] : j);
        const std::int64_t step = transpose_b ? 1 : b.strides()[0];
        for (std::int64_t k = 0; k < inner; ++k) sum += left[i * step_i + k * step_k] * line[k * step];
        out[j] = activated(sum, epilogue.activation) + (accumulate ? out[j] : 0);
      }
    }
  });
}

}  // namespace

std::int64_t gemm_packs_from(const Device& device) {
  return device.is_cpu() && multiplies_bfloat16() ? packed_rows : 0;
}

void gemm_cpu(const Stream& stream, const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b,
              const Tensor& c, bool accumulate, const GemmEpilogue& epilogue) {
  if (c.elements() == 0) return;
  if (a.elements() == 0) {  // an empty sum
    require(epilogue.bias == nullptr && epilogue.activation == Activation::none,
            "gemm: bias or activation for an empty sum");
    if (!accumulate) fill(Stream{compute_device(c)}, c, 0.0);
    return;
  }
  if (a.dtype() == DType::float64) {
    if (c.device().has_host_memory()) gemm_double(a, transpose_a, b, transpose_b, c, accumulate, epilogue);
  } else if (run_few_rows(a, transpose_a, b, transpose_b, c, accumulate, epilogue)) {
    return;
  } else if (stream.products.short_sums && run_in_short_sums(a, transpose_a, b, transpose_b, c, accumulate, epilogue)) {
    return;
  } else if (in_float32(a, c) ||
             !run_onednn(a, transpose_a, b, transpose_b, c, accumulate, epilogue, packing_pays(a, transpose_a, c))) {
    require(a.dtype() == DType::bfloat16, "oneDNN has no float32 product for {} by {}", a.shape().text(),
            b.shape().text());
    gemm_in_float32_tiles(a, transpose_a, b, transpose_b, c, accumulate, epilogue);
  }
}

namespace {

template <class From, class To>
void column_sum_typed(const Tensor& matrix, const Tensor& target, bool accumulate) {
  using Sum = compute_t<To>;
  constexpr std::int64_t block = 64;        // columns per task
  constexpr std::int64_t chain_rows = 256;  // rows of one sum; the sums of all of them are added in order
  const std::int64_t rows = matrix.extent(0), columns = matrix.extent(1), stride = matrix.strides()[0];
  const From* values = matrix.data<From>();
  To* sums = target.data<To>();
  parallel_tasks((columns + block - 1) / block, [&](std::int64_t task) {
    const std::int64_t begin = task * block, count = std::min(block, columns - begin);
    Sum sum[block] = {};
    for (std::int64_t first = 0; first < rows; first += chain_rows) {
      Sum chain[block] = {};
      for (std::int64_t row = first; row < std::min(first + chain_rows, rows); ++row) {
        const From* line = values + row * stride + begin;
        for (std::int64_t j = 0; j < count; ++j) chain[j] += static_cast<Sum>(static_cast<compute_t<From>>(line[j]));
      }
      for (std::int64_t j = 0; j < count; ++j) sum[j] += chain[j];
    }
    for (std::int64_t j = 0; j < count; ++j) {
      const Sum before = accumulate ? static_cast<Sum>(sums[begin + j]) : Sum{0};
      sums[begin + j] = static_cast<To>(before + sum[j]);
    }
  });
}

}  // namespace

void column_sum_cpu(const Tensor& matrix, const Tensor& target, bool accumulate) {
  with_float_type(matrix.dtype(), "column_sum", [&]<class From>(std::type_identity<From>) {
    with_float_type(target.dtype(), "column_sum",
                    [&]<class To>(std::type_identity<To>) { column_sum_typed<From, To>(matrix, target, accumulate); });
  });
}

}  // namespace furlong::ops
