#pragma once
// How linear attention is computed on GPUs. For tests and measurements: training never changes it.
#include <cstdint>

namespace furlong::ops {

struct LinearAttentionGpuSettings {
  bool general_form = false;              ///< take the general form where the fused one could be taken
  std::int64_t segments = 0;              ///< of each head's sequence, at most; 0: as many as fill the device
  std::int64_t shared_bytes = 96 * 1024;  ///< of tiles that a block may keep in shared memory in the general form
};
LinearAttentionGpuSettings& linear_attention_gpu_settings();

}  // namespace furlong::ops
