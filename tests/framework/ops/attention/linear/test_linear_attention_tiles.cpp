// Shapes at the edges of the CPU's tiles.
#include <gtest/gtest.h>

#include "tests/framework/ops/attention/linear/linear_attention_testing.h"

namespace furlong::testing {
namespace {

double largest_value(const AttentionProblem& p) {
  double largest = 0;
  for (const double value : p.value) largest = std::max(largest, std::fabs(value));
  return largest;
}

// A chunk meets more keys than it has queries, so that packed keys need more room than packed queries.
TEST(LinearAttentionTiles, PackedKeysOfWideWindowsFit) {
  struct Case {
    std::int64_t chunk, window, softmax_window, features;
  };
  for (const Case& c : {Case{64, 0, 64, 256}, Case{64, 65, 0, 256}, Case{64, 0, 64, 512}, Case{128, 0, 0, 256},
                        Case{64, 192, 0, 512}}) {
    AttentionProblem p =
        attention_problem(FeatureMap::favor_positive, true, {1, 4, 4, 300, 16, 16, c.features, c.chunk});
    p.options.window = c.window, p.options.softmax_window = c.softmax_window;
    for (auto* values : {&p.query, &p.key, &p.value}) *values = stored(*values, DType::bfloat16);
    const Outcome found = run_attention(p, DType::bfloat16), expected = run_attention(p, DType::float64);
    // Bounds as in test_linear_attention.cpp.
    EXPECT_LT(scaled_error(output_of(p, DType::bfloat16), expected.output, largest_value(p)), 0x1p-7);
    EXPECT_LT(scaled_error(found.output, expected.output, largest_value(p)), 0x1p-7);
    EXPECT_LT(relative_error(found.d_query, expected.d_query), 0x1p-5);
    EXPECT_LT(relative_error(found.d_key, expected.d_key), 0x1p-5);
    EXPECT_LT(relative_error(found.d_value, expected.d_value), 0x1p-5);
  }
}

// All weights are far below 1 before the stabilizer is subtracted, and the last vector of features is not full.
TEST(LinearAttentionTiles, LanesBeyondTheFeaturesCountNothing) {
  AttentionProblem p = attention_problem(FeatureMap::favor_positive, true, {1, 2, 2, 70, 16, 16, 20, 16}, 12);
  for (auto* values : {&p.query, &p.key, &p.value}) *values = stored(*values, DType::bfloat16);
  const std::vector<double> expected = output_of(p, DType::float64);
  for (const DType dtype : {DType::float32, DType::bfloat16})
    EXPECT_LT(scaled_error(output_of(p, dtype), expected, largest_value(p)), dtype == DType::float32 ? 1e-4 : 0x1p-7);
}

}  // namespace
}  // namespace furlong::testing
