#pragma once
// Removal of partial files and new directories when a signal ends the program.
#include <array>
#include <csignal>
#include <cstddef>
#include <string>

namespace furlong {

/// Makes SIGTERM, SIGINT, SIGHUP and SIGUSR1 end the program with exit status 3, print one line to standard
/// error, and remove the partial files of this process's AtomicFiles and the empty directories of its NewDirectories.
/// While such a file exists, SIGPIPE is ignored: nobody needs to read the progress. An ignored signal (nohup) stays
/// ignored. For commands without intermediate results; the handlers of training and conversion (StopRequests) take
/// precedence.
void end_cleanly_on_signals();

/// From now on these signals end the program with status 0, if end_cleanly_on_signals() handles them: its output is
/// complete, and a signal only cuts its report short. Call it where the output gets its name, while signals wait
/// (DelayedSignals, StopRequests): otherwise one could end the program with status 3 and a complete output.
void output_is_complete();
bool is_output_complete();

/// While this object exists, these signals wait, whichever thread receives them; the destructor delivers them. Create
/// it from one thread at a time.
class DelayedSignals {
 public:
  static constexpr std::size_t n_signals = 4;

  DelayedSignals();
  ~DelayedSignals();
  DelayedSignals(const DelayedSignals&) = delete;
  DelayedSignals& operator=(const DelayedSignals&) = delete;

 private:
  std::array<struct sigaction, n_signals> before_{};
};

namespace detail {

/// Registers a partial file, which may not exist yet. Returns the slot for release_partial(), or -1 without
/// registration if the table is full.
int register_partial(const std::string& path);
/// The same for a directory that this process has created.
int register_directory(const std::string& path);
void release_partial(int slot);

}  // namespace detail
}  // namespace furlong
