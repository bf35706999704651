#include "communication/job_store/store_handshake.h"
#include "framework/core/printable.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <utility>

namespace furlong::store {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
// The system repeats a lost SYN only after 1, 3 and 7 s; a new attempt succeeds sooner once the network is back.
constexpr milliseconds connect_patience{1000};
constexpr milliseconds answer_patience{5000};  // joining ranks may have to wait while many join at once

/// Returns the next frame's body. Returns nothing, with the reason in `attempt.problem`, if the connection broke or the
/// deadline passed.
std::optional<std::string> next_body(Attempt& attempt, TimePoint deadline, const std::function<bool()>& give_up) {
  for (;;) {
    if (auto body = attempt.in.next(max_handshake_bytes)) return body;
    if (!wait_for(attempt.socket, POLLIN, deadline, give_up)) {
      attempt.problem = "connected, but it did not answer";
      return std::nullopt;
    }
    std::array<char, max_handshake_bytes> buffer;
    const Transfer moved = receive(attempt.socket, buffer);
    if (moved.ended || moved.error) {
      attempt.problem = moved.ended ? "connected, but it closed the connection" : error_text(moved.error);
      return std::nullopt;
    }
    attempt.in.append(std::span(buffer).first(moved.bytes));
  }
}

}  // namespace

Attempt shake_hands(const SocketAddress& address, Hello hello, const std::string& secret, TimePoint deadline,
                    milliseconds user_timeout, const std::function<bool()>& give_up) {
  Attempt out;
  int error = 0;
  out.socket =
      connect_to(address, std::min(deadline, steady_clock::now() + connect_patience), user_timeout, error, give_up);
  if (!out.socket) {
    out.problem = error_text(error);
    return out;
  }
  deadline = std::min(deadline, steady_clock::now() + answer_patience);
  try {
    const auto greeting = next_body(out, deadline, give_up);
    if (!greeting) return out;
    const Challenge challenge = decode_challenge(*greeting);
    fill_random(hello.nonce);
    hello.code = code_of(hello, challenge.nonce, secret);
    SendQueue queue;
    queue.push(encode(hello));
    bool acknowledged = false;
    // A few hundred bytes always fit into an empty send buffer; otherwise the connection is unusable.
    if (queue.flush(out.socket, acknowledged).error != 0 || !queue.empty()) {
      out.problem = "connected, but it closed the connection";
      return out;
    }
    const auto reply = next_body(out, deadline, give_up);
    if (!reply) return out;
    if (kind_of(*reply) == Kind::refusal) {
      out.refusal = decode_refusal(*reply);
      out.refusal.detail = foreign::single_line(out.refusal.detail);  // may contain bytes that are not UTF-8
      out.outcome = Attempt::Outcome::refused;
      return out;
    }
    const Welcome welcome = decode_welcome(*reply);
    if (!equal_in_constant_time(welcome.code, code_of(welcome, hello, challenge.nonce, secret))) {
      out.outcome = Attempt::Outcome::foreign;
      out.problem = "it does not know the job's secret";
      return out;
    }
    out.server_host = foreign::single_line(welcome.host);
    out.outcome = Attempt::Outcome::welcome;
  } catch (const ProtocolError& broken) {
    out.outcome = Attempt::Outcome::foreign;
    out.problem = std::string("it sent ") + broken.what();
  }
  return out;
}

}  // namespace furlong::store
