// Going on from a state: token by token, in parts, and with gradients cut between segments.
#include <gtest/gtest.h>

#include "framework/autodiff/gradient_check.h"
#include "tests/framework/ops/linear_attention_testing.h"

namespace furlong::testing {
namespace {

struct StateCase {
  FeatureMap map;
  std::int64_t window, softmax_window;
  bool rms, rotated;
};
class EveryState : public ::testing::TestWithParam<StateCase> {
 protected:
  AttentionProblem made(const ProblemShape& shape, double scale) const {
    AttentionProblem p = attention_problem(GetParam().map, true, shape, scale);
    if (!is_positive(p)) keep_denominators_large(p);
    p.options.window = GetParam().window;
    p.options.softmax_window = GetParam().softmax_window;
    if (GetParam().rms) p.options.normalizer = ops::Normalizer::rms;
    p.options.rotate_numerator = GetParam().rotated;
    if (p.options.softmax_window > 0) p.gate = normal_values(p.heads(), 24, 0.5);
    if (feature_map_info(p.options.feature_map).estimates_softmax) {
      p.query_center = normal_values(p.heads() * p.d, 21, 0.3);
      p.key_center = normal_values(p.heads() * p.d, 22, 0.3);
    }
    return p;
  }
};
std::vector<StateCase> every_state() {
  std::vector<StateCase> cases;
  for (const FeatureMap map : every_feature_map()) {
    cases.push_back({map, 0, 0, false, false});
    cases.push_back({map, 9, 0, false, false});
    cases.push_back({map, 0, 9, false, false});
    cases.push_back({map, 0, 0, true, false});
    cases.push_back({map, 0, 0, false, true});
    cases.push_back({map, 9, 0, false, true});
  }
  return cases;
}
std::string name_of_state(const ::testing::TestParamInfo<StateCase>& info) {
  const StateCase& c = info.param;
  return std::string(feature_map_info(c.map).name) +
         (c.window           ? "_window"
          : c.softmax_window ? "_hybrid"
          : c.rms            ? "_rms"
                             : "_plain") +
         (c.rotated ? "_rotated" : "");
}
INSTANTIATE_TEST_SUITE_P(LinearAttention, EveryState, ::testing::ValuesIn(every_state()), name_of_state);

ops::LinearAttentionState empty_state(const AttentionProblem& p, DType dtype) {
  return ops::empty_linear_attention_state(p.options, p.batch, p.features(), p.d, p.d_value, dtype, Device{});
}

/// Tokens [start, start + count) as a call that goes on from `state`.
ops::LinearAttentionInputs part(const AttentionProblem& p, DType dtype, std::int64_t start, std::int64_t count,
                                ops::LinearAttentionState& state, bool leaves) {
  const auto rows = [&](const std::vector<double>& values, const Shape& shape) {
    const Tensor all = tensor_of(values, shape, dtype).narrow(1, start, count);
    const Tensor own = tensor_of(values_of(all), all.shape(), dtype);
    return leaves ? Variable::leaf(own) : Variable(own);
  };
  ops::LinearAttentionInputs inputs;
  inputs.query = rows(p.query, p.query_shape());
  inputs.key = rows(p.key, p.key_shape());
  inputs.value = rows(p.value, p.value_shape());
  if (!p.gate.empty()) inputs.gate = Variable(tensor_of(p.gate, {p.heads()}, accumulate_dtype(dtype)));
  inputs.constants = constants_of(p, dtype);
  inputs.state = &state;
  return inputs;
}

TEST_P(EveryState, PartsEqualTheWhole) {
  const std::int64_t n = 61;
  for (const double scale : {1.0, 3.0}) {
    const AttentionProblem p = made({2, 4, 2, n, 12, 10, 20, 16}, scale);
    const std::vector<double> whole = run_attention(p, DType::float32).output;
    const std::int64_t width = p.heads() * p.d_value;
    for (const std::vector<std::int64_t>& parts : std::vector<std::vector<std::int64_t>>{{1}, {30, 1}, {5, 20, 3}}) {
      auto state = empty_state(p, DType::float32);
      std::vector<double> found(whole.size());
      std::size_t next = 0;
      for (std::int64_t t = 0; t < n;) {
        const std::int64_t count = std::min(parts[std::min(next++, parts.size() - 1)], n - t);
        Tape tape{Stream{}};
        const auto out = values_of(ops::linear_attention(tape, part(p, DType::float32, t, count, state, false), p.options).value());
        for (std::int64_t b = 0; b < p.batch; ++b)
          std::copy_n(out.begin() + b * count * width, count * width, found.begin() + (b * n + t) * width);
        t += count;
      }
      EXPECT_LT(relative_error(found, whole), is_positive(p) ? 1e-5 : 1e-4) << parts.size() << " parts, scale " << scale;
      EXPECT_EQ(state.tokens, n);
    }
  }
}

TEST_P(EveryState, GradientsStopAtTheSegmentsBorder) {
  // The gradient of a second segment is that of a function of its own inputs, with the state before it held fixed.
  AttentionProblem p = made({1, 2, 1, 14, 4, 3, 6, 4}, 0.7);
  for (auto* values : {&p.query, &p.key}) {
    for (double& value : *values) value = std::fabs(value) < 0.02 ? value + 0.06 : value;  // elu and relu have kinks at 0
  }
  auto before = empty_state(p, DType::float64);
  Tape first{Stream{}};
  ops::linear_attention(first, part(p, DType::float64, 0, 8, before, false), p.options);
  const auto copy_of = [](const ops::LinearAttentionState& state) {
    ops::LinearAttentionState copy = state;
    for (Tensor* tensor : {&copy.sum, &copy.normalizer, &copy.maximum, &copy.magnitude}) *tensor = tensor->clone();
    return copy;
  };
  auto scratch = copy_of(before);
  const auto second = part(p, DType::float64, 8, 6, scratch, false);
  const auto result = check_gradients(
      [&](Tape& tape, const std::vector<Variable>& in) {
        auto state = copy_of(before);
        ops::LinearAttentionInputs call = second;
        call.query = in[0], call.key = in[1], call.value = in[2], call.state = &state;
        return ops::linear_attention(tape, call, p.options);
      },
      {second.query.value(), second.key.value(), second.value.value()});
  EXPECT_LT(result.worst_relative_error, 5e-7) << result.where;
}

TEST(LinearAttentionState, ItsBytesDoNotGrowWithTokens) {
  AttentionProblem p = attention_problem(FeatureMap::favor_positive, true, {1, 2, 1, 64, 8, 8, 16, 16});
  p.options.softmax_window = 8;
  auto state = empty_state(p, DType::float32);
  Tape tape{Stream{}};
  ops::linear_attention(tape, part(p, DType::float32, 0, 20, state, false), p.options);
  const std::int64_t bytes = state.bytes();
  ops::linear_attention(tape, part(p, DType::float32, 20, 44, state, false), p.options);
  EXPECT_EQ(state.bytes(), bytes);
  // sum, normalizer, maximum, magnitude of 2 heads; 7 keys and 7 values of one key-value head.
  EXPECT_EQ(bytes, 4 * (2 * 16 * 8 + 2 * 16 + 2 * 16 + 2) + 4 * 7 * 16);
}

}  // namespace
}  // namespace furlong::testing
