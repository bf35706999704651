// Times linear_attention and softmax_attention, forward and backward, on given directions. Requests (worker.h), with
// their defaults:
//   attention=linear n=8192 heads=8 d=64 m=256 batch=1 causal=1 chunk=64 dtype=float32 repetitions=1
#include <chrono>
#include <ctime>

#include "benchmarks/worker.h"
#include "framework/core/arena.h"
#include "framework/core/random.h"
#include "framework/core/version.h"
#include "framework/ops/attention/linear/linear_attention.h"
#include "framework/ops/attention/softmax/softmax_attention.h"

namespace furlong::benchmarks {
namespace {

/// Normal numbers rounded to bfloat16, so that every dtype computes the same problem with the projection of a model.
/// The same block of them again and again: drawing all would take longer than the attention.
Tensor normal(const Shape& shape, const char* name, DType dtype) {
  constexpr std::size_t block = 65521;  // prime: rows and heads do not repeat together
  std::vector<float> values(static_cast<std::size_t>(shape.elements()));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = i < block
                    ? static_cast<float>(bfloat16(static_cast<float>(random_normal({1, 0, random_stream(name)}, i))))
                    : values[i - block];
  if (dtype == DType::float32) return Tensor::from(values, shape);
  require(dtype == DType::bfloat16, "attention benchmarks run in float32 and bfloat16");
  return Tensor::from(std::vector<bfloat16>(values.begin(), values.end()), shape);
}

struct Problem {
  bool linear = true;
  std::int64_t batch, n, heads, d, m, chunk;
  bool causal;
  DType dtype;
  Tensor query, key, value, d_output, random_projection;

  explicit Problem(const Request& request)
      : linear(text_of(request, "attention", "linear") == "linear"),
        batch(integer_of(request, "batch", 1)),
        n(integer_of(request, "n", 8192)),
        heads(integer_of(request, "heads", 8)),
        d(integer_of(request, "d", 64)),
        m(integer_of(request, "m", 256)),
        chunk(integer_of(request, "chunk", 64)),
        causal(integer_of(request, "causal", 1) != 0),
        dtype(dtype_from_name(text_of(request, "dtype", "float32"))) {
    const std::string attention = text_of(request, "attention", "linear");
    if (!linear && attention != "softmax") throw UserError("attention={}: expected linear or softmax", attention);
    const Shape shape{batch, n, heads * d};
    query = normal(shape, "query", dtype);
    key = normal(shape, "key", dtype);
    value = normal(shape, "value", dtype);
    d_output = normal(shape, "d_output", dtype);
    if (linear) random_projection = normal({m, d}, "directions", DType::float32);
  }

  Variable forward(Tape& tape, const Variable& q, const Variable& k, const Variable& v) const {
    if (linear) {
      ops::LinearAttentionOptions options;
      options.n_heads = options.n_kv_heads = heads;
      options.causal = causal;
      options.chunk_size = chunk;
      ops::LinearAttentionInputs inputs;
      inputs.query = q;
      inputs.key = k;
      inputs.value = v;
      inputs.constants.random_projection = random_projection;
      return ops::linear_attention(tape, inputs, options);
    }
    ops::SoftmaxAttentionOptions options;
    options.n_heads = options.n_kv_heads = heads;
    options.causal = causal;
    return ops::softmax_attention(tape, q, k, v, options);
  }
};

nlohmann::json answer(const Request& request) {
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
  };
  const Problem problem(request);
  std::vector<double> total, forward, processor;
  std::int64_t peak = 0;
  for (std::int64_t repetition = 0; repetition < integer_of(request, "repetitions", 1); ++repetition) {
    arena({}).reset_peak();
    const std::int64_t before = arena({}).counters().bytes_in_use;
    const auto start = Clock::now();
    const std::clock_t processor_start = std::clock();
    Tape tape{Stream{}};
    const Variable query = Variable::leaf(problem.query), key = Variable::leaf(problem.key),
                   value = Variable::leaf(problem.value);
    Variable output = problem.forward(tape, query, key, value);
    const auto middle = Clock::now();
    tape.backward({output}, {problem.d_output});
    total.push_back(seconds(start, Clock::now()));
    processor.push_back(static_cast<double>(std::clock() - processor_start) / CLOCKS_PER_SEC);
    forward.push_back(seconds(start, middle));
    peak = std::max(peak, arena({}).counters().peak_bytes - before);
  }
  // What has to exist whatever computes it: the output, and the gradients of query, key and value.
  const std::int64_t results = 4 * problem.query.bytes();
  return {{"seconds", total},   {"forward_seconds", forward}, {"processor_seconds", processor},
          {"peak_bytes", peak}, {"result_bytes", results},    {"extra_bytes", peak - results},
          {"commit", commit()}};
}

}  // namespace
}  // namespace furlong::benchmarks

int main() { return furlong::benchmarks::serve(furlong::benchmarks::answer); }
