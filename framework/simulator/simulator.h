#pragma once
// Runs kernels on the host, so that they can be tested without a GPU. Blocks run one after another; each thread of a
// block is a fiber. Kernels use it through kernel.h; tests set the options below. Behavior that a GPU leaves undefined
// is a fault here:
//   - a barrier that not all threads reach, or a warp operation that one of its lanes does not reach;
//   - shared memory read before it is written (it holds NaN) or written past its end;
//   - asynchronous copies that are never waited for.
// Under ThreadSanitizer each simulated thread counts as a separate thread, ordered only by barriers. Not detected:
// bank conflicts, missing memory fences, blocks that wait for one another (they deadlock).
#include <cuda_bf16.h>
#include <vector_functions.h>
#include <vector_types.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <source_location>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "framework/core/error.h"
#include "framework/simulator/simulator_record.h"

// The toolkit's headers define these for nvcc; host headers included later must not see them.
#undef __noinline__
#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __launch_bounds__
#undef __forceinline__
#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __launch_bounds__(...)
#define __forceinline__ inline

namespace furlong::simulator {

/// The order in which runnable threads run: by index ascending, by index descending, random (from `seed`), or one warp
/// as far ahead of the others as barriers allow. The order of blocks is, respectively: ascending, descending, random,
/// ascending.
enum class Order : std::uint8_t { forward, reverse, random, warp_first };

/// When cp.async copies. Deferred: at the wait; the target holds NaN until then (detects missing waits). Eager:
/// immediately (detects sources that change too early).
enum class AsyncCopies : std::uint8_t { deferred, eager };

/// Whose rounding tensor-core products have: that of an A100 (eight products of bfloat16 or four of TF32 at once, 24
/// fraction bits) or an H100 (16 or eight, 25 fraction bits).
enum class TensorCores : std::uint8_t { sm_80, sm_90 };

inline constexpr std::size_t shared_limit_sm80 = 163 * 1024, shared_limit_sm90 = 227 * 1024;

struct Options {
  Order order = Order::forward;
  std::uint64_t seed = 1;
  AsyncCopies async_copies = AsyncCopies::deferred;
  TensorCores tensor_cores = TensorCores::sm_90;
  /// Bytes of shared memory available to a block, static and dynamic together.
  std::size_t shared_limit = shared_limit_sm80;
};

/// Sets the order (and seed) from a name: forward, reverse, random, random:SEED or warp_first. Throws UserError if the
/// name is unknown.
void set_order(Options& options, std::string_view name);

/// Returns the options of later launches. The environment variables FURLONG_SIMULATOR_ORDER and
/// FURLONG_SIMULATOR_TENSOR_CORES (sm_80 or sm_90) set the initial ones. Change them only between launches.
Options& options();

/// Sets options for the lifetime of this object.
class OptionsScope {
 public:
  explicit OptionsScope(const Options& scoped) : saved_(options()) { options() = scoped; }
  ~OptionsScope() { options() = saved_; }
  OptionsScope(const OptionsScope&) = delete;
  OptionsScope& operator=(const OptionsScope&) = delete;

 private:
  Options saved_;
};

/// Counts since the program started.
struct Statistics {
  std::uint64_t launches = 0, blocks = 0, threads = 0, switches = 0;
  std::size_t shared_bytes = 0;  ///< maximum over all blocks
};
const Statistics& statistics();

/// A kernel did something that CUDA leaves undefined. The message names the launch, the block, the thread and the line.
class KernelFault : public ContractError {
 public:
  using ContractError::ContractError;
};

using Site = std::source_location;

/// Runs body(context) for each thread of each block on the calling thread. Concurrent launches run one after another.
/// Throws KernelFault; later launches still work.
void run(dim3 grid, dim3 block, std::size_t dynamic_shared_bytes, const Site& launch_site, void (*body)(void*),
         void* context);

/// Runs kernel(arguments...), or adds the call to the graph that is being recorded.
template <class... Parameters, class... Arguments>
void run_kernel(dim3 grid, dim3 block, std::size_t dynamic_shared_bytes, const Site& launch_site,
                void (*kernel)(Parameters...), Arguments&&... arguments) {
  struct Context {
    void (*kernel)(Parameters...);
    std::tuple<Parameters...> arguments;
  } context{kernel, std::tuple<Parameters...>(static_cast<Parameters>(arguments)...)};
  auto work = [=]() mutable {
    run(
        grid, block, dynamic_shared_bytes, launch_site,
        [](void* opaque) {
          Context& self = *static_cast<Context*>(opaque);
          std::apply(self.kernel, self.arguments);
        },
        &context);
  };
  if (is_recording()) {
    record(work);
  } else {
    work();
  }
}

// ---- Called by threads of a kernel; kernels use the CUDA names below ----

/// Stops the kernel with a KernelFault that names this thread.
[[noreturn]] void fault(const std::string& what, const Site& site);

/// Returns the block's static shared variable that `key` identifies, 16-byte aligned. It is filled with NaN when the
/// first thread asks for it.
void* shared_variable(const void* key, std::size_t bytes, const char* name);
/// Returns the block's dynamic shared memory.
void* dynamic_shared();

/// Waits for all threads of the block, and returns whether the predicate of any of them was true.
bool block_barrier(bool predicate, const char* operation, const Site& site);

/// The data that each lane of a warp contributes to an operation. It stays valid until the second-next operation of the
/// lane. Lanes that do not take part hold NaN.
inline constexpr std::size_t lane_bytes = 64;
struct alignas(64) LaneData {
  std::byte bytes[lane_bytes];
  template <class T>
  T as() const {
    T value;
    std::memcpy(&value, bytes, sizeof(T));
    return value;
  }
};

/// Waits for the lanes of `mask` and exchanges `bytes` of data (`data` is 8-byte aligned and padded to 8 bytes). The
/// last lane to arrive calls combine(lanes), if not null. Orders no memory accesses.
const LaneData* exchange(std::uint32_t mask, const char* operation, const void* data, std::size_t bytes,
                         void (*combine)(LaneData*), const Site& site);
/// __syncwarp: waits for the lanes of `mask` and orders their memory accesses.
void warp_barrier(std::uint32_t mask, const Site& site);
/// The calling thread's lane, and a bit for each lane of its warp that exists. Here, so that the two functions below,
/// which kernels call for each element that they exchange, are inline.
inline int current_lane = 0;
inline std::uint32_t existing_lanes = 0;
/// Returns the lane of the calling thread.
[[gnu::always_inline]] inline int lane() { return current_lane; }
/// Returns whether lane `lane` of the calling thread's warp exists and is in `mask`.
[[gnu::always_inline]] inline bool takes_part(std::uint32_t mask, int lane) {
  return (mask & existing_lanes) >> lane & 1u;
}

/// cp.async of 4, 8 or 16 bytes: reads the first `source_bytes` and sets the rest to zero.
void async_copy(void* shared, const void* global, std::size_t bytes, std::size_t source_bytes, const Site& site);
void async_commit();
void async_wait(int groups_left);

/// Combine functions for exchange(). Each lane's MmaData holds its registers; the product is added to its d. See
/// tensor_core.h.
struct MmaData {
  float d[4];
  std::uint32_t a[4], b[2];
};
void mma_bf16_16x8x16(LaneData* lanes);
void mma_tf32_16x8x8(LaneData* lanes);

/// d += a b by all lanes of a warp; `product` is one of the two functions above.
inline void mma(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2], const char* operation,
                void (*product)(LaneData*), const Site& site) {
  alignas(8) MmaData mine;
  std::memcpy(mine.d, d, sizeof(d));
  std::memcpy(mine.a, a, sizeof(a));
  std::memcpy(mine.b, b, sizeof(b));
  const LaneData* lanes = exchange(0xffffffffu, operation, &mine, sizeof(mine), product, site);
  std::memcpy(d, lanes[lane()].bytes, sizeof(d));
}

/// Stops with a fault if the address is not a multiple of `alignment`. Always inline, because kernels call it for each
/// vector and are compiled with -O1.
[[gnu::always_inline]] inline void check_alignment(const void* pointer, std::size_t alignment, const Site& site) {
  if (reinterpret_cast<std::uintptr_t>(pointer) % alignment != 0) fault("misaligned vector access", site);
}

/// The instruction ldmatrix; see tensor_core.h. Each row is read by the lane that gives its address, so that sanitizers
/// attribute the access to that lane.
template <int Matrices, bool transposed>
void ldmatrix(std::uint32_t (&registers)[Matrices], const void* row, const Site& site) {
  struct Row {
    std::uint16_t elements[8];
  };
  alignas(8) Row mine{};
  const int me = lane(), g = me / 4, t = me % 4;
  if (me < 8 * Matrices) {
    check_alignment(row, 16, site);
    std::memcpy(&mine, row, sizeof(mine));
  }
  const LaneData* lanes =
      exchange(0xffffffffu, transposed ? "ldmatrix.trans" : "ldmatrix", &mine, sizeof(mine), nullptr, site);
  for (int matrix = 0; matrix < Matrices; ++matrix) {
    const LaneData* rows = lanes + 8 * matrix;
    const std::uint32_t low = transposed ? rows[2 * t].as<Row>().elements[g] : rows[g].as<Row>().elements[2 * t];
    const std::uint32_t high =
        transposed ? rows[2 * t + 1].as<Row>().elements[g] : rows[g].as<Row>().elements[2 * t + 1];
    registers[matrix] = low | high << 16;
  }
}

/// Returns the value of lane `source`. All lanes of `mask` call it; a source outside of the mask is a fault.
template <class T>
T shuffle(std::uint32_t mask, T value, int source, const char* operation, const Site& site) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 16);
  alignas(8) std::byte data[(sizeof(T) + 7) / 8 * 8] = {};
  std::memcpy(data, &value, sizeof(T));
  const LaneData* lanes = exchange(mask, operation, data, sizeof(data), nullptr, site);
  if (!takes_part(mask, source)) fault(std::string(operation) + " reads a lane that does not take part", site);
  return lanes[source].as<T>();
}

/// Returns a bit for each lane of `mask`: whether its predicate is not 0.
inline std::uint32_t ballot(std::uint32_t mask, int predicate, const char* operation, const Site& site) {
  alignas(8) const std::uint64_t mine = predicate != 0;
  const LaneData* lanes = exchange(mask, operation, &mine, sizeof(mine), nullptr, site);
  std::uint32_t result = 0;
  for (int i = 0; i < 32; ++i) {
    if (takes_part(mask, i) && lanes[i].as<std::uint64_t>() != 0) result |= 1u << i;
  }
  return result;
}

/// Replaces *pointer by change(*pointer) atomically for other simulated threads, and returns the old value. It is
/// relaxed, so it orders nothing under ThreadSanitizer either.
template <class T, class Change>
T atomic_change(T* pointer, const Change& change) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  using Word = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
  Word* word = reinterpret_cast<Word*>(pointer);
  Word old_word = __atomic_load_n(word, __ATOMIC_RELAXED);
  for (;;) {
    const T old_value = std::bit_cast<T>(old_word);
    const Word new_word = std::bit_cast<Word>(static_cast<T>(change(old_value)));
    if (__atomic_compare_exchange_n(word, &old_word, new_word, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
      return old_value;
  }
}

}  // namespace furlong::simulator

// ---- CUDA names (CUDA C++ Programming Guide, "C++ Language Extensions") ----

inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;

#define FURLONG_SITE const ::furlong::simulator::Site& site = ::furlong::simulator::Site::current()

inline void __syncthreads(FURLONG_SITE) { furlong::simulator::block_barrier(false, "__syncthreads", site); }
inline int __syncthreads_or(int predicate, FURLONG_SITE) {
  return furlong::simulator::block_barrier(predicate != 0, "__syncthreads_or", site);
}
inline void __syncwarp(std::uint32_t mask = 0xffffffffu, FURLONG_SITE) { furlong::simulator::warp_barrier(mask, site); }

template <class T>
T __shfl_sync(std::uint32_t mask, T value, int source, int width = 32, FURLONG_SITE) {
  const int first = furlong::simulator::lane() & ~(width - 1);
  return furlong::simulator::shuffle(mask, value, first | (source & (width - 1)), "__shfl_sync", site);
}
template <class T>
T __shfl_xor_sync(std::uint32_t mask, T value, int lane_mask, int width = 32, FURLONG_SITE) {
  const int lane = furlong::simulator::lane(), source = lane ^ lane_mask;
  // A source in a later group of `width` lanes gives the lane's own value; one in an earlier group may be read.
  return furlong::simulator::shuffle(mask, value, source / width > lane / width ? lane : source, "__shfl_xor_sync",
                                     site);
}
template <class T>
T __shfl_up_sync(std::uint32_t mask, T value, unsigned delta, int width = 32, FURLONG_SITE) {
  const int lane = furlong::simulator::lane(), place = lane & (width - 1);
  const bool inside = delta <= static_cast<unsigned>(place);
  return furlong::simulator::shuffle(mask, value, inside ? lane - static_cast<int>(delta) : lane, "__shfl_up_sync",
                                     site);
}
inline std::uint32_t __ballot_sync(std::uint32_t mask, int predicate, FURLONG_SITE) {
  return furlong::simulator::ballot(mask, predicate, "__ballot_sync", site);
}
inline int __any_sync(std::uint32_t mask, int predicate, FURLONG_SITE) {
  return furlong::simulator::ballot(mask, predicate, "__any_sync", site) != 0;
}
inline int __all_sync(std::uint32_t mask, int predicate, FURLONG_SITE) {
  return furlong::simulator::ballot(mask, predicate == 0, "__all_sync", site) == 0;
}
#undef FURLONG_SITE

template <class T>
T atomicAdd(T* pointer, std::type_identity_t<T> value) {
  return furlong::simulator::atomic_change(pointer, [value](T old) { return old + value; });
}

inline std::uint32_t __float_as_uint(float value) { return std::bit_cast<std::uint32_t>(value); }
inline float __uint_as_float(std::uint32_t word) { return std::bit_cast<float>(word); }
inline float __int_as_float(int word) { return std::bit_cast<float>(word); }
inline int __ffs(int word) { return word == 0 ? 0 : std::countr_zero(static_cast<std::uint32_t>(word)) + 1; }
