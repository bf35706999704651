#pragma once
// Queues of the simulated device. Its main stream runs work immediately; every other queue has a thread that runs its
// work in order.
#include <functional>
#include <memory>

#include "framework/core/gpu_engine.h"
#include "framework/simulator/simulated_queue_handle.h"

namespace furlong {

std::unique_ptr<GpuQueue> make_simulated_queue();
std::unique_ptr<GpuEvent> make_simulated_event();

/// Returns the stream's queue, never null. The main stream's queue runs work immediately.
SimulatedQueueHandle* simulated_queue_of(const Stream& stream);
void put_on_simulated_queue(const Stream& stream, std::function<void()> work);
/// Waits until all work on the stream's queue is done.
void wait_for_simulated_queue(const Stream& stream);

}  // namespace furlong
