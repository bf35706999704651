// Connections between ranks while unauthenticated clients connect as well.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>

#include <fstream>
#include <set>

#include "communication/gloo/rank_links.h"
#include "tests/communication/communicator_testing.h"

namespace furlong {
namespace {

using namespace communicator_testing;
namespace fs = std::filesystem;

/// Returns the IPv4 TCP ports that a process listens at.
std::set<std::uint16_t> ports_of(pid_t process) {
  std::set<std::string> inodes;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(fmt::format("/proc/{}/fd", process), ignored)) {
    const std::string target = fs::read_symlink(entry.path(), ignored).string();
    if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  std::set<std::uint16_t> ports;
  std::ifstream table("/proc/net/tcp");
  std::string line;
  std::getline(table, line);
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::string field[10];
    for (std::string& each : field) fields >> each;
    if (field[3] == "0A" && inodes.contains(field[9]))
      ports.insert(static_cast<std::uint16_t>(std::stoi(field[1].substr(field[1].find(':') + 1), nullptr, 16)));
  }
  return ports;
}

/// Connects to the ports that a process listens at, except those in `spared`. Some connections send nothing, some less
/// than a greeting, some more. All stay open.
void flood(pid_t process, const std::set<std::uint16_t>& spared, std::atomic<bool>& enough, std::atomic<int>& made) {
  std::vector<Socket> held;
  const std::string rubbish(4096, '\xff');
  while (!enough) {
    for (const std::uint16_t port : ports_of(process)) {
      for (int i = 0; i < 30 && !spared.contains(port) && held.size() < 400; ++i) {
        Socket stranger(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_port = htons(port);
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        ::connect(stranger.descriptor(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
        if (!wait_for(stranger, POLLOUT, steady_clock::now() + 20ms)) break;
        if (i % 3 != 0) send(stranger, std::span(rubbish).first(i % 3 == 1 ? 4096 : 20));
        held.push_back(std::move(stranger));
        ++made;
      }
    }
    std::this_thread::sleep_for(1ms);
  }
}

// Ranks 1 and 2 connect half a second after rank 0 has started to listen. Meanwhile, and until the job runs, rank 1
// opens unauthenticated connections to rank 0.
TEST(RankLinks, ConnectsDespiteUnauthenticatedClients) {
  Job job(3, [](Rank& self) {
    std::atomic<bool> enough = false;
    std::atomic<int> made = 0;
    std::thread stranger;
    if (self.rank() == 0) {
      const auto ports = ports_of(::getpid());
      ASSERT_EQ(ports.size(), 1u) << "the store's";
      self.store().set("process", store_testing::bytes(fmt::format("{} {}", ::getpid(), *ports.begin())));
    } else {
      self.store().set(fmt::format("gloo/all/{}/here", self.rank()), store_testing::bytes("yes"));
      const std::vector<char> process = self.store().get("process", 20s);
      std::istringstream text(std::string(process.begin(), process.end()));
      pid_t victim = 0;
      std::uint16_t spared = 0;
      text >> victim >> spared;
      if (self.rank() == 1) stranger = std::thread([&, victim, spared] { flood(victim, {spared}, enough, made); });
      self.store().wait({"gloo/all/0"}, 20s);
      std::this_thread::sleep_for(500ms);
    }
    const std::unique_ptr<Communicator> communicator = self.communicator();
    const Tensor values = tensor<float>(1, self.rank(), 1000);
    communicator->all_reduce(Stream{}, values).wait();
    EXPECT_EQ(wrong_elements<float>(values, 1, 3, Reduction::sum), 0);
    enough = true;
    if (stranger.joinable()) {
      stranger.join();
      EXPECT_GT(made, 10);
    }
    self.leave();
  });
  EXPECT_EQ(job.wait(), (std::vector<int>{0, 0, 0}));
}

SocketAddress address_of(const std::string& host, std::uint16_t port) {
  std::string problem;
  const std::vector<SocketAddress> found = resolve(host, port, problem);
  return found.empty() ? throw MachineError("{}", problem) : found.front();
}

/// Connects a rank of a job with link_ranks() alone. `before` runs once all ranks listen.
std::vector<Socket> link(Rank& self, const std::string& host, milliseconds patience,
                         const std::function<void(const std::vector<LinkedRank>&)>& before) {
  const Socket listener = listen_on(address_of(host, 0));
  const auto key = [](int rank) { return fmt::format("port {}", rank); };
  self.store().set(key(self.rank()), store_testing::bytes(std::to_string(own_address(listener).port())));
  std::vector<LinkedRank> ranks(static_cast<std::size_t>(self.size()));
  for (int rank = 0; rank < self.size(); ++rank) {
    const std::vector<char> port = self.store().get(key(rank), 20s);
    LinkedRank& linked = ranks[static_cast<std::size_t>(rank)];
    linked.address = address_of(host, static_cast<std::uint16_t>(std::stoi(std::string(port.begin(), port.end()))));
    linked.token.assign(link_token_bytes, static_cast<char>('a' + rank));
  }
  before(ranks);
  return link_ranks(listener, self.rank(), ranks, steady_clock::now() + patience, [] { return false; });
}

/// Opens connections that send less than a greeting.
std::vector<Socket> strangers_at(const SocketAddress& address, int count) {
  std::vector<Socket> strangers;
  for (int i = 0; i < count; ++i) {
    int error = 0;
    strangers.push_back(connect_to(address, steady_clock::now() + 20s, 0ms, error));
    EXPECT_TRUE(strangers.back()) << error_text(error);
    send(strangers.back(), std::string_view("FURL"));
  }
  return strangers;
}

/// Sends this rank's number to all others and expects theirs.
void expect_own_links(const Rank& self, const std::vector<Socket>& links) {
  for (const Socket& link : links) {
    const char number = static_cast<char>(self.rank());
    if (link) {
      EXPECT_EQ(send(link, std::span(&number, 1)).bytes, 1u);
    }
  }
  for (int rank = 0; rank < self.size(); ++rank) {
    const Socket& link = links[static_cast<std::size_t>(rank)];
    EXPECT_EQ(static_cast<bool>(link), rank != self.rank());
    char number = -1;
    if (link && wait_for(link, POLLIN, steady_clock::now() + 20s)) receive(link, std::span(&number, 1));
    if (link) {
      EXPECT_EQ(number, rank);
    }
  }
}

TEST(RankLinks, ConnectsOverIPv6DespiteUnauthenticatedClients) {
  Job job(3, [](Rank& self) {
    std::vector<Socket> strangers;
    const std::vector<Socket> links = link(self, "::1", 20s, [&](const std::vector<LinkedRank>& ranks) {
      if (self.rank() == 2) strangers = strangers_at(ranks[0].address, 10);
    });
    EXPECT_EQ(peer_address(links[self.rank() == 0 ? 1 : 0]).host(), "::1");
    expect_own_links(self, links);
    self.leave();
  });
  EXPECT_EQ(job.wait(), (std::vector<int>{0, 0, 0}));
}

/// Lowers this process's limit so that it can open `count` more descriptors.
class FewDescriptors {
 public:
  explicit FewDescriptors(int count) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const Socket lowest_free(::dup(0));
    rlimit few = before_;
    few.rlim_cur = static_cast<rlim_t>(lowest_free.descriptor() + count);
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit before_{};
};

// Rank 0 can open four descriptors, and strangers take them all before rank 1 connects.
TEST(RankLinks, ConnectsWhenStrangersTakeAllDescriptors) {
  Job job(2, [](Rank& self) {
    std::vector<Socket> strangers;
    std::unique_ptr<FewDescriptors> few;
    const std::vector<Socket> links = link(self, "127.0.0.1", 20s, [&](const std::vector<LinkedRank>& ranks) {
      if (self.rank() == 0) few = std::make_unique<FewDescriptors>(4);
      if (self.rank() == 1) strangers = strangers_at(ranks[0].address, 12);
    });
    few.reset();
    expect_own_links(self, links);
    self.leave();
  });
  EXPECT_EQ(job.wait(), (std::vector<int>{0, 0}));
}

TEST(RankLinks, NamesTheShortageOfDescriptors) {
  Job job(2, [](Rank& self) {
    try {
      std::unique_ptr<FewDescriptors> few;
      link(self, "127.0.0.1", 1s, [&](const std::vector<LinkedRank>&) {
        if (self.rank() == 0) few = std::make_unique<FewDescriptors>(0);
      });
      ADD_FAILURE() << "connected";
    } catch (const LinkFailure& failure) {
      EXPECT_EQ(failure.rank, 1 - self.rank());
      if (self.rank() == 0) {
        EXPECT_EQ(failure.reason, "it did not connect; this rank: Too many open files");
      }
    }
    self.leave();
  });
  EXPECT_EQ(job.wait(), (std::vector<int>{0, 0}));
}

}  // namespace
}  // namespace furlong
