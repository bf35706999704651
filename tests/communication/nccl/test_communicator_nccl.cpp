// The NCCL backend: failures, and which waits block the host. Runs with the NCCL stand-in (nccl_stand_in.cpp) on the
// simulated device.
#include <atomic>
#include <cstring>

#include "communication/nccl/nccl_link.h"
#include "framework/core/arena.h"
#include "framework/simulator/simulated_queue_handle.h"
#include "tests/communication/communicator_testing.h"

namespace furlong {
namespace {

using namespace communicator_testing;
using store_testing::message_of;
using testing::stream;

// Seconds. Without the mechanism under test, a wait takes a minute or longer.
constexpr double prompt = 20;

const JobOptions stand_in_job{.times = short_times(), .engine = Engine::nccl_stand_in};

class Nccl : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = engine_missing(Engine::nccl_stand_in, 1); !reason.empty()) GTEST_SKIP() << reason;
  }
};
using NcclFaults = Nccl;

/// Selects the fault of the stand-in in this process.
void plant(const char* fault) { ::setenv("FURLONG_NCCL_STAND_IN_FAULT", fault, 1); }

void expect_contains(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

/// Waits until all ranks have reached `name`.
void meet(Rank& self, const std::string& name) {
  self.store().add(name, 1);
  while (self.store().add(name, 0) < self.size()) std::this_thread::sleep_for(2ms);
}

/// A caller's stream that runs asynchronously.
class CallersStream {
 public:
  CallersStream() : queue_(require_gpu_engine(DeviceType::simulated).make_queue(0)) {}
  Stream stream() const { return queue_->stream(); }
  void put(std::function<void()> work) const {
    auto* handle = static_cast<SimulatedQueueHandle*>(stream().handle);
    handle->enqueue(
        handle,
        [](void* argument) {
          const std::unique_ptr<std::function<void()>> self(static_cast<std::function<void()>*>(argument));
          (*self)();
        },
        new std::function<void()>(std::move(work)));
  }

 private:
  std::unique_ptr<GpuQueue> queue_;
};

// Rank 1 issues the operation only after rank 0's host has returned from wait().
TEST_F(Nccl, WaitBlocksTheStreamInsteadOfTheHost) {
  run_job(
      2,
      [](Rank& self, Communicator& communicator) {
        const CallersStream caller;
        const Tensor values = tensor<float>(1, self.rank(), 1000);
        if (self.rank() == 1) self.store().wait({"past"}, 20s);
        const Work work = communicator.all_reduce(caller.stream(), values);
        std::atomic<std::int64_t> wrong = -1;
        work.wait();
        caller.put([&] { wrong = wrong_elements<float>(values, 1, 2, Reduction::sum); });
        if (self.rank() == 0) {
          EXPECT_FALSE(work.done());
          EXPECT_EQ(wrong, -1) << "the stream did not wait";
          self.store().set("past", store_testing::bytes("yes"));
        }
        synchronize(caller.stream());
        EXPECT_EQ(wrong, 0);
        EXPECT_TRUE(work.done());
      },
      stand_in_job);
}

// The values are computed late on the caller's stream.
TEST_F(Nccl, OperationsFollowTheCallersStream) {
  run_job(
      2,
      [](Rank& self, Communicator& communicator) {
        const CallersStream caller;
        const Tensor values = zeros(1000, DType::float32), made = tensor<float>(1, self.rank(), 1000);
        caller.put([&] {
          std::this_thread::sleep_for(100ms);
          std::memcpy(values.address(), made.address(), static_cast<std::size_t>(made.bytes()));
        });
        communicator.all_reduce(caller.stream(), values).wait();
        synchronize(caller.stream());
        EXPECT_EQ(wrong_elements<float>(values, 1, 2, Reduction::sum), 0);
      },
      stand_in_job);
}

TEST_F(Nccl, HoldsTensorsUntilCompletion) {
  run_job(
      2,
      [](Rank& self, Communicator& communicator) {
        const auto in_use = [] { return arena(testing::device()).counters().bytes_in_use; };
        const std::int64_t before = in_use();
        if (self.rank() == 1) self.store().wait({"issued"}, 20s);
        const Work work = communicator.all_reduce(stream(), tensor<float>(1, self.rank(), 100000));
        if (self.rank() == 0) {
          EXPECT_GE(in_use(), before + 400000);
          self.store().set("issued", store_testing::bytes("yes"));
        }
        work.wait();
        EXPECT_EQ(in_use(), before);
      },
      stand_in_job);
}

TEST_F(Nccl, RejectsCpuDevices) {
  Job job(
      1,
      [](Rank& self) {
        NcclOptions options;
        EXPECT_EQ(message_of<UserError>([&] { make_nccl_communicator(self.store(), options); }),
                  "parallel.backend: nccl needs GPUs, but this rank computes on cpu");
        auto communicator = self.communicator();
        EXPECT_THROW(communicator->all_reduce(Stream{}, Tensor::zeros({3}, DType::float32)), ContractError);
        communicator.reset();
        self.leave();
      },
      stand_in_job);
  EXPECT_EQ(job.wait(), std::vector<int>{0});
}

TEST_F(NcclFaults, MissingLibraryIsAUserError) {
  Job job(
      1,
      [](Rank& self) {
        for (const char* place : {"CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "HOME"}) ::unsetenv(place);
        ::setenv("FURLONG_CUDA_LIBDIR", "/nonexistent", 1);
        if (!nccl::table().loaded())  // this machine may have one in another place
          expect_contains(message_of<UserError>([&] { self.communicator(); }),
                          "NCCL cannot be loaded: libnccl.so.2 was searched for in $FURLONG");
        self.leave();
      },
      stand_in_job);
  EXPECT_EQ(job.wait(), std::vector<int>{0});
}

TEST_F(NcclFaults, NamesAMissingRank) {
  Job job(
      3,
      [](Rank& self) {
        self.options.connect_timeout = 500ms;
        if (self.rank() != 1) {
          EXPECT_EQ(message_of<MachineError>([&] { self.communicator(); }),
                    "rank 1 did not arrive to connect NCCL within 0.5 s");
        }
        meet(self, "seen");
        self.leave();
      },
      stand_in_job);
  EXPECT_EQ(job.wait(), (std::vector<int>{0, 0, 0}));
}

TEST_F(NcclFaults, ConnectingTimesOut) {
  Job job(
      2,
      [](Rank& self) {
        plant("init hangs");
        self.options.connect_timeout = 500ms;
        const auto start = steady_clock::now();
        expect_contains(message_of<MachineError>([&] { self.communicator(); }),
                        "NCCL did not connect the 2 ranks within 0.5 s, although all had arrived; set NCCL_DEBUG=INFO");
        EXPECT_LT(seconds_since(start), prompt);
        meet(self, "seen");
        self.leave();
      },
      stand_in_job);
  EXPECT_EQ(job.wait(), (std::vector<int>{0, 0}));
}

TEST_F(NcclFaults, FailedConnectionReportsNcclsError) {
  Job job(
      2,
      [&](Rank& self) {
        plant("init fails");
        self.options.fault_patience = 100ms;
        EXPECT_EQ(message_of<MachineError>([&] { self.communicator(); }),
                  "NCCL cannot connect rank " + std::to_string(self.rank()) + " on simulated to the other ranks: " +
                      "remote process exited or there was a network error (the stand-in's words)");
        meet(self, "seen");
        self.leave();
      },
      stand_in_job);
  EXPECT_EQ(job.wait(), (std::vector<int>{0, 0}));
}

// The rank dies while NCCL is connecting, which would never end.
TEST_F(NcclFaults, NamesARankThatDiesWhileConnecting) {
  Job job(
      2,
      [](Rank& self) {
        plant("init hangs");
        if (self.rank() == 1) {
          std::thread([] {
            std::this_thread::sleep_for(200ms);
            ::kill(::getpid(), SIGKILL);
          }).detach();
        }
        const auto start = steady_clock::now();
        expect_contains(message_of<MachineError>([&] { self.communicator(); }), "rank 1 on host host1 failed");
        EXPECT_LT(seconds_since(start), prompt);
      },
      stand_in_job);
  EXPECT_EQ(job.wait(), (std::vector<int>{0, 128 + SIGKILL}));
}

/// Returns the error that ends an endless sequence of operations. `begun` is called once all ranks have arrived.
std::string keep_reducing(Communicator& communicator, const std::function<void()>& begun) {
  const Tensor values = zeros(100000, DType::float32);
  try {
    communicator.barrier(stream()).wait();
    begun();
    for (;;) communicator.all_reduce(stream(), values).wait();
  } catch (const MachineError& error) {
    return error.what();
  }
}

TEST_F(NcclFaults, AllRanksNameAKilledOrStoppedRank) {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    Job job(
        3,
        [&](Rank& self) {
          const auto communicator = self.communicator();
          const auto start = steady_clock::now();
          const std::string message = keep_reducing(*communicator, [&] {
            if (self.rank() == 1) ::kill(::getpid(), signal);
          });
          expect_contains(message, "all_reduce of float32 [100000] stopped: rank 1 on host host1 failed");
          EXPECT_LT(seconds_since(start), prompt);
          EXPECT_EQ(message_of<MachineError>([&] {
                      communicator->barrier(stream()).wait();
                    }).find("barrier stopped: rank 1 on host host1"),
                    0u);
          expect_contains(message_of<MachineError>([&] { communicator->check(); }),
                          "NCCL stopped: rank 1 on host host1 failed");
        },
        stand_in_job);
    job.wait(2);
    job.kill(1, SIGKILL);
    EXPECT_EQ(job.wait(), (std::vector<int>{0, 128 + SIGKILL, 0})) << signal;
  }
}

// The host has returned from wait() and waits for the device: that wait ends, and check() throws.
TEST_F(NcclFaults, HostWaitingForTheDeviceReturnsAndCheckThrows) {
  Job job(
      2,
      [](Rank& self) {
        const auto communicator = self.communicator();
        const CallersStream caller;
        communicator->barrier(stream()).wait();
        communicator->check();
        if (self.rank() == 1) ::kill(::getpid(), SIGKILL);
        const Work work = communicator->all_reduce(caller.stream(), zeros(1000, DType::float32));
        work.wait();
        const auto start = steady_clock::now();
        synchronize(caller.stream());
        EXPECT_LT(seconds_since(start), prompt);
        expect_contains(message_of<MachineError>([&] { communicator->check(); }), "rank 1 on host host1 failed");
        expect_contains(message_of<MachineError>([&] { work.wait(); }), "rank 1 on host host1 failed");
      },
      stand_in_job);
  EXPECT_EQ(job.wait(), (std::vector<int>{0, 128 + SIGKILL}));
}

// NCCL reports an error although no rank is lost. The store reports no fault within fault_patience, so NCCL's error is
// reported.
TEST_F(NcclFaults, NcclErrorEndsTheWait) {
  Job job(
      2,
      [](Rank& self) {
        if (self.rank() == 0) plant("operation 2 breaks");
        self.options.fault_patience = 300ms;
        auto communicator = self.communicator();
        communicator->barrier(stream()).wait();
        const auto start = steady_clock::now();
        if (self.rank() == 0) {
          EXPECT_EQ(message_of<MachineError>([&] { communicator->barrier(stream()).wait(); }),
                    "barrier stopped: NCCL: remote process exited or there was a network error (the stand-in's words)");
          EXPECT_GT(seconds_since(start), 0.25);
          EXPECT_LT(seconds_since(start), prompt);
        }
        meet(self, "seen");
        communicator.reset();
        self.leave();
      },
      stand_in_job);
  EXPECT_EQ(job.wait(), (std::vector<int>{0, 0}));
}

TEST_F(NcclFaults, RejectedCallBreaksTheCommunicator) {
  const std::string words = "invalid argument (the stand-in's words)";
  Job job(
      1,
      [&](Rank& self) {
        plant("call 2 fails");
        auto communicator = self.communicator();
        communicator->barrier(stream()).wait();
        const Tensor values = zeros(7, DType::int32);
        const Work work = communicator->broadcast(stream(), values, 0);
        for (int i = 0; i < 2; ++i)
          EXPECT_EQ(message_of<MachineError>([&] { work.wait(); }), "broadcast of int32 [7] stopped: NCCL: " + words);
        EXPECT_TRUE(work.done());
        EXPECT_EQ(message_of<MachineError>([&] { communicator->barrier(stream()).wait(); }),
                  "barrier stopped: NCCL: " + words);
        communicator.reset();
        self.leave();
      },
      stand_in_job);
  EXPECT_EQ(job.wait(), std::vector<int>{0});
}

// All ranks are alive, and one is late.
TEST_F(Nccl, WarnsAboutALateRank) {
  Job job(
      2,
      [](Rank& self) {
        const LogCapture captured;
        self.options.notice_after = 1s;
        self.options.notice_every = 1s;
        {
          const auto communicator = self.communicator();
          communicator->barrier(stream()).wait();
          synchronize(stream());
          if (self.rank() == 1) std::this_thread::sleep_for(3s);
          communicator->all_reduce(stream(), Tensor::zeros({10}, DType::float32, testing::device())).wait();
          synchronize(stream());
          meet(self, "done");
        }
        const int times = count_of("all_reduce of float32 [10] has waited for ", captured.text());
        EXPECT_EQ(times >= 1 && times <= 3, self.rank() == 0) << captured.text();
        EXPECT_EQ(
            count_of(" s: rank 1 has not reached it; the other ranks wait as long as it is alive", captured.text()),
            times)
            << captured.text();
        self.leave();
      },
      stand_in_job);
  EXPECT_EQ(job.wait(), (std::vector<int>{0, 0}));
}

TEST_F(NcclFaults, MismatchedOperationsTimeOut) {
  Job job(
      2,
      [](Rank& self) {
        self.options.operation_timeout = 300ms;
        auto communicator = self.communicator();
        if (self.rank() == 0) {
          EXPECT_EQ(message_of<MachineError>([&] { communicator->barrier(stream()).wait(); }),
                    "barrier stopped: nothing was received within 0.3 s while all ranks were alive; the ranks wait for "
                    "each other, "
                    "perhaps in different operations");
        }
        meet(self, "seen");
        communicator.reset();
        self.leave();
      },
      stand_in_job);
  EXPECT_EQ(job.wait(), (std::vector<int>{0, 0}));
}

TEST_F(NcclFaults, AbortEndsEveryKindOfWait) {
  Job job(
      2,
      [](Rank& self) {
        const Tensor values = zeros(1000, DType::float32), twice = zeros(2000, DType::float32);
        const std::vector<std::function<Work(Communicator&)>> kinds{
            [&](Communicator& c) { return c.all_reduce(stream(), values); },
            [&](Communicator& c) { return c.reduce_scatter(stream(), twice, values); },
            [&](Communicator& c) { return c.all_gather(stream(), values, twice); },
            [&](Communicator& c) { return c.broadcast(stream(), values, 1); },
            [&](Communicator& c) { return c.receive(stream(), values, 1); },
            [&](Communicator& c) { return c.barrier(stream()); },
        };
        for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
          const auto communicator = self.communicator(std::to_string(kind));
          if (self.rank() == 0) {
            const Work work = kinds[kind](*communicator), next = communicator->barrier(stream());
            std::thread other([&] {
              std::this_thread::sleep_for(30ms);
              communicator->abort("the operator has had enough");
              communicator->abort("something else");
            });
            const auto start = steady_clock::now();
            expect_contains(message_of<MachineError>([&] { work.wait(); }), " stopped: the operator has had enough");
            EXPECT_LT(seconds_since(start), prompt);
            EXPECT_EQ(message_of<MachineError>([&] { next.wait(); }), "barrier stopped: the operator has had enough");
            other.join();
          }
          meet(self, "done " + std::to_string(kind));
        }
        self.leave();
      },
      stand_in_job);
  EXPECT_EQ(job.wait(), (std::vector<int>{0, 0}));
}

TEST_F(NcclFaults, CompletedOperationsSurviveAnAbort) {
  Job job(
      1,
      [](Rank& self) {
        auto communicator = self.communicator();
        const Work work = communicator->all_reduce(stream(), tensor<float>(1, 0, 10));
        work.wait();
        EXPECT_TRUE(work.done());
        communicator->abort("too late");
        EXPECT_NO_THROW(work.wait());
        communicator.reset();
        EXPECT_NO_THROW(work.wait());
        self.leave();
      },
      stand_in_job);
  EXPECT_EQ(job.wait(), std::vector<int>{0});
}

TEST_F(NcclFaults, RunningOperationThrowsWhenDestroyed) {
  Job job(
      2,
      [](Rank& self) {
        auto communicator = self.communicator();
        if (self.rank() == 0) {
          const Work work = communicator->barrier(stream());
          communicator.reset();
          EXPECT_EQ(message_of<MachineError>([&] { work.wait(); }),
                    "barrier stopped: the communicator was closed before the operation was done");
        }
        meet(self, "seen");
        communicator.reset();
        self.leave();
      },
      stand_in_job);
  EXPECT_EQ(job.wait(), (std::vector<int>{0, 0}));
}

}  // namespace
}  // namespace furlong
