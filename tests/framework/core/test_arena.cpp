#include "framework/core/arena.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "framework/core/error.h"
#include "framework/core/random.h"
#include "framework/core/tensor.h"

namespace furlong {
namespace {

constexpr std::int64_t mebibyte = 1 << 20;
constexpr Device shape_only{DeviceType::shape_only, 0};

/// Returns the bytes that an allocation occupies, including AddressSanitizer's red zone.
std::int64_t block_size(std::int64_t bytes) {
  Arena arena(shape_only, 64 * mebibyte);
  arena.allocate(bytes);
  return arena.counters().system_bytes;
}
/// Returns the bytes that count as in use: all except the red zone.
std::int64_t counted(std::int64_t bytes) {
  Arena arena(shape_only, 64 * mebibyte);
  arena.allocate(bytes);
  return arena.counters().bytes_in_use;
}

std::int64_t distance(const void* a, const void* b) {
  return static_cast<const char*>(b) - static_cast<const char*>(a);
}

TEST(Arena, AllocatesAlignedDisjointWritableBlocks) {
  Arena arena(Device{}, 16 * mebibyte);
  std::vector<std::pair<unsigned char*, std::int64_t>> blocks;
  for (std::int64_t bytes : {0, 1, 255, 256, 257, 4096, 100000, 1, 0}) {
    auto* memory = static_cast<unsigned char*>(arena.allocate(bytes));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % 256, 0u);
    std::memset(memory, static_cast<int>(blocks.size()), static_cast<std::size_t>(bytes));
    blocks.emplace_back(memory, bytes);
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    for (std::int64_t j = 0; j < blocks[i].second; ++j)
      ASSERT_EQ(blocks[i].first[j], i) << "byte " << j << " of block " << i;
    for (std::size_t other = 0; other < i; ++other) EXPECT_NE(blocks[i].first, blocks[other].first);
  }
}

TEST(Arena, ReusesTheSmallestFreeBlockThatFits) {
  Arena arena(Device{}, 16 * mebibyte);
  // Three holes of different sizes, separated by allocated blocks.
  void* large = arena.allocate(8192);
  arena.allocate(256);
  void* small = arena.allocate(1024);
  arena.allocate(256);
  void* middle = arena.allocate(4096);
  arena.allocate(256);
  for (void* hole : {large, small, middle}) arena.release(hole);
  EXPECT_EQ(arena.allocate(3000), middle);
  EXPECT_EQ(arena.allocate(1000), small);
  EXPECT_EQ(arena.allocate(8000), large);
}

TEST(Arena, AllocatesTheRemainderOfASplitBlock) {
  Arena arena(Device{}, 16 * mebibyte);
  void* hole = arena.allocate(8192);
  arena.allocate(256);
  arena.release(hole);
  EXPECT_EQ(arena.allocate(2048), hole);
  EXPECT_EQ(distance(hole, arena.allocate(2048)), block_size(2048));
}

TEST(Arena, MergesNeighborsInAnyReleaseOrder) {
  std::vector<int> order{0, 1, 2};
  do {
    Arena arena(Device{}, 16 * mebibyte);
    void* blocks[] = {arena.allocate(1024), arena.allocate(2048), arena.allocate(512)};
    arena.allocate(256);  // keeps the merged block away from the top
    for (int i : order) arena.release(blocks[i]);
    const ArenaCounters before = arena.counters();
    EXPECT_EQ(arena.allocate(1024 + 2048 + 512), blocks[0]);
    EXPECT_EQ(arena.counters().system_requests, before.system_requests);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(Arena, GrowsFromAFreeBlockAtTheTop) {
  Arena arena(Device{}, 16 * mebibyte);
  void* first = arena.allocate(mebibyte);
  arena.release(first);
  EXPECT_EQ(arena.allocate(3 * mebibyte), first);
  EXPECT_EQ(arena.counters().system_bytes, block_size(3 * mebibyte));
}

TEST(Arena, CountsAllocationsAndReleases) {
  Arena arena(Device{}, 16 * mebibyte);
  EXPECT_EQ(arena.capacity(), 16 * mebibyte);
  void* a = arena.allocate(1000);
  void* b = arena.allocate(5000);
  const std::int64_t both = block_size(1000) + block_size(5000);
  ArenaCounters counters = arena.counters();
  EXPECT_EQ(counters.bytes_in_use, counted(1000) + counted(5000));
  EXPECT_EQ(counters.peak_bytes, counted(1000) + counted(5000));
  EXPECT_EQ(counters.system_bytes, both);
  EXPECT_EQ(counters.system_requests, 2);
  EXPECT_EQ(counters.allocations, 2);

  arena.release(a);
  counters = arena.counters();
  EXPECT_EQ(counters.bytes_in_use, counted(5000));
  EXPECT_EQ(counters.peak_bytes, counted(1000) + counted(5000));
  arena.reset_peak();
  EXPECT_EQ(arena.counters().peak_bytes, counted(5000));

  arena.release(b);
  arena.release(nullptr);
  counters = arena.counters();
  EXPECT_EQ(counters.bytes_in_use, 0);
  EXPECT_EQ(counters.system_bytes, both);  // the high-water mark stays
  EXPECT_EQ(counters.allocations, 2);
}

TEST(Arena, RequestsNoSystemMemoryInASteadyLoop) {
  Arena arena(Device{}, 64 * mebibyte);
  const auto step = [&] {
    // Sizes and lifetimes of a forward and backward pass: some blocks stay, scratch is short-lived, and stored blocks
    // are released in reverse order.
    std::vector<void*> kept;
    for (std::int64_t layer = 0; layer < 12; ++layer) {
      void* scratch = arena.allocate(300000 + 1000 * layer);
      kept.push_back(arena.allocate(70000 + 777 * layer));
      arena.release(scratch);
    }
    while (!kept.empty()) {
      void* gradient = arena.allocate(123456);
      arena.release(kept.back());
      kept.pop_back();
      arena.release(gradient);
    }
  };
  step();
  const ArenaCounters first = arena.counters();
  for (int i = 0; i < 100; ++i) step();
  const ArenaCounters last = arena.counters();
  EXPECT_EQ(last.system_requests, first.system_requests);
  EXPECT_EQ(last.system_bytes, first.system_bytes);
  EXPECT_EQ(last.peak_bytes, first.peak_bytes);
  EXPECT_EQ(last.allocations, 101 * first.allocations);
  EXPECT_EQ(last.bytes_in_use, 0);
}

TEST(Arena, ReportsSizesAndStaysUsableBeyondCapacity) {
  Arena arena(Device{}, 16 * mebibyte);
  void* held = arena.allocate(10 * mebibyte);
  try {
    arena.allocate(8 * mebibyte);
    FAIL() << "18 MiB out of 16";
  } catch (const MachineError& error) {
    const std::string message = error.what();
    for (const char* part : {"cpu", "8 MiB", "10 of 16 MiB in use"})
      EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_EQ(error.exit_status(), 1);
  }
  EXPECT_EQ(arena.counters().bytes_in_use, counted(10 * mebibyte));
  void* rest = arena.allocate(5 * mebibyte);
  arena.release(rest);
  // The same with a free block at the top, which a failed growth must preserve.
  EXPECT_THROW(arena.allocate(8 * mebibyte), MachineError);
  EXPECT_EQ(arena.allocate(5 * mebibyte), rest);
  arena.release(held);
  EXPECT_THROW(arena.allocate(-1), ContractError);
}

TEST(Arena, CountsShapeOnlyMemoryBeyondTheMachine) {
  const std::int64_t tebibyte = std::int64_t{1} << 40;
  Arena arena(shape_only, 8 * tebibyte);
  void* a = arena.allocate(3 * tebibyte);
  void* b = arena.allocate(2 * tebibyte);
  EXPECT_EQ(distance(a, b), 3 * tebibyte + (block_size(256) - 256));
  EXPECT_GE(arena.counters().peak_bytes, 5 * tebibyte);
  arena.release(a);
  arena.release(b);
  EXPECT_EQ(arena.counters().bytes_in_use, 0);
}

TEST(Arena, RejectsTensorsWhoseBytesOverflow) {
  // 2^62 elements of 4 bytes are 2^64 bytes, which wrap around to 0 in 64 bits.
  const Shape shape{std::int64_t{1} << 31, std::int64_t{1} << 31};
  EXPECT_THROW(Tensor::empty(shape, DType::float32, shape_only), ContractError);
  EXPECT_THROW(Tensor::empty({(std::int64_t{1} << 61) + 1}, DType::float32), ContractError);
  EXPECT_THROW(Tensor::empty({(std::int64_t{1} << 61) - 1}, DType::float32, shape_only),
               ContractError);  // rounds up to 2^63
  EXPECT_THROW(Tensor::empty({-4}, DType::float32), ContractError);
}

TEST(Arena, AllocatesFromManyThreads) {
  Arena arena(Device{}, 64 * mebibyte);
  const auto work = [&](std::uint32_t thread) {
    struct Block {
      unsigned char* memory;
      std::int64_t bytes;
      unsigned char mark;
    };
    std::vector<Block> held;
    const RandomKey key{1, 0, thread};
    const auto give_back = [&](std::size_t at) {
      const Block block = held[at];
      for (std::int64_t i = 0; i < block.bytes; ++i) {
        if (block.memory[i] != block.mark) {
          ADD_FAILURE() << "thread " << thread << " found another thread's mark in its block";
          break;
        }
      }
      arena.release(block.memory);
      held[at] = held.back();
      held.pop_back();
    };
    for (std::uint64_t i = 0; i < 2000; ++i) {
      const std::uint32_t word = random_word(key, i);
      if (held.size() > 20 || (word % 3 == 0 && !held.empty())) {
        give_back(word / 3 % held.size());
      } else {
        const Block block{static_cast<unsigned char*>(arena.allocate(word % 5000)), word % 5000,
                          static_cast<unsigned char>(word >> 24)};
        std::memset(block.memory, block.mark, static_cast<std::size_t>(block.bytes));
        held.push_back(block);
      }
    }
    while (!held.empty()) give_back(held.size() - 1);
  };
  std::vector<std::thread> threads;
  for (std::uint32_t thread = 0; thread < 4; ++thread) threads.emplace_back(work, thread);
  for (std::thread& thread : threads) thread.join();
  const ArenaCounters counters = arena.counters();
  EXPECT_EQ(counters.bytes_in_use, 0);
  // All blocks have merged into one.
  arena.allocate(counters.system_bytes - (block_size(256) - 256));
  EXPECT_EQ(arena.counters().system_requests, counters.system_requests);
}

TEST(Arena, ReleasesMemoryWithTheLastTensorCopy) {
  Arena& cpu = arena(Device{});
  const std::int64_t before = cpu.counters().bytes_in_use;
  {
    Tensor view;
    {
      const Tensor tensor = Tensor::empty({100, 100}, DType::float32);
      view = tensor.narrow(0, 99, 1);
    }
    EXPECT_EQ(cpu.counters().bytes_in_use - before, counted(40000));
  }
  EXPECT_EQ(cpu.counters().bytes_in_use, before);
}

}  // namespace
}  // namespace furlong
