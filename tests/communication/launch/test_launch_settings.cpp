// Core distribution, line relay, and the reserved rendezvous port.
#include "communication/launch/launch_settings.h"

#include <gmock/gmock.h>
#include <netinet/in.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "communication/launch/core_split.h"
#include "communication/launch/line_relay.h"
#include "framework/core/error.h"
#include "framework/core/standard_streams.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Blocks = std::vector<std::vector<int>>;

TEST(CoreSplit, SplitsAllCoresIntoEqualBlocks) {
  EXPECT_EQ(split_cores({4, 5, 6, 7}, 2, 2), (Blocks{{4, 5}, {6, 7}}));
  EXPECT_EQ(split_cores({0, 1, 2, 3, 4, 5, 6}, 3, 2), (Blocks{{0, 1, 2}, {3, 4}, {5, 6}}));
  EXPECT_EQ(split_cores({0, 1, 2, 3}, 2, 1), (Blocks{{0, 1}, {2, 3}}));
  EXPECT_EQ(split_cores({3}, 1, 1), (Blocks{{3}}));
}

TEST(CoreSplit, ReturnsNothingIfThreadsExceedCores) {
  EXPECT_THAT(split_cores({0, 1, 2, 3}, 2, 3), IsEmpty());
  EXPECT_THAT(split_cores({0, 1}, 3, 1), IsEmpty());
  EXPECT_THAT(split_cores({}, 1, 1), IsEmpty());
}

TEST(CoreSplit, OrdersCoresByTopology) {
  // Two packages of two cores with two hardware threads each, numbered like Linux: first one thread of every core,
  // alternating between packages.
  const auto root = std::filesystem::temp_directory_path() / ("furlong_topology_" + std::to_string(getpid()));
  for (int cpu = 0; cpu < 8; ++cpu) {
    const auto folder = root / "sys/devices/system/cpu" / ("cpu" + std::to_string(cpu)) / "topology";
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "physical_package_id") << cpu % 2 << "\n";
    std::ofstream(folder / "core_id") << cpu / 2 % 2 << "\n";
  }
  EXPECT_THAT(neighboring_cores({0, 1, 2, 3, 4, 5, 6, 7}, root), ElementsAre(0, 4, 2, 6, 1, 5, 3, 7));
  EXPECT_THAT(neighboring_cores({7, 1, 2}, root), ElementsAre(2, 1, 7));
  std::filesystem::remove_all(root);
  EXPECT_THAT(neighboring_cores({7, 1, 2}, root), ElementsAre(1, 2, 7)) << "expected numerical order without topology";
}

TEST(CoreSplit, FormatsListsLikeTaskset) {
  EXPECT_EQ(core_list({0, 1, 2, 3, 8}), "0-3,8");
  EXPECT_EQ(core_list({5, 3, 4, 1, 7}), "1,3-5,7");
  EXPECT_EQ(core_list({2}), "2");
  EXPECT_EQ(core_list({}), "");
}

TEST(LinePrefixer, AssemblesLinesFromChunks) {
  LinePrefixer lines("[rank 1] ");
  std::string out;
  lines.add("a", out);
  EXPECT_EQ(out, "");
  lines.add("b\n\nc\nd", out);
  EXPECT_EQ(out, "[rank 1] ab\n[rank 1] \n[rank 1] c\n");
  lines.finish(out);
  lines.finish(out);
  EXPECT_EQ(out, "[rank 1] ab\n[rank 1] \n[rank 1] c\n[rank 1] d\n");
}

TEST(LinePrefixer, SplitsOverlongLines) {
  constexpr std::size_t longest = LinePrefixer::kLongestLine;
  for (const std::size_t piece : {std::size_t{1000}, longest, 3 * longest}) {
    LinePrefixer lines("> ");
    std::string out;
    const std::string text = std::string(2 * longest, 'x') + "\n" + std::string(longest, 'y') + "\nz\n";
    for (std::size_t i = 0; i < text.size(); i += piece) lines.add(std::string_view(text).substr(i, piece), out);
    const std::string part = "> " + std::string(longest, 'x') + "\n";
    EXPECT_TRUE(out.starts_with(part + part)) << piece;
    lines.finish(out);
    EXPECT_TRUE(out.ends_with("\n> " + std::string(longest, 'y') + "\n> z\n")) << piece;
  }
}

TEST(LinePrefixer, AddsNoEmptyLineAfterALineAtTheLimit) {
  constexpr std::size_t longest = LinePrefixer::kLongestLine;
  for (const bool apart : {false, true}) {
    LinePrefixer lines("> ");
    std::string out;
    lines.add(std::string(longest, 'x') + (apart ? "" : "\n"), out);
    if (apart) lines.add("\n", out);
    EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 1) << apart;
  }
}

TEST(LineQueue, WritesWholeLinesAndNeverBlocks) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  LineQueue queue(ends[1]);
  const std::string line = std::string(99, 'l') + "\n";
  for (int i = 0; i < 2000; ++i) queue.lines() += line;
  queue.write_some();  // a pipe holds 64 KiB, or less
  EXPECT_FALSE(queue.empty());
  EXPECT_FALSE(queue.ready());
  EXPECT_EQ(queue.lines().size() % line.size(), 0u);
  const std::size_t written = 2000 * line.size() - queue.lines().size();
  std::string taken(written, '\0');
  EXPECT_EQ(read(ends[0], taken.data(), written), static_cast<ssize_t>(written));
  EXPECT_TRUE(queue.ready());
  EXPECT_FALSE(queue.full());
  const std::int64_t lines = static_cast<std::int64_t>(queue.lines().size() / line.size()) + 2;
  queue.lines().resize(1 << 20, 'm');
  EXPECT_TRUE(queue.full());
  signal(SIGPIPE, SIG_IGN);
  close(ends[0]);
  queue.lines() += "\nlast\n";
  const std::int64_t lost = lost_messages();
  EXPECT_FALSE(queue.write_some());
  EXPECT_TRUE(queue.empty()) << "lines must be dropped without a reader";
  EXPECT_EQ(lost_messages(), lost + lines);
  signal(SIGPIPE, SIG_DFL);
  close(ends[1]);
}

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

TEST(ReservedPort, OnlyTheStoreCanListen) {
  const Socket reserved = reserve_port(0);
  const SocketAddress address = own_address(reserved);
  EXPECT_EQ(address.host(), "127.0.0.1");
  const Socket stranger(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in taken = loopback(address.port());
  EXPECT_EQ(bind(stranger.descriptor(), reinterpret_cast<const sockaddr*>(&taken), sizeof taken), -1);
  EXPECT_EQ(errno, EADDRINUSE);
  const Socket store = listen_on(address);  // throws on failure
  EXPECT_THAT(
      testing::message_of<UserError>([&] { reserve_port(address.port()); }),
      HasSubstr("--master-port " + std::to_string(address.port()) + ": cannot be used on 127.0.0.1: Address already"));
}

TEST(ReservedPort, CanBeChosen) {
  const std::uint16_t port = own_address(reserve_port(0)).port();  // free again
  EXPECT_EQ(own_address(reserve_port(port)).port(), port);
}

TEST(LaunchSettings, TextNamesRanksThreadsCoresAndPort) {
  LaunchSettings settings;
  settings.processes = 2;
  settings.threads = 4;
  settings.core_blocks = {{0, 1, 2, 3}, {4, 5, 6, 7}};
  settings.master_port = 29500;
  settings.host = "host0";
  settings.secret = "hidden";
  EXPECT_EQ(settings.text(),
            "2 ranks on host0, each with 4 threads (OMP_NUM_THREADS=4) on its own cores (0-3 | 4-7); rendezvous at "
            "127.0.0.1:29500");
  settings.processes = 1;
  settings.threads = 1;
  settings.thread_source = "OMP_NUM_THREADS=1 as set";
  EXPECT_EQ(settings.text(), "1 rank on host0, 1 thread (OMP_NUM_THREADS=1 as set); rendezvous at 127.0.0.1:29500");
}

TEST(LaunchSettings, EnvironmentReplacesRankVariables) {
  LaunchSettings settings;
  settings.processes = 2;
  settings.threads = 3;
  settings.secret = "s";
  const std::vector<std::string> variables = settings.environment_of(1, {"RANK=7", "HOME=/h", "OMP_NUM_THREADS="});
  EXPECT_THAT(variables,
              ::testing::UnorderedElementsAre("HOME=/h", "OMP_NUM_THREADS=3", "RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1",
                                              "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=0",
                                              "FURLONG_LAUNCHER=furlong", "FURLONG_JOB_SECRET=s"));
}

}  // namespace
}  // namespace furlong
