// GPU memory in which each tensor is a separate allocation, for tools that check memory. Reports of AddressSanitizer
// are tested in its builds (tests/sanitizers).
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "framework/core/arena.h"
#include "framework/core/error.h"
#include "tests/framework/engine_testing.h"
#include "tests/places.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using namespace furlong::testing;

constexpr std::int64_t gibibyte = std::int64_t{1} << 30;

class SeparateTensors : public EngineTest {
 protected:
  GpuEngine& engine() { return require_gpu_engine(device().type); }
  void write(void* target, char value, std::int64_t bytes) {
    engine().copy(stream(), target, std::vector<char>(static_cast<std::size_t>(bytes), value).data(), bytes);
  }
  std::vector<char> read(const void* source, std::int64_t bytes) {
    std::vector<char> values(static_cast<std::size_t>(bytes));
    engine().copy(stream(), values.data(), source, bytes);
    return values;
  }
};
FURLONG_INSTANTIATE_GPUS(SeparateTensors);

TEST_P(SeparateTensors, KeepTheirContents) {
  Arena arena(device(), gibibyte, ArenaBlocks::separate);
  std::vector<std::pair<void*, std::int64_t>> blocks;
  for (const std::int64_t bytes : {1, 3, 244, 256, 257, 512, 4097, 3000001}) {
    void* const block = arena.allocate(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % 256, 0u);
    write(block, static_cast<char>(blocks.size() + 1), bytes);
    blocks.emplace_back(block, bytes);
  }
  const auto expect_kept = [&] {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const auto [block, bytes] = blocks[i];
      EXPECT_EQ(read(block, bytes), std::vector<char>(static_cast<std::size_t>(bytes), static_cast<char>(i + 1)))
          << "block " << i;
    }
  };
  expect_kept();
  // Some are freed and others are allocated.
  for (const std::size_t i : {1, 4, 6}) {
    arena.release(blocks[i].first);
    blocks[i].first = arena.allocate(blocks[i].second);
    write(blocks[i].first, static_cast<char>(i + 1), blocks[i].second);
  }
  expect_kept();
  engine().copy(stream(), blocks[3].first, blocks[5].first, 256);
  engine().fill_zero(stream(), blocks[3].first, 100);
  std::vector<char> expected(256, 6);
  std::fill_n(expected.begin(), 100, '\0');
  EXPECT_EQ(read(blocks[3].first, 256), expected);
  EXPECT_NE(arena.allocate(0), nullptr);
}

TEST_P(SeparateTensors, AreCountedLikeOneRange) {
  Arena separate(device(), gibibyte, ArenaBlocks::separate), together(device(), gibibyte);
  const auto step = [](Arena& arena) {
    std::vector<void*> kept;
    for (std::int64_t layer = 0; layer < 6; ++layer) {
      void* const scratch = arena.allocate(30000 + 1000 * layer);
      kept.push_back(arena.allocate(7000 + 777 * layer));
      arena.release(scratch);
    }
    const ArenaCounters held = arena.counters();
    for (void* block : kept) arena.release(block);
    return held;
  };
  for (int i = 0; i < 2; ++i) {
    const ArenaCounters one = step(separate), other = step(together);
    EXPECT_EQ(one.bytes_in_use, other.bytes_in_use);
    EXPECT_EQ(one.peak_bytes, other.peak_bytes);
    EXPECT_EQ(one.allocations, other.allocations);
  }
  const ArenaCounters before = separate.counters();
  EXPECT_EQ(before.bytes_in_use, 0);
  EXPECT_EQ(before.system_bytes, before.peak_bytes);
  step(separate);
  EXPECT_EQ(separate.counters().system_requests, before.system_requests)
      << "a steady step needs no more memory than the previous one";
}

TEST_P(SeparateTensors, ExceedingCapacityReportsSizesAndKeepsTheArenaUsable) {
  Arena arena(device(), 16 << 20, ArenaBlocks::separate);
  void* const held = arena.allocate(10 << 20);
  const std::string message = message_of<MachineError>([&] { arena.allocate(8 << 20); });
  for (const char* part : {"out of memory on ", "8 MiB", "10 of 16 MiB in use"})
    EXPECT_NE(message.find(part), std::string::npos) << message;
  arena.release(held);
  EXPECT_EQ(arena.counters().bytes_in_use, 0);
  arena.release(arena.allocate(15 << 20));
  arena.release(nullptr);
}

/// Nothing can be freed on CUDA while work is being recorded.
TEST_P(SeparateTensors, CanBeFreedDuringRecording) {
  Arena arena(device(), gibibyte, ArenaBlocks::separate);
  void* const target = arena.allocate(1000);
  void* const going = arena.allocate(1000);
  write(target, 1, 1000);
  engine().begin_capture(stream());
  engine().fill_zero(stream(), target, 500);
  arena.release(going);
  const auto graph = engine().end_capture(stream());
  EXPECT_EQ(read(target, 1000), std::vector<char>(1000, 1)) << "recorded, not run";
  graph->replay(stream());
  std::vector<char> expected(1000, 1);
  std::fill_n(expected.begin(), 500, '\0');
  EXPECT_EQ(read(target, 1000), expected);
  void* const another = arena.allocate(1000);
  engine().begin_capture(stream());
  arena.release(another);
  engine().abandon_capture(stream());
  EXPECT_EQ(read(target, 1000), expected);
}

TEST(SeparateTensorsEnvironment, AcceptsOneOrEmpty) {
  EXPECT_EQ(parse_arena_blocks(nullptr), ArenaBlocks::together);
  EXPECT_EQ(parse_arena_blocks(""), ArenaBlocks::together);
  EXPECT_EQ(parse_arena_blocks("0"), ArenaBlocks::together);
  EXPECT_EQ(parse_arena_blocks("1"), ArenaBlocks::separate);
  for (const char* text : {"2", "yes", "1 ", "-1"}) {
    const std::string message = message_of<UserError>([&] { parse_arena_blocks(text); });
    EXPECT_EQ(message.rfind(std::string("FURLONG_SEPARATE_TENSORS: '") + text + "' ", 0), 0u) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
  EXPECT_THROW(Arena(Device{}, gibibyte, ArenaBlocks::separate), ContractError) << "host memory has its own tools";
}

struct Ended {
  int status;
  std::string output;
};
Ended run(const std::string& command) {
  FILE* const pipe = popen((command + " 2>&1").c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  Ended ended{-1, ""};
  char buffer[4096];
  for (std::size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) ended.output.append(buffer, n);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) ended.status = WEXITSTATUS(status);
  return ended;
}

TEST_P(SeparateTensors, AreEnabledByEnvironment) {
  const std::string command = "'" + program_under_test() + "' bench attention --device " +
                              (on_simulator() ? "simulated" : "cuda") +
                              " --lengths 96 --heads 1 --head-dim 16 --features 16 --train --repeats 1";
  const Ended separate = run("FURLONG_SEPARATE_TENSORS=1 " + command);
  EXPECT_EQ(separate.status, 0) << separate.output;
  const Ended wrong = run("FURLONG_SEPARATE_TENSORS=all " + command);
  EXPECT_EQ(wrong.status, 2) << wrong.output;
  EXPECT_NE(wrong.output.find("FURLONG_SEPARATE_TENSORS: 'all'"), std::string::npos) << wrong.output;
}

}  // namespace
}  // namespace furlong
