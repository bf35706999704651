#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "communication/job_store/store_client.h"

namespace furlong {

/// A rank that is late is waited for, for as long as it lives. So that nobody waits without knowing for whom, one of
/// those that wait says after a minute, and then every few minutes, which ranks have not come to the operation, or are
/// in another: each that waits for half that time leaves word in the store.
class WaitNotice {
 public:
  struct Options {
    int rank = 0;
    int size = 1;
    std::string communicator;  ///< its name, which no other of the job has
    std::chrono::milliseconds after{std::chrono::minutes(1)};
    std::chrono::milliseconds every{std::chrono::minutes(5)};
  };
  /// The store outlives it. name_of_rank: "rank 1 on host node07".
  WaitNotice(StoreClient& store, Options options, std::function<std::string(int rank)> name_of_rank);

  /// What this rank waits in.
  struct Operation {
    std::uint64_t id = 0;      ///< another for each operation
    std::string name;          ///< "all_reduce of float32 [1000]"
    std::uint64_t number = 0;  ///< counted by all ranks alike, from 1; 0: not all of them take part
  };
  /// Every now and then while an operation runs, from one thread. Says nothing and throws nothing where the store knows
  /// a fault.
  void look(const Operation& operation) noexcept;

 private:
  /// What a rank has left in the store: where it waited last.
  struct Word {
    std::uint64_t number = 0;
    std::string name;
  };
  void tell(const Operation& operation, double seconds);
  std::string key_of(int rank) const;
  std::optional<Word> word_of(int rank) const;

  StoreClient& store_;
  const Options options_;
  const std::function<std::string(int rank)> name_of_rank_;
  std::optional<std::uint64_t> looked_at_;
  std::chrono::steady_clock::time_point since_, next_;
  bool left_word_ = false;
};

}  // namespace furlong
