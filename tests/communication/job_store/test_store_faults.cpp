// Detection of ranks that are killed, stopped, disconnected or fail: time limits, and messages that name rank and host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "communication/job_store/store_handshake.h"
#include "tests/communication/job_store/store_testing.h"

namespace furlong {
namespace {

using namespace store_testing;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Additional time for scheduling on a loaded machine, on top of the store's time limits.
constexpr milliseconds slack{2000};

/// A broken connection is detected long before silence is.
StoreTimes killed_times() { return {50ms, 10s, 400ms}; }

/// A rank in its own process: joins, waits for a fault and returns 10 + the failed rank, or 3 if there is no fault.
int work_until_fault(const StoreClientOptions& options, const std::function<void()>& ready) {
  FaultLog log;
  StoreClientOptions own = options;
  own.on_fault = log.callback();
  StoreClient client(own);
  ready();
  const auto fault = log.wait(20s);
  return fault ? 10 + fault->rank : 3;
}

Process rank_process(const StoreServerOptions& server, int rank) {
  return Process([=](std::uint16_t port, const std::function<void()>& ready) {
    return work_until_fault(client_options(server, port, rank), ready);
  });
}

TEST(StoreFaults, KilledRankIsReportedOnceToAllOthers) {
  const StoreTimes times = killed_times();
  const StoreServerOptions options = server_options(3, times);
  Process victim = rank_process(options, 2);
  World world(3, times);
  world.join(0);
  world.join(1);
  victim.start(world.server->port());
  const auto start = steady_clock::now();
  victim.kill(SIGKILL);
  std::string waiting;
  std::jthread worker([&] { waiting = message_of<MachineError>([&] { world[1].get("never", 20s); }); });
  for (int rank = 0; rank < 2; ++rank) {
    const auto fault = world.logs[static_cast<std::size_t>(rank)].wait(10s);
    ASSERT_TRUE(fault);
    EXPECT_EQ(fault->rank, 2);
    EXPECT_EQ(fault->host, "host2");
    EXPECT_THAT(fault->reason, HasSubstr("did not reconnect"));
  }
  EXPECT_LT(steady_clock::now() - start, times.grace + slack);
  worker.join();
  EXPECT_THAT(waiting, HasSubstr("rank 2 on host host2 failed"));  // waiting requests end with the fault
  EXPECT_EQ(message_of<MachineError>([&] { world[0].set("k", {}); }), world.server->fault()->message());
  EXPECT_EQ(world[1].fault(), world.server->fault());
  EXPECT_FALSE(world.server->wait_for_goodbyes(5s));
  EXPECT_EQ(victim.wait(), 128 + SIGKILL);
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(world.logs[static_cast<std::size_t>(rank)].all().size(), 1u);
}

TEST(StoreFaults, StoppedRankIsLostAndLearnsItWhenContinued) {
  const StoreServerOptions options = server_options(2, quick());
  Process victim = rank_process(options, 1);
  World world(2, quick());
  world.join(0);
  victim.start(world.server->port());
  const auto start = steady_clock::now();
  victim.kill(SIGSTOP);
  const auto fault = world.logs[0].wait(10s);
  const auto took = steady_clock::now() - start;
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->rank, 1);
  EXPECT_EQ(fault->host, "host1");
  EXPECT_THAT(fault->reason, HasSubstr("silent for"));
  EXPECT_GE(took, quick().timeout - 2 * quick().heartbeat_interval);
  EXPECT_LT(took, quick().timeout + slack);
  victim.kill(SIGCONT);
  EXPECT_EQ(victim.wait(), 11);
}

/// Rank 0 with its store in a separate process.
Process store_process(const StoreServerOptions& options) {
  return Process([=](std::uint16_t port, const std::function<void()>& ready) {
    StoreServerOptions own = options;
    own.port = port;
    StoreServer server(own);
    return work_until_fault(client_options(own, port, 0), ready);
  });
}

TEST(StoreFaults, KilledStoreIsAFaultOfRankZero) {
  const StoreServerOptions options = server_options(2, killed_times());
  Process store = store_process(options);
  const std::uint16_t port = free_port();
  store.start(port);
  FaultLog log;
  StoreClientOptions own = client_options(options, port, 1);
  own.on_fault = log.callback();
  StoreClient client(own);
  client.set("k", {});
  const auto start = steady_clock::now();
  store.kill(SIGKILL);
  const auto fault = log.wait(10s);
  EXPECT_LT(steady_clock::now() - start, killed_times().grace + slack);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->rank, 0);
  EXPECT_EQ(fault->host, "host0");
  EXPECT_THAT(fault->reason, AllOf(HasSubstr("connection to its store broke"), HasSubstr("Connection refused")));
  EXPECT_FALSE(client.report_fault("cannot be delivered"));
  EXPECT_EQ(log.all().size(), 1u);
}

TEST(StoreFaults, StoppedStoreIsAFaultOfRankZero) {
  const StoreServerOptions options = server_options(2, quick());
  Process store = store_process(options);
  const std::uint16_t port = free_port();
  store.start(port);
  StoreClient client(client_options(options, port, 1));
  const auto start = steady_clock::now();
  store.kill(SIGSTOP);
  EXPECT_THAT(message_of<MachineError>([&] { client.get("never", 20s); }),
              HasSubstr("rank 0 on host host0 failed: its store was silent for "));
  EXPECT_LT(steady_clock::now() - start, quick().timeout + slack);
}

/// Two ranks in separate processes that work for a while and must leave without a fault.
struct SmallJob {
  static int work(StoreClient& client, const std::function<void()>& ready) {
    client.wait({"both"}, 10s);
    ready();
    for (const auto end = steady_clock::now() + quick().timeout; steady_clock::now() < end;
         std::this_thread::sleep_for(10ms))
      client.add("steps", 1);
    client.goodbye();
    return client.fault() ? 4 : 0;
  }

  StoreServerOptions options = server_options(2, quick());
  Process first{[this](std::uint16_t port, const std::function<void()>& ready) {
    options.port = port;
    StoreServer server(options);
    StoreClient client(client_options(options, port, 0));
    const int status = work(client, ready);
    return server.wait_for_goodbyes(10s) ? status : 5;
  }};
  Process second{[this](std::uint16_t port, const std::function<void()>& ready) {
    StoreClient client(client_options(options, port, 1));
    client.set("both", {});
    return work(client, ready);
  }};

  void start() {
    const std::uint16_t port = free_port();
    std::thread starting([&] { first.start(port); });
    second.start(port);
    starting.join();
  }
};

TEST(StoreFaults, SuspendedJobContinues) {
  // In both orders: the rank that stops last has received everything from the other and gets no new data when
  // continued.
  SmallJob one, other;
  one.start();
  other.start();
  const auto each = [](const Process& a, const Process& b, int signal) {
    a.kill(signal);
    std::this_thread::sleep_for(4 * quick().heartbeat_interval);
    b.kill(signal);
  };
  const auto both = [&](int stopping, int continuing) {
    std::thread parallel([&] { each(one.first, one.second, stopping); });
    each(other.second, other.first, stopping);
    parallel.join();
    std::this_thread::sleep_for(quick().timeout + 100ms);
    parallel = std::thread([&] { each(one.second, one.first, continuing); });
    each(other.first, other.second, continuing);
    parallel.join();
  };
  both(SIGSTOP, SIGCONT);
  EXPECT_EQ(one.second.wait(), 0);
  EXPECT_EQ(one.first.wait(), 0);
  EXPECT_EQ(other.second.wait(), 0);
  EXPECT_EQ(other.first.wait(), 0);
}

TEST(StoreFaults, DefaultTimesSurviveATwoSecondNetworkFailure) {
  World world(2);
  Network network(world.server->port());
  world.join(0);
  world.join(1, network.port());
  EXPECT_EQ(world[1].add("steps", 1), 1);
  std::vector<char> got;
  std::thread waiting([&] { got = world[1].get("after", 20s); });
  std::this_thread::sleep_for(50ms);
  network.set(Network::Mode::cut);
  std::int64_t sum = 0;
  std::thread adding([&] { sum = world[1].add("steps", 1); });
  std::this_thread::sleep_for(2s);
  EXPECT_FALSE(world.server->fault());
  network.set(Network::Mode::open);
  adding.join();
  EXPECT_EQ(sum, 2);
  world[0].set("after", bytes("the blip"));
  waiting.join();
  EXPECT_EQ(got, bytes("the blip"));
  EXPECT_EQ(network.connections(), 2);
  EXPECT_FALSE(world.server->fault());
  EXPECT_TRUE(world.logs[1].all().empty());
  world.leave();
}

TEST(StoreFaults, RepeatedRequestsExecuteOnce) {
  World world(2, {50ms, 10s, 5s});
  Network network(world.server->port());
  world.join(0);
  world.join(1, network.port());
  for (int round = 1; round <= 5; ++round) {
    const std::string key = "mine/" + std::to_string(round);
    network.set(Network::Mode::no_replies);
    std::vector<std::thread> workers;
    for (int i = 0; i < 3; ++i) workers.emplace_back([&] { world[1].add("once", 1); });
    workers.emplace_back([&] { world[1].set(key, bytes("mine")); });
    // All requests were executed, but the client has no replies.
    const auto end = steady_clock::now() + 10s;
    while ((world[0].add("once", 0) < 3 * round || !world[0].check({key})) && steady_clock::now() < end)
      std::this_thread::sleep_for(2ms);
    world[0].set(key, bytes("overwritten"));
    network.set(Network::Mode::cut);
    std::this_thread::sleep_for(20ms);
    network.set(Network::Mode::open);
    for (std::thread& worker : workers) worker.join();
    EXPECT_EQ(world[0].add("once", 0), 3 * round);
    EXPECT_EQ(world[0].get(key, 5s), bytes("overwritten"));
  }
  world.leave();
}

TEST(StoreFaults, BothSidesDetectABrokenConnection) {
  World world(2, quick());
  Network network(world.server->port());
  world.join(0);
  world.join(1, network.port());
  network.set(Network::Mode::cut);
  const auto here = world.logs[0].wait(10s), there = world.logs[1].wait(10s);
  ASSERT_TRUE(here && there);
  EXPECT_EQ(here->rank, 1);
  EXPECT_THAT(here->reason, HasSubstr("its connection broke"));
  EXPECT_EQ(there->rank, 0);
  EXPECT_EQ(there->host, "host0");
}

TEST(StoreFaults, BothSidesDetectASilentNetwork) {
  World world(2, quick());
  Network network(world.server->port());
  world.join(0);
  world.join(1, network.port());
  network.set(Network::Mode::stalled);
  std::this_thread::sleep_for(quick().timeout * 6 / 10);
  network.set(Network::Mode::open);  // data passes again before the timeout
  std::this_thread::sleep_for(200ms);
  EXPECT_FALSE(world.server->fault());
  network.set(Network::Mode::stalled);
  const auto start = steady_clock::now();
  const auto here = world.logs[0].wait(10s), there = world.logs[1].wait(10s);
  EXPECT_LT(steady_clock::now() - start, quick().timeout + slack);
  ASSERT_TRUE(here && there);
  EXPECT_EQ(here->rank, 1);
  EXPECT_THAT(here->reason, HasSubstr("silent for"));
  EXPECT_EQ(there->rank, 0);
  EXPECT_THAT(there->reason, HasSubstr("silent for"));
}

TEST(StoreFaults, FirstReportedFaultReachesAllRanksImmediately) {
  World world(4);
  world.join(0);
  world.join(1);
  std::string problem;
  store::Hello hello;
  hello.rank = 3;
  hello.world_size = 4;
  const store::Attempt third = store::shake_hands(resolve("127.0.0.1", world.server->port(), problem).front(), hello,
                                                  world.options.secret, steady_clock::now() + 5s, 10s);
  const auto start = steady_clock::now();
  EXPECT_TRUE(world[1].report_fault("no space left on device\nwhile writing " + std::string(5000, 'x')));
  world[0].report_fault("because of rank 1");
  // A rank that has not received the fault yet: its report comes second.
  send(third.socket, store::encode(store::Request{store::Kind::report_fault, 1, 1, 0}, "because of rank 1"));
  const auto fault = world.logs[0].wait(5s);
  EXPECT_LT(steady_clock::now() - start, slack);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->rank, 1);
  EXPECT_THAT(
      fault->message(),
      AllOf(HasSubstr("rank 1 on host host1 failed: no space left on device while writing xxx"), Not(HasSubstr("\n"))));
  EXPECT_LE(fault->reason.size(), store::max_reason_bytes);
  world.join(2);  // joins late and still receives the fault
  EXPECT_EQ(world.logs[2].wait(5s), fault);
  EXPECT_EQ(world.server->fault(), fault);
  EXPECT_EQ(world.logs[1].wait(5s), fault);
  for (std::size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(world.logs[rank].all().size(), 1u);
}

TEST(StoreFaults, LeavingThroughAnExceptionIsAFault) {
  World world(2);
  world.join(0);
  try {
    StoreClient client(client_options(world.options, world.server->port(), 1));
    throw UserError("a rank that throws");
  } catch (const UserError&) {
  }
  const auto fault = world.logs[0].wait(slack);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->message(), "rank 1 on host host1 failed: it ended without leaving the job");
}

TEST(StoreFaults, StoreEndingBeforeOtherRanksIsAFault) {
  World world(3);
  world.join_all();
  world[0].goodbye();
  world.server.reset();
  for (const std::size_t rank : {1u, 2u}) {
    const auto fault = world.logs[rank].wait(slack);
    ASSERT_TRUE(fault);
    EXPECT_EQ(fault->message(), "rank 0 on host host0 failed: it ended while ranks 1, 2 still ran");
  }
  EXPECT_TRUE(world.logs[0].all().empty());
}

TEST(StoreFaults, GoodbyeWithLostReplyIsNoFault) {
  World world(2, quick());
  Network network(world.server->port());
  world.join(0);
  world.join(1, network.port());
  world[0].goodbye();
  network.set(Network::Mode::no_replies);
  std::thread leaving([&] { EXPECT_NO_THROW(world[1].goodbye()); });
  EXPECT_TRUE(world.server->wait_for_goodbyes(5s));
  world.server.reset();
  network.set(Network::Mode::cut);
  leaving.join();
  EXPECT_FALSE(world[1].fault());
  EXPECT_TRUE(world.logs[1].all().empty());
  world.clients.clear();
}

TEST(StoreFaults, RejectsANewStoreAtTheSamePort) {
  StoreServerOptions options = server_options(2);
  options.port = free_port();
  auto server = std::make_unique<StoreServer>(options);
  Network network(options.port);
  FaultLog log;
  StoreClientOptions own = client_options(options, network.port(), 1);
  own.on_fault = log.callback();
  StoreClient client(own);
  network.set(Network::Mode::stalled);  // the store's last messages are lost
  server.reset();
  server = std::make_unique<StoreServer>(options);
  network.set(Network::Mode::cut);
  std::this_thread::sleep_for(50ms);
  network.set(Network::Mode::open);
  const auto fault = log.wait(5s);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->rank, 0);
  EXPECT_THAT(fault->reason, HasSubstr("does not know this rank"));
}

}  // namespace
}  // namespace furlong
