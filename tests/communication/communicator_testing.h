#pragma once
// Shared by the tests of communicators: jobs of real processes with a job store, and values that every rank can compute
// for every other rank.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "communication/gloo/gloo_communicator.h"
#include "communication/job_store/store_client.h"
#include "communication/job_store/store_server.h"
#include "communication/nccl/nccl_communicator.h"
#include "framework/core/dtype.h"
#include "framework/core/log.h"
#include "framework/core/tensor.h"
#include "tests/communication/child_processes.h"
#include "tests/communication/job_store/store_testing.h"
#include "tests/framework/engine_testing.h"

namespace furlong::communicator_testing {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using namespace std::chrono_literals;
using testing::seconds_since;

/// Short times for tests of faults. On an overloaded machine a rank may wrongly count as lost.
inline StoreTimes short_times() { return {50ms, 1s, 300ms}; }

/// The backend of a job. The NCCL stand-in (nccl_stand_in.cpp) works between simulated devices, NCCL between GPUs.
enum class Engine { gloo, nccl_stand_in, nccl };

inline std::string name_of(Engine engine) {
  constexpr const char* names[] = {"gloo", "nccl_stand_in", "nccl"};
  return names[static_cast<int>(engine)];
}

/// Returns the folder of the NCCL stand-in library, next to the folder of the test programs in the build tree.
inline std::filesystem::path stand_in_folder() {
  const auto program = std::filesystem::read_symlink("/proc/self/exe");
  return program.parent_path().parent_path() / "tests/nccl_stand_in";
}

/// Returns the reason why a job of `size` ranks cannot run, or "" if it can.
inline std::string engine_missing(Engine engine, int size) {
  if (engine == Engine::gloo) return "";
  if (engine == Engine::nccl) {
    const std::string reason = testing::engine_missing(Device{DeviceType::cuda, size - 1});
    return reason.empty() ? testing::asked_elsewhere(nccl_missing) : reason;
  }
  if (gpu_engine(DeviceType::simulated) == nullptr) return "this build has no simulator";
  return std::filesystem::exists(stand_in_folder() / "libnccl.so.2") ? "" : "the NCCL stand-in library is missing";
}

/// Returns how often `words` occurs in `text`.
inline int count_of(const std::string& words, const std::string& text) {
  int times = 0;
  for (std::size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++times;
  return times;
}

/// One rank of a job: its store client (and on rank 0 the server) and its communicators.
class Rank {
 public:
  /// `others` is a pipe that closes when all other ranks have ended.
  Rank(int rank, int size, std::uint16_t port, StoreTimes times, std::string address, int others)
      : rank_(rank), address_(std::move(address)), others_(others) {
    StoreServerOptions server = store_testing::server_options(size, times);
    server.address = address_;
    server.port = port;
    if (rank == 0) server_ = std::make_unique<StoreServer>(server);
    store_ = std::make_unique<StoreClient>(store_testing::client_options(server, port, rank));
    options.rank = rank;
    options.size = size;
    options.host = "host" + std::to_string(rank);
    options.address = own_address_toward(address_, true);
    options.connect_timeout = 20s;
    options.fault_patience = 60s;
  }
  /// After a fault, rank 0 keeps its store running until the other ranks have ended.
  ~Rank() {
    char nothing = 0;
    if (server_ && store_ && store_->fault()) {
      EXPECT_EQ(::read(others_, &nothing, 1), 0);
    }
  }

  int rank() const { return rank_; }
  int size() const { return options.size; }
  StoreClient& store() { return *store_; }
  std::unique_ptr<Communicator> communicator(const std::string& name = "all") {
    options.name = name;
    if (engine == Engine::gloo) return make_gloo_communicator(*store_, options);
    NcclOptions nccl;
    nccl.rank = options.rank;
    nccl.size = options.size;
    nccl.device = testing::device();
    nccl.name = name;
    nccl.connect_timeout = options.connect_timeout;
    nccl.fault_patience = options.fault_patience;
    nccl.operation_timeout = options.operation_timeout;
    nccl.notice_after = options.notice_after;
    nccl.notice_every = options.notice_every;
    return make_nccl_communicator(*store_, nccl);
  }
  /// Leaves without a fault; all ranks call it.
  void leave() {
    store_->goodbye();
    store_.reset();
    if (server_) {
      EXPECT_TRUE(server_->wait_for_goodbyes(20s));
    }
  }

  GlooOptions options;  ///< also used for NCCL, as far as they apply
  Engine engine = Engine::gloo;

 private:
  int rank_;
  std::string address_;
  int others_;
  std::unique_ptr<StoreServer> server_;
  std::unique_ptr<StoreClient> store_;
};

struct JobOptions {
  StoreTimes times{};
  std::string address = "127.0.0.1";
  Engine engine = Engine::gloo;
};

/// Runs `body` in `size` processes, forked while this one has no other threads. A process exits with 0 if it has no
/// test failure.
class Job : public testing::ChildProcesses {
 public:
  Job(int size, const std::function<void(Rank&)>& body, const JobOptions& job = {}) {
    const std::uint16_t port = store_testing::free_port();
    int others[2];
    EXPECT_EQ(::pipe(others), 0);
    std::fflush(nullptr);
    for (int rank = 0; rank < size; ++rank) {
      const pid_t child = testing::fork_without_team();
      if (child == 0) {
        ::close(others[rank == 0 ? 1 : 0]);
        run(rank, size, port, body, job, others[0]);
      }
      add(child);
    }
    ::close(others[0]);
    ::close(others[1]);
  }

 private:
  [[noreturn]] static void run(int rank, int size, std::uint16_t port, const std::function<void(Rank&)>& body,
                               const JobOptions& job, int others) {
    ::alarm(400);  // ends a hanging test
    bool well = false;
    try {
      take_device(job.engine, rank);
      {
        Rank self(rank, size, port, job.times, job.address, others);
        self.engine = job.engine;
        body(self);
      }
      well = !::testing::Test::HasFailure();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    }
    std::fflush(nullptr);
    ::_exit(well ? 0 : 1);
  }

  static void take_device(Engine engine, int rank) {
    if (engine == Engine::gloo) return;
    testing::device_under_test() =
        engine == Engine::nccl ? Device{DeviceType::cuda, rank} : Device{DeviceType::simulated, 0};
    if (engine != Engine::nccl) ::setenv("FURLONG_CUDA_LIBDIR", stand_in_folder().c_str(), 1);
  }
};

/// Runs a job in which all ranks run `body` with a communicator and leave together. Expects that all succeed.
inline void run_job(int size, const std::function<void(Rank&, Communicator&)>& body, const JobOptions& options = {}) {
  Job job(
      size,
      [&](Rank& self) {
        {
          const auto communicator = self.communicator();
          body(self, *communicator);
          communicator->barrier(testing::stream()).wait();
          synchronize(testing::stream());
        }
        self.leave();
      },
      options);
  EXPECT_EQ(job.wait(), std::vector<int>(static_cast<std::size_t>(size), 0));
}

/// Returns the i-th value of a rank: in [-1, 1) for floats, in [-1000, 1000) for int32, in [0, 60) for uint8. Each
/// `draw` gives different values.
template <class T>
T value(int draw, int rank, std::int64_t i) {
  std::uint64_t x =
      static_cast<std::uint64_t>(i) + 0x9e3779b97f4a7c15u * static_cast<std::uint64_t>(1000 * draw + rank + 1);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  if constexpr (std::is_same_v<T, std::uint8_t>) return static_cast<T>(x % 60);
  if constexpr (std::is_same_v<T, std::int32_t>) return static_cast<T>(static_cast<std::int64_t>(x % 2000) - 1000);
  if constexpr (!std::is_integral_v<T>)
    return static_cast<T>(static_cast<compute_t<T>>(static_cast<double>(x >> 11) * 0x1p-52 - 1.0));
}

/// Returns `n` such values, starting with index `first`, on the device under test.
template <class T>
Tensor tensor(int draw, int rank, std::int64_t n, std::int64_t first = 0) {
  const Tensor out = Tensor::empty({n}, dtype_of<T>::value);
  for (std::int64_t i = 0; i < n; ++i) out.data<T>()[i] = value<T>(draw, rank, first + i);
  return out.to(testing::device());
}
inline Tensor zeros(std::int64_t n, DType dtype) { return Tensor::zeros({n}, dtype, testing::device()); }

/// The exact reduction of all ranks' i-th values, and the tolerance of a result. Each of the size - 1 additions rounds
/// a partial sum by half a unit in the last place (8 bits in bfloat16, 24 in float32, 53 in float64). The sum of
/// magnitudes bounds the partial sums; 1 % is added for their own rounding. For float64 the reference rounds as often.
struct Expected {
  double value, tolerance;
};
template <class T>
Expected expected(int draw, int size, std::int64_t i, Reduction reduction) {
  double out = static_cast<double>(value<T>(draw, 0, i)), magnitudes = std::abs(out);
  for (int rank = 1; rank < size; ++rank) {
    const auto x = static_cast<double>(value<T>(draw, rank, i));
    magnitudes += std::abs(x);
    out = reduction == Reduction::sum ? out + x : reduction == Reduction::maximum ? std::max(out, x) : std::min(out, x);
  }
  const double half_unit = std::is_integral_v<T>         ? 0
                           : std::is_same_v<T, bfloat16> ? 0x1p-8
                           : std::is_same_v<T, float>    ? 0x1p-24
                                                         : 2 * 0x1p-53;
  return {out, reduction == Reduction::sum ? 1.01 * (size - 1) * half_unit * magnitudes : 0.0};
}

/// Counts the elements of `result` that differ from the expected reduction. Its first element has index `first`.
template <class T>
std::int64_t wrong_elements(const Tensor& result, int draw, int size, Reduction reduction, std::int64_t first = 0) {
  std::int64_t wrong = 0;
  const Tensor found = result.to(Device{});
  for (std::int64_t i = 0; i < found.elements(); ++i) {
    const Expected right = expected<T>(draw, size, first + i, reduction);
    wrong += !(std::abs(static_cast<double>(found.data<T>()[i]) - right.value) <= right.tolerance);
  }
  return wrong;
}

/// Counts the elements that differ from the values of `rank`.
template <class T>
std::int64_t foreign_elements(const Tensor& result, int draw, int rank, std::int64_t first = 0) {
  std::int64_t wrong = 0;
  const Tensor found = result.to(Device{});
  for (std::int64_t i = 0; i < found.elements(); ++i) {
    wrong += static_cast<double>(found.data<T>()[i]) != static_cast<double>(value<T>(draw, rank, first + i));
  }
  return wrong;
}

}  // namespace furlong::communicator_testing
