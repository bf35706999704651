// Frames of the job store's protocol: round trips, and rejection of invalid frames.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "tests/communication/job_store/store_testing.h"

namespace furlong {
namespace {

using namespace store;
using namespace store_testing;
using ::testing::HasSubstr;

Hello a_hello() {
  Hello out;
  out.rank = 3;
  out.world_size = 8;
  std::iota(out.session.begin(), out.session.end(), static_cast<char>(200));
  out.resuming = true;
  std::iota(out.nonce.begin(), out.nonce.end(), static_cast<char>(100));
  out.host = "node07";
  out.code.fill('c');
  return out;
}

Nonce a_nonce() {
  Nonce out;
  std::iota(out.begin(), out.end(), '\0');
  return out;
}

Request a_request(Kind kind, std::vector<std::string> keys, std::string value = {}, std::int64_t delta = 0) {
  return {kind, 0x1122334455667788u, 7, 60000, std::move(keys), std::move(value), delta};
}

std::string body_of(const std::string& frame) {
  FrameBuffer buffer;
  buffer.append(frame);
  return buffer.next(max_frame_bytes).value();
}

/// Decodes a body according to its kind and encodes it again.
std::string reencoded(const std::string& body) {
  switch (kind_of(body)) {
    case Kind::hello:
      return encode(decode_hello(body));
    case Kind::heartbeat:
      return decode_heartbeat(body), encode_heartbeat();
    case Kind::challenge:
      return encode(decode_challenge(body));
    case Kind::welcome:
      return encode(decode_welcome(body));
    case Kind::refusal:
      return encode(decode_refusal(body));
    case Kind::fault:
      return encode(decode_fault(body));
    case Kind::reply: {
      const Reply reply = decode_reply(body);
      return encode_reply(reply.id, reply.status, reply.payload.size()) + reply.payload;
    }
    default: {
      const Request request = decode_request(body);
      return encode(request, request.value);
    }
  }
}

std::vector<std::string> all_frames() {
  const std::string binary("\0\n\xff value", 9);
  std::vector<std::string> out{encode(Challenge{a_nonce()}),
                               encode(a_hello()),
                               encode(Welcome{"node00", a_hello().code}),
                               encode(Refusal{Refused::world_size, "8"}),
                               encode(Fault{3, "node07", "no space left"}),
                               encode_heartbeat(),
                               encode_reply(9, Status::timed_out, 9) + binary};
  for (const Request& request :
       {a_request(Kind::set, {binary}, binary), a_request(Kind::get, {"k"}), a_request(Kind::add, {"k"}, {}, -5),
        a_request(Kind::wait, {"a", binary, "a"}), a_request(Kind::check, {}), a_request(Kind::report_fault, {}, "why"),
        a_request(Kind::goodbye, {})})
    out.push_back(encode(request, request.value));
  return out;
}

TEST(StoreProtocol, FramesRoundTrip) {
  for (const std::string& frame : all_frames()) EXPECT_EQ(reencoded(body_of(frame)), frame);
  const Hello hello = decode_hello(body_of(encode(a_hello())));
  EXPECT_EQ(hello.rank, 3);
  EXPECT_EQ(hello.world_size, 8);
  EXPECT_EQ(hello.session, a_hello().session);
  EXPECT_TRUE(hello.resuming);
  EXPECT_EQ(hello.nonce, a_hello().nonce);
  EXPECT_EQ(hello.host, "node07");
  EXPECT_EQ(hello.code, a_hello().code);
  const Request add = decode_request(body_of(encode(a_request(Kind::add, {"key"}, {}, -5), {})));
  EXPECT_EQ(add.id, 0x1122334455667788u);
  EXPECT_EQ(add.oldest, 7u);
  EXPECT_EQ(add.timeout, 60000u);
  EXPECT_EQ(add.keys, std::vector<std::string>{"key"});
  EXPECT_EQ(add.delta, -5);
  std::string frame = encode(a_request(Kind::get, {"key"}), {});
  set_timeout(frame, 0xfedcba98u);
  EXPECT_EQ(decode_request(body_of(frame)).timeout, 0xfedcba98u);
  EXPECT_EQ(decode_request(body_of(frame)).keys, std::vector<std::string>{"key"});
  for (const std::int64_t number : {std::int64_t{0}, std::int64_t{-1}, INT64_MIN, INT64_MAX})
    EXPECT_EQ(decode_number(encode_number(number)), number);
  EXPECT_THROW(decode_number("1234567"), ProtocolError);
}

TEST(StoreProtocol, HelloFitsTheLimitOfUnauthenticatedFrames) {
  Hello hello = a_hello();
  hello.host = std::string(1000, 'h');
  EXPECT_LE(encode(hello).size(), max_handshake_bytes);
  EXPECT_EQ(decode_hello(body_of(encode(hello))).host, std::string(max_host_bytes, 'h'));
}

// Expected values from Python: hmac.new(secret, message, hashlib.sha256), with the message of store_protocol.h.
TEST(StoreProtocol, CodesAreHmacSha256OfAllFields) {
  const auto hex = [](const Code& code) {
    std::string out;
    for (const char byte : code) out += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    return out;
  };
  const std::string secret = "the job's secret";
  const Hello hello = a_hello();
  const Code code = code_of(hello, a_nonce(), secret);
  EXPECT_EQ(hex(code), "7d1ff40bfd8385e78d6857e3bca17e0d31ef2371eed3fe8c7a66d2fe840f1fe4");
  EXPECT_EQ(hex(code_of(Welcome{"node00", {}}, hello, a_nonce(), secret)),
            "5f0fc704af7a6546a2a97b59a0987a86ad8fb096a7ede8427e5fc03c5bb38685");
  EXPECT_TRUE(equal_in_constant_time(code, code_of(hello, a_nonce(), secret)));
  const auto differs = [&](auto change) {
    Hello other = hello;
    change(other);
    return !equal_in_constant_time(code, code_of(other, a_nonce(), secret));
  };
  EXPECT_TRUE(differs([](Hello& other) { other.rank = 4; }));
  EXPECT_TRUE(differs([](Hello& other) { other.world_size = 9; }));
  EXPECT_TRUE(differs([](Hello& other) { other.session[15] ^= 1; }));
  EXPECT_TRUE(differs([](Hello& other) { other.resuming = false; }));
  EXPECT_TRUE(differs([](Hello& other) { other.nonce[0] ^= 1; }));
  EXPECT_TRUE(differs([](Hello& other) { other.host = "node08"; }));
  EXPECT_FALSE(differs([](Hello& other) { other.code.fill('x'); }));
  Nonce nonce = a_nonce();
  nonce[31] ^= 1;
  EXPECT_FALSE(equal_in_constant_time(code, code_of(hello, nonce, secret)));
  EXPECT_FALSE(equal_in_constant_time(code, code_of(hello, a_nonce(), "another")));
}

TEST(StoreProtocol, RandomBytesDiffer) {
  Nonce a{}, b{};
  fill_random(a);
  fill_random(b);
  EXPECT_NE(a, b);
}

TEST(StoreProtocol, RejectsTruncatedAndExtendedFrames) {
  for (const std::string& frame : all_frames()) {
    const std::string body = body_of(frame);
    const Kind kind = kind_of(body);
    const bool open_end = kind == Kind::set || kind == Kind::reply;  // the value is the rest of the frame
    if (!open_end) {
      EXPECT_THROW(reencoded(body + "x"), ProtocolError);
    }
    const std::size_t fixed = open_end ? body.size() - 9 : body.size();
    for (std::size_t bytes = 1; bytes < fixed; ++bytes)
      EXPECT_THROW(reencoded(body.substr(0, bytes)), ProtocolError) << bytes;
  }
}

TEST(StoreProtocol, RejectsFieldsOutOfRange) {
  const auto refused = [](std::string frame) {
    try {
      reencoded(body_of(frame));
      return false;
    } catch (const ProtocolError&) {
      return true;
    }
  };
  EXPECT_TRUE(refused(encode(a_request(Kind::get, {""}), {})));
  EXPECT_TRUE(refused(encode(a_request(Kind::get, {std::string(max_key_bytes + 1, 'k')}), {})));
  EXPECT_FALSE(refused(encode(a_request(Kind::get, {std::string(max_key_bytes, 'k')}), {})));
  EXPECT_TRUE(refused(encode(a_request(Kind::wait, {"a", ""}), {})));
  for (const auto& [rank, size] : std::vector<std::pair<int, int>>{{-1, 8}, {8, 8}, {0, 0}, {0, max_world_size + 1}}) {
    Hello hello = a_hello();
    hello.rank = rank;
    hello.world_size = size;
    EXPECT_TRUE(refused(encode(hello))) << rank << " of " << size;
  }
  EXPECT_TRUE(refused(encode(Fault{-1, "h", "r"})));
  EXPECT_TRUE(refused(encode(Refusal{static_cast<Refused>(9), ""})));
  EXPECT_TRUE(refused(encode_reply(1, static_cast<Status>(9), 0)));
  // More keys than the frame can hold: no memory is reserved for them.
  std::string many = encode(a_request(Kind::check, {}), {});
  many.replace(many.size() - 4, 4, "\xff\xff\xff\x7f");
  EXPECT_TRUE(refused(many));
  std::string control = encode(a_hello());
  control[control.find("node07")] = '\n';
  EXPECT_TRUE(refused(control));
}

TEST(StoreProtocol, RejectsOrRoundTripsRandomAndMutatedBodies) {
  std::mt19937 random(6);
  const std::vector<std::string> frames = all_frames();
  int refused = 0, read = 0;
  for (int i = 0; i < 60000; ++i) {
    std::string body;
    if (i % 3 == 0) {
      body.resize(1 + random() % 200);
      for (char& byte : body) byte = static_cast<char>(random());
      if (i % 2 == 0) body[0] = frames[random() % frames.size()][4];
    } else {
      body = body_of(frames[random() % frames.size()]);
      for (unsigned edits = 1 + random() % 3; edits > 0; --edits) {
        const std::size_t at = random() % body.size();
        switch (random() % 4) {
          case 0:
            body[at] = static_cast<char>(random());
            break;
          case 1:
            body[at] ^= static_cast<char>(1 << (random() % 8));
            break;
          case 2:
            body.insert(at, 1, static_cast<char>(random()));
            break;
          default:
            if (body.size() > 1) body.erase(at, 1);
        }
      }
    }
    try {
      const std::string frame = reencoded(body);
      ++read;
      // Reasons are made printable; everything else is preserved.
      if (kind_of(body) != Kind::fault && kind_of(body) != Kind::report_fault) {
        ASSERT_EQ(frame.substr(4), body);
      }
    } catch (const ProtocolError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(read, 1000);
}

TEST(StoreProtocol, ReassemblesFramesFromAnyChunks) {
  std::string stream;
  for (const std::string& frame : all_frames()) stream += frame;
  for (const std::size_t piece : {1u, 2u, 7u, 64u, 100000u}) {
    FrameBuffer buffer;
    std::string out;
    for (std::size_t at = 0; at < stream.size(); at += piece) {
      buffer.append(std::string_view(stream).substr(at, piece));
      while (const auto body = buffer.next(max_frame_bytes)) out += reencoded(*body);
    }
    EXPECT_EQ(out, stream);
    EXPECT_EQ(buffer.size(), 0u);
  }
}

TEST(StoreProtocol, RejectsInvalidLengthsImmediately) {
  const auto next = [](std::string_view bytes, std::size_t limit) {
    FrameBuffer buffer;
    buffer.append(bytes);
    return buffer.next(limit);
  };
  EXPECT_THROW(next(std::string_view("\0\0\0\0", 4), 256), ProtocolError);
  EXPECT_THROW(next(std::string_view("\x01\x01\0\0", 4), 256), ProtocolError);
  EXPECT_THROW(next("\xff\xff\xff\xff", max_frame_bytes), ProtocolError);
  EXPECT_EQ(next(std::string_view("\0\x01\0\0", 4), 256), std::nullopt);  // 256 bytes are still expected
  EXPECT_EQ(next("\x01", 256), std::nullopt);
}

TEST(StoreProtocol, MessagesAreOneLine) {
  EXPECT_EQ(one_line("a\nb\tc\x7f", 100), "a b c ");
  EXPECT_EQ(one_line("abc", 2), "ab");
  EXPECT_EQ(one_line("a\u00e9b", 2), "a");  // no partial character
  EXPECT_EQ(one_line("a\u00e9b", 3), "a\u00e9");
  EXPECT_EQ(key_text("loss/\n"), "'loss/\\x0a'");
  EXPECT_EQ(key_text(std::string(200, 'k')), "'" + std::string(80, 'k') + "…'");
  EXPECT_EQ((Fault{3, "node07", "silent"}.message()), "rank 3 on host node07 failed: silent");
}

TEST(StoreProtocol, RejectsInconsistentTimes) {
  const auto message = [](StoreTimes times) { return message_of<UserError>([&] { times.check(); }); };
  EXPECT_NO_THROW(StoreTimes{}.check());
  EXPECT_NO_THROW(quick().check());
  EXPECT_THAT(message({0ms, 10s, 4s}), HasSubstr("heartbeats every 0 s"));
  EXPECT_THAT(message({4s, 10s, 4s}), HasSubstr("heartbeats every 4 s, 4 s to reconnect"));
  EXPECT_THAT(message({6s, 10s, 8s}), HasSubstr("two heartbeats"));
  EXPECT_THAT(message({1s, 3s, 4s}), HasSubstr("after 3 s of silence"));
  EXPECT_THAT(message({1s, 25h, 4s}), HasSubstr("at most 24 h"));
}

}  // namespace
}  // namespace furlong
