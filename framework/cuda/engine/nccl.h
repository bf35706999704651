#pragma once
// NCCL, loaded at run time. Declared here with the types of its version 2 interface, which is stable since 2.0, so
// building needs no NCCL headers.
#include <cstddef>
#include <limits>

#include "framework/cuda/engine/library_table.h"

namespace furlong::nccl {

struct Communicator;  // opaque: ncclComm_t points to one
struct UniqueId {
  char internal[128];
};
using Result = int;  // ncclResult_t
inline constexpr Result success = 0, in_progress = 7;
/// ncclConfig_t of version 2.14. Later libraries read only `size` bytes and treat the rest as not set.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21400;
  int blocking = 0;
  int not_set = std::numeric_limits<int>::min();  ///< instead of padding
};
enum class DataType : int { int8 = 0, uint8 = 1, int32 = 2, float32 = 7, float64 = 8, bfloat16 = 9 };
enum class Reduction : int { sum = 0, product = 1, maximum = 2, minimum = 3, average = 4 };

/// The functions in use, named as in NCCL. A stream is a cudaStream_t. NCCL has all of them since 2.14.
struct Table {
  LibraryFunction<Result(int*)> get_version{"ncclGetVersion"};
  LibraryFunction<const char*(Result)> get_error_string{"ncclGetErrorString"};
  LibraryFunction<Result(UniqueId*)> get_unique_id{"ncclGetUniqueId"};
  LibraryFunction<const char*(Communicator*)> get_last_error{"ncclGetLastError"};
  LibraryFunction<Result(Communicator**, int, UniqueId, int, Config*)> comm_init_rank_config{"ncclCommInitRankConfig"};
  LibraryFunction<Result(Communicator*)> comm_finalize{"ncclCommFinalize"};
  LibraryFunction<Result(Communicator*)> comm_destroy{"ncclCommDestroy"};
  LibraryFunction<Result(Communicator*)> comm_abort{"ncclCommAbort"};
  LibraryFunction<Result(Communicator*, Result*)> comm_get_async_error{"ncclCommGetAsyncError"};
  LibraryFunction<Result(const void*, void*, std::size_t, DataType, Reduction, Communicator*, void*)> all_reduce{
      "ncclAllReduce"};
  LibraryFunction<Result(const void*, void*, std::size_t, DataType, int, Communicator*, void*)> broadcast{
      "ncclBroadcast"};
  LibraryFunction<Result(const void*, void*, std::size_t, DataType, Communicator*, void*)> all_gather{"ncclAllGather"};
  LibraryFunction<Result(const void*, void*, std::size_t, DataType, Reduction, Communicator*, void*)> reduce_scatter{
      "ncclReduceScatter"};
  LibraryFunction<Result(const void*, std::size_t, DataType, int, Communicator*, void*)> send{"ncclSend"};
  LibraryFunction<Result(void*, std::size_t, DataType, int, Communicator*, void*)> receive{"ncclRecv"};
  LibraryFunction<Result()> group_start{"ncclGroupStart"};
  LibraryFunction<Result()> group_end{"ncclGroupEnd"};
  Library library;

  bool loaded() const { return library.handle != nullptr; }
  /// "2.27.3"; empty if NCCL is not loaded.
  std::string version() const;
};

/// Returns the table, loading NCCL on the first call; `library.problem` says why loading failed.
const Table& table();

}  // namespace furlong::nccl
