// Every feature map in every class of shapes, on every device, with the kernels that attention chooses: the fused
// kernels if the map has a FusedForm and they support the shapes, otherwise the composed kernels. Outputs are compared
// with the definition in float64. Gradients are compared with those of the CPU in float64, which other tests compare
// with finite differences. The test fails if a device computes a different map.
#include <gtest/gtest.h>

#include "tests/framework/ops/attention/linear/linear_attention_testing.h"

namespace furlong::testing {
namespace {

class EveryFeatureMap : public EngineTest {};
FURLONG_INSTANTIATE_ENGINES(EveryFeatureMap);

struct ShapeClass {
  const char* name;
  ProblemShape shape;
  bool causal;
  void (*change)(AttentionProblem& p);
};
void nothing(AttentionProblem& /*p*/) {}
void mask_keys(AttentionProblem& p) {
  for (std::int64_t j = 0; j < p.batch * p.n_key; ++j) p.mask.push_back(j % 3 != 1);
}
void pack_documents(AttentionProblem& p) {
  for (std::int64_t j = 0; j < p.batch * p.n_key; ++j) p.documents.push_back(j % p.n_key < 30 ? 1 : 2);
}
void cut_window(AttentionProblem& p) { p.options.window = 20; }

/// Widths that the fused kernels support: two tiles of random features, the last one partial; several chunks.
constexpr ProblemShape usual{1, 2, 1, 70, 16, 32, 72, 64};
const ShapeClass classes[] = {{"causal", usual, true, nothing},
                              {"bidirectional", usual, false, nothing},
                              {"wide heads", {1, 1, 1, 20, 32, 48, 33, 64}, true, nothing},
                              {"one query", {2, 1, 1, 1, 16, 16, 16, 64}, false, nothing},
                              {"masked keys", {2, 1, 1, 40, 16, 16, 24, 64}, false, mask_keys},
                              {"packed documents", {1, 1, 1, 70, 16, 16, 24, 64}, true, pack_documents},
                              {"window", {1, 1, 1, 40, 16, 16, 24, 16}, true, cut_window},
                              {"odd widths, causal", {1, 4, 2, 33, 5, 3, 7, 16}, true, nothing},
                              {"odd widths, bidirectional", {1, 2, 2, 17, 12, 20, 19, 16}, false, nothing}};

AttentionProblem problem_of(FeatureMap map, const ShapeClass& c, DType dtype) {
  AttentionProblem p = attention_problem(map, c.causal, c.shape);
  c.change(p);
  if (!is_positive(p)) keep_denominators_large(p);
  for (auto* values : {&p.query, &p.key, &p.value}) *values = stored(*values, dtype);
  return p;
}

TEST_P(EveryFeatureMap, MatchesDefinitionInEveryShapeClass) {
  for (const ops::FeatureMapInfo& info : ops::feature_maps()) {
    for (const ShapeClass& c : classes) {
      for (const DType dtype : {DType::float32, DType::bfloat16}) {
        SCOPED_TRACE(fmt::format("{}, {}, {}", info.name, c.name, name_of(dtype)));
        const AttentionProblem p = problem_of(info.map, c, dtype);
        const double bound = dtype == DType::bfloat16 ? 0x1p-7 : 1e-4;  // as in test_linear_attention_fused.cpp
        const Outcome found = run_attention(p, dtype);
        EXPECT_LT(relative_error(found.output, definition_of(p, dtype)), bound);
        const Outcome expected = run_on_cpu(p, DType::float64);
        // In bfloat16 the output is rounded before g · output; gradients of a smooth map are small in comparison.
        const double gradient_bound = dtype == DType::bfloat16 ? 4 * bound : bound;
        EXPECT_LT(relative_error(found.d_query, expected.d_query), gradient_bound);
        EXPECT_LT(relative_error(found.d_key, expected.d_key), gradient_bound);
        EXPECT_LT(relative_error(found.d_value, expected.d_value), gradient_bound);
      }
    }
  }
}

TEST_P(EveryFeatureMap, UsesFusedKernelsIfSupported) {
  for (const ops::FeatureMapInfo& info : ops::feature_maps()) {
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      const AttentionProblem p = problem_of(info.map, classes[0], dtype);
      const std::vector<double> chosen = output_of(p, dtype);
      use_composed_kernels(0);
      const std::vector<double> general = output_of(p, dtype);
      gpu_settings() = {};
      EXPECT_EQ(chosen != general, on_gpu() && info.fused != ops::FusedForm::none) << info.name;
    }
  }
}

}  // namespace
}  // namespace furlong::testing
