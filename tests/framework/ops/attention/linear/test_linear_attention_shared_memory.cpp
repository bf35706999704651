#if __has_include(<cuda_bf16.h>)  // the simulator uses CUDA's types from the toolkit's headers
// Linear attention on GPUs with different amounts of shared memory per block: which cases the fused kernels support,
// and that no kernel requests more. Bounds as in test_linear_attention_fused.cpp.
#include <gtest/gtest.h>

#include "framework/simulator/simulator.h"
#include "tests/framework/ops/attention/linear/linear_attention_testing.h"

namespace furlong::testing {
namespace {

struct SharedMemoryCase {
  ProblemShape shape;
  FeatureMap map;
  bool causal;
  DType dtype;
  bool fits;  // the fused kernels, in 99 KiB
};

TEST(LinearAttentionSharedMemory, TilesFitSharedMemoryOfEachDevice) {
  const Device simulated{DeviceType::simulated, 0};
  if (const std::string reason = engine_missing(simulated); !reason.empty()) GTEST_SKIP() << reason;
  const OnDevice on_simulated{simulated};
  const ProblemShape usual{1, 2, 1, 130, 16, 32, 72, 64}, wide{1, 1, 1, 66, 64, 64, 256, 64},
      plain{1, 1, 1, 70, 64, 64, 1, 64};
  const SharedMemoryCase cases[] = {{wide, FeatureMap::favor_positive, true, DType::bfloat16, true},
                                    {wide, FeatureMap::favor_positive, true, DType::float32, false},
                                    {usual, FeatureMap::favor_positive, true, DType::float32, true},
                                    {usual, FeatureMap::hedgehog, false, DType::bfloat16, true},
                                    {plain, FeatureMap::elu1, true, DType::bfloat16, true},
                                    {plain, FeatureMap::elu1, true, DType::float32, false}};
  for (const std::size_t limit : {std::size_t{99} * 1024, simulator::shared_limit_sm80, simulator::shared_limit_sm90}) {
    simulator::Options options = simulator::options();
    options.shared_limit = limit;  // more than this is a KernelFault
    const simulator::OptionsScope scope(options);
    for (const auto& [shape, map, causal, dtype, fits] : cases) {
      SCOPED_TRACE(
          fmt::format("{} KiB, {}, d {}, {}", limit / 1024, feature_map_info(map).name, shape.d, name_of(dtype)));
      AttentionProblem p = attention_problem(map, causal, shape);
      for (auto* values : {&p.query, &p.key, &p.value}) *values = stored(*values, dtype);
      const Outcome expected = run_on_cpu(p, DType::float64);
      const auto run = [&](bool general) {
        gpu_settings().composed_kernels = general;
        const Outcome found = run_attention(p, dtype);
        gpu_settings() = {};
        const double output = dtype == DType::bfloat16 ? 0x1p-7 : 1e-4,
                     gradient = dtype == DType::bfloat16 ? 0x1p-6 : 1e-4;
        EXPECT_LT(relative_error(found.output, expected.output), output) << general;
        EXPECT_LT(relative_error(found.d_query, expected.d_query), gradient) << general;
        EXPECT_LT(relative_error(found.d_key, expected.d_key), gradient) << general;
        EXPECT_LT(relative_error(found.d_value, expected.d_value), gradient) << general;
        return found.output;
      };
      EXPECT_EQ(run(false) != run(true), fits || limit > 99 * 1024) << "choice of kernels";
    }
  }
}

}  // namespace
}  // namespace furlong::testing
#endif
