#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "communication/job_store/store_client.h"

namespace furlong {

/// Logs which ranks a long-running operation waits for. Ranks that are alive are waited for without a limit, so one of
/// the waiting ranks logs a warning after `after`, and repeats it every `every`. The warning names the ranks that have
/// not reached the operation or are in a different one, or, while connecting, those that are not connected. For this,
/// each rank that has waited for half of `after` publishes its current operation in the job store.
class WaitNotice {
 public:
  struct Options {
    int rank = 0;
    int size = 1;
    std::string communicator;  ///< name of the communicator, unique within the job
    std::chrono::milliseconds after{std::chrono::minutes(1)};
    std::chrono::milliseconds every{std::chrono::minutes(5)};
  };
  /// The store must outlive this object. name_of_rank returns for example "rank 1 on host node07".
  WaitNotice(StoreClient& store, Options options, std::function<std::string(int rank)> name_of_rank);

  /// The operation that this rank waits in.
  struct Operation {
    std::uint64_t id = 0;      ///< different for each operation
    std::string name;          ///< "all_reduce of float32 [1000]"
    std::uint64_t number = 0;  ///< number of the collective, equal on all ranks, from 1; 0 for other operations
    std::vector<int> unconnected = {};  ///< while connecting: the ranks that this rank waits for
  };
  /// Call at intervals, from one thread, while an operation runs. Logs nothing and throws nothing if the store knows a
  /// fault.
  void update(const Operation& operation) noexcept;
  /// Call it when all ranks are connected to this one, from any thread: this rank no longer counts as one that logs for
  /// the ranks above it that still connect.
  void connected() noexcept;

 private:
  /// A rank's entry in the store: the last operation that it waited in; empty once it has waited to connect.
  struct Entry {
    std::uint64_t number = 0;
    std::string name;
  };
  void log_notice(const Operation& operation, double seconds);
  void log_connecting(const Operation& operation, double seconds);
  std::string key_of(int rank) const;
  std::optional<Entry> entry_of(int rank) const;

  StoreClient& store_;
  const Options options_;
  const std::function<std::string(int rank)> name_of_rank_;
  std::mutex mutex_;
  bool connected_ = false;
  std::optional<std::uint64_t> current_;
  std::chrono::steady_clock::time_point since_, next_;
  bool published_ = false;
};

}  // namespace furlong
