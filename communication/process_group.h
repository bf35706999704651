#pragma once
// The ranks of one job as training uses them: this process's rank, communicators, and how the failure of one rank ends
// all of them.
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "communication/communicator.h"
#include "communication/launch/launch_environment.h"
#include "framework/core/error.h"

namespace furlong {

/// Another rank of the job failed, or this rank failed and another one reports it. The message names the failed rank
/// and its host. Exit status 3: a stop was requested (Options::stop_requested) before all ranks had connected.
class PeerError : public MachineError {
 public:
  /// `exit_status` is that of this rank's own error if it has one.
  PeerError(const std::string& message, bool reported_here, int exit_status = 1)
      : MachineError("{}", message), reported_here_(reported_here), exit_status_(exit_status) {}
  int exit_status() const noexcept override { return exit_status_; }
  /// Returns true if this process should print the message. One process of a job prints it: rank 0 or, if rank 0 is
  /// lost, one process on each host.
  bool is_reported_here() const { return reported_here_; }

 private:
  bool reported_here_;
  int exit_status_;
};

/// The group of all ranks of a job. All ranks construct it at the same time and call leave() together. With one rank no
/// connection is opened. Unless stated otherwise, one thread calls the functions; collective ones block until all ranks
/// have called them, and throw MachineError or PeerError if a rank fails.
class ProcessGroup {
 public:
  struct Options {
    /// Time limit from the failure of one rank until all other ranks exit. A silent rank counts as lost after two
    /// thirds of it.
    std::chrono::milliseconds timeout{15000};
    /// Time limit until all ranks have arrived.
    std::chrono::milliseconds connect_timeout{std::chrono::minutes(5)};
    /// Polled while the ranks connect. If it returns true and they have not connected after stop_patience, all ranks
    /// throw PeerError with exit status 3. Empty: they wait for connect_timeout.
    std::function<bool()> stop_requested{};
    /// Default: a fifth of `timeout`, at most 3 s.
    std::optional<std::chrono::milliseconds> stop_patience{};
    /// When a rank that waits for another one first logs that, and how often it repeats it.
    std::chrono::milliseconds notice_after{std::chrono::minutes(1)}, notice_every{std::chrono::minutes(5)};
  };

  /// Starts the job store (on rank 0), joins it and connects the communicator. Blocks until all ranks have arrived.
  /// Throws UserError, MachineError or PeerError if one of these steps fails on any rank.
  ProcessGroup(const LaunchEnvironment& environment, const Options& options);
  /// A group of one rank.
  ProcessGroup();
  /// Reports this rank as failed to the others, unless leave() was called.
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  /// Returns this process's rank, from 0.
  int rank() const;
  /// Returns the world size.
  int size() const;
  bool is_first() const { return rank() == 0; }
  bool is_alone() const { return size() == 1; }
  /// Returns what the launcher has set.
  const LaunchEnvironment& environment() const;
  /// Returns the communicator for tensors on the CPU, owned by the group.
  Communicator& communicator() const;
  /// Returns the communicator for tensors on `device`; on a GPU, NCCL. The first call connects it and must be made by
  /// all ranks together. Each rank uses one device.
  Communicator& device_communicator(const Device& device) const;

  /// Replaces `numbers` with their sum over all ranks, and blocks until it is known. All ranks call sum() and minimum()
  /// in the same order and get the same bits. Meant for few numbers.
  void sum(std::span<double> numbers) const;
  /// Like sum(), with the minimum over all ranks.
  void minimum(std::span<double> numbers) const;
  /// Returns rank 0's text on every rank. The other ranks' texts are ignored.
  std::string broadcast_text(const std::string& text) const;
  /// Returns the texts of all ranks, in rank order, on rank 0, and nothing on the others. Rank 0 waits for the texts
  /// and logs a warning about a missing `what`; the others do not wait. Uses the job store instead of the communicator,
  /// so one thread besides the training thread may call it.
  std::vector<std::string> gather_text(const std::string& text, const std::string& what) const;
  /// Blocks until all ranks have called it.
  void barrier() const;

  /// Splits the ranks into groups of `size` consecutive ranks and returns the communicator of this rank's group: rank r
  /// is rank r % size of group r / size. All ranks call it.
  std::unique_ptr<Communicator> split_consecutive(int size) const;

  /// Returns the default number of compute threads of this process: its share of the cores that it and the other ranks
  /// on its host may use. Returns 0 (set_thread_count chooses) with one rank, or if requested_threads() has a number;
  /// torchrun's OMP_NUM_THREADS=1, which it sets by default, does not count. All ranks call it.
  int default_threads() const;

  /// Leaves the job cleanly; call it last. Blocks until all ranks have called it. Throws PeerError if another rank
  /// failed meanwhile.
  void leave();
  /// Reports to the other ranks, within the timeout, that this rank ends with `error`. Returns if the caller should
  /// print `error`: this rank failed first, or all ranks have this UserError and this one reports it. Otherwise throws
  /// the PeerError of the first failure, with the exit status 2 if `error` is a UserError.
  void fail(const std::exception& error);
  /// Reports the same failure from another thread, immediately. The operations of all ranks, this one included, then
  /// stop. Call fail() afterwards if this rank can still reach it.
  void report(const std::exception& error) const noexcept;

 private:
  class Joined;
  void reduce(std::span<double> numbers, Reduction reduction) const;

  std::unique_ptr<Joined> joined_;  // null with one rank
  std::unique_ptr<Communicator> alone_;
  LaunchEnvironment environment_;
};

}  // namespace furlong
