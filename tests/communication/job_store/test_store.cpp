// The job store without faults, and its errors on starting and joining.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/time.h>

#include <cstring>
#include <numeric>
#include <set>

#include "tests/communication/job_store/store_testing.h"

namespace furlong {
namespace {

using namespace store_testing;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Store, SharesValuesBetweenRanks) {
  World world(3);
  world.join_all();
  std::vector<char> binary(256);
  std::iota(binary.begin(), binary.end(), '\0');
  world[1].set("binary", binary);
  world[2].set("empty", {});
  world[0].set(std::string("a\0b", 3), bytes("a key with a zero"));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(world[rank].get("binary", 5s), binary);
    EXPECT_EQ(world[rank].get("empty", 5s), std::vector<char>{});
    EXPECT_EQ(world[rank].get(std::string("a\0b", 3), 5s), bytes("a key with a zero"));
  }
  world[0].set("binary", bytes("again"));
  EXPECT_EQ(world[2].get("binary", 5s), bytes("again"));
  EXPECT_TRUE(world[0].check({"binary", "empty"}));
  EXPECT_TRUE(world[0].check({}));
  EXPECT_FALSE(world[0].check({"binary", "a"}));
}

TEST(Store, GetWaitsForTheKey) {
  World world(2);
  world.join_all();
  std::atomic<bool> set{false};
  std::thread later([&] {
    std::this_thread::sleep_for(100ms);
    set = true;
    world[1].set("late", bytes("here"));
  });
  EXPECT_EQ(world[0].get("late", 20s), bytes("here"));
  EXPECT_TRUE(set);
  later.join();
}

TEST(Store, TimedOutWaitsNameMissingKeysAndRanks) {
  World world(4);
  world.join(0);
  world.join(2);
  world[0].set("there", bytes("1"));
  const auto start = steady_clock::now();
  EXPECT_THAT(message_of<MachineError>([&] {
                world[2].wait({"there", "not\nthere", "gone"}, 100ms);
              }),
              AllOf(HasSubstr("waited 0.1 s"), HasSubstr("'gone', 'not\\x0athere'"), Not(HasSubstr("'there'")),
                    HasSubstr("never joined: 1, 3")));
  EXPECT_THAT(message_of<MachineError>([&] { world[0].get("nccl", 100ms); }), HasSubstr("no rank has set 'nccl'"));
  EXPECT_THAT(message_of<MachineError>([&] { world[0].get("nccl", 0ms); }), HasSubstr("no rank has set 'nccl'"));
  const auto took = steady_clock::now() - start;
  EXPECT_GE(took, 200ms);
  EXPECT_LT(took, 2s);
  EXPECT_EQ(world[0].get("there", 5s), bytes("1"));  // a timeout does not affect other requests
  EXPECT_FALSE(world.server->fault());
}

TEST(Store, WaitReturnsOnceAllKeysExist) {
  World world(2);
  world.join_all();
  std::atomic<int> set{0};
  std::thread later([&] {
    for (const char* key : {"b", "a", "c"}) {
      std::this_thread::sleep_for(20ms);
      ++set;
      world[1].set(key, bytes("x"));
    }
  });
  world[0].wait({"a", "b", "c", "a"}, 20s);
  EXPECT_EQ(set, 3);
  world[0].wait({}, 0ms);
  later.join();
}

TEST(Store, AddIsAtomicAcrossRanksAndThreads) {
  constexpr int ranks = 3, threads = 2, rounds = 60;
  World world(ranks);
  world.join_all();
  std::mutex mutex;
  std::set<std::int64_t> sums;
  std::vector<std::thread> workers;
  for (int rank = 0; rank < ranks; ++rank) {
    for (int thread = 0; thread < threads; ++thread) {
      workers.emplace_back([&, rank] {
        for (int i = 0; i < rounds; ++i) {
          const std::int64_t sum = world[rank].add("counter", 2);
          const std::lock_guard lock(mutex);
          sums.insert(sum);
        }
      });
    }
  }
  for (std::thread& worker : workers) worker.join();
  EXPECT_EQ(sums.size(), static_cast<std::size_t>(ranks * threads * rounds));
  EXPECT_EQ(*sums.begin(), 2);
  EXPECT_EQ(*sums.rbegin(), 2 * ranks * threads * rounds);
  EXPECT_EQ(world[0].add("counter", -1000), 2 * ranks * threads * rounds - 1000);
}

TEST(Store, AddRejectsNonIntegersAndOverflow) {
  World world(1);
  world.join_all();
  world[0].set("number", bytes("41"));
  EXPECT_EQ(world[0].add("number", 1), 42);
  EXPECT_EQ(world[0].get("number", 5s), bytes("42"));
  world[0].set("text", bytes("42 "));
  EXPECT_THAT(message_of<ContractError>([&] { world[0].add("text", 1); }),
              AllOf(HasSubstr("'text'"), HasSubstr("not an integer")));
  world[0].set("most", bytes("9223372036854775807"));
  EXPECT_THAT(message_of<ContractError>([&] { world[0].add("most", 1); }), HasSubstr("64 bits"));
  EXPECT_EQ(world[0].get("most", 5s), bytes("9223372036854775807"));
}

TEST(Store, LimitsKeysTo4KiBAndValuesTo64MiB) {
  World world(2);
  world.join_all();
  std::vector<char> large(store::max_value_bytes);
  for (std::size_t i = 0; i < large.size(); i += 4096) large[i] = static_cast<char>(i >> 12);
  const std::string key(store::max_key_bytes, 'k');
  world[0].set(key, large);
  EXPECT_TRUE(world[1].get(key, 20s) == large);
  large.push_back('x');
  EXPECT_THAT(message_of<ContractError>([&] { world[0].set("k", large); }), HasSubstr("67108865 bytes"));
  EXPECT_THAT(message_of<ContractError>([&] { world[0].set(key + "k", {}); }), HasSubstr("4097 bytes"));
  EXPECT_THAT(message_of<ContractError>([&] { world[0].get("", 1s); }), HasSubstr("0 bytes"));
}

TEST(Store, AddAndWaitFormABarrier) {
  constexpr int ranks = 4;
  World world(ranks);
  world.join_all();
  std::atomic<int> arrived{0}, early{0};
  std::vector<std::thread> workers;
  for (int rank = 0; rank < ranks; ++rank) {
    workers.emplace_back([&, rank] {
      std::this_thread::sleep_for(10ms * rank);
      ++arrived;
      if (world[rank].add("barrier", 1) == ranks) world[rank].set("barrier/open", {});
      world[rank].wait({"barrier/open"}, 20s);
      if (arrived != ranks) ++early;
    });
  }
  for (std::thread& worker : workers) worker.join();
  EXPECT_EQ(early, 0);
}

TEST(Store, GoodbyesEndTheJobWithoutFault) {
  World world(2, quick());
  world.join_all();
  EXPECT_FALSE(world.server->wait_for_goodbyes(20ms));
  world[1].goodbye();
  EXPECT_THAT(message_of<ContractError>([&] { world[1].set("k", {}); }), HasSubstr("after goodbye()"));
  world.clients[1].reset();
  // Longer than the detection of a lost rank takes.
  std::this_thread::sleep_for(quick().timeout + 100ms);
  EXPECT_EQ(world[0].add("still serving", 1), 1);
  world.join(1);  // a rank that has left may join again
  EXPECT_EQ(world[1].add("still serving", 1), 2);
  EXPECT_FALSE(world.server->wait_for_goodbyes(0ms));
  world[1].goodbye();
  world[0].goodbye();
  EXPECT_TRUE(world.server->wait_for_goodbyes(5s));
  world.server.reset();
  EXPECT_TRUE(world.logs[0].all().empty());
  EXPECT_TRUE(world.logs[1].all().empty());
}

void no_operation(int) {}

TEST(Store, ClientsWaitForALateStoreDespiteSignals) {
  struct sigaction action {
  }, before{};
  action.sa_handler = no_operation;  // without SA_RESTART: blocking calls return EINTR
  ::sigaction(SIGALRM, &action, &before);
  const itimerval often{{0, 1000}, {0, 1000}}, never{};
  ::setitimer(ITIMER_REAL, &often, nullptr);
  StoreServerOptions options = server_options(1);
  options.port = free_port();
  std::unique_ptr<StoreServer> server;
  std::thread later([&] {
    std::this_thread::sleep_for(200ms);
    server = std::make_unique<StoreServer>(options);
  });
  StoreClient client(client_options(options, options.port, 0));
  const std::vector<char> value(1 << 20, 'v');
  client.set("k", value);
  EXPECT_TRUE(client.get("k", 10s) == value);
  client.goodbye();
  later.join();
  ::setitimer(ITIMER_REAL, &never, nullptr);
  ::sigaction(SIGALRM, &before, nullptr);
}

TEST(Store, MissingStoreErrorNamesAddressPortAndTime) {
  StoreClientOptions options = client_options(server_options(4), free_port(), 3);
  options.address = "localhost";
  options.connect_timeout = 200ms;
  const auto start = steady_clock::now();
  EXPECT_THAT(message_of<MachineError>([&] { StoreClient client(options); }),
              AllOf(HasSubstr("rank 3 on host host3: no job store at localhost:" + std::to_string(options.port)),
                    HasSubstr("within 0.2 s"), HasSubstr("Connection refused"), HasSubstr("MASTER_PORT"),
                    Not(HasSubstr("\n"))));
  EXPECT_GE(steady_clock::now() - start, 200ms);
  EXPECT_LT(steady_clock::now() - start, 2s);
}

TEST(Store, JoiningEndsWhenAskedToGiveUp) {
  StoreClientOptions options = client_options(server_options(4), free_port(), 3);
  options.connect_timeout = 60s;
  const auto start = steady_clock::now();
  options.give_up = [&] { return steady_clock::now() - start > 300ms; };
  EXPECT_THAT(message_of<MachineError>([&] { StoreClient client(options); }), HasSubstr("no job store at"));
  EXPECT_LT(testing::seconds_since(start), 20);
}

// The kernel's limit of an option is below the timeouts that parallel.timeout allows.
TEST(Store, ConnectsWithTheLongestTimeout) {
  World world(1, {1h, 24h, 12h});
  EXPECT_EQ(world.join(0).add("count", 1), 1);
  world.leave();
}

TEST(Store, TakenPortErrorNamesMasterPort) {
  const StoreServer first(server_options(1));
  StoreServerOptions options = server_options(1);
  options.port = first.port();
  EXPECT_THAT(message_of<UserError>([&] { StoreServer second(options); }),
              AllOf(HasSubstr("MASTER_PORT " + std::to_string(first.port()) + ": the port is taken at 127.0.0.1")));
}

TEST(Store, PortIsReusableImmediately) {
  StoreServerOptions options = server_options(1);
  options.port = free_port();
  for (int i = 0; i < 3; ++i) {
    auto server = std::make_unique<StoreServer>(options);
    StoreClient client(client_options(options, options.port, 0));
    server.reset();  // the side that closes first keeps the port in TIME_WAIT
    EXPECT_THAT(message_of<MachineError>([&] { client.get("never", 10s); }),
                HasSubstr("it ended while rank 0 still ran"));
  }
}

TEST(Store, ListensOnlyOnItsAddress) {
  const StoreServerOptions options = server_options(1);
  const StoreServer server(options);
  EXPECT_EQ(server.addresses(), std::vector<std::string>{"127.0.0.1:" + std::to_string(server.port())});
  StoreClientOptions elsewhere = client_options(options, server.port(), 0);
  elsewhere.address = "127.0.0.2";
  elsewhere.connect_timeout = 100ms;
  EXPECT_THAT(message_of<MachineError>([&] { StoreClient client(elsewhere); }), HasSubstr("Connection refused"));
}

TEST(Store, RejectsUnusableAddresses) {
  const auto start = [](const char* address, bool one_host) {
    StoreServerOptions options = server_options(2);
    options.address = address;
    options.one_host = one_host;
    StoreServer server(options);
  };
  const auto message = [&](const char* address, bool one_host) {
    return message_of<UserError>([&] { start(address, one_host); });
  };
  EXPECT_THAT(message("192.0.2.1", true),
              AllOf(HasSubstr("MASTER_ADDR '192.0.2.1'"), HasSubstr("not an address of host host0")));
  EXPECT_THAT(message("0.0.0.0", true), AllOf(HasSubstr("MASTER_ADDR '0.0.0.0'"), HasSubstr("every network")));
  EXPECT_THAT(message("127.0.1.1", false),
              AllOf(HasSubstr("MASTER_ADDR '127.0.1.1'"), HasSubstr("other hosts cannot reach")));
  EXPECT_THAT(message("not a name", true), AllOf(HasSubstr("MASTER_ADDR 'not a name' names no host")));
  EXPECT_NO_THROW(start("127.0.1.1", true));
}

TEST(Store, ServesByName) {
  StoreServerOptions options = server_options(1);
  options.address = "localhost";
  options.port = free_port();
  const StoreServer server(options);
  StoreClient client(client_options(options, options.port, 0));
  EXPECT_EQ(client.add("k", 1), 1);
  client.goodbye();
}

TEST(Store, ServesOverIPv6) {
  std::string problem;
  try {
    listen_on(resolve("::1", 0, problem).at(0));
  } catch (const std::exception&) {
    GTEST_SKIP() << "this machine has no IPv6 loopback";
  }
  StoreServerOptions options = server_options(1);
  options.address = "::1";
  const StoreServer server(options);
  EXPECT_EQ(server.addresses(), std::vector<std::string>{"[::1]:" + std::to_string(server.port())});
  StoreClient client(client_options(options, server.port(), 0));
  EXPECT_EQ(client.add("k", 1), 1);
  client.goodbye();
}

TEST(Store, RejectsMismatchedRanks) {
  World world(2);
  world.join_all();
  const auto message = [&](auto change) {
    StoreClientOptions options = client_options(world.options, world.server->port(), 1);
    options.host = "elsewhere";
    change(options);
    return message_of<UserError>([&] { StoreClient client(options); });
  };
  EXPECT_THAT(message([](StoreClientOptions&) {}),
              AllOf(HasSubstr("rank 1 on host elsewhere"), HasSubstr("joined already, from host host1")));
  EXPECT_THAT(message([](StoreClientOptions& options) { options.world_size = 4; }),
              AllOf(HasSubstr("WORLD_SIZE is 4 here and 2 at rank 0")));
  EXPECT_THAT(message([](StoreClientOptions& options) { options.secret = "another"; }),
              AllOf(HasSubstr("another secret"), HasSubstr("FURLONG_JOB_SECRET")));
  EXPECT_THAT(message([](StoreClientOptions& options) { options.secret = ""; }), HasSubstr("no secret"));
  EXPECT_THAT(message([](StoreClientOptions& options) { options.rank = 2; }), HasSubstr("rank 2 of 2"));
  EXPECT_THAT(message([](StoreClientOptions& options) { options.times.timeout = 3s; }), HasSubstr("lost after 3 s"));
  EXPECT_THAT(message_of<UserError>([&] {
                StoreServerOptions options = server_options(1);
                options.secret = "";
                StoreServer server(options);
              }),
              HasSubstr("FURLONG_JOB_SECRET"));
  EXPECT_EQ(world[1].add("undisturbed", 1), 1);
  EXPECT_FALSE(world.server->fault());
}

}  // namespace
}  // namespace furlong
