// One sequence in segments, each with its own tape as on a process of its own: outputs and gradients are those of the whole.
#include <gtest/gtest.h>

#include <barrier>
#include <thread>

#include "tests/framework/ops/linear_attention_modes.h"

namespace furlong::testing {
namespace {

/// What the segments of one test share: each lays down its state, waits for the others, and joins those that it needs.
class Table {
 public:
  explicit Table(std::size_t segments) : states_(segments), all_(static_cast<std::ptrdiff_t>(segments)) {}
  template <class Wanted>
  void exchange(std::size_t own, ops::LinearAttentionState& state, const Wanted& wanted) {
    states_[own] = state;
    all_.arrive_and_wait();
    ops::LinearAttentionState result = ops::empty_like(Stream{}, state);
    for (std::size_t other = 0; other < states_.size(); ++other)
      if (wanted(other)) ops::join(result, states_[other]);
    all_.arrive_and_wait();
    state = result;
  }

 private:
  std::vector<ops::LinearAttentionState> states_;
  std::barrier<> all_;
};

class Segment final : public ops::SegmentExchange {
 public:
  Segment(Table& table, std::size_t place, std::int64_t first) : table_(table), place_(place), first_(first) {}
  void exchange_keys(const Stream&, ops::LinearAttentionState& state, bool causal) override {
    table_.exchange(place_, state, [&](std::size_t other) { return causal ? other < place_ : other != place_; });
  }
  void exchange_queries(const Stream&, ops::LinearAttentionState& state, bool causal) override {
    table_.exchange(place_, state, [&](std::size_t other) { return causal ? other > place_ : other != place_; });
  }
  std::int64_t first_position() const override { return first_; }

 private:
  Table& table_;
  std::size_t place_;
  std::int64_t first_;
};

/// Columns [first, first + n) of [batch, total, width].
template <class T>
std::vector<T> columns(const std::vector<T>& values, std::int64_t batch, std::int64_t total, std::int64_t first, std::int64_t n) {
  if (values.empty()) return {};
  const std::int64_t width = static_cast<std::int64_t>(values.size()) / (batch * total);
  std::vector<T> part;
  for (std::int64_t b = 0; b < batch; ++b)
    part.insert(part.end(), values.begin() + (b * total + first) * width, values.begin() + (b * total + first + n) * width);
  return part;
}

AttentionProblem part_of(const AttentionProblem& p, std::int64_t first, std::int64_t n) {
  AttentionProblem part = p;
  part.n = part.n_key = n;
  for (auto* values : {&part.query, &part.key, &part.value}) *values = columns(*values, p.batch, p.n, first, n);
  part.mask = columns(p.mask, p.batch, p.n, first, n);
  return part;
}

Outcome run_segment(const AttentionProblem& p, DType dtype, Segment& segment, const std::vector<double>& d_output) {
  Tape tape{Stream{}};
  ops::LinearAttentionInputs inputs;
  inputs.query = Variable::leaf(tensor_of(p.query, p.query_shape(), dtype));
  inputs.key = Variable::leaf(tensor_of(p.key, p.key_shape(), dtype));
  inputs.value = Variable::leaf(tensor_of(p.value, p.value_shape(), dtype));
  inputs.constants = constants_of(p, dtype);
  inputs.mask = mask_of(p);
  inputs.segments = &segment;
  const Variable output = ops::linear_attention(tape, inputs, p.options);
  tape.backward({output}, {tensor_of(d_output, output.shape(), dtype)});
  return {values_of(output.value()),
          values_of(inputs.query.gradient()),
          values_of(inputs.key.gradient()),
          values_of(inputs.value.gradient()),
          {},
          {}};
}

/// Largest difference of [batch, total, width] from the segment's, beside the whole's largest value.
double difference(const std::vector<double>& whole, const std::vector<double>& part, const AttentionProblem& p, std::int64_t first,
                  std::int64_t n) {
  const std::vector<double> expected = columns(whole, p.batch, p.n, first, n);
  EXPECT_EQ(expected.size(), part.size());
  double largest = 0, scale = 1e-300;
  for (const double value : whole) scale = std::max(scale, std::abs(value));
  for (std::size_t i = 0; i < expected.size(); ++i) largest = std::max(largest, std::abs(expected[i] - part[i]));
  return largest / scale;
}

void expect_like_the_whole(const AttentionProblem& p, DType dtype, const std::vector<std::int64_t>& lengths, double tolerance) {
  const Outcome whole = run_attention(p, dtype);
  const std::vector<double> d_output = normal_values(p.batch * p.n * p.heads() * p.d_value, 5);
  Table table(lengths.size());
  std::vector<Outcome> outcomes(lengths.size());
  std::vector<std::thread> threads;
  std::int64_t first = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    threads.emplace_back([&, i, first, n = lengths[i]] {
      Segment segment(table, i, first);
      outcomes[i] = run_segment(part_of(p, first, n), dtype, segment, columns(d_output, p.batch, p.n, first, n));
    });
    first += lengths[i];
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(first, p.n);
  first = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const std::int64_t n = lengths[i];
    EXPECT_LE(difference(whole.output, outcomes[i].output, p, first, n), tolerance) << "output of segment " << i;
    EXPECT_LE(difference(whole.d_query, outcomes[i].d_query, p, first, n), tolerance) << "d_query of segment " << i;
    EXPECT_LE(difference(whole.d_key, outcomes[i].d_key, p, first, n), tolerance) << "d_key of segment " << i;
    EXPECT_LE(difference(whole.d_value, outcomes[i].d_value, p, first, n), tolerance) << "d_value of segment " << i;
    first += n;
  }
}

/// Modes that segments can have.
const std::vector<Mode> segment_modes{Mode::plain, Mode::mask, Mode::centred, Mode::rms, Mode::rotated};

class EverySegment : public ::testing::TestWithParam<std::tuple<FeatureMap, bool, Mode>> {
 protected:
  // Ops in several threads at once: each with itself alone.
  void SetUp() override { set_thread_count(1); }
  void TearDown() override { set_thread_count(0); }
  AttentionProblem made(std::int64_t n, double scale = 1) const {
    const auto& [map, causal, mode] = GetParam();
    AttentionProblem p = attention_problem(map, causal, {2, 4, 2, n, 8, 5, 11, 16}, scale);
    make_square(p);
    if (!is_positive(p)) keep_denominators_large(p);
    apply(mode, p);
    return p;
  }
};

// Rounding differs where sums are cut: some units in the last place of sums over n terms, larger in gradients by the size of 1 / N.
TEST_P(EverySegment, IsTheWholeInDouble) {
  expect_like_the_whole(made(61), DType::float64, {20, 1, 40}, 1e-12);
  expect_like_the_whole(made(48), DType::float64, {12, 12, 12, 12}, 1e-12);
}

// Where weights of both signs cancel in a denominator, rounding is larger by as much: gradients in float32 then have four digits.
TEST_P(EverySegment, IsTheWholeInFloat) {
  expect_like_the_whole(made(61), DType::float32, {20, 1, 40}, is_positive(made(4)) ? 1e-5 : 2e-4);
}

// Norms of 30: exponents of hundreds, other maxima in each segment.
TEST_P(EverySegment, IsTheWholeWithLargeInputs) {
  if (!is_positive(made(4)) || feature_map_info(std::get<0>(GetParam())).form != ops::FeatureForm::logarithms)
    GTEST_SKIP() << "features that are no logarithms are not made for it";
  expect_like_the_whole(made(61, 10), DType::float64, {20, 1, 40}, 1e-10);
}

std::string name_of_segments(const ::testing::TestParamInfo<std::tuple<FeatureMap, bool, Mode>>& info) {
  const auto& [map, causal, mode] = info.param;
  const auto found = std::find_if(modes.begin(), modes.end(), [mode = mode](const auto& known) { return known.first == mode; });
  return std::string(feature_map_info(map).name) + (causal ? "_causal_" : "_bidirectional_") + found->second;
}
std::vector<std::tuple<FeatureMap, bool, Mode>> every_segment() {
  std::vector<std::tuple<FeatureMap, bool, Mode>> cases;
  for (const FeatureMap map : every_feature_map())
    for (const bool causal : {true, false})
      for (const Mode mode : segment_modes)
        if (possible(map, mode)) cases.emplace_back(map, causal, mode);
  return cases;
}
INSTANTIATE_TEST_SUITE_P(LinearAttention, EverySegment, ::testing::ValuesIn(every_segment()), name_of_segments);

TEST(Segments, AStateThatHasSeenNothingChangesNothing) {
  const AttentionProblem p = attention_problem(FeatureMap::elu1, true, {2, 2, 1, 9, 4, 3, 1, 16});
  ops::LinearAttentionState state = ops::empty_linear_attention_state(p.options, p.batch, 4, p.d, p.d_value, DType::float64, Device{});
  ops::LinearAttentionState other = ops::empty_like(Stream{}, state);
  other.sum = tensor_of(normal_values(other.sum.elements(), 3), other.sum.shape(), DType::float64);
  other.normalizer = tensor_of(normal_values(other.normalizer.elements(), 4), other.normalizer.shape(), DType::float64);
  other.maximum = tensor_of(normal_values(other.maximum.elements(), 5), other.maximum.shape(), DType::float64);
  ops::join(state, other);
  EXPECT_EQ(values_of(state.sum), values_of(other.sum));
  ops::join(state, ops::empty_like(Stream{}, state));
  EXPECT_EQ(values_of(state.sum), values_of(other.sum));
  EXPECT_EQ(values_of(state.normalizer), values_of(other.normalizer));
  EXPECT_EQ(values_of(state.maximum), values_of(other.maximum));
}

TEST(Segments, WindowsDocumentsAndStatesAreRefused) {
  Table table(1);
  Segment segment(table, 0, 0);
  const auto attend = [&](AttentionProblem p, ops::LinearAttentionState* state) {
    Tape tape{Stream{}};
    ops::LinearAttentionInputs inputs;
    inputs.query = Variable(tensor_of(p.query, p.query_shape(), DType::float64));
    inputs.key = Variable(tensor_of(p.key, p.key_shape(), DType::float64));
    inputs.value = Variable(tensor_of(p.value, p.value_shape(), DType::float64));
    inputs.mask = mask_of(p);
    inputs.segments = &segment;
    inputs.state = state;
    return ops::linear_attention(tape, inputs, p.options);
  };
  AttentionProblem p = attention_problem(FeatureMap::elu1, true, {1, 1, 1, 9, 4, 3, 1, 16});
  EXPECT_NO_THROW(attend(p, nullptr));
  for (const Mode mode : {Mode::window, Mode::documents, Mode::hybrid}) {
    AttentionProblem other = p;
    apply(mode, other);
    EXPECT_THROW(attend(other, nullptr), ContractError);
  }
  ops::LinearAttentionState state = ops::empty_linear_attention_state(p.options, 1, 4, 4, 3, DType::float64, Device{});
  EXPECT_THROW(attend(p, &state), ContractError);
}

}  // namespace
}  // namespace furlong::testing
