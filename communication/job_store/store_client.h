#pragma once
// A rank's end of the job store (store_server.h), which rank 0 has as well. A thread of its own keeps the
// connection, sends heartbeats while the others compute, comes back after a blip of the network, and learns of faults.
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "communication/job_store/store_protocol.h"

namespace furlong {

struct StoreClientOptions {
  std::string address = "127.0.0.1";  ///< MASTER_ADDR
  std::uint16_t port = 0;             ///< MASTER_PORT
  std::string secret;                 ///< as the server's
  int rank = 0;
  int world_size = 1;
  std::string host = host_name();  ///< for messages
  StoreTimes times;                ///< as the server's
  std::chrono::milliseconds connect_timeout{
      std::chrono::minutes(5)};  ///< ranks start when their hosts are ready, rank 0 perhaps last
  /// Called once at most, from the client's thread, with the job's first fault (also with one that this rank reported
  /// itself). It must not throw and not destroy the client. Operations that wait then, and all later ones, throw
  /// MachineError with the fault's message.
  std::function<void(const Fault&)> on_fault;
};

/// All operations may be called from several threads. Keys have 1 to 4096 bytes, values up to 64 MiB; a key without a
/// value is not there. They throw MachineError on a fault of any rank, which takes `times.timeout` at most to be known
/// where rank 0 itself is gone.
class StoreClient {
 public:
  /// Connects, for as long as connect_timeout says. Throws MachineError when no store answered; UserError on a rank
  /// that has joined already, another world size or another secret than the store's, on something else that listens at
  /// the port, and on options out of range.
  explicit StoreClient(StoreClientOptions options);
  /// Without a goodbye() before, this rank is reported as failed: leaving by an exception is a fault.
  ~StoreClient();
  StoreClient(const StoreClient&) = delete;
  StoreClient& operator=(const StoreClient&) = delete;

  void set(const std::string& key, std::span<const char> value);
  /// Waits for the key; throws MachineError after `timeout`.
  std::vector<char> get(const std::string& key, std::chrono::milliseconds timeout);
  /// Adds to a whole number (decimal text; 0 where there is none) and returns the sum. Exactly once, also across a
  /// broken connection.
  std::int64_t add(const std::string& key, std::int64_t delta);
  /// Waits until all keys are there; throws MachineError, with those that are missing, after `timeout`.
  void wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout);
  /// True where all keys are there now.
  bool check(const std::vector<std::string>& keys);

  /// Tells all ranks that this one failed, unless an earlier fault is known. Returns true once the store knows, false
  /// where it cannot be told.
  bool report_fault(const std::string& reason) noexcept;
  /// Leaves in order: no fault. Nothing else may be called afterwards but fault(). Returns also where the store is gone
  /// meanwhile.
  void goodbye();
  std::optional<Fault> fault() const;

 private:
  class Connection;
  std::unique_ptr<Connection> connection_;
};

}  // namespace furlong
