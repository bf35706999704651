#pragma once
// How a client of the store gets from an address to a connection that the server has welcomed.
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "communication/job_store/socket.h"
#include "communication/job_store/store_protocol.h"

namespace furlong::store {

/// What one attempt led to.
struct Attempt {
  enum class Outcome {
    welcome,  ///< `socket` is connected and authenticated
    failed,   ///< nobody answered, or the connection broke: worth another attempt; `problem` says why
    foreign,  ///< something else than this job's store listens there
    refused,  ///< the store will not have this client: `refusal`
  };
  Outcome outcome = Outcome::failed;
  Socket socket{};
  FrameBuffer in{};  ///< what came after the welcome
  std::string server_host{};
  Refusal refusal{};
  std::string problem{};
};

/// Connects to `address` and proves to know the secret; the server must prove it too. `hello` has no nonce or code yet.
Attempt shake_hands(const SocketAddress& address, Hello hello, const std::string& secret, TimePoint deadline,
                    std::chrono::milliseconds user_timeout, const std::function<bool()>& give_up = {});

}  // namespace furlong::store
