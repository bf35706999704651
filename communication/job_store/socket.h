#pragma once
// Non-blocking, close-on-exec TCP sockets with owned descriptors. A write to a lost peer returns an error and raises no
// signal.
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

/// Owns a file descriptor (a socket, an event or a pipe) and closes it.
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
  /// Returns the descriptor, which the caller must close.
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
  bool is_wildcard() const;  ///< 0.0.0.0 or ::
};

/// Returns "node01:29500" or "[::1]:29500".
std::string address_text(const std::string& host, std::uint16_t port);

/// Returns this host's name, for messages.
std::string host_name();

/// Returns the distinct addresses of a host name or of an address as text. If there is none, returns an empty list and
/// writes the reason to `problem`.
std::vector<SocketAddress> resolve(const std::string& host, std::uint16_t port, std::string& problem);

/// Return the address of the local or remote end of a connection. Throw std::system_error on failure.
SocketAddress own_address(const Socket& socket);
SocketAddress peer_address(const Socket& socket);

/// Listens on one address; port 0 lets the system choose. Throws std::system_error (EADDRINUSE, EADDRNOTAVAIL, EACCES).
Socket listen_on(const SocketAddress& address);

/// Accepts the next pending connection. Returns an empty socket and sets `error` on failure (EAGAIN: none is pending).
Socket accept_from(const Socket& listener, std::chrono::milliseconds user_timeout, int& error);

/// Connects until `deadline`. Returns an empty socket and sets `error` to the errno on failure. ETIMEDOUT means no
/// answer; ECANCELED means that `give_up`, polled every 50 ms, returned true. `user_timeout` is TCP_USER_TIMEOUT: sent
/// data that stays unacknowledged for longer breaks the connection.
Socket connect_to(const SocketAddress& address, TimePoint deadline, std::chrono::milliseconds user_timeout, int& error,
                  const std::function<bool()>& give_up = {});

/// Returns true if both ends of the connection are the same socket. Connecting to a free local port can have this
/// effect (TCP simultaneous open).
bool connected_to_itself(const Socket& socket);

/// Result of one call of receive() or send(). If `bytes` is 0, either `error` is set, or the peer closed the connection
/// (`ended`), or the call would block (neither).
struct Transfer {
  std::size_t bytes = 0;
  int error = 0;
  bool ended = false;
};
Transfer receive(const Socket& socket, std::span<char> buffer);
Transfer send(const Socket& socket, std::span<const char> data);

/// Waits until poll() reports `events` or a broken connection. Returns false at the deadline, or when `give_up`, polled
/// every 50 ms, returns true.
bool wait_for(const Socket& socket, short events, TimePoint deadline, const std::function<bool()>& give_up = {});

/// Returns the timeout for poll() until `deadline`, in milliseconds: rounded up, 0 if it has passed.
int poll_milliseconds(TimePoint deadline);

/// Wakes a thread out of poll() (POLLIN) from any other thread.
class Waker {
 public:
  Waker();
  int descriptor() const { return event_.descriptor(); }
  void wake() noexcept;
  void clear() noexcept;  ///< called by the woken thread

 private:
  Socket event_;
};

/// Blocks all signals in this thread during its lifetime. Threads started meanwhile inherit the mask and leave signals
/// to the threads that handle them.
class SignalsBlocked {
 public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

/// Returns the text of an errno. Thread-safe.
std::string error_text(int error);

}  // namespace furlong
