#pragma once
// Records work on the simulator for later, as a CUDA graph does: launches with their arguments, copies, products.
#include <functional>
#include <vector>

namespace furlong::simulator {

/// If recording is on (begin_recording), stores `work` for later and returns true.
bool record(std::function<void()> work);
/// Starts recording. end_recording() returns the recorded work, in order.
void begin_recording();
std::vector<std::function<void()>> end_recording();
bool is_recording();

}  // namespace furlong::simulator
