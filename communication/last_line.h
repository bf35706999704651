#pragma once
#include <string_view>

namespace furlong {

/// Writes "error: `message`" as one line to standard error and ends the process with `status`, even if other threads
/// hang: runs no destructors, waits for no lock of the C library, and leaves the line out if standard error accepts
/// none (a paused reader of a full pipe). An empty message writes nothing.
[[noreturn]] void end_with_last_line(std::string_view message, int status) noexcept;

}  // namespace furlong
