#include "communication/gloo/ring.h"

#include <gloo/types.h>

#include <algorithm>

namespace furlong {
namespace {

constexpr std::uint8_t reduce_scatter_slot = 0x40;  // Gloo's own prefixes end at 0x08

}  // namespace

ReduceScatterRing::ReduceScatterRing(std::shared_ptr<gloo::Context> context) : context_(std::move(context)) {
  for (auto& lane : halves_) {
    for (Half& half : lane) {
      half.memory = std::make_unique<std::byte[]>(block_bytes);
      half.buffer = context_->createUnboundBuffer(half.memory.get(), block_bytes);
    }
  }
}

void ReduceScatterRing::run(DType dtype, Reduction reduction, const void* input, void* output, std::size_t n,
                            std::uint32_t tag, std::chrono::milliseconds timeout) {
  const auto size = static_cast<std::size_t>(context_->size), rank = static_cast<std::size_t>(context_->rank);
  const auto next = static_cast<int>((rank + 1) % size), previous = static_cast<int>((rank + size - 1) % size);
  const auto width = static_cast<std::size_t>(size_of(dtype));
  const std::size_t in_block = std::min(block_bytes / width, (n + lanes - 1) / lanes);
  const std::size_t blocks = (n + in_block - 1) / in_block;
  const std::size_t steps = size - 1;
  const ReductionFunction reduce = reduction_function(dtype, reduction);
  const auto slot = gloo::Slot::build(reduce_scatter_slot, tag);
  const auto* parts = static_cast<const std::byte*>(input);
  // Gloo's buffers are mutable; this one is only sent from.
  const auto own = context_->createUnboundBuffer(const_cast<void*>(input), size * n * width);

  for (std::size_t first = 0; first < blocks; first += lanes) {
    const std::size_t active = std::min(lanes, blocks - first);
    std::array<std::size_t, lanes> begin{}, count{};
    for (std::size_t lane = 0; lane < active; ++lane) {
      begin[lane] = (first + lane) * in_block;
      count[lane] = std::min(in_block, n - begin[lane]);
      const auto index = static_cast<std::uint8_t>(lane);
      halves_[lane][0].buffer->recv(previous, slot + index, 0, count[lane] * width);
      own->send(next, slot + index, (static_cast<std::size_t>(previous) * n + begin[lane]) * width,
                count[lane] * width);
    }
    for (std::size_t step = 0; step < steps; ++step) {
      const std::size_t part = (rank + 2 * size - 2 - step) % size;
      const bool last = step + 1 == steps;
      for (std::size_t lane = 0; lane < active; ++lane) {
        const auto index = static_cast<std::uint8_t>(lane);
        const Half& here = halves_[lane][step % 2];
        const Half& other = halves_[lane][(step + 1) % 2];
        if (!last) {
          if (step > 0) other.buffer->waitSend(timeout);
          other.buffer->recv(previous, slot + index, 0, count[lane] * width);
        }
        here.buffer->waitRecv(timeout);
        void* target = last ? static_cast<std::byte*>(output) + begin[lane] * width : here.memory.get();
        reduce(target, here.memory.get(), parts + (part * n + begin[lane]) * width, count[lane]);
        if (!last) here.buffer->send(next, slot + index, 0, count[lane] * width);
      }
    }
    for (std::size_t lane = 0; lane < active; ++lane) {
      own->waitSend(timeout);
      if (steps > 1) halves_[lane][(steps - 2) % 2].buffer->waitSend(timeout);
    }
  }
}

}  // namespace furlong
