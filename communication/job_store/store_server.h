#pragma once
// The job store: a key-value store over TCP. Rank 0 runs it in a thread; every rank uses it through store_client.h. The
// connections carry heartbeats, by which the store detects ranks that were killed, stopped or disconnected. It reports
// them to all other ranks.
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "communication/job_store/store_protocol.h"

namespace furlong {

struct StoreServerOptions {
  /// MASTER_ADDR: a name or an address of this host. The store listens only on the addresses that it resolves to.
  std::string address = "127.0.0.1";
  std::uint16_t port = 0;  ///< MASTER_PORT; 0 lets the system choose one
  std::string secret;      ///< the same in all processes of the job, and in no other job
  int world_size = 1;
  std::string host = host_name();  ///< for messages
  /// All ranks run on this host. Otherwise an address that only this host can reach is an error.
  bool one_host = true;
  StoreTimes times;
  int max_unauthenticated = 64;                       ///< maximum number of unauthenticated connections
  std::chrono::milliseconds handshake_timeout{5000};  ///< time limit for authentication
  /// Age after which the oldest unauthenticated connection may be closed to accept another one.
  std::chrono::milliseconds min_handshake_time{500};
};

/// Serves from construction on. Keeps the first fault and sends it to every client, also to clients that connect later.
/// A fault is a rank that did not reconnect within `grace`, a rank that was silent for `timeout`, or a failure that a
/// rank reported itself.
class StoreServer {
 public:
  /// Throws UserError if the address does not belong to this host, the port is taken, an option is out of range, or the
  /// secret is empty.
  explicit StoreServer(StoreServerOptions options);
  /// Stops serving. Reports a failure of rank 0 to ranks that have not said goodbye: call wait_for_goodbyes() first.
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  std::uint16_t port() const { return port_; }
  /// Returns the addresses that the store listens on: "127.0.0.1:29500"; several if the name has several addresses.
  const std::vector<std::string>& addresses() const { return addresses_; }
  std::optional<Fault> fault() const;
  /// Returns true once every rank of the job has joined and said goodbye, false at the timeout or after a fault.
  bool wait_for_goodbyes(std::chrono::milliseconds timeout);

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
  std::uint16_t port_ = 0;
  std::vector<std::string> addresses_;
};

}  // namespace furlong
