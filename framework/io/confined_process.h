#pragma once
// A sandboxed child process for code that a hostile file may take over. The child has one open file, a channel to its
// parent, limits on memory and CPU time, and only a few permitted system calls.
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace furlong {

class ConfinedProcess {
 public:
  /// The child's code. It reads and writes `channel` and ends when the channel closes; `file` is open for reading.
  using Body = std::function<void(int channel, int file)>;

  /// Forks. Other threads must not hold locks that `body` uses: they would stay locked in the child. Messages use
  /// `path`, and `library` is the library blamed for a crash. Warns once if the kernel has no seccomp. Throws
  /// MachineError if no process can be created.
  ConfinedProcess(int file, std::string path, std::string library, const Body& body);
  ~ConfinedProcess();
  ConfinedProcess(const ConfinedProcess&) = delete;
  ConfinedProcess& operator=(const ConfinedProcess&) = delete;

  /// Grants the child this much more CPU time, and memory up to `bytes` beyond this process's memory at the fork.
  void allow(std::uint64_t seconds, std::uint64_t bytes);

  // Both throw UserError if the child has crashed or exceeded its limits, MachineError if another process ended it.
  // Later calls throw the same.
  void send(const void* data, std::size_t bytes);
  void receive(void* data, std::size_t bytes);

 private:
  [[noreturn]] void throw_child_failure();

  std::string path_, library_;
  pid_t child_ = -1;  ///< -1 after it has ended
  int status_ = 0;    ///< of the ended child, from waitpid()
  int channel_ = -1;
  std::uint64_t memory_ = 0;   ///< address space at the fork, in bytes
  std::uint64_t seconds_ = 0;  ///< CPU time granted so far
};

/// I/O of the child on its channel. Both return false if the channel has closed.
bool read_all(int channel, void* data, std::size_t bytes) noexcept;
bool write_all(int channel, const void* data, std::size_t bytes) noexcept;

}  // namespace furlong
