// Unauthenticated clients at the store's port cannot disturb the job, whatever they send.
#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "communication/job_store/store_handshake.h"
#include "tests/communication/job_store/store_testing.h"

namespace furlong {
namespace {

using namespace store;
using namespace store_testing;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// An unauthenticated connection that sends raw bytes.
class Stranger {
 public:
  explicit Stranger(std::uint16_t port) {
    std::string problem;
    int error = 0;
    socket_ = connect_to(resolve("127.0.0.1", port, problem).front(), steady_clock::now() + 5s, 10s, error);
  }
  void send_bytes(std::string_view data) { send(socket_, data); }
  /// Returns the next frame, or nothing if the connection was closed or `patience` has passed.
  std::optional<std::string> receive_frame(milliseconds patience = 5s) {
    const auto deadline = steady_clock::now() + patience;
    for (char buffer[4096];;) {
      if (auto body = in_.next(max_frame_bytes)) return body;
      if (!wait_for(socket_, POLLIN, deadline)) return std::nullopt;
      const Transfer moved = receive(socket_, buffer);
      if (moved.ended || moved.error) return std::nullopt;
      in_.append(std::span(buffer).first(moved.bytes));
    }
  }
  bool closed_within(milliseconds patience) {
    for (char buffer[4096];;) {
      if (!wait_for(socket_, POLLIN, steady_clock::now() + patience)) return false;
      const Transfer moved = receive(socket_, buffer);
      if (moved.ended || moved.error) return true;
    }
  }

 private:
  Socket socket_;
  FrameBuffer in_;
};

Hello hello_of(int rank, int world_size) {
  Hello out;
  out.rank = rank;
  out.world_size = world_size;
  out.session.fill(static_cast<char>('a' + rank));
  out.host = "host" + std::to_string(rank);
  return out;
}

std::string signed_hello(Hello hello, Stranger& stranger, const std::string& secret) {
  const Nonce nonce = decode_challenge(stranger.receive_frame().value()).nonce;
  fill_random(hello.nonce);
  hello.code = code_of(hello, nonce, secret);
  return encode(hello);
}

int open_descriptors() {
  int out = 0;
  DIR* directory = ::opendir("/proc/self/fd");
  while (::readdir(directory)) ++out;
  ::closedir(directory);
  return out;
}

/// A rank that works continuously and checks every reply.
class Undisturbed {
 public:
  explicit Undisturbed(StoreClient& client) : client_(client), thread_([this] { work(); }) {}
  int finish() {
    stop_ = true;
    thread_.join();
    return wrong_ ? -1 : rounds_;
  }

 private:
  void work() {
    try {
      while (!stop_) {
        const std::string key = "work/" + std::to_string(rounds_);
        client_.set(key, bytes(key));
        wrong_ = wrong_ || client_.get(key, 5s) != bytes(key) || client_.add("rounds", 1) != ++rounds_ ||
                 client_.check({"never"});
      }
    } catch (const Error&) {
      wrong_ = true;
    }
  }
  StoreClient& client_;
  std::atomic<bool> stop_{false};
  bool wrong_ = false;
  int rounds_ = 0;
  std::thread thread_;
};

std::string random_bytes(std::mt19937& random, std::size_t most) {
  std::string out(1 + random() % most, '\0');
  for (char& byte : out) byte = static_cast<char>(random());
  return out;
}

std::string mutated(std::string frame, std::mt19937& random) {
  for (unsigned edits = 1 + random() % 3; edits > 0; --edits) {
    const std::size_t at = random() % frame.size();
    switch (random() % 3) {
      case 0:
        frame[at] ^= static_cast<char>(1 << (random() % 8));
        break;
      case 1:
        frame.insert(at, 1, static_cast<char>(random()));
        break;
      default:
        frame.erase(at, frame.size() > 1 ? 1 : 0);
    }
  }
  return frame;
}

TEST(StoreSecurity, UnauthenticatedRandomFramesChangeNothing) {
  World world(2);
  world.join_all();
  world[0].set("kept", bytes("as it is"));
  const int descriptors = open_descriptors();
  Undisturbed worker(world[1]);
  std::mt19937 random(12);
  for (int i = 0; i < 2500; ++i) {
    Stranger stranger(world.server->port());
    if (i % 5 < 2) {
      stranger.send_bytes(random_bytes(random, 600));
    } else if (i % 5 == 2) {  // a valid length, then random bytes
      std::string frame = random_bytes(random, 300);
      std::string length{static_cast<char>(frame.size() & 0xff), static_cast<char>(frame.size() >> 8), '\0', '\0'};
      stranger.send_bytes(length + frame);
    } else if (i % 5 == 3) {  // a rank's valid hello with small changes
      const std::string frame = signed_hello(hello_of(0, 2), stranger, world.options.secret);
      const std::string other = mutated(frame, random);
      if (other != frame) stranger.send_bytes(other);
    } else {  // a request without a hello
      const Request request{Kind::set, 1, 1, 0, {"kept"}};
      stranger.send_bytes(encode(request, "changed"));
    }
  }
  EXPECT_GT(worker.finish(), 0);
  EXPECT_EQ(world[0].get("kept", 5s), bytes("as it is"));
  EXPECT_FALSE(world.server->fault());
  for (int i = 0; i < 500 && open_descriptors() > descriptors; ++i) std::this_thread::sleep_for(2ms);
  EXPECT_LE(open_descriptors(), descriptors);
  world.leave();
}

TEST(StoreSecurity, BrokenFramesOfARankDoNotAffectOthers) {
  World world(2, {1s, 10s, 5s});
  world.join(0);
  Undisturbed worker(world[0]);
  std::mt19937 random(7);
  std::vector<std::string> frames{encode_heartbeat(), encode(hello_of(1, 2)), encode_reply(1, Status::ok, 0),
                                  encode(Fault{0, "h", "forged"})};
  for (const Request& request : {Request{Kind::set, 9, 1, 0, {"k"}}, Request{Kind::get, 9, 1, 50, {"k"}},
                                 Request{Kind::wait, 9, 1, 50, {"a", "b"}}, Request{Kind::check, 9, 1, 0, {"a", "b"}},
                                 Request{Kind::add, 9, 1, 0, {"n"}}})
    frames.push_back(encode(request, "value"));
  // Valid goodbye and report_fault frames take effect, so they are not sent.
  const auto harmless = [](const std::string& frame) {
    return frame.size() < 5 ||
           (frame[4] != static_cast<char>(Kind::goodbye) && frame[4] != static_cast<char>(Kind::report_fault));
  };
  std::string problem;
  const SocketAddress address = resolve("127.0.0.1", world.server->port(), problem).front();
  Hello hello = hello_of(1, 2);
  int welcome = 0;
  for (int i = 0; i < 600; ++i) {
    Attempt attempt = shake_hands(address, hello, world.options.secret, steady_clock::now() + 5s, 10s);
    welcome += attempt.outcome == Attempt::Outcome::welcome;
    hello.resuming = true;
    for (int j = 0; j < 4; ++j) {
      const std::string frame =
          i % 3 == 0 ? random_bytes(random, 400) : mutated(frames[random() % frames.size()], random);
      if (harmless(frame)) send(attempt.socket, frame);
    }
  }
  EXPECT_EQ(welcome, 600);
  EXPECT_GT(worker.finish(), 0);
  EXPECT_EQ(world.server->fault(), std::nullopt);
  EXPECT_TRUE(world.logs[0].all().empty());
  world[0].goodbye();
}

TEST(StoreSecurity, RejectsReplayedAndForgedHellos) {
  World world(2);
  Stranger first(world.server->port());
  const std::string hello = signed_hello(hello_of(1, 2), first, world.options.secret);
  first.send_bytes(hello);
  EXPECT_EQ(kind_of(first.receive_frame().value()), Kind::welcome);
  Stranger second(world.server->port());
  second.receive_frame();
  second.send_bytes(hello);  // the same bytes in reply to another challenge
  EXPECT_EQ(decode_refusal(second.receive_frame().value()).reason, Refused::secret);
  EXPECT_TRUE(second.closed_within(5s));
  Stranger third(world.server->port());
  third.send_bytes(signed_hello(hello_of(0, 2), third, "a guess"));
  EXPECT_EQ(decode_refusal(third.receive_frame().value()).reason, Refused::secret);
  EXPECT_TRUE(third.closed_within(5s));
  // An unknown session cannot be resumed, and another session cannot replace a rank's session.
  Hello other = hello_of(0, 2);
  other.resuming = true;
  Stranger fourth(world.server->port());
  fourth.send_bytes(signed_hello(other, fourth, world.options.secret));
  EXPECT_EQ(decode_refusal(fourth.receive_frame().value()).reason, Refused::session);
  other = hello_of(1, 2);
  other.session.fill('z');
  Stranger fifth(world.server->port());
  fifth.send_bytes(signed_hello(other, fifth, world.options.secret));
  EXPECT_EQ(decode_refusal(fifth.receive_frame().value()).reason, Refused::rank);
  EXPECT_FALSE(first.closed_within(50ms));
}

TEST(StoreSecurity, ClientRejectsAStoreWithoutTheSecret) {
  const auto message = [](const std::function<void(const Socket&)>& serve) {
    std::string problem;
    const Socket listener = listen_on(resolve("127.0.0.1", 0, problem).front());
    std::thread server([&] {
      wait_for(listener, POLLIN, steady_clock::now() + 10s);
      int error = 0;
      const Socket socket = accept_from(listener, 10s, error);
      serve(socket);
    });
    StoreClientOptions options = client_options(server_options(1), own_address(listener).port(), 0);
    options.connect_timeout = 300ms;
    const std::string out = message_of<Error>([&] { StoreClient client(options); });
    server.join();
    return out;
  };
  // An impostor that reflects the client's own code.
  EXPECT_THAT(message([](const Socket& socket) {
                send(socket, encode(Challenge{}));
                char buffer[512];
                wait_for(socket, POLLIN, steady_clock::now() + 5s);
                FrameBuffer in;
                in.append(std::span(buffer).first(receive(socket, buffer).bytes));
                const Hello hello = decode_hello(in.next(max_handshake_bytes).value());
                send(socket, encode(Welcome{hello.host, hello.code}));
                wait_for(socket, POLLIN, steady_clock::now() + 5s);
              }),
              AllOf(HasSubstr("MASTER_PORT"), HasSubstr("not this job's store, it does not know the job's secret")));
  EXPECT_THAT(message([](const Socket& socket) {
                send(socket, std::string_view("SSH-2.0-OpenSSH_9.2p1\r\n"));
                wait_for(socket, POLLIN, steady_clock::now() + 5s);
              }),
              AllOf(HasSubstr("MASTER_PORT"), HasSubstr("not this job's store, it sent a frame whose length")));
  // A service that waits for the client to send first.
  EXPECT_THAT(message([](const Socket& socket) { wait_for(socket, POLLIN, steady_clock::now() + 5s); }),
              AllOf(HasSubstr("no job store at 127.0.0.1"), HasSubstr("did not answer")));
}

TEST(StoreSecurity, ClosesIdleUnauthenticatedConnections) {
  StoreServerOptions options = server_options(1);
  options.handshake_timeout = 400ms;
  options.min_handshake_time = 50ms;
  const StoreServer server(options);
  const auto start = steady_clock::now();
  Stranger slow(server.port());
  ASSERT_TRUE(slow.receive_frame());
  slow.send_bytes(std::string_view("\xff\0\0\0\x01", 5));  // the start of a frame does not extend the time limit
  EXPECT_FALSE(slow.closed_within(200ms));
  slow.send_bytes("more");
  EXPECT_TRUE(slow.closed_within(2s));
  EXPECT_GE(steady_clock::now() - start, 350ms);
}

TEST(StoreSecurity, AcceptsARankDespiteManyUnauthenticatedConnections) {
  StoreServerOptions options = server_options(1);
  options.max_unauthenticated = 4;
  options.handshake_timeout = 60s;
  options.min_handshake_time = 40ms;
  StoreServer server(options);
  std::vector<std::unique_ptr<Stranger>> crowd;
  for (int i = 0; i < 40; ++i) crowd.push_back(std::make_unique<Stranger>(server.port()));
  StoreClientOptions own = client_options(options, server.port(), 0);
  own.connect_timeout = 10s;
  StoreClient client(own);  // connects after all of them
  EXPECT_EQ(client.add("k", 1), 1);
  // A slot that is reused during the count may count twice.
  int open = 0;
  for (const auto& stranger : crowd) open += stranger->receive_frame(1ms).has_value() && !stranger->closed_within(0ms);
  EXPECT_LE(open, 2 * options.max_unauthenticated);
  client.goodbye();
}

TEST(StoreSecurity, SendToAClosedPeerReturnsAnErrorWithoutSignal) {
  std::string problem;
  const Socket listener = listen_on(resolve("127.0.0.1", 0, problem).front());
  int error = 0;
  const Socket client = connect_to(own_address(listener), steady_clock::now() + 5s, 10s, error);
  ASSERT_TRUE(wait_for(listener, POLLIN, steady_clock::now() + 5s));
  accept_from(listener, 10s, error).close();
  Transfer sent;
  for (int i = 0; i < 1000 && sent.error == 0; ++i) {
    sent = send(client, std::string_view("x"));
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_THAT(sent.error, ::testing::AnyOf(EPIPE, ECONNRESET));
}

TEST(StoreSecurity, ClosesUnauthenticatedConnectionsOnLongFrames) {
  const StoreServer server(server_options(1));
  Stranger stranger(server.port());
  ASSERT_TRUE(stranger.receive_frame());
  stranger.send_bytes(std::string_view("\x01\x01\0\0", 4));  // announces 257 bytes and sends none
  EXPECT_TRUE(stranger.closed_within(2s));
}

TEST(StoreSecurity, DetectsAConnectionToItself) {
  // Repeated connection attempts to a free local port can have this effect.
  std::string problem;
  const SocketAddress address = resolve("127.0.0.1", free_port(), problem).front();
  const Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::bind(socket.descriptor(), reinterpret_cast<const sockaddr*>(&address.storage), address.length), 0);
  ASSERT_EQ(::connect(socket.descriptor(), reinterpret_cast<const sockaddr*>(&address.storage), address.length), 0);
  EXPECT_TRUE(connected_to_itself(socket));
}

}  // namespace
}  // namespace furlong
