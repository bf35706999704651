#pragma once
// Ring reduce-scatter over Gloo's point-to-point messages. Gloo's own implementation works only with a context class
// that is not used here.
#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "communication/reduction.h"

namespace furlong {

/// Part r starts at rank r + 1 and passes ranks r + 2, r + 3, ..., each of which adds its own values, until it reaches
/// rank r. In each of the size - 1 steps every rank sends and receives one part. The order of additions depends on r
/// only. A part is split into blocks, two of which are in flight: one is transferred while the other is reduced.
class ReduceScatterRing {
 public:
  explicit ReduceScatterRing(std::shared_ptr<gloo::Context> context);

  /// Reduces `input` (size · n elements of `dtype`) into `output` (n > 0 elements), which may be the rank's own part of
  /// `input`. `tag` must differ from the tags of operations that other ranks may still be running.
  void run(DType dtype, Reduction reduction, const void* input, void* output, std::size_t n, std::uint32_t tag,
           std::chrono::milliseconds timeout);

 private:
  static constexpr std::size_t lanes = 2, block_bytes = std::size_t{1} << 20;
  struct Half {
    std::unique_ptr<std::byte[]> memory;
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
  };

  std::shared_ptr<gloo::Context> context_;
  /// Double buffers: each lane receives into one half while it still sends from the other.
  std::array<std::array<Half, 2>, lanes> halves_;
};

}  // namespace furlong
