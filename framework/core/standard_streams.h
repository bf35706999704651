#pragma once
// Output to standard streams whose readers may be gone or paused.
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string_view>

namespace furlong {

/// Writes what the reader of a descriptor takes now, without waiting. Returns as write(); errno is EAGAIN if the reader
/// takes nothing. Leaves the descriptor's flags unchanged, because other processes share them. Async-signal-safe.
ssize_t write_without_waiting(int descriptor, std::string_view text) noexcept;

/// Writes all of `text`. Gives up after an error, and after waiting for the reader for `patience` in total; a negative
/// one waits forever. Returns whether all of it was written. Async-signal-safe.
bool write_patiently(int descriptor, std::string_view text, std::chrono::milliseconds patience) noexcept;

/// For programs that train: from now on, no message ends or delays this process. A closed pipe raises no SIGPIPE, and
/// write_message() drops a message that its reader does not take within a second.
void continue_without_readers() noexcept;

/// Writes a message to standard output or standard error. Waits for a paused reader, except after
/// continue_without_readers(). Ignores errors. A message after one that was lost halfway starts on a new line. Returns
/// whether all of it was written.
bool write_message(int descriptor, std::string_view text) noexcept;

/// Returns the number of messages of whole lines that write_message() could not write. Redrawn progress is no line.
std::int64_t lost_messages() noexcept;

/// Counts lines that others could not write.
void add_lost_messages(std::int64_t count) noexcept;

}  // namespace furlong
