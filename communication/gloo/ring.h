#pragma once
// Reduce-scatter around a ring, over Gloo's messages: Gloo has none of its own but a class for contexts that nothing
// else uses.
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

/// Part r begins as rank r + 1's, passes ranks r + 2, r + 3, ..., each of which adds its own to it, and stays with rank
/// r: size - 1 steps, in each of which every rank sends and receives one part. The order of additions is fixed by r
/// alone. Parts go in blocks, two of which are under way: one travels while the other is added to.
class ReduceScatterRing {
 public:
  explicit ReduceScatterRing(std::shared_ptr<gloo::Context> context);

  /// `input` has size · n elements of the dtype, `output` n > 0; it may be the rank's own part of `input`. `tag`
  /// differs from those of the operations that other ranks may be in.
  void run(DType dtype, Reduction reduction, const void* input, void* output, std::size_t n, std::uint32_t tag,
           std::chrono::milliseconds timeout);

 private:
  static constexpr std::size_t lanes = 2, block_bytes = std::size_t{1} << 20;
  struct Half {
    std::unique_ptr<std::byte[]> memory;
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
  };

  std::shared_ptr<gloo::Context> context_;
  /// Each lane receives into one half while it still sends from the other.
  std::array<std::array<Half, 2>, lanes> halves_;
};

}  // namespace furlong
