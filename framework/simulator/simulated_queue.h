#pragma once
// Queues of the simulated device beside its main stream, which runs things at once. Each has a thread that takes its
// work in order.
#include <functional>
#include <memory>

#include "framework/core/gpu_engine.h"
#include "framework/simulator/simulated_queue_handle.h"

namespace furlong {

std::unique_ptr<GpuQueue> make_simulated_queue();
std::unique_ptr<GpuEvent> make_simulated_event();

/// Never null: of the main stream a handle that runs work at once.
SimulatedQueueHandle* simulated_queue_of(const Stream& stream);
void put_on_simulated_queue(const Stream& stream, std::function<void()> work);
/// Returns when all that the stream has is done.
void wait_for_simulated_queue(const Stream& stream);

}  // namespace furlong
