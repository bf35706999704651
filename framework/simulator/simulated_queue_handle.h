#pragma once

namespace furlong {

/// What a stream's handle on the simulated device points to: so little that a library built apart from the program can
/// put work there.
struct SimulatedQueueHandle {
  void (*enqueue)(SimulatedQueueHandle* queue, void (*work)(void* argument), void* argument);
};

}  // namespace furlong
