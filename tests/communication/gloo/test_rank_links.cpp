// Connections between ranks while unauthenticated clients connect as well.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>

#include <fstream>
#include <set>

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

}  // namespace
}  // namespace furlong
