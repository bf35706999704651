// Matrix products on the simulator: cuBLASLt is no kernel of ours, and the simulator's memory is the host's.
#include "framework/cuda/simulator_record.h"
#include "framework/ops/gemm_bodies.h"

namespace furlong::ops {
namespace {

void gemm_simulated(const Stream&, const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c, bool accumulate,
                    const GemmEpilogue& epilogue) {
  // Recorded work keeps what it works on, the bias by value too.
  const Tensor bias = epilogue.bias ? *epilogue.bias : Tensor{};
  const auto work = [=, activation = epilogue.activation] {
    gemm_cpu(a, transpose_a, b, transpose_b, c, accumulate, {.bias = bias.defined() ? &bias : nullptr, .activation = activation});
  };
  if (!simulator::record(work)) work();
}

[[maybe_unused]] const bool registered = (gemm_gpu.set(DeviceType::simulated, &gemm_simulated), true);

}  // namespace
}  // namespace furlong::ops
