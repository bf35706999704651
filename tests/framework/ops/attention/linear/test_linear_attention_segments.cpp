// One sequence in segments, each with its own tape, as on separate ranks: outputs and gradients must match those of the
// whole sequence.
#include <gtest/gtest.h>

#include <barrier>
#include <thread>

#include "tests/framework/ops/attention/linear/linear_attention_modes.h"

namespace furlong::testing {
namespace {

ops::LinearAttentionState row_of(const ops::LinearAttentionState& state, std::int64_t row) {
  ops::LinearAttentionState one;
  one.sum = state.sum.narrow(0, row, 1);
  one.normalizer = state.normalizer.narrow(0, row, 1);
  one.maximum = state.maximum.narrow(0, row, 1);
  one.magnitude = state.magnitude.narrow(0, row, 1);
  return one;
}

/// Shared by the segments of one test: each stores its state, waits for the others, and joins the states it needs. The
/// table knows the whole sequence; each document has its own number, equal in all segments.
class Table {
 public:
  Table(const AttentionProblem& whole, const std::vector<std::int64_t>& lengths)
      : batch_(whole.batch),
        packs_(!whole.documents.empty()),
        states_(lengths.size()),
        all_(static_cast<std::ptrdiff_t>(lengths.size())) {
    for (const std::int64_t length : lengths) borders_.push_back(borders_.back() + length);
    for (std::int64_t b = 0; b < batch_; ++b) {
      for (std::int64_t i = 0, number = 0; i < whole.n; ++i) {
        const auto at = static_cast<std::size_t>(b * whole.n + i);
        number += packs_ && i > 0 && whole.documents[at] != whole.documents[at - 1];
        numbers_.push_back(number);
      }
    }
  }
  /// Returns, for each row, the document's tokens before token `first`; empty without packed documents.
  std::vector<std::int64_t> open_document_tokens(std::int64_t first) const {
    std::vector<std::int64_t> tokens;
    for (std::int64_t b = 0; packs_ && b < batch_; ++b) {
      const auto row = numbers_.begin() + b * borders_.back();
      tokens.push_back(std::count(row, row + first, row[first]));
    }
    return tokens;
  }
  std::int64_t tokens() const { return borders_.back(); }

  void exchange(std::size_t own, ops::LinearAttentionState& state, bool earlier, bool later) {
    states_[own] = state;
    all_.arrive_and_wait();
    ops::LinearAttentionState result = ops::empty_like(Stream{}, state);
    const bool both = earlier && later;
    const std::int64_t last = packs_ && both ? batch_ : 0;  // first row of the states of last documents
    EXPECT_EQ(state.sum.extent(0), last + batch_);
    for (std::int64_t b = 0; b < batch_; ++b) {
      for (std::size_t other = 0; other < states_.size(); ++other) {
        if (other == own || !(other < own ? earlier : later)) continue;
        const bool before = other < own;  // then its last document may continue here
        const std::int64_t its = number(b, other, before), from = b + (before ? last : 0);
        if (its == number(b, own, !before)) add(result, b + (before ? 0 : last), other, from);
        // If this segment's first document is also its last, it may continue in later segments too.
        if (last > 0 && !before && its == number(b, own, false)) add(result, b, other, from);
      }
    }
    all_.arrive_and_wait();
    state = result;
  }

 private:
  /// Returns the document of the last (or the first) token of a segment.
  std::int64_t number(std::int64_t b, std::size_t segment, bool of_last) const {
    const std::int64_t token = of_last ? borders_[segment + 1] - 1 : borders_[segment];
    return numbers_[static_cast<std::size_t>(b * borders_.back() + token)];
  }
  void add(ops::LinearAttentionState& result, std::int64_t into, std::size_t other, std::int64_t from) const {
    ops::LinearAttentionState sum = row_of(result, into);
    ops::join(sum, row_of(states_[other], from));
  }

  std::int64_t batch_;
  bool packs_;
  std::vector<std::int64_t> borders_{0}, numbers_;
  std::vector<ops::LinearAttentionState> states_;
  std::barrier<> all_;
};

class Segment final : public ops::SegmentExchange {
 public:
  Segment(Table& table, std::size_t place, std::int64_t first) : table_(table), place_(place), first_(first) {}
  void exchange_keys(const Stream&, ops::LinearAttentionState& state, bool causal) override {
    table_.exchange(place_, state, true, !causal);
  }
  void exchange_queries(const Stream&, ops::LinearAttentionState& state, bool causal) override {
    table_.exchange(place_, state, !causal, true);
  }
  std::int64_t first_position() const override { return first_; }
  std::int64_t sequence_length() const override { return table_.tokens(); }
  std::vector<std::int64_t> open_document_tokens() const override { return table_.open_document_tokens(first_); }

 private:
  Table& table_;
  std::size_t place_;
  std::int64_t first_;
};

/// Returns columns [first, first + n) of [batch, total, width].
template <class T>
std::vector<T> columns(const std::vector<T>& values, std::int64_t batch, std::int64_t total, std::int64_t first,
                       std::int64_t n) {
  if (values.empty()) return {};
  const std::int64_t width = static_cast<std::int64_t>(values.size()) / (batch * total);
  std::vector<T> part;
  for (std::int64_t b = 0; b < batch; ++b)
    part.insert(part.end(), values.begin() + (b * total + first) * width,
                values.begin() + (b * total + first + n) * width);
  return part;
}

AttentionProblem part_of(const AttentionProblem& p, std::int64_t first, std::int64_t n) {
  AttentionProblem part = p;
  part.n = part.n_key = n;
  for (auto* values : {&part.query, &part.key, &part.value}) *values = columns(*values, p.batch, p.n, first, n);
  part.mask = columns(p.mask, p.batch, p.n, first, n);
  part.documents = columns(p.documents, p.batch, p.n, first, n);
  return part;
}

Outcome run_segment(const AttentionProblem& p, DType dtype, Segment& segment, const std::vector<double>& d_output) {
  Tape tape{Stream{}};
  ops::LinearAttentionInputs inputs = inputs_of(p, dtype);
  inputs.segments = &segment;
  return outcome_of(tape, inputs, attend(tape, inputs, p.options), d_output);
}

/// Returns the largest difference between the segment and [batch, total, width], relative to the largest value.
double difference(const std::vector<double>& whole, const std::vector<double>& part, const AttentionProblem& p,
                  std::int64_t first, std::int64_t n) {
  const std::vector<double> expected = columns(whole, p.batch, p.n, first, n);
  EXPECT_EQ(expected.size(), part.size());
  double largest = 0, scale = 1e-300;
  for (const double value : whole) scale = std::max(scale, std::abs(value));
  for (std::size_t i = 0; i < expected.size(); ++i) largest = std::max(largest, std::abs(expected[i] - part[i]));
  return largest / scale;
}

void expect_equal_to_whole(const AttentionProblem& p, DType dtype, const std::vector<std::int64_t>& lengths,
                           double tolerance) {
  const Outcome whole = run_attention(p, dtype);
  const std::vector<double> d_output = normal_values(p.batch * p.n * p.heads() * p.d_value, 5);
  Table table(p, lengths);
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

/// Modes that support segments.
const std::vector<Mode> segment_modes{Mode::plain,   Mode::mask,      Mode::centered,      Mode::rms,
                                      Mode::rotated, Mode::documents, Mode::rotated_masked};

/// Replaces the documents of each row by documents of these lengths. Numbers repeat: only neighbors differ.
void pack(AttentionProblem& p, const std::vector<std::vector<std::int64_t>>& rows) {
  p.documents.clear();
  for (const std::vector<std::int64_t>& lengths : rows)
    for (std::size_t i = 0; i < lengths.size(); ++i)
      p.documents.insert(p.documents.end(), static_cast<std::size_t>(lengths[i]), i % 2 == 0 ? 3 : 8);
  ASSERT_EQ(static_cast<std::int64_t>(p.documents.size()), p.batch * p.n);
}

/// Only maps with logarithms support large inputs.
bool takes_large_inputs(FeatureMap map) { return feature_map_info(map).form == ops::FeatureForm::logarithms; }

class EverySegment : public ::testing::TestWithParam<std::tuple<FeatureMap, bool, Mode>> {
 protected:
  // Several threads run ops at once, so each op uses one thread.
  void SetUp() override { set_thread_count(1); }
  void TearDown() override { set_thread_count(0); }
  AttentionProblem make_problem(std::int64_t n, double scale = 1) const {
    const auto& [map, causal, mode] = GetParam();
    AttentionProblem p = attention_problem(map, causal, {2, 4, 2, n, 8, 5, 11, 16}, scale);
    make_square(p);
    if (!is_positive(p)) keep_denominators_large(p);
    apply(mode, p);
    return p;
  }
};

// Rounding differs at the borders: a few units in the last place of sums over n terms, larger in gradients by the size
// of 1 / N.
TEST_P(EverySegment, MatchesWholeSequenceInFloat64) {
  expect_equal_to_whole(make_problem(61), DType::float64, {20, 1, 40}, 1e-12);
  expect_equal_to_whole(make_problem(48), DType::float64, {12, 12, 12, 12}, 1e-12);
}

// If weights of both signs cancel in a denominator, rounding errors grow by as much, and depend on the vector width:
// the largest error is 2.5e-4, in a gradient of favor_trig with AVX2; with AVX-512 all are below 2e-4.
constexpr double canceling_float_bound = 5e-4;
TEST_P(EverySegment, MatchesWholeSequenceInFloat32) {
  expect_equal_to_whole(make_problem(61), DType::float32, {20, 1, 40},
                        is_positive(make_problem(4)) ? 1e-5 : canceling_float_bound);
}

// Norms of 30: exponents of several hundred, and different maxima in each segment.
class EverySegmentOfLargeInputs : public EverySegment {};
TEST_P(EverySegmentOfLargeInputs, MatchesWholeSequence) {
  expect_equal_to_whole(make_problem(61, 10), DType::float64, {20, 1, 40}, 1e-10);
}

// Segments start at tokens 12, 24 and 36 of 48. Document borders are at, before and after these. Documents end in the
// segment where they start, in the next one or three later, or fill the row.
class EveryPackedSegment : public EverySegment {};
TEST_P(EveryPackedSegment, PackedDocumentsMatchWholeSequence) {
  AttentionProblem p = make_problem(48);
  const bool positive = is_positive(p);
  for (const auto& rows : std::vector<std::vector<std::vector<std::int64_t>>>{{{12, 12, 12, 12}, {48}},
                                                                              {{11, 2, 23, 12}, {13, 34, 1}},
                                                                              {{1, 46, 1}, {36, 12}},
                                                                              {{5, 3, 17, 11, 2, 1, 9}, {24, 1, 23}}}) {
    const ::testing::ScopedTrace trace(__FILE__, __LINE__, ::testing::PrintToString(rows));
    pack(p, rows);
    expect_equal_to_whole(p, DType::float64, {12, 12, 12, 12}, 1e-12);
    expect_equal_to_whole(p, DType::float32, {12, 12, 12, 12}, positive ? 1e-5 : canceling_float_bound);
  }
}

std::string name_of_segments(const ::testing::TestParamInfo<std::tuple<FeatureMap, bool, Mode>>& info) {
  const auto& [map, causal, mode] = info.param;
  const auto found =
      std::find_if(modes.begin(), modes.end(), [mode = mode](const auto& known) { return known.first == mode; });
  return std::string(feature_map_info(map).name) + (causal ? "_causal_" : "_bidirectional_") + found->second;
}
template <class Wanted>
auto every_segment(const Wanted& wanted) {
  std::vector<std::tuple<FeatureMap, bool, Mode>> cases;
  for (const FeatureMap map : every_feature_map())
    for (const bool causal : {true, false})
      for (const Mode mode : segment_modes)
        if (possible(map, mode) && wanted(map, mode)) cases.emplace_back(map, causal, mode);
  return ::testing::ValuesIn(cases);
}
INSTANTIATE_TEST_SUITE_P(LinearAttention, EverySegment, every_segment([](auto...) { return true; }), name_of_segments);
INSTANTIATE_TEST_SUITE_P(LinearAttention, EverySegmentOfLargeInputs,
                         every_segment([](FeatureMap map, Mode) { return takes_large_inputs(map); }), name_of_segments);
INSTANTIATE_TEST_SUITE_P(LinearAttention, EveryPackedSegment, every_segment([](FeatureMap, Mode mode) {
                           return mode == Mode::documents || mode == Mode::rotated_masked;
                         }),
                         name_of_segments);

TEST(Segments, JoiningEmptyStateChangesNothing) {
  const AttentionProblem p = attention_problem(FeatureMap::elu1, true, {2, 2, 1, 9, 4, 3, 1, 16});
  ops::LinearAttentionState state =
      ops::empty_linear_attention_state(p.options, p.batch, 4, p.d_value, DType::float64, Device{});
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

TEST(Segments, RejectsWindowStateAndInconsistentDocuments) {
  AttentionProblem p = attention_problem(FeatureMap::elu1, true, {1, 1, 1, 9, 4, 3, 1, 16});
  Table table(p, {9});
  Segment segment(table, 0, 0);
  const auto run = [&](AttentionProblem p, ops::LinearAttentionState* state) {
    Tape tape{Stream{}};
    ops::LinearAttentionInputs inputs = inputs_of(p, DType::float64, false);
    inputs.segments = &segment;
    inputs.state = state;
    return attend(tape, inputs, p.options);
  };
  EXPECT_NO_THROW(run(p, nullptr));
  for (const Mode mode : {Mode::window, Mode::documents, Mode::hybrid}) {
    AttentionProblem other = p;
    apply(mode, other);
    EXPECT_THROW(run(other, nullptr), ContractError);
  }
  ops::LinearAttentionState state = ops::empty_linear_attention_state(p.options, 1, 4, 3, DType::float64, Device{});
  EXPECT_THROW(run(p, &state), ContractError);
}

}  // namespace
}  // namespace furlong::testing
