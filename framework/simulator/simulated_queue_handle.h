#pragma once

namespace furlong {

/// What a stream's handle on the simulated device points to. It is small so that a library built separately from the
/// program can enqueue work.
struct SimulatedQueueHandle {
  void (*enqueue)(SimulatedQueueHandle* queue, void (*work)(void* argument), void* argument);
};

}  // namespace furlong
