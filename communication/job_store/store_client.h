#pragma once
// A rank's client of the job store (store_server.h); rank 0 has one as well. A thread of the client maintains the
// connection, sends heartbeats, reconnects after short network failures, and receives faults.
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
  std::string secret;                 ///< equal to the server's
  int rank = 0;
  int world_size = 1;
  std::string host = host_name();  ///< for messages
  StoreTimes times;                ///< equal to the server's
  /// Time limit for the first connection. Ranks start when their hosts are ready, rank 0 perhaps last.
  std::chrono::milliseconds connect_timeout{std::chrono::minutes(5)};
  /// Polled every 50 ms until the first connection succeeds. Connecting fails once it returns true.
  std::function<bool()> give_up = [] { return false; };
  /// Called at most once, from the client's thread, with the job's first fault, also if this rank reported it. Must not
  /// throw and must not destroy the client. Waiting and later operations throw MachineError with the fault's message.
  std::function<void(const Fault&)> on_fault;
};

/// Thread-safe operations on the job store. Keys have 1 to 4096 bytes, values up to 64 MiB; a key exists once it has a
/// value. All operations throw MachineError after a fault of any rank. The loss of rank 0 itself is known after at most
/// `times.timeout`.
class StoreClient {
 public:
  /// Connects within connect_timeout. Throws MachineError if no store answers, or after give_up. Throws UserError if
  /// this rank has already joined, if world size or secret differ from the store's, if another service listens at the
  /// port, or if an option is out of range.
  explicit StoreClient(StoreClientOptions options);
  /// Reports this rank as failed unless goodbye() was called: leaving through an exception is a fault.
  ~StoreClient();
  StoreClient(const StoreClient&) = delete;
  StoreClient& operator=(const StoreClient&) = delete;

  void set(const std::string& key, std::span<const char> value);
  /// Waits for the key and returns its value. Throws MachineError after `timeout`.
  std::vector<char> get(const std::string& key, std::chrono::milliseconds timeout);
  /// Adds to an integer (stored as decimal text; 0 if the key is missing) and returns the sum. Applied exactly once,
  /// even if the connection breaks.
  std::int64_t add(const std::string& key, std::int64_t delta);
  /// Waits until all keys exist. Throws MachineError that lists the missing keys after `timeout`.
  void wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout);
  /// Returns true if all keys exist now.
  bool check(const std::vector<std::string>& keys);

  /// Reports to all ranks that this one failed, unless an earlier fault is known. Returns true once the store has
  /// received the report, false if it cannot be delivered.
  bool report_fault(const std::string& reason) noexcept;
  /// Leaves without a fault. Afterwards only fault() may be called. Returns normally if the store has ended meanwhile.
  void goodbye();
  std::optional<Fault> fault() const;

 private:
  class Connection;
  std::unique_ptr<Connection> connection_;
};

}  // namespace furlong
