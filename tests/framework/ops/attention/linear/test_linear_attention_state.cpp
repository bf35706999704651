// Continuing from a state: token by token, in parts, and with gradients that stop between segments.
#include <gtest/gtest.h>

#include "framework/autodiff/gradient_check.h"
#include "tests/framework/ops/attention/linear/linear_attention_testing.h"

namespace furlong::testing {
namespace {

struct StateCase {
  FeatureMap map;
  std::int64_t window, softmax_window;
  bool rms, rotated;
};
class EveryState : public ComposedKernelCase<StateCase> {
 protected:
  AttentionProblem make_problem(const ProblemShape& shape, double scale) const {
    const StateCase& c = std::get<1>(GetParam());
    AttentionProblem p = attention_problem(c.map, true, shape, scale);
    if (!is_positive(p)) keep_denominators_large(p);
    p.options.window = c.window;
    p.options.softmax_window = c.softmax_window;
    if (c.rms) p.options.normalizer = ops::Normalizer::rms;
    p.options.rotate_numerator = c.rotated;
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
std::string name_of_state(const ::testing::TestParamInfo<std::tuple<DeviceType, StateCase>>& info) {
  const StateCase& c = std::get<1>(info.param);
  return name_of_engine(std::get<0>(info.param)) + "_" + std::string(feature_map_info(c.map).name) +
         (c.window           ? "_window"
          : c.softmax_window ? "_hybrid"
          : c.rms            ? "_rms"
                             : "_plain") +
         (c.rotated ? "_rotated" : "");
}
INSTANTIATE_TEST_SUITE_P(LinearAttention, EveryState,
                         ::testing::Combine(::testing::ValuesIn(engines()), ::testing::ValuesIn(every_state())),
                         name_of_state);

ops::LinearAttentionState empty_state(const AttentionProblem& p, DType dtype) {
  return ops::empty_linear_attention_state(p.options, p.batch, p.features(), p.d_value, dtype, device());
}

/// Returns tokens [start, start + count) as inputs of a call that continues from `state`.
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
  if (!p.gate.empty()) inputs.gate = Variable(tensor_of(p.gate, {p.heads()}, dtype));
  inputs.constants = constants_of(p, dtype);
  inputs.state = &state;
  return inputs;
}

TEST_P(EveryState, PartsMatchWholeSequence) {
  const std::int64_t n = on_simulator() ? 25 : 61;
  for (const double scale : on_simulator() ? std::vector<double>{3.0} : std::vector<double>{1.0, 3.0}) {
    const AttentionProblem p = on_simulator() ? make_problem({1, 2, 1, n, 4, 3, 6, 4}, scale)
                                              : make_problem({2, 4, 2, n, 12, 10, 20, 16}, scale);
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      const std::vector<double> whole = output_of(p, dtype);
      const std::int64_t width = p.heads() * p.d_value;
      using Parts = std::vector<std::int64_t>;
      for (const Parts& parts :
           on_simulator() ? std::vector<Parts>{{5, 14, 2, 1, 3}} : std::vector<Parts>{{1}, {30, 1}, {5, 20, 3}}) {
        auto state = empty_state(p, dtype);
        std::vector<double> found(whole.size());
        std::size_t next = 0;
        for (std::int64_t t = 0; t < n;) {
          const std::int64_t count = std::min(parts[std::min(next++, parts.size() - 1)], n - t);
          Tape tape{stream()};
          const auto out = values_of(attend(tape, part(p, dtype, t, count, state, false), p.options).value());
          for (std::int64_t b = 0; b < p.batch; ++b)
            std::copy_n(out.begin() + b * count * width, count * width, found.begin() + (b * n + t) * width);
          t += count;
        }
        // In bfloat16 also the rounding of the outputs; with rounded operands their errors add up.
        const double bound = dtype == DType::float32     ? (is_positive(p) ? 1e-5 : 1e-4)
                             : rounds_operands(p, dtype) ? 0x1p-6
                                                         : 0x1p-7;
        EXPECT_LT(relative_error(found, whole), bound)
            << name_of(dtype) << ", " << parts.size() << " parts, scale " << scale;
        EXPECT_EQ(state.tokens, n);
      }
    }
  }
}

/// Returns output and gradients of the tokens from `first` on, and the state after them.
std::vector<std::vector<double>> gradients_of_second_segment(const AttentionProblem& p, std::int64_t first) {
  auto state = empty_state(p, DType::float64);
  Tape before{stream()}, tape{stream()};
  attend(before, part(p, DType::float64, 0, first, state, false), p.options);
  const auto inputs = part(p, DType::float64, first, p.n - first, state, true);
  const Variable output = attend(tape, inputs, p.options);
  tape.backward({output}, {tensor_of(normal_values(output.shape().elements(), 5), output.shape(), DType::float64)});
  return {values_of(output.value()),
          values_of(inputs.query.gradient()),
          values_of(inputs.key.gradient()),
          values_of(inputs.value.gradient()),
          values_of(state.sum),
          values_of(state.normalizer),
          values_of(state.magnitude)};
}

TEST_P(EveryState, GradientStopsAtSegmentBorder) {
  // The gradient of a second segment is that of a function of its own inputs; the state before it is a constant.
  AttentionProblem p = make_problem({1, 2, 1, 14, 4, 3, 6, 4}, 0.7);
  for (auto* values : {&p.query, &p.key}) {
    for (double& value : *values)
      value = std::fabs(value) < 0.02 ? value + 0.06 : value;  // elu and relu have kinks at 0
  }
  if (on_gpu()) {  // compared with the CPU's gradients, which are checked against finite differences below
    const auto found = gradients_of_second_segment(p, 8);
    const OnDevice cpu{Device{}};
    const auto expected = gradients_of_second_segment(p, 8);
    for (std::size_t i = 0; i < found.size(); ++i)
      EXPECT_LT(relative_error(found[i], expected[i]), is_positive(p) ? 1e-11 : 3e-10) << i;
    return;
  }
  auto before = empty_state(p, DType::float64);
  Tape first{stream()};
  attend(first, part(p, DType::float64, 0, 8, before, false), p.options);
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
        return attend(tape, call, p.options);
      },
      {second.query.value(), second.key.value(), second.value.value()});
  EXPECT_LT(result.worst_relative_error, 5e-7) << result.where;
}

class LinearAttentionState : public ComposedKernelTest {};
FURLONG_INSTANTIATE_ENGINES(LinearAttentionState);

TEST_P(LinearAttentionState, SizeIsIndependentOfTokenCount) {
  AttentionProblem p = attention_problem(FeatureMap::favor_positive, true, {1, 2, 1, 64, 8, 8, 16, 16});
  p.options.softmax_window = 8;
  auto state = empty_state(p, DType::float32);
  Tape tape{stream()};
  attend(tape, part(p, DType::float32, 0, 20, state, false), p.options);
  const std::int64_t bytes = state.bytes();
  attend(tape, part(p, DType::float32, 20, 44, state, false), p.options);
  EXPECT_EQ(state.bytes(), bytes);
  // sum, normalizer, maximum and magnitude of 2 heads; 7 keys and 7 values of one key-value head.
  EXPECT_EQ(bytes, 4 * (2 * 16 * 8 + 2 * 16 + 2 * 16 + 2) + 4 * 7 * 16);
}

}  // namespace
}  // namespace furlong::testing
