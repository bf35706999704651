// Bytes from a stranger at the start of a job. The first byte chooses who hears them: the job store, a rank that
// connects to the store, or a rank that other ranks connect to. Ranks with the secret must still find each other.
#include <poll.h>

#include <array>
#include <chrono>
#include <optional>
#include <thread>

#include "communication/gloo/rank_links.h"
#include "communication/job_store/store_handshake.h"
#include "communication/job_store/store_server.h"
#include "tests/fuzz/target.h"

namespace fuzzing = furlong::fuzzing;
namespace store = furlong::store;
using furlong::Socket;
using furlong::SocketAddress;

namespace {

using namespace std::chrono_literals;
constexpr const char* secret = "the job's secret";

furlong::TimePoint soon() { return std::chrono::steady_clock::now() + 60s; }

SocketAddress loopback(std::uint16_t port) {
  std::string problem;
  return furlong::resolve("127.0.0.1", port, problem).front();
}

Socket connection_to(const SocketAddress& address) {
  int error = 0;
  Socket socket = furlong::connect_to(address, soon(), 0ms, error);
  fuzzing::expect(static_cast<bool>(socket), "cannot connect");
  return socket;
}

void send_all(const Socket& socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const furlong::Transfer moved = furlong::send(socket, bytes);
    if (moved.error != 0 || !furlong::wait_for(socket, POLLOUT, soon())) return;  // the other end has closed
    bytes.remove_prefix(moved.bytes);
  }
}

/// Returns what the other end sends until it closes the connection.
std::string received(const Socket& socket) {
  std::string bytes;
  std::array<char, 4096> block{};
  for (;;) {
    fuzzing::expect(furlong::wait_for(socket, POLLIN, soon()), "a stranger's connection stays open");
    const furlong::Transfer moved = furlong::receive(socket, block);
    if (moved.ended || moved.error != 0) return bytes;
    bytes.append(block.data(), moved.bytes);
  }
}

/// The store sends a challenge, and perhaps a refusal, and closes the connection.
void tell_store(std::string_view bytes) {
  static const furlong::StoreServer server([] {
    furlong::StoreServerOptions options;
    options.secret = secret;
    options.world_size = 2;
    options.host = "host0";
    return options;
  }());
  const Socket socket = connection_to(loopback(server.port()));
  send_all(socket, bytes);
  ::shutdown(socket.descriptor(), SHUT_WR);
  store::FrameBuffer frames;
  frames.append(received(socket));
  while (const auto body = frames.next(store::max_frame_bytes)) {
    const store::Kind kind = store::kind_of(*body);
    fuzzing::expect(kind == store::Kind::challenge || kind == store::Kind::refusal, "the store answers a stranger");
  }
  fuzzing::expect(!server.fault(), "a stranger ends the job");
}

/// A client finds another service at the store's address. With `knows_secret` it is a store with a chosen host name.
void tell_client(std::string_view bytes, bool knows_secret) {
  static const Socket listener = furlong::listen_on(loopback(0));
  std::thread service([&] {
    fuzzing::expect(furlong::wait_for(listener, POLLIN, soon()), "the client does not connect");
    int error = 0;
    const Socket socket = furlong::accept_from(listener, 0ms, error);
    if (knows_secret) {
      const store::Challenge challenge;
      send_all(socket, encode(challenge));
      store::FrameBuffer frames;
      std::optional<std::string> body;
      while (!(body = frames.next(store::max_handshake_bytes))) {
        std::array<char, store::max_handshake_bytes> block{};
        fuzzing::expect(furlong::wait_for(socket, POLLIN, soon()), "the client does not answer");
        const furlong::Transfer moved = furlong::receive(socket, block);
        fuzzing::expect(moved.bytes > 0, "the client closes the connection");
        frames.append(std::span(block).first(moved.bytes));
      }
      store::Welcome welcome{store::one_line(bytes, store::max_host_bytes), {}};
      welcome.code = code_of(welcome, store::decode_hello(*body), challenge.nonce, secret);
      send_all(socket, encode(welcome));
    } else {
      send_all(socket, bytes);
    }
    ::shutdown(socket.descriptor(), SHUT_WR);
    received(socket);
  });
  store::Attempt attempt;
  {
    store::Hello hello;
    hello.rank = 1, hello.world_size = 2, hello.host = "host1";
    attempt = store::shake_hands(furlong::own_address(listener), hello, secret, soon(), 0ms);
    attempt.socket.close();
  }
  service.join();
  using Outcome = store::Attempt::Outcome;
  fuzzing::expect(knows_secret || attempt.outcome != Outcome::welcome, "a stranger is taken for the store");
  for (const std::string& text : {attempt.problem, attempt.server_host, attempt.refusal.detail}) {
    if (furlong::foreign::single_line(text) != text) fuzzing::finding("a text that is not printable", text);
  }
}

/// The stranger connects to rank 0 before rank 1 does.
void tell_rank(std::string_view bytes) {
  static const Socket listener = furlong::listen_on(loopback(0));
  std::vector<furlong::LinkedRank> ranks(2);
  ranks[0].address = furlong::own_address(listener);
  for (furlong::LinkedRank& rank : ranks) {
    rank.token.resize(furlong::link_token_bytes);
    store::fill_random(rank.token);
  }
  const Socket stranger = connection_to(ranks[0].address);
  send_all(stranger, bytes);
  const auto never = [] { return false; };
  std::vector<Socket> other;
  std::thread second([&] { other = link_ranks({}, 1, ranks, soon(), never); });
  const std::vector<Socket> links = link_ranks(listener, 0, ranks, soon(), never);
  second.join();
  fuzzing::expect(furlong::peer_address(links[1]).text() == furlong::own_address(other[0]).text(),
                  "rank 0 is linked to a stranger");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // OpenSSL 3.0 does not free the error state of a thread that is the first to compute a code, so that is this thread.
  // Its cleanup at exit then also comes after the end of the server's thread.
  [[maybe_unused]] static const auto first_code = code_of(store::Hello{}, store::Challenge{}.nonce, secret);
  if (size == 0) return 0;
  const std::string_view bytes = fuzzing::text_of(data + 1, std::min<std::size_t>(size - 1, 1 << 16));
  fuzzing::succeeds<store::ProtocolError>([&] {
    switch (data[0] % 4) {
      case 0:
        return tell_store(bytes);
      case 1:
        return tell_client(bytes, false);
      case 2:
        return tell_client(bytes, true);
      default:
        return tell_rank(bytes);
    }
  });
  return 0;
}
