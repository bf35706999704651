#include <cstdlib>
#include <regex>

#include "communication/gloo/gloo_mesh.h"
#include "tests/communication/communicator_testing.h"

namespace furlong {
namespace {

using namespace communicator_testing;
using store_testing::message_of;

const Stream stream;

// Seconds. The store's times in these tests are at most 1 s. Without the mechanism under test, a failure takes 60 s
// (Rank::options.fault_patience) or longer. A busy machine may be much slower than an idle one.
constexpr double prompt = 20;

/// The error that ends an endless sequence of operations, and the seconds until it was thrown. `begun` is called once
/// all ranks have arrived; it need not return.
struct Failure {
  std::string message;
  double seconds;
};
Failure keep_reducing(
    Communicator& communicator, std::int64_t n, const std::function<void()>& begun = [] {}) {
  const Tensor values = Tensor::zeros({n}, DType::float32);
  auto last = steady_clock::now();
  try {
    communicator.barrier(stream).wait();  // a rank may die before another one has left the barrier
    begun();
    for (;;) {
      last = steady_clock::now();
      communicator.all_reduce(stream, values).wait();
    }
  } catch (const MachineError& error) {
    return {error.what(), seconds_since(last)};
  }
}

/// Sends a signal to this process after a delay, from a separate thread.
void send_later(int signal, milliseconds delay) {
  std::thread([signal, delay] {
    std::this_thread::sleep_for(delay);
    ::kill(::getpid(), signal);
  }).detach();
}

void expect_names(const std::string& message, const std::string& culprit) {
  EXPECT_NE(message.find(culprit), std::string::npos) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

// The victim is killed during a large all_reduce; rank 0, which runs the store, survives. Two of the ranks are the
// victim's neighbors in the ring; the others learn of its loss only from the store.
TEST(GlooFaults, AllRanksNameAKilledRank) {
  for (const int size : {2, 4}) {
    for (int round = 0; round < (size == 2 ? 1 : 3); ++round) {
      const int victim = size == 2 ? 1 : 1 + round;
      const std::string culprit = "rank " + std::to_string(victim) + " on host host" + std::to_string(victim);
      Job job(size,
              [&](Rank& self) {
                const auto communicator = self.communicator();
                const Failure failure = keep_reducing(*communicator, 4'000'000, [&] {
                  if (self.rank() == victim) send_later(SIGKILL, milliseconds(40 + 7 * round));
                });
                expect_names(failure.message, culprit + " failed");
                EXPECT_LT(failure.seconds, prompt);
                const auto start = steady_clock::now();
                EXPECT_EQ(message_of<MachineError>([&] {
                            communicator->barrier(stream).wait();
                          }).find("barrier stopped: " + culprit),
                          0u);
                EXPECT_LT(seconds_since(start), prompt) << "a later operation did not throw at once";
              },
              {.times = short_times()});
      std::vector<int> statuses(static_cast<std::size_t>(size), 0);
      statuses[static_cast<std::size_t>(victim)] = 128 + SIGKILL;
      EXPECT_EQ(job.wait(), statuses) << "victim " << victim;
    }
  }
}

// Rank 1 stops during two messages of 64 MB, one to rank 0 and one from rank 2. Gloo does not wake waits for
// half-finished messages; the backend must interrupt them.
TEST(GlooFaults, InterruptsHalfFinishedMessages) {
  Job job(3,
          [](Rank& self) {
            auto communicator = self.communicator();
            const Tensor in = Tensor::zeros({16'000'000}, DType::float32),
                         out = Tensor::zeros({16'000'000}, DType::float32);
            const auto message = [&] {
              if (self.rank() == 0) return communicator->receive(stream, in, 1);
              if (self.rank() == 2) return communicator->send(stream, out, 1);
              return communicator->exchange(stream, {Message::receive(in, 2), Message::send(out, 0)});
            };
            auto start = steady_clock::now();
            expect_names(message_of<MachineError>([&] {
                           communicator->barrier(stream).wait();
                           if (self.rank() == 1) send_later(SIGSTOP, 30ms);
                           for (;;) message().wait();
                         }),
                         "rank 1 on host host1 failed");
            EXPECT_LT(seconds_since(start), prompt);
            start = steady_clock::now();
            communicator.reset();
            EXPECT_LT(seconds_since(start), prompt);
          },
          {.times = short_times()});
  job.wait(2);
  job.kill(1, SIGKILL);
  EXPECT_EQ(job.wait(), (std::vector<int>{0, 128 + SIGKILL, 0}));
}

// The store is lost together with rank 0, and its silence identifies rank 0.
TEST(GlooFaults, AllRanksNameAKilledRankZero) {
  Job job(3,
          [](Rank& self) {
            const auto communicator = self.communicator();
            const Failure failure = keep_reducing(*communicator, 1'000'000, [&] {
              if (self.rank() == 0) send_later(SIGKILL, 50ms);
            });
            expect_names(failure.message, "rank 0 on host host0 failed");
            EXPECT_LT(failure.seconds, prompt);
          },
          {.times = short_times()});
  EXPECT_EQ(job.wait(), (std::vector<int>{128 + SIGKILL, 0, 0}));
}

// A stopped process keeps its connections; only its silence shows the fault.
TEST(GlooFaults, AllRanksNameAStoppedRank) {
  Job job(3,
          [](Rank& self) {
            const auto communicator = self.communicator();
            const Failure failure = keep_reducing(*communicator, 1000, [&] {
              if (self.rank() == 1) ::kill(::getpid(), SIGSTOP);
            });
            expect_names(failure.message, "rank 1 on host host1 failed");
            EXPECT_LT(failure.seconds, prompt);
          },
          {.times = short_times()});
  job.wait(2);
  job.kill(1, SIGKILL);
  EXPECT_EQ(job.wait(), (std::vector<int>{0, 128 + SIGKILL, 0}));
}

// A rank that reports its own failure is named with its own reason.
TEST(GlooFaults, AllRanksNameAThrowingRankWithItsReason) {
  Job job(3,
          [](Rank& self) {
            const auto communicator = self.communicator();
            const Failure failure = keep_reducing(*communicator, 1000, [&] {
              if (self.rank() == 2) self.store().report_fault("no space left on device");
            });
            expect_names(failure.message, "rank 2 on host host2 failed: no space left on device");
            EXPECT_LT(failure.seconds, prompt);
          },
          {.times = short_times()});
  EXPECT_EQ(job.wait(), (std::vector<int>{0, 0, 0}));
}

// A rank computes for longer than all of the store's times, but keeps sending heartbeats: the others wait.
TEST(GlooFaults, WaitsForALateRank) {
  run_job(2,
          [](Rank& self, Communicator& communicator) {
            if (self.rank() == 1) std::this_thread::sleep_for(1500ms);
            const Tensor values = tensor<float>(1, self.rank(), 1000);
            communicator.all_reduce(stream, values).wait();
            EXPECT_EQ(wrong_elements<float>(values, 1, 2, Reduction::sum), 0);
          },
          {.times = short_times()});
}

// The first of the waiting ranks repeatedly logs which ranks it waits for. The other ranks, and short waits, log
// nothing.
TEST(GlooFaults, WarnsAboutALateRank) {
  run_job(4, [](Rank& self, Communicator&) {
    const LogCapture captured;
    self.options.notice_after = 1500ms;
    self.options.notice_every = 1s;
    {
      const auto communicator = self.communicator("noticed");
      for (int i = 0; i < 3; ++i) communicator->barrier(stream).wait();
      if (self.rank() == 1 || self.rank() == 3) std::this_thread::sleep_for(4s);
      const Tensor values = tensor<float>(1, self.rank(), 10);
      communicator->all_reduce(stream, values).wait();
      if (self.rank() == 1) std::this_thread::sleep_for(2s);
      if (self.rank() == 0) communicator->receive(stream, values, 1).wait();
      if (self.rank() == 1) communicator->send(stream, values, 0).wait();
    }
    const std::string text = captured.text();
    const auto count = [&](const std::string& words) { return count_of(words, text); };
    EXPECT_EQ(count("barrier"), 0) << text;
    if (self.rank() != 0) {
      EXPECT_EQ(text, "");
      return;
    }
    EXPECT_GE(count("all_reduce of float32 [10] has waited for "), 2) << "expected repeated warnings: " << text;
    EXPECT_LE(count("all_reduce"), 4) << text;
    EXPECT_GE(count(" s: rank 1 on host host1, rank 3 on host host3 have not reached it; the other ranks wait as long "
                    "as they are alive"),
              2)
        << text;
    EXPECT_EQ(count("receive of float32 [10] from rank 1 on host host1 has taken "), 1) << text;
  });
}

// Both ranks have issued the same number of operations, but different ones. The first rank that times out closes the
// connections, and the other one may notice that before its own timeout: it waits fault_patience for the store to name
// a fault.
TEST(GlooFaults, WarnsAboutMismatchedOperations) {
  Job job(2, [](Rank& self) {
    const LogCapture captured;
    self.options.notice_after = self.options.notice_every = 500ms;
    self.options.operation_timeout = 4s;
    self.options.fault_patience = 300ms;
    {
      const auto communicator = self.communicator();
      message_of<MachineError>([&] {
        if (self.rank() == 0) communicator->broadcast(stream, Tensor::zeros({3}, DType::int32), 1).wait();
        if (self.rank() == 1) communicator->broadcast(stream, Tensor::zeros({5}, DType::int32), 0).wait();
      });
      self.store().set(fmt::format("done {}", self.rank()), store_testing::bytes("yes"));
      self.store().wait({"done 0", "done 1"}, 20s);
    }
    EXPECT_EQ(count_of(" s: rank 1 on host host1 is in broadcast of int32 [5]; the ranks run different operations",
                       captured.text()) > 0,
              self.rank() == 0)
        << captured.text();
    EXPECT_EQ(count_of("the network", captured.text()), 0) << captured.text();
    self.leave();
  });
  EXPECT_EQ(job.wait(), (std::vector<int>{0, 0}));
}

// Both ranks are alive, and rank 1 never issues the operation of rank 0: the operation timeout ends this deadlock.
TEST(GlooFaults, MismatchedOperationsTimeOut) {
  Job job(2, [](Rank& self) {
    self.options.operation_timeout = 300ms;
    {
      const auto communicator = self.communicator();
      if (self.rank() == 0) {
        const auto start = steady_clock::now();
        EXPECT_EQ(message_of<MachineError>(
                      [&] { communicator->broadcast(stream, Tensor::zeros({3}, DType::int32), 1).wait(); }),
                  "broadcast of int32 [3] stopped: nothing was received within 0.3 s while all ranks were alive; the "
                  "ranks wait for "
                  "each other, perhaps in different operations");
        EXPECT_GT(seconds_since(start), 0.25);
        EXPECT_LT(seconds_since(start), prompt);
        self.store().set("done", store_testing::bytes("yes"));
      }
      self.store().wait({"done"}, 20s);
    }
    self.leave();
  });
  EXPECT_EQ(job.wait(), (std::vector<int>{0, 0}));
}

// No fault, and heartbeats continue: only the connection breaks, because the peer has closed its communicator. After
// fault_patience, the peer is named.
TEST(GlooFaults, NamesALivingRankWithABrokenConnection) {
  Job job(2, [](Rank& self) {
    self.options.fault_patience = 300ms;
    {
      const auto communicator = self.communicator();
      if (self.rank() == 1) communicator->barrier(stream).wait();
      if (self.rank() == 0) {
        const Failure failure = keep_reducing(*communicator, 1000);
        expect_names(failure.message,
                     "all_reduce of float32 [1000] stopped: the connection to rank 1 on host host1 broke: ");
        EXPECT_GT(failure.seconds, 0.25);
        EXPECT_LT(failure.seconds, prompt);
        self.store().set("seen", store_testing::bytes("yes"));
      }
    }
    if (self.rank() == 1) self.store().wait({"seen"}, 20s);
    self.leave();
  });
  EXPECT_EQ(job.wait(), (std::vector<int>{0, 0}));
}

// Operations of every kind wait for a rank that never issues them; another thread aborts.
TEST(GlooFaults, AbortEndsEveryKindOfWait) {
  Job job(2, [](Rank& self) {
    const Tensor values = Tensor::zeros({1000}, DType::float32), twice = Tensor::zeros({2000}, DType::float32);
    const std::vector<std::function<Work(Communicator&)>> kinds{
        [&](Communicator& c) { return c.all_reduce(stream, values); },
        [&](Communicator& c) { return c.reduce_scatter(stream, twice, values); },
        [&](Communicator& c) { return c.all_gather(stream, values, twice); },
        [&](Communicator& c) { return c.broadcast(stream, values, 1); },
        [&](Communicator& c) { return c.send(stream, values, 1); },
        [&](Communicator& c) { return c.receive(stream, values, 1); },
        [&](Communicator& c) { return c.barrier(stream); },
    };
    for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
      const auto communicator = self.communicator(std::to_string(kind));
      if (self.rank() == 0) {
        const Work work = kinds[kind](*communicator), next = communicator->barrier(stream);
        steady_clock::time_point start;
        std::thread other([&] {
          std::this_thread::sleep_for(30ms);
          start = steady_clock::now();
          communicator->abort("the operator has had enough");
        });
        const std::string message = message_of<MachineError>([&] { work.wait(); });
        const double seconds = seconds_since(start);
        other.join();
        expect_names(message, " stopped: the operator has had enough");
        EXPECT_LT(seconds, prompt) << message;
        EXPECT_EQ(message_of<MachineError>([&] { next.wait(); }), "barrier stopped: the operator has had enough");
        EXPECT_EQ(message_of<MachineError>([&] { communicator->barrier(stream).wait(); }),
                  "barrier stopped: the operator has had enough");
      }
      const std::string key = "done " + std::to_string(kind);
      if (self.rank() == 0) self.store().set(key, store_testing::bytes("yes"));
      self.store().wait({key}, 20s);
    }
    self.leave();
  });
  EXPECT_EQ(job.wait(), (std::vector<int>{0, 0}));
}

TEST(GlooFaults, RunningOperationThrowsWhenDestroyed) {
  Job job(2, [](Rank& self) {
    auto communicator = self.communicator();
    if (self.rank() == 0) {
      const Work work = communicator->barrier(stream);
      communicator.reset();
      expect_names(message_of<MachineError>([&] { work.wait(); }),
                   "barrier stopped: the communicator was closed before");
      self.store().set("done", store_testing::bytes("yes"));
    }
    self.store().wait({"done"}, 20s);
    self.leave();
  });
  EXPECT_EQ(job.wait(), (std::vector<int>{0, 0}));
}

TEST(GlooFaults, NamesAMissingRank) {
  Job job(3, [](Rank& self) {
    self.options.connect_timeout = 1s;
    if (self.rank() < 2) {
      self.store().add("ready", 1);
      while (self.store().add("ready", 0) < 2) std::this_thread::sleep_for(5ms);
      const auto start = steady_clock::now();
      const std::string message = message_of<MachineError>([&] { self.communicator(); });
      EXPECT_EQ(message.find("rank 2 did not arrive to connect to rank " + std::to_string(self.rank())), 0u) << message;
      EXPECT_LT(seconds_since(start), prompt);
    }
    self.store().add("seen", 1);
    while (self.store().add("seen", 0) < 3) std::this_thread::sleep_for(5ms);
    self.leave();
  });
  EXPECT_EQ(job.wait(), (std::vector<int>{0, 0, 0}));
}

// The rank has published its address and dies before it connects.
TEST(GlooFaults, NamesARankThatDiesWhileConnecting) {
  Job job(2,
          [](Rank& self) {
            if (self.rank() == 1) {
              const GlooMesh mesh(self.store(), self.options);
              std::this_thread::sleep_for(100ms);
              ::kill(::getpid(), SIGKILL);
            }
            const auto start = steady_clock::now();
            expect_names(message_of<MachineError>([&] { self.communicator(); }), "rank 1 on host host1");
            EXPECT_LT(seconds_since(start), prompt);
          },
          {.times = short_times()});
  EXPECT_EQ(job.wait(), (std::vector<int>{0, 128 + SIGKILL}));
}

TEST(GlooFaults, RejectsAnAddressOfAnotherHost) {
  Job job(2, [](Rank& self) {
    if (self.rank() == 0) {
      self.options.address = "203.0.113.7";
      const std::string message = message_of<UserError>([&] { self.communicator(); });
      expect_names(message, "rank 0 on host host0 cannot listen at '203.0.113.7', expected an address of this host");
      self.store().set("done", store_testing::bytes("yes"));
    }
    self.store().wait({"done"}, 20s);
    self.leave();
  });
  EXPECT_EQ(job.wait(), (std::vector<int>{0, 0}));
}

TEST(GlooFaults, RejectsMixedAddressFamilies) {
  Job job(2, [](Rank& self) {
    if (self.rank() == 1) self.options.address = "::1";
    const std::string message = message_of<UserError>([&] { self.communicator(); });
    const char* families[] = {"rank 1 on host host1 uses IPv6, but rank 0 on host host0 uses IPv4 (127.0.0.1)",
                              "rank 0 on host host0 uses IPv4, but rank 1 on host host1 uses IPv6 (::1)"};
    EXPECT_EQ(message.find(families[self.rank()]), 0u) << message;
    EXPECT_NE(message.find("MASTER_ADDR"), std::string::npos) << message;
    self.leave();
  });
  EXPECT_EQ(job.wait(), (std::vector<int>{0, 0}));
}

// Rank 1 greets rank 0 with a wrong token, like a client that found the open port but cannot read the store. No rank
// connects then.
TEST(GlooFaults, RejectsAWrongToken) {
  Job job(2, [](Rank& self) {
    self.options.connect_timeout = 2s;
    if (self.rank() == 1) {
      self.store().set("gloo/all/1/here", store_testing::bytes("yes"));
      auto record = self.store().get("gloo/all/0", 20s);
      const std::size_t token = 4 + std::string("host0").size() + 4;
      record.at(token) = static_cast<char>(record.at(token) ^ 1);
      self.store().set("gloo/all/0", record);
      GlooMesh mesh(self.store(), self.options);
      expect_names(message_of<MachineError>([&] { mesh.connect(); }),
                   "cannot connect to rank 0 on host host0: it closed the connection");
      self.store().wait({"done"}, 20s);
    } else {
      self.options.fault_patience = 100ms;
      expect_names(message_of<MachineError>([&] { self.communicator(); }),
                   "connecting the ranks stopped: cannot connect to rank 1 on host host1: it did not connect");
      self.store().set("done", store_testing::bytes("yes"));
    }
    self.leave();
  });
  EXPECT_EQ(job.wait(), (std::vector<int>{0, 0}));
}

}  // namespace
}  // namespace furlong
