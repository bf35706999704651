#if __has_include(<cuda_bf16.h>)  // the simulator uses CUDA's types from the toolkit's headers
// Softmax attention on GPUs with the smallest shared memory per block, 99 KiB (sm_86, sm_89, sm_120). Its tiles are the
// same on all devices.
#include <gtest/gtest.h>

#include "framework/simulator/simulator.h"
#include "tests/framework/ops/attention/softmax/softmax_attention_testing.h"

namespace furlong {
namespace {

using namespace softmax_testing;

TEST(SoftmaxAttentionSharedMemory, EveryWidthAndTypeFitsMinimumSharedMemory) {
  const Device simulated{DeviceType::simulated, 0};
  if (const std::string reason = testing::engine_missing(simulated); !reason.empty()) GTEST_SKIP() << reason;
  const testing::OnDevice on_simulated{simulated};
  simulator::Options options = simulator::options();
  options.shared_limit = std::size_t{99} * 1024;  // more than this is a KernelFault
  const simulator::OptionsScope scope(options);
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16}) {
    for (const std::int64_t width : {16, 100, 256}) {
      SCOPED_TRACE(fmt::format("{}, heads of {}", name_of(dtype), width));
      compare_with_reference(Problem({1, 20, 70, 1, 1, width, width, true, 50, 0}, dtype), dtype);
    }
  }
}

}  // namespace
}  // namespace furlong
#endif
