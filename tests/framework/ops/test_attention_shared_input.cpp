// One variable as key and as value: its gradient is the sum of both.
#include <gtest/gtest.h>

#include "framework/ops/softmax_attention.h"
#include "tests/framework/ops/linear_attention_testing.h"

namespace furlong::testing {
namespace {

class SharedAttentionInput : public EngineTest {};
FURLONG_INSTANTIATE_ENGINES(SharedAttentionInput);

TEST_P(SharedAttentionInput, SoftmaxGivesTheSumOfBothGradients) {
  const Shape shape{1, on_simulator() ? 70 : 200, 64};
  const auto tensor = [&](std::uint32_t stream) { return tensor_of(normal_values(shape.elements(), stream), shape, DType::float64); };
  for (const std::int64_t heads : {1, 2, 8}) {
    ops::SoftmaxAttentionOptions options;
    options.n_heads = options.n_kv_heads = heads;
    const auto gradients = [&](bool shared) {
      Tape tape{stream()};
      const Variable query = Variable::leaf(tensor(1)), key = Variable::leaf(tensor(2)), value = shared ? key : Variable::leaf(tensor(2));
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

}  // namespace
}  // namespace furlong::testing
