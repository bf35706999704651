#include "communication/job_store/store_protocol.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <type_traits>

#include "framework/core/error.h"

namespace furlong {

using std::chrono::milliseconds;

void StoreTimes::check() const {
  const auto seconds = [](milliseconds time) { return static_cast<double>(time.count()) / 1000; };
  if (heartbeat_interval <= milliseconds(0) || heartbeat_interval >= grace || grace > timeout ||
      2 * heartbeat_interval > timeout)
    throw UserError(
        "heartbeats every {} s, {} s to reconnect, a rank lost after {} s of silence: expected interval < grace <= "
        "timeout and at least two heartbeats within the timeout; the defaults are 2, 4 and 10 s",
        seconds(heartbeat_interval), seconds(grace), seconds(timeout));
  if (timeout > std::chrono::hours(24))
    throw UserError("a rank lost after {} s of silence: expected at most 24 h", seconds(timeout));
}

std::string Fault::message() const { return fmt::format("rank {} on host {} failed: {}", rank, host, reason); }

namespace store {
namespace {

constexpr std::size_t length_bytes = 4;
// The length and the kind, then a request's id and oldest id.
constexpr std::size_t timeout_offset = length_bytes + 1 + 8 + 8;
// The first bytes that the server sends distinguish it from any other service. The last one is the protocol's version.
constexpr std::string_view greeting = "Furlong\x01";

template <class Number>
void put(std::string& out, Number number) {
  auto bits = static_cast<std::make_unsigned_t<Number>>(number);
  for (std::size_t i = 0; i < sizeof bits; ++i) {
    out.push_back(static_cast<char>(bits & 0xff));
    if constexpr (sizeof bits > 1) bits = static_cast<decltype(bits)>(bits >> 8);
  }
}

/// Builds a frame. finish() fills in the length.
class Writer {
 public:
  explicit Writer(Kind kind) : frame_(length_bytes, '\0') { number(static_cast<std::uint8_t>(kind)); }
  template <class Number>
  Writer& number(Number value) {
    put(frame_, value);
    return *this;
  }
  Writer& raw(std::string_view bytes) {
    frame_.append(bytes);
    return *this;
  }
  template <std::size_t N>
  Writer& raw(const std::array<char, N>& bytes) {
    return raw(std::string_view(bytes.data(), N));
  }
  Writer& text(std::string_view value) { return number(static_cast<std::uint32_t>(value.size())).raw(value); }
  std::string finish(std::size_t more_bytes = 0) {
    std::string length;
    put(length, static_cast<std::uint32_t>(frame_.size() - length_bytes + more_bytes));
    frame_.replace(0, length_bytes, length);
    return std::move(frame_);
  }

 private:
  std::string frame_;
};

/// Reads a body's fields with bounds checks.
class Reader {
 public:
  explicit Reader(std::string_view fields) : rest_(fields) {}
  Reader(std::string_view body, Kind expected) : rest_(body) {
    if (number<std::uint8_t>() != static_cast<std::uint8_t>(expected)) fail("a frame of an unexpected kind");
  }
  template <class Number>
  Number number() {
    std::make_unsigned_t<Number> bits = 0;
    const std::string_view bytes = raw(sizeof bits);
    for (std::size_t i = 0; i < sizeof bits; ++i)
      bits = static_cast<decltype(bits)>(
          bits | (static_cast<std::make_unsigned_t<Number>>(static_cast<unsigned char>(bytes[i])) << (8 * i)));
    return static_cast<Number>(bits);
  }
  std::string_view raw(std::size_t bytes) {
    if (bytes > rest_.size()) fail("a frame that ends within a field");
    const std::string_view out = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return out;
  }
  template <std::size_t N>
  std::array<char, N> array() {
    std::array<char, N> out;
    std::memcpy(out.data(), raw(N).data(), N);
    return out;
  }
  std::string text(std::size_t min_bytes, std::size_t max_bytes) {
    const auto bytes = number<std::uint32_t>();
    if (bytes < min_bytes || bytes > max_bytes) fail("a text that is too short or too long");
    return std::string(raw(bytes));
  }
  std::string key() { return text(1, max_key_bytes); }
  std::string rest(std::size_t max_bytes) {
    if (rest_.size() > max_bytes) fail("a value that is too long");
    return std::string(raw(rest_.size()));
  }
  std::size_t left() const { return rest_.size(); }
  void finish() const {
    if (!rest_.empty()) fail("a frame with bytes after its last field");
  }
  [[noreturn]] static void fail(const char* what) { throw ProtocolError(what); }

 private:
  std::string_view rest_;
};

std::string host_field(std::string_view text) { return one_line(text, max_host_bytes); }

void check_host(const std::string& host) {
  if (host != host_field(host)) Reader::fail("an unprintable host name");
}

Writer& hello_fields(Writer& writer, const Hello& hello) {
  return writer.number(hello.rank)
      .number(hello.world_size)
      .raw(hello.session)
      .number(static_cast<std::uint8_t>(hello.resuming))
      .raw(hello.nonce)
      .text(host_field(hello.host));
}

Code hmac(std::string_view message, std::string_view secret) {
  Code out;
  unsigned int bytes = 0;
  const auto* key = secret.data();
  const auto* data = reinterpret_cast<const unsigned char*>(message.data());
  const auto* done = HMAC(EVP_sha256(), key, static_cast<int>(secret.size()), data, message.size(),
                          reinterpret_cast<unsigned char*>(out.data()), &bytes);
  if (!done || bytes != out.size())
    throw MachineError("libcrypto cannot compute HMAC-SHA-256, which the job store needs; install a build with SHA-2");
  return out;
}

}  // namespace

Kind kind_of(std::string_view body) {
  const auto kind = static_cast<Kind>(static_cast<std::uint8_t>(body.at(0)));
  const bool known = (kind >= Kind::hello && kind <= Kind::goodbye) || (kind >= Kind::challenge && kind <= Kind::fault);
  if (!known) Reader::fail("a frame of an unknown kind");
  return kind;
}

std::string encode(const Challenge& challenge) {
  return Writer(Kind::challenge).raw(greeting).raw(challenge.nonce).finish();
}

Challenge decode_challenge(std::string_view body) {
  Reader reader(body, Kind::challenge);
  if (reader.raw(greeting.size()) != greeting) Reader::fail("the greeting of another service");
  Challenge out;
  out.nonce = reader.array<sizeof(Nonce)>();
  reader.finish();
  return out;
}

std::string encode(const Hello& hello) {
  Writer writer(Kind::hello);
  return hello_fields(writer, hello).raw(hello.code).finish();
}

Hello decode_hello(std::string_view body) {
  Reader reader(body, Kind::hello);
  Hello out;
  out.rank = reader.number<std::int32_t>();
  out.world_size = reader.number<std::int32_t>();
  if (out.world_size < 1 || out.world_size > max_world_size || out.rank < 0 || out.rank >= out.world_size)
    Reader::fail("an invalid rank");
  out.session = reader.array<sizeof(SessionId)>();
  const auto resuming = reader.number<std::uint8_t>();
  if (resuming > 1) Reader::fail("an invalid boolean");
  out.resuming = resuming == 1;
  out.nonce = reader.array<sizeof(Nonce)>();
  out.host = reader.text(0, max_host_bytes);
  check_host(out.host);
  out.code = reader.array<sizeof(Code)>();
  reader.finish();
  return out;
}

std::string encode(const Welcome& welcome) {
  return Writer(Kind::welcome).text(host_field(welcome.host)).raw(welcome.code).finish();
}

Welcome decode_welcome(std::string_view body) {
  Reader reader(body, Kind::welcome);
  Welcome out;
  out.host = reader.text(0, max_host_bytes);
  check_host(out.host);
  out.code = reader.array<sizeof(Code)>();
  reader.finish();
  return out;
}

std::string encode(const Refusal& refusal) {
  return Writer(Kind::refusal)
      .number(static_cast<std::uint8_t>(refusal.reason))
      .text(host_field(refusal.detail))
      .finish();
}

Refusal decode_refusal(std::string_view body) {
  Reader reader(body, Kind::refusal);
  const auto reason = reader.number<std::uint8_t>();
  if (reason < static_cast<std::uint8_t>(Refused::secret) || reason > static_cast<std::uint8_t>(Refused::session))
    Reader::fail("a refusal for an unknown reason");
  Refusal out;
  out.reason = static_cast<Refused>(reason);
  out.detail = reader.text(0, max_host_bytes);
  check_host(out.detail);
  reader.finish();
  return out;
}

std::string encode(const Request& request, std::string_view value) {
  Writer writer(request.kind);
  writer.number(request.id).number(request.oldest).number(request.timeout);
  switch (request.kind) {
    case Kind::set:
      writer.text(request.keys.at(0)).raw(value);
      break;
    case Kind::get:
      writer.text(request.keys.at(0));
      break;
    case Kind::add:
      writer.text(request.keys.at(0)).number(request.delta);
      break;
    case Kind::wait:
    case Kind::check:
      writer.number(static_cast<std::uint32_t>(request.keys.size()));
      for (const std::string& key : request.keys) writer.text(key);
      break;
    case Kind::report_fault:
      writer.text(one_line(value, max_reason_bytes));
      break;
    case Kind::goodbye:
      break;
    default:
      require(false, "job store: kind {} is not a request", static_cast<int>(request.kind));
  }
  return writer.finish();
}

Request decode_request(std::string_view body) {
  Request out;
  out.kind = kind_of(body);
  if (!is_request(out.kind)) Reader::fail("a frame that is not a request");
  Reader reader(body, out.kind);
  out.id = reader.number<std::uint64_t>();
  out.oldest = reader.number<std::uint64_t>();
  out.timeout = reader.number<std::uint32_t>();
  switch (out.kind) {
    case Kind::set:
      out.keys.push_back(reader.key());
      out.value = reader.rest(max_value_bytes);
      break;
    case Kind::get:
      out.keys.push_back(reader.key());
      break;
    case Kind::add:
      out.keys.push_back(reader.key());
      out.delta = reader.number<std::int64_t>();
      break;
    case Kind::wait:
    case Kind::check: {
      const auto count = reader.number<std::uint32_t>();
      // Each key takes at least its length and one byte, so no more memory is reserved than the frame can hold.
      if (count > reader.left() / (sizeof(std::uint32_t) + 1)) Reader::fail("more keys than fit in the frame");
      out.keys.reserve(count);
      for (std::uint32_t i = 0; i < count; ++i) out.keys.push_back(reader.key());
      break;
    }
    case Kind::report_fault:
      out.value = reader.text(0, max_reason_bytes);
      break;
    default:
      break;
  }
  reader.finish();
  return out;
}

std::string encode_reply(std::uint64_t id, Status status, std::size_t payload_bytes) {
  return Writer(Kind::reply).number(id).number(static_cast<std::uint8_t>(status)).finish(payload_bytes);
}

Reply decode_reply(std::string_view body) {
  Reader reader(body, Kind::reply);
  Reply out;
  out.id = reader.number<std::uint64_t>();
  const auto status = reader.number<std::uint8_t>();
  if (status > static_cast<std::uint8_t>(Status::no_number)) Reader::fail("a reply with an unknown status");
  out.status = static_cast<Status>(status);
  out.payload = reader.rest(max_value_bytes);
  return out;
}

std::string encode(const Fault& fault) {
  return Writer(Kind::fault)
      .number(static_cast<std::int32_t>(fault.rank))
      .text(host_field(fault.host))
      .text(one_line(fault.reason, max_reason_bytes))
      .finish();
}

Fault decode_fault(std::string_view body) {
  Reader reader(body, Kind::fault);
  Fault out;
  out.rank = reader.number<std::int32_t>();
  if (out.rank < 0 || out.rank >= max_world_size) Reader::fail("an invalid rank");
  out.host = reader.text(0, max_host_bytes);
  check_host(out.host);
  out.reason = one_line(reader.text(0, max_reason_bytes), max_reason_bytes);
  reader.finish();
  return out;
}

std::string encode_heartbeat() { return Writer(Kind::heartbeat).finish(); }
void decode_heartbeat(std::string_view body) { Reader(body, Kind::heartbeat).finish(); }

void set_timeout(std::string& frame, std::uint32_t milliseconds) {
  std::string bytes;
  put(bytes, milliseconds);
  frame.replace(timeout_offset, bytes.size(), bytes);
}

std::string encode_number(std::int64_t number) {
  std::string out;
  put(out, number);
  return out;
}

std::int64_t decode_number(std::string_view payload) {
  Reader reader(payload);
  const auto out = reader.number<std::int64_t>();
  reader.finish();
  return out;
}

// Each code starts with a different kind, so that one side's code cannot be reflected to it as the other side's.
Code code_of(const Hello& hello, const Nonce& server_nonce, std::string_view secret) {
  Writer writer(Kind::hello);
  return hmac(hello_fields(writer.raw(greeting).raw(server_nonce), hello).finish(), secret);
}

Code code_of(const Welcome& welcome, const Hello& hello, const Nonce& server_nonce, std::string_view secret) {
  Writer writer(Kind::welcome);
  return hmac(hello_fields(writer.raw(greeting).raw(server_nonce), hello).text(host_field(welcome.host)).finish(),
              secret);
}

bool equal_in_constant_time(const Code& a, const Code& b) { return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0; }

void fill_random(std::span<char> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::getrandom(bytes.data(), bytes.size(), 0);
    if (count < 0) {
      if (errno == EINTR) continue;
      throw MachineError("the system provides no random bytes: {}", error_text(errno));
    }
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

std::string one_line(std::string_view text, std::size_t max_bytes) {
  std::string out(text.substr(0, max_bytes));
  // Truncate between UTF-8 characters.
  if (text.size() > max_bytes) {
    while (!out.empty() && (static_cast<unsigned char>(text[out.size()]) & 0xc0) == 0x80) out.pop_back();
  }
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return out;
}

std::string key_text(std::string_view key) {
  constexpr std::size_t most = 80;
  std::string out = "'";
  for (const char c : key.substr(0, most)) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out.push_back(c);
    }
  }
  return out + (key.size() > most ? "…'" : "'");
}

std::optional<std::string> FrameBuffer::next(std::size_t max_bytes) {
  if (size() < length_bytes) return std::nullopt;
  std::uint32_t length = 0;
  for (std::size_t i = 0; i < length_bytes; ++i)
    length |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes_[start_ + i])) << (8 * i);
  if (length == 0 || length > max_bytes) Reader::fail("a frame whose length is out of bounds");
  if (size() < length_bytes + length) return std::nullopt;
  std::string body = bytes_.substr(start_ + length_bytes, length);
  start_ += length_bytes + length;
  if (start_ == bytes_.size()) {
    // Free the memory of a large value.
    if (bytes_.capacity() > (std::size_t{1} << 20)) bytes_ = {};
    bytes_.clear();
    start_ = 0;
  } else if (start_ > (std::size_t{1} << 16)) {
    bytes_.erase(0, start_);
    start_ = 0;
  }
  return body;
}

void SendQueue::push(std::shared_ptr<const std::string> bytes) {
  if (bytes->empty()) return;
  size_ += bytes->size();
  parts_.push_back(std::move(bytes));
}

void SendQueue::clear() {
  parts_.clear();
  sent_ = size_ = 0;
  blocked_ = false;
}

Transfer SendQueue::flush(const Socket& socket, bool& acknowledged) {
  Transfer total;
  while (!parts_.empty()) {
    const std::span<const char> part(*parts_.front());
    const Transfer moved = send(socket, part.subspan(sent_));
    if (moved.bytes == 0) {
      blocked_ = true;
      total.error = moved.error;
      return total;
    }
    if (blocked_) acknowledged = true;
    blocked_ = false;
    total.bytes += moved.bytes;
    sent_ += moved.bytes;
    size_ -= moved.bytes;
    if (sent_ == part.size()) {
      parts_.pop_front();
      sent_ = 0;
    }
  }
  return total;
}

}  // namespace store
}  // namespace furlong
