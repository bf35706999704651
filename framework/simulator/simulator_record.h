#pragma once
// Work on the simulator kept for later, as CUDA keeps it in a graph: launches with their arguments, copies, products.
#include <functional>
#include <vector>

namespace furlong::simulator {

/// While work is being recorded (begin_recording): keeps `work` to be run later, and returns true.
bool record(std::function<void()> work);
/// Work is kept from here on; end_recording() hands over what was, in order.
void begin_recording();
std::vector<std::function<void()>> end_recording();
bool is_recording();

}  // namespace furlong::simulator
