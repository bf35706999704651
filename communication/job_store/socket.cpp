#include "communication/job_store/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace furlong {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds give_up_interval{50};

[[noreturn]] void throw_errno(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

void set_option(const Socket& socket, int level, int name, int value) {
  if (::setsockopt(socket.descriptor(), level, name, &value, sizeof value) != 0) throw_errno("setsockopt");
}

constexpr std::int64_t max_keepalive_seconds = 32767;  // Linux rejects a larger TCP_KEEPIDLE

/// Sends small frames immediately, and detects a vanished peer even while nothing is sent.
void set_connection_options(const Socket& socket, milliseconds user_timeout) {
  const auto seconds =
      static_cast<int>(std::clamp<std::int64_t>(user_timeout.count() / 1000, 1, max_keepalive_seconds));
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, seconds);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(user_timeout.count()));
}

template <class Address>
Address as(const SocketAddress& address) {
  Address out;
  std::memcpy(&out, &address.storage, sizeof out);
  return out;
}

SocketAddress address_of(const Socket& socket, int (*ask)(int, sockaddr*, socklen_t*), const char* what) {
  SocketAddress out;
  out.length = sizeof out.storage;
  if (ask(socket.descriptor(), reinterpret_cast<sockaddr*>(&out.storage), &out.length) != 0) throw_errno(what);
  return out;
}

}  // namespace

Socket::Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    close();
    descriptor_ = std::exchange(other.descriptor_, -1);
  }
  return *this;
}

void Socket::close() {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
}

std::string SocketAddress::host() const {
  char name[NI_MAXHOST] = "";  // including the interface of a link-local address
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&storage), length, name, sizeof name, nullptr, 0,
                    NI_NUMERICHOST) != 0)
    return "?";
  return name;
}

std::string SocketAddress::text() const { return address_text(host(), port()); }

std::uint16_t SocketAddress::port() const {
  return ntohs(storage.ss_family == AF_INET6 ? as<sockaddr_in6>(*this).sin6_port : as<sockaddr_in>(*this).sin_port);
}

void SocketAddress::set_port(std::uint16_t port) {
  if (storage.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in*>(&storage)->sin_port = htons(port);
  }
}

bool SocketAddress::is_loopback() const {
  if (storage.ss_family == AF_INET) return (ntohl(as<sockaddr_in>(*this).sin_addr.s_addr) >> 24) == 127;
  const auto v6 = as<sockaddr_in6>(*this);
  return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
}

bool SocketAddress::is_wildcard() const {
  if (storage.ss_family == AF_INET) return as<sockaddr_in>(*this).sin_addr.s_addr == htonl(INADDR_ANY);
  const auto v6 = as<sockaddr_in6>(*this);
  return IN6_IS_ADDR_UNSPECIFIED(&v6.sin6_addr);
}

std::string address_text(const std::string& host, std::uint16_t port) {
  const bool brackets = host.find(':') != std::string::npos;
  return (brackets ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

std::string host_name() {
  char name[256] = "";
  return ::gethostname(name, sizeof name - 1) == 0 && name[0] ? name : "?";
}

std::vector<SocketAddress> resolve(const std::string& host, std::uint16_t port, std::string& problem) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int status = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (status != 0) {
    problem = status == EAI_SYSTEM ? error_text(errno) : std::string(::gai_strerror(status));
    return {};
  }
  std::vector<SocketAddress> out;
  for (const addrinfo* entry = found; entry; entry = entry->ai_next) {
    if (entry->ai_family != AF_INET && entry->ai_family != AF_INET6) continue;
    SocketAddress address;
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.length = entry->ai_addrlen;
    address.set_port(port);
    const bool known = std::any_of(out.begin(), out.end(), [&](const SocketAddress& other) {
      return other.length == address.length && std::memcmp(&other.storage, &address.storage, address.length) == 0;
    });
    if (!known) out.push_back(address);
  }
  ::freeaddrinfo(found);
  if (out.empty()) problem = "it has neither an IPv4 nor an IPv6 address";
  return out;
}

SocketAddress own_address(const Socket& socket) { return address_of(socket, ::getsockname, "getsockname"); }
SocketAddress peer_address(const Socket& socket) { return address_of(socket, ::getpeername, "getpeername"); }

Socket listen_on(const SocketAddress& address) {
  Socket socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  if (!socket) throw_errno("socket");
  // A job that has just ended leaves connections of its port in TIME_WAIT.
  set_option(socket, SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.storage.ss_family == AF_INET6) set_option(socket, IPPROTO_IPV6, IPV6_V6ONLY, 1);
  if (::bind(socket.descriptor(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) != 0)
    throw_errno("bind");
  if (::listen(socket.descriptor(), SOMAXCONN) != 0) throw_errno("listen");
  return socket;
}

Socket accept_from(const Socket& listener, milliseconds user_timeout, int& error) {
  for (;;) {
    Socket socket(::accept4(listener.descriptor(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      error = errno;
      if (error == EINTR || error == ECONNABORTED) continue;
      if (error == EWOULDBLOCK) error = EAGAIN;
      return {};
    }
    try {
      set_connection_options(socket, user_timeout);
    } catch (const std::system_error&) {
      continue;  // the peer has already disconnected
    }
    error = 0;
    return socket;
  }
}

Socket connect_to(const SocketAddress& address, TimePoint deadline, milliseconds user_timeout, int& error,
                  const std::function<bool()>& give_up) {
  try {
    Socket socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
    if (!socket) throw_errno("socket");
    set_connection_options(socket, user_timeout);
    if (::connect(socket.descriptor(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) != 0) {
      if (errno != EINPROGRESS && errno != EINTR)
        throw_errno("connect");  // after EINTR, connecting continues in the background
      if (!wait_for(socket, POLLOUT, deadline, give_up)) {
        error = give_up && give_up() ? ECANCELED : ETIMEDOUT;
        return {};
      }
      socklen_t length = sizeof error;
      if (::getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) throw_errno("getsockopt");
      if (error != 0) return {};
    }
    if (connected_to_itself(socket)) {
      error = ECONNREFUSED;  // no server listens there
      return {};
    }
    error = 0;
    return socket;
  } catch (const std::system_error& failure) {
    error = failure.code().value();
    return {};
  }
}

bool connected_to_itself(const Socket& socket) {
  const SocketAddress own = own_address(socket);
  const SocketAddress peer = peer_address(socket);
  return own.length == peer.length && own.port() == peer.port() && own.host() == peer.host();
}

Transfer receive(const Socket& socket, std::span<char> buffer) {
  for (;;) {
    const ssize_t bytes = ::recv(socket.descriptor(), buffer.data(), buffer.size(), 0);
    if (bytes > 0) return {static_cast<std::size_t>(bytes), 0, false};
    if (bytes == 0) return {0, 0, true};
    if (errno == EINTR) continue;
    return {0, errno == EAGAIN || errno == EWOULDBLOCK ? 0 : errno, false};
  }
}

Transfer send(const Socket& socket, std::span<const char> data) {
  for (;;) {
    const ssize_t bytes = ::send(socket.descriptor(), data.data(), data.size(), MSG_NOSIGNAL);
    if (bytes >= 0) return {static_cast<std::size_t>(bytes), 0, false};
    if (errno == EINTR) continue;
    return {0, errno == EAGAIN || errno == EWOULDBLOCK ? 0 : errno, false};
  }
}

bool wait_for(const Socket& socket, short events, TimePoint deadline, const std::function<bool()>& give_up) {
  for (;;) {
    pollfd entry{socket.descriptor(), events, 0};
    int patience = poll_milliseconds(deadline);
    if (give_up) patience = std::min(patience, static_cast<int>(give_up_interval.count()));
    if (::poll(&entry, 1, patience) > 0) return true;
    if ((give_up && give_up()) || std::chrono::steady_clock::now() >= deadline) return false;
  }
}

int poll_milliseconds(TimePoint deadline) {
  const auto left = std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 3'600'000));
}

Waker::Waker() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!event_) throw_errno("eventfd");
}

void Waker::wake() noexcept {
  const std::uint64_t one = 1;
  while (::write(event_.descriptor(), &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void Waker::clear() noexcept {
  std::uint64_t count = 0;
  while (::read(event_.descriptor(), &count, sizeof count) < 0 && errno == EINTR) {
  }
}

SignalsBlocked::SignalsBlocked() {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, &before_);
}

SignalsBlocked::~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

std::string error_text(int error) { return std::generic_category().message(error); }

}  // namespace furlong
