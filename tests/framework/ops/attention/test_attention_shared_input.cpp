// One variable as several inputs of an attention: its gradient is the sum of theirs.
#include <gtest/gtest.h>

#include <array>

#include "framework/ops/attention/softmax/softmax_attention.h"
#include "tests/framework/ops/attention/linear/linear_attention_testing.h"

namespace furlong::testing {
namespace {

class SharedAttentionInput : public EngineTest {
 protected:
  void TearDown() override {
    gpu_settings() = {};
    EngineTest::TearDown();
  }
};
FURLONG_INSTANTIATE_ENGINES(SharedAttentionInput);

TEST_P(SharedAttentionInput, SoftmaxSumsGradients) {
  const Shape shape{1, on_simulator() ? 70 : 200, 64};
  const auto tensor = [&](std::uint32_t stream) {
    return tensor_of(normal_values(shape.elements(), stream), shape, DType::float64);
  };
  for (const std::int64_t heads : {1, 2, 8}) {
    ops::SoftmaxAttentionOptions options;
    options.n_heads = options.n_kv_heads = heads;
    const auto gradients = [&](bool shared) {
      Tape tape{stream()};
      const Variable query = Variable::leaf(tensor(1)), key = Variable::leaf(tensor(2)),
                     value = shared ? key : Variable::leaf(tensor(2));
      const Variable output = ops::softmax_attention(tape, query, key, value, options);
      tape.backward({output}, {tensor(5)});
      std::vector<double> sum = values_of(key.gradient());
      if (shared) return sum;
      const std::vector<double> other = values_of(value.gradient());
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
      return sum;
    };
    EXPECT_LT(relative_error(gradients(true), gradients(false)), 1e-12) << heads;
  }
}

TEST_P(SharedAttentionInput, LinearSumsGradients) {
  // Gradients of query, key and value; inputs with equal numbers in `sharing` are one variable, whose gradient is the
  // sum.
  using Sharing = std::array<std::size_t, 3>;
  const auto gradients_of = [](const AttentionProblem& p, DType dtype, const Sharing& sharing, bool shared) {
    Tape tape{stream()};
    const std::array<Tensor, 3> tensors{tensor_of(p.query, p.query_shape(), dtype),
                                        tensor_of(p.key, p.key_shape(), dtype),
                                        tensor_of(p.value, p.value_shape(), dtype)};
    std::array<Variable, 3> variables;
    for (std::size_t i = 0; i < 3; ++i)
      variables[i] = shared && sharing[i] < i ? variables[sharing[i]] : Variable::leaf(tensors[sharing[i]].clone());
    ops::LinearAttentionInputs inputs;
    inputs.query = variables[0], inputs.key = variables[1], inputs.value = variables[2];
    inputs.constants = constants_of(p, dtype);
    const Variable output = attend(tape, inputs, p.options);
    tape.backward({output}, {tensor_of(normal_values(output.shape().elements(), 5), output.shape(), dtype)});
    std::array<std::vector<double>, 3> sums;
    for (std::size_t i = 0; i < 3; ++i) {
      if (shared && sharing[i] < i) continue;
      const std::vector<double> own = values_of(variables[i].gradient());
      std::vector<double>& sum = sums[sharing[i]];
      sum.resize(own.size());
      for (std::size_t at = 0; at < own.size(); ++at) sum[at] += own[at];
    }
    return sums;
  };
  struct Case {
    Sharing sharing;
    std::int64_t kv_heads;
  };
  constexpr Case cases[] = {{{0, 1, 1}, 2}, {{0, 1, 1}, 1}, {{0, 0, 2}, 2}, {{0, 0, 0}, 2}};
  // One feature tile and several. If each head has its own keys, gradients may be written directly, without parts to
  // add up.
  for (const std::int64_t random_projection : {24, 150}) {
    for (const FeatureMap map : {FeatureMap::favor_positive, FeatureMap::elu1, FeatureMap::favor_trig}) {
      if (random_projection > 24 && map != FeatureMap::favor_positive) continue;
      // Fused kernels have chunks of 64 tokens: one map crosses their border.
      const std::int64_t n = random_projection == 24 && map == FeatureMap::favor_positive ? 70 : 40;
      for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16}) {
        for (const auto& [sharing, kv_heads] : cases) {
          for (const bool general : {false, true}) {
            if (general && (!on_gpu() || dtype == DType::float64)) continue;
            if (general && on_simulator() && dtype == DType::bfloat16) continue;  // takes too long
            gpu_settings().composed_kernels = general;
            const AttentionProblem p = attention_problem(map, true, {1, 2, kv_heads, n, 16, 16, random_projection, 16});
            const auto expected = gradients_of(p, dtype, sharing, false), found = gradients_of(p, dtype, sharing, true);
            // In bfloat16 the sum is rounded after each part.
            const double bound = dtype == DType::float64 ? 1e-13 : dtype == DType::float32 ? 1e-6 : 0x1p-7;
            for (std::size_t i = 0; i < 3; ++i) {
              if (expected[i].empty()) continue;
              EXPECT_LT(relative_error(found[i], expected[i]), bound)
                  << fmt::format("{}, {} directions, {}, general {}, inputs {} {} {}", feature_map_info(map).name,
                                 random_projection, name_of(dtype), general, sharing[0], sharing[1], sharing[2]);
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace furlong::testing
