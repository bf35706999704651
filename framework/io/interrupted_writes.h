#pragma once
// What a signal leaves of files under construction: nothing.
#include <string>

namespace furlong {

/// From here on SIGTERM, SIGINT and SIGHUP end the program with exit status 3, one line on standard error, and without
/// the files that AtomicFiles of this process have under construction. A signal that is ignored (nohup) stays ignored.
/// For commands that save nothing on their way; training and conversion look for signals themselves (StopRequests),
/// which takes precedence.
void end_cleanly_on_signals();

namespace detail {

/// Registers a file under construction; returns what release_partial() takes. A few files beyond what the table holds
/// are not registered (-1).
int register_partial(const std::string& path);
void release_partial(int slot);

}  // namespace detail
}  // namespace furlong
