#pragma once
// The processes of one job as training sees them: who this one is, a communicator between them, and what happens when
// one of them fails.
#include <chrono>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "communication/communicator.h"
#include "communication/launch/launch_environment.h"
#include "framework/core/error.h"

namespace furlong {

/// Another process of the job failed, or this one did and another tells. Its message names rank and host at fault.
class PeerError : public MachineError {
 public:
  PeerError(const std::string& message, bool told_here) : MachineError("{}", message), told_here_(told_here) {}
  /// One process of a job tells of its fault: rank 0, or, where that one is gone, one on each host.
  bool is_told_here() const { return told_here_; }

 private:
  bool told_here_;
};

/// Joined when it is constructed, by all processes at the same time; all of them leave() together. In one process
/// nothing is opened.
class ProcessGroup {
 public:
  struct Options {
    /// From a fault anywhere to the end of every process that runs: two thirds of it may pass until a silent rank
    /// counts as lost.
    std::chrono::milliseconds timeout{15000};
    /// For all processes to come.
    std::chrono::milliseconds connect_timeout{std::chrono::minutes(5)};
    /// When, and how often from then on, a process that waits for another says so.
    std::chrono::milliseconds notice_after{std::chrono::minutes(1)}, notice_every{std::chrono::minutes(5)};
  };

  /// Opens the store (on rank 0), joins it, and connects the communicator. Throws UserError or MachineError where that
  /// fails.
  ProcessGroup(const LaunchEnvironment& environment, const Options& options);
  /// One process.
  ProcessGroup();
  /// Without leave() before, the others learn that this rank failed.
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const;
  int size() const;
  bool is_first() const { return rank() == 0; }
  bool is_alone() const { return size() == 1; }
  const LaunchEnvironment& environment() const;
  /// Of tensors on the CPU.
  Communicator& communicator() const;
  /// Of tensors on `device`: on a GPU by NCCL, connected on the first call, which all processes make together. One
  /// device for each process.
  Communicator& device_communicator(const Device& device) const;

  /// Every process calls these in the same order; each gets the same numbers. For a few of them: it is waited for.
  void sum(std::span<double> numbers) const;
  void minimum(std::span<double> numbers) const;
  /// Rank 0's text, which may differ on the others.
  std::string from_first(const std::string& text) const;
  /// Each rank's text, in order, on rank 0, which waits for them, with a warning about `what` has not come for long;
  /// nothing on the others, which wait for nobody. Goes past the communicator, so that a thread may call it beside the
  /// one that trains; one at a time.
  std::vector<std::string> to_first(const std::string& text, const std::string& what) const;
  void barrier() const;

  /// Another communicator, among processes in rows of `size`: rank r is number r % size of row r / size. All of the
  /// group call it.
  std::unique_ptr<Communicator> row(int size) const;

  /// How many threads this process computes with where the user did not say: its share of the cores that it and the
  /// other processes of its host may use; 0, set_thread_count's own choice, in one process and where
  /// FURLONG_POOL_THREADS says. All processes call it.
  int fair_threads() const;

  /// The end of the job, in order. Throws PeerError where another process failed meanwhile.
  void leave();
  /// This process ends by `error`: the others are told, within the timeout. Returns where it is the first at fault and
  /// tells of it itself; otherwise throws the PeerError in its place.
  void fail(const std::exception& error);
  /// The same fault told by another thread, as soon as it knows: operations of all processes then stop, this one's
  /// included, and it ends by fail(), or where it does not come to that, without it.
  void report(const std::exception& error) const noexcept;

 private:
  class Joined;
  void reduce(std::span<double> numbers, Reduction reduction) const;

  std::unique_ptr<Joined> joined_;  // null: one process
  std::unique_ptr<Communicator> alone_;
  LaunchEnvironment environment_;
};

}  // namespace furlong
