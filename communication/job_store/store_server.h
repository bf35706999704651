#pragma once
// The job store: keys and values over TCP, run by rank 0 in a thread of its own and used by every rank
// (store_client.h). The clients' connections double as heartbeats, by which the store learns of a rank that was killed,
// stopped or cut off, and tells all others.
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "communication/job_store/store_protocol.h"

namespace furlong {

struct StoreServerOptions {
  std::string address =
      "127.0.0.1";         ///< MASTER_ADDR: a name or an address of this host; only what it resolves to is listened on
  std::uint16_t port = 0;  ///< MASTER_PORT; 0 lets the system choose one
  std::string secret;      ///< the same in all processes of the job, and in no other job
  int world_size = 1;
  std::string host = host_name();  ///< for messages
  bool one_host = true;  ///< all ranks run on this host; otherwise an address that only this host can reach is an error
  StoreTimes times;
  int max_strangers = 64;  ///< connections at once that have not yet proved to know the secret
  std::chrono::milliseconds stranger_patience{5000};  ///< after which such a connection is closed
  std::chrono::milliseconds crowded_patience{500};    ///< the same, for the oldest, where another one wants its place
};

/// Starts to serve when constructed. The first fault is kept and sent to every client, of now and later: a rank whose
/// connection broke and did not come back within `grace`, one that was silent for `timeout`, one that reported its own
/// failure.
class StoreServer {
 public:
  /// Throws UserError on an address that is not this host's, a port that is taken, options out of range or an empty
  /// secret.
  explicit StoreServer(StoreServerOptions options);
  /// Stops serving. Ranks that have not said goodbye are told that rank 0 failed: call wait_for_goodbyes() first.
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  std::uint16_t port() const { return port_; }
  /// Where it listens: "127.0.0.1:29500", two where the address is one of IPv4 and one of IPv6.
  const std::vector<std::string>& addresses() const { return addresses_; }
  std::optional<Fault> fault() const;
  /// True once every rank of the job has come and said goodbye, false at the timeout or when there was a fault.
  bool wait_for_goodbyes(std::chrono::milliseconds timeout);

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
  std::uint16_t port_ = 0;
  std::vector<std::string> addresses_;
};

}  // namespace furlong
