#pragma once
// Removal of partial files and new directories when a signal ends the program.
#include <string>

namespace furlong {

/// Makes SIGTERM, SIGINT and SIGHUP end the program with exit status 3, print one line to standard error, and remove
/// the partial files of this process's AtomicFiles and the empty directories of its NewDirectories. An ignored signal
/// (nohup) stays ignored. For commands without intermediate results; the handlers of training and conversion
/// (StopRequests) take precedence.
void end_cleanly_on_signals();

namespace detail {

/// Registers a partial file or a new directory. Returns the slot for release_partial(), or -1 without registration if
/// the table is full.
int register_partial(const std::string& path);
void release_partial(int slot);

}  // namespace detail
}  // namespace furlong
