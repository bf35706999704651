#pragma once
// What the job store's server and clients say to each other. A frame is a length (4 bytes, little-endian, of what
// follows), a kind (1 byte) and that kind's fields: numbers little-endian, texts with their length before them. Every
// field of a frame that came in is checked.
//
//   server                                   client
//   Challenge {nonce}                   ->
//                                       <-   Hello {rank, world size, session, nonce, host, code}
//   Welcome {host, code} or Refusal     ->
//   Reply, Fault, Heartbeat             <->  Request, Heartbeat
//
// Both prove that they know the job's secret without sending it: a code is HMAC-SHA-256, keyed by the secret, of both
// nonces and of all that the message says. It keeps strangers and other jobs out; what is sent afterwards is neither
// encrypted nor signed, so that whoever can rewrite a cluster's traffic is not kept out.
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

/// How soon a lost rank is noticed: at `timeout` at the latest, at `grace` where its connection broke.
struct StoreTimes {
  std::chrono::milliseconds heartbeat_interval{2000};
  std::chrono::milliseconds timeout{10000};  ///< silence after which a rank, or the store, counts as lost
  std::chrono::milliseconds grace{
      4000};  ///< after a connection broke, for coming back: a blip of the network that is shorter is survived

  /// Throws UserError unless 0 < heartbeat_interval < grace <= timeout and two heartbeats fit in the timeout.
  void check() const;
};

/// The first thing that went wrong in a job.
struct Fault {
  int rank = 0;  ///< at fault
  std::string host;
  std::string reason;

  /// "rank 3 on host node07 failed: sent nothing for 10.0 s"
  std::string message() const;
  bool operator==(const Fault&) const = default;
};

namespace store {

constexpr std::size_t max_key_bytes = 4096;
constexpr std::size_t max_value_bytes = std::size_t{64} << 20;
constexpr std::size_t max_stranger_bytes = 256;  ///< of a frame while its sender is not known
constexpr std::size_t max_frame_bytes = max_value_bytes + max_key_bytes + 64;
constexpr std::size_t max_host_bytes = 64;  ///< HOST_NAME_MAX
constexpr std::size_t max_reason_bytes = 1000;
constexpr int max_world_size = 1 << 20;

/// A frame that breaks the rules above; the connection that it came over is closed.
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
/// A request that changes something: done once, however often a broken connection makes its client repeat it.
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
  SessionId session{};    ///< chosen by the client, the same for as long as it lives
  bool resuming = false;  ///< it was welcome once; the store must know its id
  Nonce nonce{};
  std::string host;
  Code code{};
};
struct Welcome {
  std::string host;  ///< rank 0's
  Code code{};
};
enum class Refused : std::uint8_t { secret = 1, world_size, rank, session };
struct Refusal {
  Refused reason = Refused::secret;
  std::string detail;  ///< what the store expected
};
struct Request {
  Kind kind = Kind::check;
  std::uint64_t id = 0;             ///< counts up in each session
  std::uint64_t oldest = 0;         ///< this client waits for the reply of no request that changes state below this id
  std::uint32_t timeout = 0;        ///< milliseconds, of get and wait
  std::vector<std::string> keys{};  ///< one for set, get, add
  std::string value{};              ///< set's, or report_fault's reason
  std::int64_t delta = 0;           ///< add's
};
enum class Status : std::uint8_t { ok = 0, timed_out, no_number };
struct Reply {
  std::uint64_t id = 0;
  Status status = Status::ok;
  std::string payload;  ///< get: the value; add: 8 bytes; check: 1 byte; otherwise what went wrong, in words
};

/// A frame's body, after its length.
Kind kind_of(std::string_view body);
std::string encode(const Challenge& challenge);
std::string encode(const Hello& hello);
std::string encode(const Welcome& welcome);
std::string encode(const Refusal& refusal);
std::string encode(const Request& request, std::string_view value);  ///< its own `value` is not looked at
std::string encode(const Fault& fault);
std::string encode_heartbeat();
/// A reply's frame up to its payload of `payload_bytes`, which follows as it is.
std::string encode_reply(std::uint64_t id, Status status, std::size_t payload_bytes);
/// Puts another timeout into a request's frame, which may be sent anew after a while.
void set_timeout(std::string& frame, std::uint32_t milliseconds);

/// Throw ProtocolError.
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

/// What a client and what the server prove to know the secret with. HMAC-SHA-256 (RFC 2104) is libcrypto's, which
/// libhdf5 links and its development package brings: no further dependency, where an own hash would be one more thing
/// to trust.
Code code_of(const Hello& hello, const Nonce& server_nonce, std::string_view secret);
Code code_of(const Welcome& welcome, const Hello& hello, const Nonce& server_nonce, std::string_view secret);
bool equal_in_constant_time(const Code& a, const Code& b);
void fill_random(std::span<char> bytes);

/// Text for a message of one line: control characters become spaces, and at most `max_bytes` are kept.
std::string one_line(std::string_view text, std::size_t max_bytes);
/// "'loss/3'", escaped and cut where it is long
std::string key_text(std::string_view key);

/// Cuts a stream into frames' bodies.
class FrameBuffer {
 public:
  void append(std::span<const char> bytes) { bytes_.append(bytes.data(), bytes.size()); }
  /// The next whole frame's body. Throws ProtocolError where a length is 0 or above `max_bytes`, before what it
  /// announces is waited for.
  std::optional<std::string> next(std::size_t max_bytes);
  std::size_t size() const { return bytes_.size() - start_; }

 private:
  std::string bytes_;
  std::size_t start_ = 0;
};

/// What is to be sent, in order. Values are shared, not copied.
class SendQueue {
 public:
  void push(std::shared_ptr<const std::string> bytes);
  void push(std::string bytes) { push(std::make_shared<const std::string>(std::move(bytes))); }
  void clear();
  bool empty() const { return parts_.empty(); }
  std::size_t size() const { return size_; }  ///< bytes
  /// Sends what goes without waiting; the result's error is 0 when the rest must wait.
  /// `acknowledged` is set where bytes went out after the system's buffer had been full: the peer must have taken some.
  Transfer flush(const Socket& socket, bool& acknowledged);

 private:
  std::deque<std::shared_ptr<const std::string>> parts_;
  std::size_t sent_ = 0;  ///< of the first part
  std::size_t size_ = 0;
  bool blocked_ = false;
};

}  // namespace store
}  // namespace furlong
