#pragma once
// A child process for code that a hostile file may take over: it has one open file, a channel to its parent, bounds on
// memory and processor time, and hardly any system calls.
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace furlong {

class ConfinedProcess {
 public:
  /// What runs in the child. It reads and writes `channel`, and ends where the channel does; `file` is open for
  /// reading.
  using Body = std::function<void(int channel, int file)>;

  /// Forks. Other threads must not use what `body` uses, whose locks would stay taken in the child. `path` is for
  /// messages, `library` what is blamed for a crash. Warns once where the kernel has no seccomp. Throws MachineError
  /// where there can be no further process.
  ConfinedProcess(int file, std::string path, std::string library, const Body& body);
  ~ConfinedProcess();
  ConfinedProcess(const ConfinedProcess&) = delete;
  ConfinedProcess& operator=(const ConfinedProcess&) = delete;

  /// From here on the child may take so many seconds of processor time more, and so many bytes beyond those that this
  /// process had when it forked.
  void allow(std::uint64_t seconds, std::uint64_t bytes);

  // Both throw UserError where the child has crashed or taken too long, MachineError where somebody else ended it.
  void send(const void* data, std::size_t bytes);
  void receive(void* data, std::size_t bytes);

 private:
  [[noreturn]] void tell_of_death();

  std::string path_, library_;
  pid_t child_ = -1;
  int channel_ = -1;
  std::uint64_t memory_ = 0;   ///< bytes of address space at the fork
  std::uint64_t seconds_ = 0;  ///< allowed so far
};

/// For the child's side of the channel: false where it has ended.
bool read_all(int channel, void* data, std::size_t bytes) noexcept;
bool write_all(int channel, const void* data, std::size_t bytes) noexcept;

}  // namespace furlong
