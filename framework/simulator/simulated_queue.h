#pragma once
// Queues of the simulated device. A queue holds work in order and is what a Stream's handle refers to. The main stream
// has a null handle and no queue of its own: it runs work immediately, in the calling thread. Every queue made here has
// one thread, which runs the queue's work in order.
#include <functional>
#include <memory>

#include "framework/core/gpu_engine.h"
#include "framework/simulator/simulated_queue_handle.h"

namespace furlong {

/// Returns a new queue and starts its thread. Its streams are valid as long as the queue exists. The destructor blocks
/// until all enqueued work has run.
std::unique_ptr<GpuQueue> make_simulated_queue();
/// Returns a new event for any streams of the simulated device. Until record(), it counts as done.
std::unique_ptr<GpuEvent> make_simulated_event();

/// Returns the handle through which work is enqueued on the stream; never null. The main stream's handle is a static
/// object that runs work immediately; any other belongs to the stream's queue.
SimulatedQueueHandle* simulated_queue_of(const Stream& stream);
/// Enqueues `work` on the stream and returns immediately; on the main stream, runs it before returning. An exception of
/// `work` reaches the caller on the main stream. On any other stream, `work` must not throw: nothing catches the
/// exception, and the program terminates.
void enqueue_on_simulated_queue(const Stream& stream, std::function<void()> work);
/// Blocks until all work enqueued so far on the stream is done.
void wait_for_simulated_queue(const Stream& stream);

}  // namespace furlong
