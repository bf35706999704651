#pragma once
// Shared by the tests of the job store: a server with clients, processes that can be killed and stopped, and a network
// that can fail.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "communication/job_store/socket.h"
#include "communication/job_store/store_client.h"
#include "communication/job_store/store_server.h"
#include "framework/core/error.h"
#include "tests/communication/child_processes.h"
#include "tests/temporary_folder.h"

namespace furlong::store_testing {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::message_of;
using namespace std::chrono_literals;

/// Short times for tests of faults, in which a loaded machine still sends two heartbeats.
inline StoreTimes quick() { return {50ms, 800ms, 400ms}; }

inline std::vector<char> bytes(std::string_view text) { return {text.begin(), text.end()}; }

inline StoreServerOptions server_options(int world_size, StoreTimes times = {}) {
  StoreServerOptions out;
  out.secret = "the job's secret";
  out.world_size = world_size;
  out.host = "host0";
  out.times = times;
  return out;
}

inline StoreClientOptions client_options(const StoreServerOptions& server, std::uint16_t port, int rank) {
  StoreClientOptions out;
  out.address = server.address;
  out.port = port;
  out.secret = server.secret;
  out.rank = rank;
  out.world_size = server.world_size;
  out.host = "host" + std::to_string(rank);
  out.times = server.times;
  out.connect_timeout = 20s;
  return out;
}

/// Records calls of on_fault and lets a test wait for the first.
class FaultLog {
 public:
  std::function<void(const Fault&)> callback() {
    return [this](const Fault& fault) {
      const std::lock_guard lock(mutex_);
      faults_.push_back(fault);
    };
  }
  std::vector<Fault> all() const {
    const std::lock_guard lock(mutex_);
    return faults_;
  }
  /// Returns the first fault, or nothing after `patience`.
  std::optional<Fault> wait(milliseconds patience) const {
    for (const auto end = steady_clock::now() + patience; steady_clock::now() < end; std::this_thread::sleep_for(2ms)) {
      const auto faults = all();
      if (!faults.empty()) return faults.front();
    }
    return std::nullopt;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Fault> faults_;
};

/// A store and the clients of several ranks in one process.
struct World {
  explicit World(int world_size, StoreTimes times = {})
      : options(server_options(world_size, times)), logs(static_cast<std::size_t>(world_size)) {
    server = std::make_unique<StoreServer>(options);
    clients.resize(static_cast<std::size_t>(world_size));
  }
  ~World() {
    for (auto& client : clients) {
      try {
        if (client) client->goodbye();
      } catch (const MachineError&) {  // a fault that the test has checked
      }
    }
    clients.clear();
  }
  /// Ends a test without faults: every rank leaves, and the store has received all goodbyes.
  void leave() {
    for (auto& client : clients) client->goodbye();
    clients.clear();
    EXPECT_TRUE(server->wait_for_goodbyes(std::chrono::seconds(5)));
  }
  StoreClient& join(int rank, std::uint16_t port = 0) {
    const auto index = static_cast<std::size_t>(rank);
    StoreClientOptions own = client_options(options, port ? port : server->port(), rank);
    own.on_fault = logs[index].callback();
    clients[index] = std::make_unique<StoreClient>(std::move(own));
    return *clients[index];
  }
  World& join_all() {
    for (int rank = 0; rank < options.world_size; ++rank) join(rank);
    return *this;
  }
  StoreClient& operator[](int rank) { return *clients[static_cast<std::size_t>(rank)]; }

  StoreServerOptions options;
  std::vector<FaultLog> logs;
  std::unique_ptr<StoreServer> server;
  std::vector<std::unique_ptr<StoreClient>> clients;
};

/// A child process, forked while this one has no other threads. It waits for start(), which passes a port, and exits
/// with the result of `body`.
class Process {
 public:
  explicit Process(const std::function<int(std::uint16_t port, const std::function<void()>& ready)>& body) {
    int start_pipe[2], ready[2];
    if (::pipe(start_pipe) != 0 || ::pipe(ready) != 0) throw std::runtime_error("pipe");
    child_ = ::fork();
    if (child_ == 0) {
      ::close(start_pipe[1]);
      ::close(ready[0]);
      std::uint16_t port = 0;
      if (::read(start_pipe[0], &port, sizeof port) != sizeof port) ::_exit(90);
      int status = 91;
      try {
        status = body(port, [&] {
          if (::write(ready[1], "r", 1) != 1) ::_exit(92);
        });
      } catch (const std::exception& error) {
        ::fprintf(stderr, "child: %s\n", error.what());
      }
      ::_exit(status);
    }
    ::close(start_pipe[0]);
    ::close(ready[1]);
    start_pipe_ = Socket(start_pipe[1]);
    ready_ = Socket(ready[0]);
  }
  ~Process() {
    if (child_ > 0 && !ended_) {
      kill(SIGKILL);
      wait();
    }
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  /// Returns once the child has called ready().
  void start(std::uint16_t port) {
    ASSERT_EQ(::write(start_pipe_.descriptor(), &port, sizeof port), static_cast<ssize_t>(sizeof port));
    char byte = 0;
    ASSERT_EQ(::read(ready_.descriptor(), &byte, 1), 1) << "the child did not get ready";
  }
  void kill(int signal) const { ::kill(child_, signal); }
  /// Returns the exit status, or 128 + the signal that terminated the process.
  int wait() {
    int status = 0;
    ::waitpid(child_, &status, 0);
    ended_ = true;
    return testing::exit_status(status);
  }

 private:
  pid_t child_ = -1;
  bool ended_ = false;
  Socket start_pipe_, ready_;
};

/// Returns a free port of 127.0.0.1 for a server that starts later, below the kernel's ephemeral ports. Every call
/// returns another port, also in concurrent processes: the port's byte of a shared file is locked until this process
/// ends.
inline std::uint16_t free_port() {
  static int file = -1;
  static pid_t owner = 0;
  if (owner != ::getpid()) {  // locks belong to an open file, which a forked process shares
    const std::string name = "furlong_ports_" + std::to_string(::getuid());
    file = ::open((std::filesystem::temp_directory_path() / name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) throw std::system_error(errno, std::generic_category(), name);
    owner = ::getpid();
  }
  static std::uint16_t next = static_cast<std::uint16_t>(10'000 + ::getpid() % 20'000);
  for (int tries = 0; tries < 20'000; ++tries, next = next < 30'000 ? next + 1 : 10'000) {
    struct flock byte {};
    byte.l_type = F_WRLCK;
    byte.l_whence = SEEK_SET;
    byte.l_start = next;
    byte.l_len = 1;
    if (::fcntl(file, F_OFD_SETLK, &byte) != 0) continue;
    std::string problem;
    try {
      return own_address(listen_on(resolve("127.0.0.1", next++, problem).front())).port();
    } catch (const std::exception&) {  // used by another process
    }
  }
  throw std::runtime_error("no free port");
}

/// A proxy between clients and a store, with selectable network failures.
class Network {
 public:
  enum class Mode {
    open,
    stalled,     ///< no data passes, and connections stay open, as with an unplugged cable
    no_replies,  ///< data from clients arrives, data to clients does not
    cut,         ///< existing and new connections break
  };
  explicit Network(std::uint16_t target) : target_(target) {
    std::string problem;
    listener_ = listen_on(resolve("127.0.0.1", 0, problem).front());
    port_ = own_address(listener_).port();
    thread_ = std::thread([this] { run(); });
  }
  ~Network() {
    stop_ = true;
    thread_.join();
  }
  std::uint16_t port() const { return port_; }
  int connections() const { return connections_; }
  /// Sets the mode. Returns once it is in effect.
  void set(Mode mode) {
    mode_ = mode;
    while (applied_ != mode) std::this_thread::sleep_for(1ms);
  }

 private:
  struct Pipe {
    Socket client, server;
    std::string to_server, to_client;
  };

  static bool move(const Socket& from, const Socket& to, std::string& held) {
    char buffer[1 << 16];
    if (held.size() < sizeof buffer) {
      const Transfer in = receive(from, buffer);
      if (in.ended || in.error) return false;
      held.append(buffer, in.bytes);
    }
    if (held.empty()) return true;
    const Transfer out = send(to, held);
    held.erase(0, out.bytes);
    return out.error == 0;
  }

  void run() {
    std::vector<Pipe> pipes;
    std::string problem;
    while (!stop_) {
      std::vector<pollfd> polled{{listener_.descriptor(), POLLIN, 0}};
      const Mode mode = mode_;
      if (mode == Mode::open) {
        for (const Pipe& pipe : pipes) {
          polled.push_back({pipe.client.descriptor(), POLLIN, 0});
          polled.push_back({pipe.server.descriptor(), POLLIN, 0});
        }
      }
      ::poll(polled.data(), polled.size(), 2);
      int error = 0;
      while (Socket client = accept_from(listener_, 10s, error)) {
        if (mode == Mode::cut) continue;
        Socket server =
            connect_to(resolve("127.0.0.1", target_, problem).front(), steady_clock::now() + 1s, 10s, error);
        if (!server) continue;
        ++connections_;
        pipes.push_back({std::move(client), std::move(server), {}, {}});
      }
      if (mode == Mode::cut) pipes.clear();
      applied_ = mode;
      if (mode == Mode::open || mode == Mode::no_replies) {
        std::erase_if(pipes, [&](Pipe& pipe) {
          return !move(pipe.client, pipe.server, pipe.to_server) ||
                 (mode == Mode::open && !move(pipe.server, pipe.client, pipe.to_client));
        });
      }
    }
  }

  std::uint16_t target_, port_ = 0;
  Socket listener_;
  std::atomic<Mode> mode_{Mode::open}, applied_{Mode::open};
  std::atomic<bool> stop_{false};
  std::atomic<int> connections_{0};
  std::thread thread_;
};

}  // namespace furlong::store_testing
