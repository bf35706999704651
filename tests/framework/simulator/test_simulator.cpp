#if __has_include(<cuda_bf16.h>)  // the simulator takes CUDA's types from the toolkit's headers
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "framework/simulator/simulator_fiber.h"
#include "tests/framework/simulator/planted_faults.h"

namespace furlong {
namespace {

using simulator::KernelFault;
using simulator::Options;
using simulator::OptionsScope;
using simulator::Order;
using ::testing::AllOf;
using ::testing::HasSubstr;

const Stream simulated{{DeviceType::simulated, 0}};

/// A tensor on the simulated device, so that AddressSanitizer knows its end.
template <class T>
Tensor on_device(const std::vector<T>& values) {
  return Tensor::from(values, {static_cast<std::int64_t>(values.size())}, simulated.device);
}

/// Returns the message that the launch throws; empty if it succeeds.
template <class... Parameters, class... Arguments>
std::string fault_of(void (*kernel)(Parameters...), dim3 grid, dim3 block, Arguments... arguments) {
  try {
    launch(simulated, kernel, grid, block, 0, arguments...);
  } catch (const KernelFault& fault) {
    return fault.what();
  }
  return "";
}

std::vector<Options> all_orders() {
  std::vector<Options> result;
  for (const char* name : {"forward", "reverse", "warp_first", "random:1", "random:2", "random:77"}) {
    result.emplace_back();
    simulator::set_order(result.back(), name);
  }
  return result;
}

// ---- Correct kernels ----

__global__ void indices(std::int32_t* out) {
  const std::int64_t block = blockIdx.x + gridDim.x * (blockIdx.y + static_cast<std::int64_t>(gridDim.y) * blockIdx.z);
  const std::int64_t place = block * blockDim.x * blockDim.y * blockDim.z + block_thread();
  out[place] = static_cast<std::int32_t>(threadIdx.x + 100 * threadIdx.y + 10000 * threadIdx.z + 1000000 * block);
}

TEST(Simulator, RunsEachThreadOfEachBlockOnce) {
  for (const Options& options : all_orders()) {
    const OptionsScope scope(options);
    const dim3 grid(3, 2, 2), block(8, 4, 3);
    const Tensor out = Tensor::zeros({12 * 96}, DType::int32, simulated.device);
    const auto before = simulator::statistics();
    launch(simulated, indices, grid, block, 0, gpu_data<std::int32_t>(out));
    EXPECT_EQ(simulator::statistics().threads - before.threads, 12u * 96);
    EXPECT_EQ(simulator::statistics().blocks - before.blocks, 12u);
    const auto values = out.to_vector<std::int32_t>();
    for (int b = 0; b < 12; ++b) {
      for (int t = 0; t < 96; ++t)
        ASSERT_EQ(values[b * 96 + t], t % 8 + 100 * (t / 8 % 4) + 10000 * (t / 32) + 1000000 * b);
    }
  }
}

/// sums[b] = the sum of block b's values. Uses barriers and shuffles.
__global__ void block_sums(const float* values, std::int64_t n, float* sums) {
  float own = 0;
  for (std::int64_t i = global_thread(); i < n; i += grid_stride()) own += values[i];
  own = block_sum(own);
  if (block_thread() == 0) sums[blockIdx.x] = own;
}

TEST(Simulator, CorrectReductionHasTheSameBitsInEveryOrder) {
  std::vector<float> values(5000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = random_uniform({1, 2, 3}, i) - 0.3f;
  double expected = 0;
  for (const float value : values) expected += value;
  std::vector<float> first;
  for (const Options& options : all_orders()) {
    const OptionsScope scope(options);
    const Tensor x = on_device(values), partial = Tensor::zeros({7}, DType::float32, simulated.device);
    const Tensor sum = Tensor::zeros({1}, DType::float32, simulated.device);
    launch(simulated, block_sums, dim3(7), dim3(96), 0, gpu_data<float>(x), 5000, gpu_data<float>(partial));
    launch(simulated, block_sums, dim3(1), dim3(32), 0, gpu_data<float>(partial), 7, gpu_data<float>(sum));
    std::vector<float> results = partial.to_vector<float>();
    results.push_back(sum.to_vector<float>()[0]);
    if (first.empty()) first = results;
    EXPECT_EQ(results, first);
  }
  // 5000 terms below 0.7 in absolute value, added in chains of about 8 + 5 + 2 and 1 + 5.
  EXPECT_NEAR(first.back(), expected, 25 * 0.35 * 5000 * 0x1p-24);
}

__global__ void shuffles(std::int32_t* out, int width) {
  const int lane = lane_index();
  std::int32_t* mine = out + 7 * block_thread();
  mine[0] = __shfl_sync(full_warp, lane, 5, width);
  mine[1] = __shfl_sync(full_warp, lane, lane + 1, width);
  mine[2] = __shfl_up_sync(full_warp, lane, 3, width);
  mine[3] = __shfl_xor_sync(full_warp, lane, 2, width);
  mine[4] = static_cast<std::int32_t>(__shfl_xor_sync(full_warp, 1.5 * lane, 1, width) * 2);  // 8 bytes
  mine[5] = lane < 12 ? __shfl_xor_sync(0x00000fffu, lane, 3) : __shfl_xor_sync(0xfffff000u, lane, 1);
  mine[6] = __shfl_xor_sync(full_warp, lane, 16, width);
}

TEST(Simulator, ShufflesFollowTheProgrammingGuide) {
  for (const Options& options : all_orders()) {
    const OptionsScope scope(options);
    for (const int width : {32, 16, 4}) {
      const Tensor out = Tensor::zeros({7 * 64}, DType::int32, simulated.device);
      launch(simulated, shuffles, dim3(1), dim3(64), 0, gpu_data<std::int32_t>(out), width);
      const auto values = out.to_vector<std::int32_t>();
      for (int thread = 0; thread < 64; ++thread) {
        const int lane = thread % 32, first = lane / width * width, place = lane - first;
        const int expected[7] = {first + 5 % width, first + (lane + 1) % width, place >= 3 ? lane - 3 : lane, lane ^ 2,
                                 3 * (lane ^ 1), lane < 12 ? lane ^ 3 : lane ^ 1,
                                 // A later group cannot be read, an earlier one can.
                                 (lane ^ 16) / width > lane / width ? lane : lane ^ 16};
        for (int i = 0; i < 7; ++i)
          ASSERT_EQ(values[7 * thread + i], expected[i]) << "width " << width << ", lane " << lane << ", case " << i;
      }
    }
  }
}

__global__ void votes(std::int32_t* out) {
  const int t = block_thread();
  std::int32_t* mine = out + 5 * t;
  mine[0] = static_cast<std::int32_t>(__ballot_sync(full_warp, t % 3 == 0));
  mine[1] = __any_sync(full_warp, t == 40);
  mine[2] = __all_sync(full_warp, t < 40);
  mine[3] = __syncthreads_or(t == 63);
  mine[4] = __syncthreads_or(t > 63);
}

TEST(Simulator, VotesOfWarpsAndBlocks) {
  for (const Options& options : all_orders()) {
    const OptionsScope scope(options);
    const Tensor out = Tensor::zeros({5 * 64}, DType::int32, simulated.device);
    launch(simulated, votes, dim3(1), dim3(64), 0, gpu_data<std::int32_t>(out));
    const auto values = out.to_vector<std::int32_t>();
    for (int t = 0; t < 64; ++t) {
      std::uint32_t ballot = 0;
      for (int lane = 0; lane < 32; ++lane) ballot |= (t / 32 * 32 + lane) % 3 == 0 ? 1u << lane : 0u;
      const std::vector<std::int32_t> expected{static_cast<std::int32_t>(ballot), t / 32 == 1, t / 32 == 0, 1, 0};
      EXPECT_EQ(std::vector<std::int32_t>(values.begin() + 5 * t, values.begin() + 5 * t + 5), expected);
    }
  }
}

__global__ void atomics(std::int32_t* integer, float* sum, unsigned long long* wide) {
  const int t = static_cast<int>(global_thread());
  atomicAdd(integer, t);
  atomicAdd(sum, 0.5f);
  atomicAdd(wide, 1ull << 33);
}

TEST(Simulator, AtomicsLoseNoUpdate) {
  const Tensor integer = Tensor::zeros({1}, DType::int32, simulated.device),
               sum = Tensor::zeros({1}, DType::float32, simulated.device);
  const Tensor wide = Tensor::zeros({1}, DType::float64, simulated.device);  // 8 bytes
  launch(simulated, atomics, dim3(4), dim3(64), 0, gpu_data<std::int32_t>(integer), gpu_data<float>(sum),
         static_cast<unsigned long long*>(wide.address()));
  EXPECT_EQ(integer.to_vector<std::int32_t>()[0], 255 * 128);
  EXPECT_EQ(sum.to_vector<float>()[0], 128.0f);
  EXPECT_EQ(std::bit_cast<std::uint64_t>(wide.to_vector<double>()[0]), std::uint64_t{256} << 33);
}

__global__ void random_words(RandomKey key, std::uint64_t first_block, std::int32_t* words) {
  const auto four = philox(key, first_block + threadIdx.x);
  for (unsigned i = 0; i < 4; ++i) words[4 * threadIdx.x + i] = static_cast<std::int32_t>(four[i]);
}

TEST(Simulator, RandomNumbersMatchTheCpu) {
  const RandomKey key{0x123456789abcdefull, 7, random_stream("blocks.0.dropout")};
  const std::uint64_t first_block = (std::uint64_t{1} << 32) - 11;
  const Tensor words = Tensor::zeros({128}, DType::int32, simulated.device);
  launch(simulated, random_words, dim3(1), dim3(32), 0, key, first_block, gpu_data<std::int32_t>(words));
  const auto got = words.to_vector<std::int32_t>();
  for (std::uint64_t i = 0; i < 128; ++i)
    EXPECT_EQ(static_cast<std::uint32_t>(got[i]), random_word(key, 4 * first_block + i));
}

template <class T>
__global__ void convert(const T* x, T* y, int n) {
  for (int i = static_cast<int>(global_thread()); i < n / 2; i += static_cast<int>(grid_stride())) {
    auto pair = load_vector<2>(x + 2 * i);
    pair[0] = from_compute<T>(to_compute(pair[0]) * 3);
    pair[1] = from_compute<T>(gpu_max(to_compute(pair[1]), gpu_compute_t<T>(0)));
    store_vector(y + 2 * i, pair);
  }
}

TEST(Simulator, ReadsComputesAndRoundsEachDtype) {
  for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
    with_gpu_float_type(dtype, "convert", [&]<class T>(std::type_identity<T>) {
      using Host = std::conditional_t<std::is_same_v<T, __nv_bfloat16>, bfloat16, T>;
      std::vector<Host> values;
      for (int i = 0; i < 300; ++i) values.push_back(static_cast<Host>(0.37f * static_cast<float>(i % 41 - 20)));
      const Tensor x = on_device(values), y = Tensor::zeros({300}, dtype, simulated.device);
      launch(simulated, convert<T>, dim3(grid_blocks(150, 64)), dim3(64), 0, gpu_data<T>(x), gpu_data<T>(y), 300);
      const auto got = y.template to_vector<Host>();
      for (int i = 0; i < 300; ++i) {
        const auto value = static_cast<compute_t<Host>>(values[i]);
        const Host expected(i % 2 == 0 ? value * 3 : std::max(value, compute_t<Host>(0)));
        EXPECT_EQ(static_cast<double>(got[i]), static_cast<double>(expected));
      }
    });
  }
  EXPECT_THROW(with_gpu_float_type(DType::int32, "convert", [](auto) {}), ContractError);
}

__global__ void copy_parts(const float* source, float* out) {
  FURLONG_SHARED(float, tile, [3][64]);
  cp_async16(&tile[0][4 * (threadIdx.x % 16)], source, 12);  // three floats and a zero
  cp_async_commit();
  cp_async<8>(&tile[1][2 * threadIdx.x], source + 2 * threadIdx.x);
  cp_async_commit();
  cp_async<4>(&tile[2][threadIdx.x], source, 0);
  cp_async_commit();
  cp_async_wait<1>();
  out[3 * threadIdx.x] = tile[0][4 * (threadIdx.x % 16) + 2] + tile[0][4 * (threadIdx.x % 16) + 3];
  out[3 * threadIdx.x + 1] = tile[1][2 * threadIdx.x + 1];
  cp_async_wait<0>();
  out[3 * threadIdx.x + 2] = tile[2][threadIdx.x];
}

TEST(Simulator, GroupedCopiesFillWithZeros) {
  std::vector<float> values(64);
  for (int i = 0; i < 64; ++i) values[i] = static_cast<float>(i + 1);
  const Tensor source = on_device(values), out = Tensor::zeros({48}, DType::float32, simulated.device);
  for (const auto mode : {simulator::AsyncCopies::deferred, simulator::AsyncCopies::eager}) {
    Options options = simulator::options();
    options.async_copies = mode;
    const OptionsScope scope(options);
    // 32 threads is the minimum of a launch; the last 16 copy what the first have copied.
    launch(
        simulated,
        +[](const float* from, float* to) {
          if (threadIdx.x < 16) copy_parts(from, to);
        },
        dim3(1), dim3(32), 0, gpu_data<float>(source), gpu_data<float>(out));
    const auto got = out.to_vector<float>();
    for (int t = 0; t < 16; ++t) {
      EXPECT_EQ(got[3 * t], 3.0f);
      EXPECT_EQ(got[3 * t + 1], static_cast<float>(2 * t + 2));
      EXPECT_EQ(got[3 * t + 2], 0.0f);
    }
  }
}

TEST(Simulator, SerializesLaunchesFromSeveralThreads) {
  std::vector<std::thread> threads;
  std::vector<Tensor> sums;
  for (int i = 0; i < 4; ++i) sums.push_back(Tensor::zeros({1}, DType::float32, simulated.device));
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&sums, i] {
      for (int n = 0; n < 20; ++n)
        launch(simulated, planted::add_to_one, dim3(5), dim3(32), 0, gpu_data<float>(sums[i]), true);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Tensor& sum : sums) EXPECT_EQ(sum.to_vector<float>()[0], 100.0f);
}

// ---- Faulty kernels ----

TEST(SimulatorFaults, DivergentBarrierNamesLinesKernelBlockAndThread) {
  const std::string lines[] = {fmt::format("planted_faults.h:{} ", planted::divergent_line),
                               fmt::format("planted_faults.h:{} ", planted::divergent_line + 2)};
  const std::string fault = fault_of(planted::divergent_barrier, dim3(1), dim3(64));
  EXPECT_THAT(fault, AllOf(HasSubstr("divergent barrier"), HasSubstr(lines[0]), HasSubstr(lines[1]),
                           HasSubstr("divergent_barrier()")));
  EXPECT_THAT(fault, AllOf(HasSubstr("test_simulator.cpp:"), HasSubstr("block (0, 0, 0)"), HasSubstr("thread (")));
  EXPECT_THAT(fault, ::testing::Not(HasSubstr("\n")));
}

TEST(SimulatorFaults, DetectsBarrierThatNotAllThreadsReach) {
  for (const Options& options : all_orders()) {
    const OptionsScope scope(options);
    EXPECT_THAT(fault_of(planted::barrier_after_end, dim3(2), dim3(64)),
                ::testing::AnyOf(HasSubstr("threads of the block have exited"),
                                 HasSubstr("deadlock: no thread can continue; 16 of 64")));
    EXPECT_THAT(fault_of(planted::deadlock, dim3(1), dim3(64)),
                AllOf(HasSubstr("deadlock: no thread can continue; 0 of 64"),
                      HasSubstr("32 threads, the first of them (0, 0, 0), wait in __syncwarp at"),
                      HasSubstr("32 threads, the first of them (16, 0, 0), wait in __syncthreads at")));
  }
}

TEST(SimulatorFaults, DetectsWarpOperationWithMissingLanes) {
  const Tensor floats = Tensor::zeros({64}, DType::float32, simulated.device),
               integers = Tensor::zeros({64}, DType::int32, simulated.device);
  for (const Options& options : all_orders()) {
    const OptionsScope scope(options);
    EXPECT_THAT(fault_of(planted::warp_sum_after_end, dim3(1), dim3(64), gpu_data<float>(floats)),
                ::testing::AnyOf(HasSubstr("includes lanes that have exited"), HasSubstr("deadlock")));
    EXPECT_THAT(fault_of(planted::divergent_shuffle, dim3(1), dim3(32), gpu_data<std::int32_t>(integers)),
                HasSubstr("divergent warp"));
    EXPECT_THAT(fault_of(planted::foreign_mask, dim3(1), dim3(32), gpu_data<std::int32_t>(integers)),
                ::testing::AnyOf(HasSubstr("is not in its own mask")));
    EXPECT_THAT(fault_of(planted::foreign_source, dim3(1), dim3(32), gpu_data<std::int32_t>(integers)),
                HasSubstr("reads a lane that does not take part"));
  }
}

TEST(SimulatorFaults, DetectsWritesOutsideSharedMemory) {
  if (simulator::under_address_sanitizer())
    GTEST_SKIP() << "AddressSanitizer stops at the access; see planted_kernel_overrun";
  const Tensor out = Tensor::zeros({1}, DType::float32, simulated.device);
  const auto run = [&](int written, int written_dynamic) {
    launch(simulated, planted::fill_shared, dim3(2), dim3(32), 40, written, written_dynamic, gpu_data<float>(out));
  };
  const auto message = [&](int written, int written_dynamic) -> std::string {
    try {
      run(written, written_dynamic);
    } catch (const KernelFault& fault) {
      return fault.what();
    }
    return "";
  };
  EXPECT_EQ(message(32, 10), "");
  EXPECT_THAT(message(33, 10), HasSubstr("after the 128 bytes of 'tile'"));
  EXPECT_THAT(message(32, 11), HasSubstr("after the 40 bytes of 'dynamic shared memory'"));
  EXPECT_EQ(message(32, 10), "");
}

TEST(SimulatorFaults, UnwrittenSharedMemoryIsNan) {
  const Tensor out = Tensor::zeros({32}, DType::float32, simulated.device);
  launch(simulated, planted::unwritten, dim3(1), dim3(32), 0, gpu_data<float>(out));
  for (const float value : out.to_vector<float>()) EXPECT_TRUE(std::isnan(value));
}

TEST(SimulatorFaults, DetectsCopiesWithoutWait) {
  if (simulator::under_thread_sanitizer()) GTEST_SKIP() << "this is also a race, which ThreadSanitizer reports";
  std::vector<float> values(128, 2.0f);
  const Tensor source = on_device(values), out = Tensor::zeros({128}, DType::float32, simulated.device);
  launch(simulated, planted::copy_through_shared, dim3(1), dim3(32), 0, gpu_data<float>(source), gpu_data<float>(out),
         true);
  EXPECT_EQ(out.to_vector<float>(), values);
  launch(simulated, planted::copy_through_shared, dim3(1), dim3(32), 0, gpu_data<float>(source), gpu_data<float>(out),
         false);
  for (const float value : out.to_vector<float>()) EXPECT_TRUE(std::isnan(value));
  Options options = simulator::options();
  options.async_copies = simulator::AsyncCopies::eager;
  const OptionsScope scope(options);
  launch(simulated, planted::copy_through_shared, dim3(1), dim3(32), 0, gpu_data<float>(source), gpu_data<float>(out),
         false);
  EXPECT_EQ(out.to_vector<float>(), values);
}

TEST(SimulatorFaults, DetectsExitWithPendingCopies) {
  const Tensor source = Tensor::zeros({128}, DType::float32, simulated.device);
  EXPECT_THAT(fault_of(planted::exit_with_pending_copy, dim3(1), dim3(32), gpu_data<float>(source)),
              HasSubstr("copies (cp.async)"));
}

TEST(SimulatorFaults, MissingBarrierShowsInSomeOrder) {
  if (simulator::under_thread_sanitizer())
    GTEST_SKIP() << "this is a race, which ThreadSanitizer reports; see planted_kernel_race";
  std::vector<float> expected(64);
  for (int i = 0; i < 64; ++i) expected[i] = static_cast<float>((i + 1) % 64);
  int wrong = 0;
  for (const bool wait : {true, false}) {
    for (const Options& options : all_orders()) {
      const OptionsScope scope(options);
      const Tensor out = Tensor::zeros({64}, DType::float32, simulated.device);
      launch(simulated, planted::neighbor, dim3(1), dim3(64), 0, gpu_data<float>(out), wait);
      if (wait) {
        EXPECT_EQ(out.to_vector<float>(), expected);
      } else {
        wrong += out.to_vector<float>() != expected ? 1 : 0;
      }
    }
  }
  EXPECT_EQ(wrong, static_cast<int>(all_orders().size()));
}

TEST(SimulatorFaults, DetectsMisalignedVectorAccess) {
  if (simulator::under_address_sanitizer()) GTEST_SKIP() << "the load also reads past the end";
  const Tensor source = Tensor::zeros({64}, DType::float32, simulated.device),
               out = Tensor::zeros({32}, DType::float32, simulated.device);
  EXPECT_THAT(fault_of(planted::unaligned_vector, dim3(1), dim3(32), gpu_data<float>(source), gpu_data<float>(out)),
              HasSubstr("misaligned vector access"));
}

TEST(SimulatorFaults, RejectsLaunchesBeyondLimits) {
  const Tensor out = Tensor::zeros({64}, DType::float32, simulated.device);
  EXPECT_THAT(fault_of(planted::too_much_shared, dim3(1), dim3(32), gpu_data<float>(out)),
              HasSubstr("the limit is 49152"));
  const auto with_dynamic = [&](std::size_t bytes) {
    launch(simulated, planted::fill_shared, dim3(1), dim3(32), bytes, 32, 0, gpu_data<float>(out));
  };
  with_dynamic(simulator::shared_limit_sm80 - 128);
  EXPECT_THROW(with_dynamic(simulator::shared_limit_sm80 - 127), KernelFault);
  EXPECT_THROW(with_dynamic(simulator::shared_limit_sm80 + 1), KernelFault);
  Options options = simulator::options();
  options.shared_limit = simulator::shared_limit_sm90;
  {
    const OptionsScope scope(options);
    with_dynamic(simulator::shared_limit_sm90 - 128);
    EXPECT_EQ(gpu_shared_limit(simulated), simulator::shared_limit_sm90);
  }
  for (const auto& [grid, block] : std::vector<std::pair<dim3, dim3>>{{dim3(0), dim3(32)},
                                                                      {dim3(1, 65536), dim3(32)},
                                                                      {dim3(1, 1, 65536), dim3(32)},
                                                                      {dim3(1), dim3(1056)},
                                                                      {dim3(1), dim3(48)},
                                                                      {dim3(1), dim3(0)}}) {
    EXPECT_THROW(launch(simulated, planted::unwritten, grid, block, 0, gpu_data<float>(out)), ContractError);
  }
  EXPECT_THROW(launch(Stream{}, planted::unwritten, dim3(1), dim3(32), 0, gpu_data<float>(out)), ContractError);
}

__global__ void throws(int thread) {
  __syncthreads();
  if (static_cast<int>(threadIdx.x) == thread) throw ContractError("from thread {}", thread);
  __syncthreads();
}

TEST(SimulatorFaults, NextLaunchWorksAfterEachFault) {
  const Tensor out = Tensor::zeros({64}, DType::float32, simulated.device);
  const int rounds = simulator::under_thread_sanitizer() ? 2 : 30;  // creating so many threads is slow
  for (int round = 0; round < rounds; ++round) {
    EXPECT_THAT(fault_of(throws, dim3(3), dim3(64), round),
                HasSubstr(fmt::format("the kernel threw an exception: from thread {}", round)));
    EXPECT_NE(fault_of(planted::deadlock, dim3(1), dim3(1024)), "");
    launch(simulated, planted::neighbor, dim3(1), dim3(64), 0, gpu_data<float>(out), true);
    EXPECT_EQ(out.to_vector<float>()[3], 4.0f);
  }
}

TEST(SimulatorFaults, RejectsUnknownOrder) {
  Options options;
  simulator::set_order(options, "random:12");
  EXPECT_EQ(options.order, Order::random);
  EXPECT_EQ(options.seed, 12u);
  for (const char* name : {"", "backwards", "random:", "random:x", "random:1x"})
    EXPECT_THROW(simulator::set_order(options, name), UserError);
}

}  // namespace
}  // namespace furlong
#endif
