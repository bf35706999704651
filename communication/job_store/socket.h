#pragma once
// TCP sockets as the store needs them: owned, close-on-exec, never blocking, and no signal when a peer is gone.
#include <signal.h>
#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace furlong {

using TimePoint = std::chrono::steady_clock::time_point;

/// Owns a file descriptor (a socket, or what poll() is woken with) and closes it.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;
  ~Socket() { close(); }

  int descriptor() const { return descriptor_; }
  explicit operator bool() const { return descriptor_ >= 0; }
  void close();
  /// The descriptor, for the caller to close.
  int release() { return std::exchange(descriptor_, -1); }

 private:
  int descriptor_ = -1;
};

/// An IPv4 or IPv6 address with its port.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  std::string host() const;  ///< "10.0.0.1", "::1"
  std::string text() const;  ///< "10.0.0.1:29500", "[::1]:29500"
  std::uint16_t port() const;
  void set_port(std::uint16_t port);
  bool is_loopback() const;
  bool is_wildcard() const;  ///< 0.0.0.0 or ::, which name no interface
};

/// "node01:29500", "[::1]:29500"
std::string address_text(const std::string& host, std::uint16_t port);

/// This host's name, for messages.
std::string host_name();

/// The addresses of a host's name (or of an address as text), each once. Empty, with the reason in `problem`, when
/// there is none.
std::vector<SocketAddress> resolve(const std::string& host, std::uint16_t port, std::string& problem);

/// This socket's own end, and the other's (throw std::system_error).
SocketAddress own_address(const Socket& socket);
SocketAddress peer_address(const Socket& socket);

/// Listens on one address; port 0 lets the system choose. Throws std::system_error (EADDRINUSE, EADDRNOTAVAIL, EACCES).
Socket listen_on(const SocketAddress& address);

/// The next connection that waits, ready for use, or an empty socket with the reason in `error` (EAGAIN: none waits).
Socket accept_from(const Socket& listener, std::chrono::milliseconds user_timeout, int& error);

/// Connects until `deadline`. An empty socket, with the errno in `error`, when that failed (ETIMEDOUT: nothing
/// answered, ECANCELED: `give_up` said so; it is asked every 50 ms). Data that a peer does not acknowledge within
/// `user_timeout` break the connection later.
Socket connect_to(const SocketAddress& address, TimePoint deadline, std::chrono::milliseconds user_timeout, int& error,
                  const std::function<bool()>& give_up = {});

/// True where a connection's two ends are one socket, which is what connecting to a free local port can lead to (TCP's
/// simultaneous open).
bool connected_to_itself(const Socket& socket);

/// What one call moved: some bytes, or none because of `error` (0: it would block; the peer's orderly end sets
/// `ended`).
struct Transfer {
  std::size_t bytes = 0;
  int error = 0;
  bool ended = false;
};
Transfer receive(const Socket& socket, std::span<char> buffer);
Transfer send(const Socket& socket, std::span<const char> data);

/// Waits until poll() reports `events` (or a broken connection), false at the deadline or when `give_up`, asked every
/// 50 ms, says so.
bool wait_for(const Socket& socket, short events, TimePoint deadline, const std::function<bool()>& give_up = {});

/// Milliseconds for poll() to wait until `deadline`: rounded up, 0 when it has passed.
int poll_milliseconds(TimePoint deadline);

/// A descriptor that wakes a thread out of poll() (POLLIN), from any other thread.
class Waker {
 public:
  Waker();
  int descriptor() const { return event_.descriptor(); }
  void wake() noexcept;
  void clear() noexcept;  ///< by the thread that was woken

 private:
  Socket event_;
};

/// Blocks every signal in this thread while it lives: threads started meanwhile leave signals to those that know what
/// to do with them.
class SignalsBlocked {
 public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

/// The text of an errno, from any thread.
std::string error_text(int error);

}  // namespace furlong
