#pragma once
// The client's handshake: from an address to an authenticated connection with the job store.
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "communication/job_store/socket.h"
#include "communication/job_store/store_protocol.h"

namespace furlong::store {

/// Result of one connection attempt.
struct Attempt {
  enum class Outcome {
    welcome,  ///< `socket` is connected and authenticated
    failed,   ///< no answer, or the connection broke (`problem`); another attempt may succeed
    foreign,  ///< another service than this job's store listens there (`problem`)
    refused,  ///< the store refuses this client (`refusal`)
  };
  Outcome outcome = Outcome::failed;
  Socket socket{};
  FrameBuffer in{};  ///< bytes received after the welcome
  std::string server_host{};
  Refusal refusal{};
  std::string problem{};
};

/// Makes one attempt to connect to `address` until `deadline`, and authenticates both sides with the job's secret.
/// Fills in the nonce and the code of `hello`. user_timeout is that of connect_to() (socket.h). The attempt fails early
/// when `give_up`, polled every 50 ms, returns true.
Attempt shake_hands(const SocketAddress& address, Hello hello, const std::string& secret, TimePoint deadline,
                    std::chrono::milliseconds user_timeout, const std::function<bool()>& give_up = {});

}  // namespace furlong::store
