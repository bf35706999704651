#pragma once
// Helpers for tests of training with several ranks: worlds of real processes, which exit as the program would, and
// their reports.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "communication/process_group.h"
#include "framework/core/parallel.h"
#include "tests/communication/child_processes.h"
#include "tests/communication/job_store/store_testing.h"

namespace furlong::parallel_testing {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using namespace std::chrono_literals;
using testing::seconds_since;

/// Memory shared by a process and its children, as an anonymous file.
class SharedFile {
 public:
  SharedFile() : descriptor_(::memfd_create("shared by a test", MFD_CLOEXEC)) {}
  ~SharedFile() { ::close(descriptor_); }
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;
  int descriptor() const { return descriptor_; }
  void write(const void* bytes, std::size_t count) const {
    for (const char* at = static_cast<const char*>(bytes); count > 0;) {
      const ssize_t written = ::write(descriptor_, at, count);
      if (written <= 0) ::_exit(93);
      at += written;
      count -= static_cast<std::size_t>(written);
    }
  }
  std::string content() const {
    std::string all(static_cast<std::size_t>(::lseek(descriptor_, 0, SEEK_END)), '\0');
    if (::pread(descriptor_, all.data(), all.size(), 0) != static_cast<ssize_t>(all.size())) all.clear();
    return all;
  }

 private:
  int descriptor_;
};

/// Reports of one process to the test; they survive if it is killed.
class Report {
 public:
  void add(double number) const { numbers_.write(&number, sizeof number); }
  void add(const std::vector<double>& numbers) const {
    numbers_.write(numbers.data(), numbers.size() * sizeof(double));
  }
  void say(const std::string& words) const { words_.write(words.data(), words.size()); }

  std::vector<double> numbers() const {
    const std::string bytes = numbers_.content();
    std::vector<double> all(bytes.size() / sizeof(double));
    if (!all.empty()) std::memcpy(all.data(), bytes.data(), all.size() * sizeof(double));
    return all;
  }
  std::string words() const { return words_.content(); }
  /// Standard error.
  std::string errors() const { return errors_.content(); }
  int error_descriptor() const { return errors_.descriptor(); }

 private:
  SharedFile numbers_, words_, errors_;
};

/// Thrown by a body whose process exits without leaving the group and without an error.
struct EndsWithoutLeaving {};

struct WorldOptions {
  milliseconds timeout{15000}, connect_timeout{60000};
  /// Delay and interval of warnings of a rank that waits for another.
  milliseconds notice{60000};
  /// Host of each rank; empty: one host.
  std::vector<std::string> hosts{};
  bool is_elastic = false;  ///< as if torchrun had started the ranks
  /// Runs in each rank before it joins.
  std::function<void(int rank)> before = [](int) {};
  /// Whether a stop of this rank is requested while it connects.
  std::function<bool(int rank)> stop_requested = [](int) { return false; };
  std::optional<milliseconds> stop_patience{};
};

/// Forks `size` processes of one thread each, while this process has only its main thread. They join a group, run
/// `body` and leave. An error ends them as it ends the program: reported to the others, printed by one of them, with
/// its exit status.
class World : public testing::ChildProcesses {
 public:
  using Body = std::function<void(ProcessGroup& group, const Report& report)>;

  World(int size, const Body& body, const WorldOptions& options = {}) : reports_(static_cast<std::size_t>(size)) {
    const std::uint16_t port = store_testing::free_port();
    std::fflush(nullptr);
    failed_before_ = ::testing::Test::HasFailure();
    for (int rank = 0; rank < size; ++rank) {
      const pid_t child = testing::fork_without_team();
      if (child == 0)
        run(environment(rank, size, port, options), body, options, reports_[static_cast<std::size_t>(rank)]);
      add(child);
    }
  }
  const Report& operator[](int rank) const { return reports_[static_cast<std::size_t>(rank)]; }

  /// Waits until `rank` has reported something; fails after a minute.
  void wait_for_words(int rank) const {
    for (const auto end = steady_clock::now() + 60s; steady_clock::now() < end; std::this_thread::sleep_for(2ms)) {
      if (!(*this)[rank].words().empty()) return;
    }
    ADD_FAILURE() << "rank " << rank << " reports nothing; " << (*this)[rank].errors();
  }
  /// What all ranks wrote to standard error.
  std::string errors() const {
    std::string all;
    for (const Report& report : reports_) all += report.errors();
    return all;
  }

 private:
  static LaunchEnvironment environment(int rank, int size, std::uint16_t port, const WorldOptions& options) {
    LaunchEnvironment out;
    out.rank = out.local_rank = rank;
    out.world_size = out.local_world_size = size;
    out.launcher = size > 1 ? "torchrun" : "none";
    out.is_elastic = options.is_elastic;
    out.master_address = "127.0.0.1";
    out.master_port = port;
    out.secret = "known to this test alone";
    out.secret_source = "the test";
    out.host = options.hosts.empty() ? "here" : options.hosts[static_cast<std::size_t>(rank)];
    return out;
  }

  [[noreturn]] void run(const LaunchEnvironment& environment, const Body& body, const WorldOptions& options,
                        const Report& report) const {
    ::alarm(240);  // a test that hangs ends
    ::dup2(report.error_descriptor(), STDERR_FILENO);
    set_thread_count(1);
    int status = 1;
    try {
      options.before(environment.rank);
      ProcessGroup::Options group_options;
      group_options.timeout = options.timeout;
      group_options.connect_timeout = options.connect_timeout;
      group_options.stop_requested = [&] { return options.stop_requested(environment.rank); };
      group_options.stop_patience = options.stop_patience;
      group_options.notice_after = group_options.notice_every = options.notice;
      ProcessGroup group(environment, group_options);
      try {
        body(group, report);
        group.leave();
        status = 0;
      } catch (const std::exception& error) {
        group.fail(error);
        throw;
      }
    } catch (const PeerError& error) {
      if (error.is_reported_here()) std::fprintf(stderr, "error: %s\n", error.what());
      status = error.exit_status();
    } catch (const Error& error) {
      std::fprintf(stderr, "error: %s\n", error.what());
      status = error.exit_status();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "error: %s\n", error.what());
    } catch (const EndsWithoutLeaving&) {
      status = 0;
    }
    if (!failed_before_ && ::testing::Test::HasFailure()) status = 99;  // it was printed
    std::fflush(nullptr);
    ::_exit(status);
  }

  std::vector<Report> reports_;
  bool failed_before_ = false;
};

/// Returns each rank's report.
using Curves = std::vector<std::vector<double>>;

/// Returns the reports of worlds of these sizes, which run at the same time; fails if a process fails.
inline std::vector<Curves> run_worlds(const std::vector<int>& sizes, const World::Body& body,
                                      const WorldOptions& options = {}) {
  std::vector<std::unique_ptr<World>> worlds;
  for (const int size : sizes) worlds.push_back(std::make_unique<World>(size, body, options));
  std::vector<Curves> found;
  for (const auto& world : worlds) {
    EXPECT_EQ(world->wait(), std::vector<int>(static_cast<std::size_t>(world->size()), 0)) << world->errors();
    found.emplace_back();
    for (int rank = 0; rank < world->size(); ++rank) found.back().push_back((*world)[rank].numbers());
  }
  return found;
}
inline Curves run_world(int size, const World::Body& body, const WorldOptions& options = {}) {
  return run_worlds({size}, body, options)[0];
}

}  // namespace furlong::parallel_testing
