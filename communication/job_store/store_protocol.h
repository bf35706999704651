#pragma once
// Wire protocol of the job store. A frame consists of a length (4 bytes, little-endian, excluding itself), a kind (1
// byte) and the kind's fields. Numbers are little-endian; texts are preceded by their length. Every field of a received
// frame is checked.
//
//   server                                   client
//   Challenge {nonce}                   ->
//                                       <-   Hello {rank, world size, session, nonce, host, code}
//   Welcome {host, code} or Refusal     ->
//   Reply, Fault, Heartbeat             <->  Request, Heartbeat
//
// Both sides prove that they know the job's secret without sending it. A code is the HMAC-SHA-256, keyed with the
// secret, of both nonces and all fields of the message. This keeps out other jobs and unauthenticated clients. Later
// frames are neither encrypted nor signed: the protocol does not protect against an attacker who can modify the
// network's traffic.
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "communication/job_store/socket.h"

namespace furlong {

/// Times that decide when a rank counts as lost: after `grace` if its connection broke, otherwise after `timeout`.
struct StoreTimes {
  std::chrono::milliseconds heartbeat_interval{2000};
  std::chrono::milliseconds timeout{10000};  ///< silence after which a rank, or the store, counts as lost
  /// Time to reconnect after a connection broke. Shorter network failures are survived.
  std::chrono::milliseconds grace{4000};

  /// Throws UserError unless 0 < heartbeat_interval < grace <= timeout <= 24 h and two heartbeats fit in the timeout.
  void check() const;
};

/// The first failure of a job.
struct Fault {
  int rank = 0;  ///< the rank that failed
  std::string host;
  std::string reason;

  /// Returns for example "rank 3 on host node07 failed: it gave no reason".
  std::string message() const;
  bool operator==(const Fault&) const = default;
};

namespace store {

constexpr std::size_t max_key_bytes = 4096;
constexpr std::size_t max_value_bytes = std::size_t{64} << 20;
constexpr std::size_t max_handshake_bytes = 256;  ///< of a frame from an unauthenticated client
constexpr std::size_t max_frame_bytes = max_value_bytes + max_key_bytes + 64;
constexpr std::size_t max_host_bytes = 64;  ///< HOST_NAME_MAX
constexpr std::size_t max_reason_bytes = 1000;
constexpr int max_world_size = 1 << 20;

/// A frame that violates the protocol. Its connection is closed.
class ProtocolError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

enum class Kind : std::uint8_t {
  hello = 1,
  heartbeat,
  set,
  get,
  add,
  wait,
  check,
  report_fault,
  goodbye,
  challenge = 65,
  welcome,
  refusal,
  reply,
  fault,
};
constexpr bool is_request(Kind kind) { return kind >= Kind::set && kind <= Kind::goodbye; }
/// Returns true for requests that change state. They are executed once, even if the client repeats them after a broken
/// connection.
constexpr bool changes_state(Kind kind) {
  return kind == Kind::set || kind == Kind::add || kind == Kind::report_fault || kind == Kind::goodbye;
}

using Nonce = std::array<char, 32>;
using SessionId = std::array<char, 16>;
using Code = std::array<char, 32>;

struct Challenge {
  Nonce nonce{};
};
struct Hello {
  std::int32_t rank = 0;
  std::int32_t world_size = 1;
  SessionId session{};    ///< chosen by the client, constant during its lifetime
  bool resuming = false;  ///< the client was welcomed before; the store must know its session id
  Nonce nonce{};
  std::string host;
  Code code{};
};
struct Welcome {
  std::string host;  ///< rank 0's host
  Code code{};
};
enum class Refused : std::uint8_t { secret = 1, world_size, rank, session };
struct Refusal {
  Refused reason = Refused::secret;
  std::string detail;  ///< the value that the store expected
};
struct Request {
  Kind kind = Kind::check;
  std::uint64_t id = 0;             ///< increases within a session
  std::uint64_t oldest = 0;         ///< replies to state-changing requests with lower ids are no longer needed
  std::uint32_t timeout = 0;        ///< get, wait: milliseconds
  std::vector<std::string> keys{};  ///< set, get, add: one key
  std::string value{};              ///< set: the value; report_fault: the reason
  std::int64_t delta = 0;           ///< add
};
enum class Status : std::uint8_t { ok = 0, timed_out, no_number };
struct Reply {
  std::uint64_t id = 0;
  Status status = Status::ok;
  std::string payload;  ///< get: the value; add: 8 bytes; check: 1 byte; otherwise an error message
};

/// Returns the kind of a frame's body (the bytes after its length). Throws ProtocolError if it is unknown.
Kind kind_of(std::string_view body);

/// Return a frame.
std::string encode(const Challenge& challenge);
std::string encode(const Hello& hello);
std::string encode(const Welcome& welcome);
std::string encode(const Refusal& refusal);
std::string encode(const Request& request, std::string_view value);  ///< ignores request.value
std::string encode(const Fault& fault);
std::string encode_heartbeat();
/// Returns a reply's frame up to its payload. The caller appends `payload_bytes` bytes of payload.
std::string encode_reply(std::uint64_t id, Status status, std::size_t payload_bytes);
/// Replaces the timeout in a request's frame, for sending it again.
void set_timeout(std::string& frame, std::uint32_t milliseconds);

/// Decode a frame's body. Throw ProtocolError if it violates the protocol.
Challenge decode_challenge(std::string_view body);
Hello decode_hello(std::string_view body);
Welcome decode_welcome(std::string_view body);
Refusal decode_refusal(std::string_view body);
Request decode_request(std::string_view body);
Reply decode_reply(std::string_view body);
Fault decode_fault(std::string_view body);
void decode_heartbeat(std::string_view body);

std::string encode_number(std::int64_t number);
std::int64_t decode_number(std::string_view payload);

/// Return the code that proves knowledge of the secret, of a client and of the server. HMAC-SHA-256 (RFC 2104) comes
/// from libcrypto, which libhdf5 already requires.
Code code_of(const Hello& hello, const Nonce& server_nonce, std::string_view secret);
Code code_of(const Welcome& welcome, const Hello& hello, const Nonce& server_nonce, std::string_view secret);
bool equal_in_constant_time(const Code& a, const Code& b);
void fill_random(std::span<char> bytes);

/// Returns `text` on one line: replaces control characters with spaces and keeps at most `max_bytes` bytes.
std::string one_line(std::string_view text, std::size_t max_bytes);
/// Returns a key for messages: "'loss/3'", escaped, truncated if long.
std::string key_text(std::string_view key);

/// Splits a byte stream into the bodies of frames.
class FrameBuffer {
 public:
  void append(std::span<const char> bytes) { bytes_.append(bytes.data(), bytes.size()); }
  /// Returns the next complete frame's body, or nothing if it is incomplete. Throws ProtocolError as soon as a length
  /// of 0 or above `max_bytes` is read.
  std::optional<std::string> next(std::size_t max_bytes);
  std::size_t size() const { return bytes_.size() - start_; }

 private:
  std::string bytes_;
  std::size_t start_ = 0;
};

/// Bytes to send, in order. Values are shared, not copied.
class SendQueue {
 public:
  void push(std::shared_ptr<const std::string> bytes);
  void push(std::string bytes) { push(std::make_shared<const std::string>(std::move(bytes))); }
  void clear();
  bool empty() const { return parts_.empty(); }
  std::size_t size() const { return size_; }  ///< bytes
  /// Sends as much as possible without blocking. The result's error is 0 if the rest has to wait. Sets `acknowledged`
  /// if bytes were sent after the send buffer had been full: the peer must have received some.
  Transfer flush(const Socket& socket, bool& acknowledged);

 private:
  std::deque<std::shared_ptr<const std::string>> parts_;
  std::size_t sent_ = 0;  ///< bytes of the first part
  std::size_t size_ = 0;
  bool blocked_ = false;
};

}  // namespace store
}  // namespace furlong
