#include "communication/gloo/adopted_pairs.h"

#include <fcntl.h>
#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/pair.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <stdexcept>
#include <utility>

#include "framework/core/error.h"

namespace furlong {
namespace {

namespace tcp = gloo::transport::tcp;

#if __has_include(<gloo/transport/tcp/listener.h>)  // Debian 13 (Gloo of 2023): the device listens, for all pairs
class AdoptedPair final : public tcp::Pair {
 public:
  using Pair::Pair;

  static bool stop_listening() { return true; }  // a pair has no port

  void adopt(int descriptor) {
    tcp::Socket socket(descriptor);
    const std::lock_guard lock(m_);
    if (state_ != INITIALIZING) throw std::runtime_error("the connection was closed");
    socket.block(false);
    socket.noDelay(true);
    socket.sendTimeout(timeout_);
    socket.recvTimeout(timeout_);
    self_ = socket.sockName();
    peer_ = socket.peerName();  // for Gloo's messages
    fd_ = socket.release();
    device_->registerDescriptor(fd_, EPOLLIN, this);
    changeState(CONNECTED);
  }
};
#else
class AdoptedPair final : public tcp::Pair {
 public:
  using Pair::Pair;

  /// Stops listening, which Gloo's constructor has started. Returns false if a client has connected meanwhile.
  bool stop_listening() {
    const std::lock_guard lock(m_);
    if (state_ != LISTENING) return false;
    device_->unregisterDescriptor(fd_, this);
    ::close(fd_);
    fd_ = -1;
    return true;
  }

  void adopt(int descriptor) {
    const std::lock_guard lock(m_);
    if (state_ != LISTENING || fd_ != -1) {
      ::close(descriptor);
      throw std::runtime_error("the connection was closed");
    }
    fd_ = descriptor;
    is_adopted_ = true;
    handleConnected();
  }

 private:
  /// Ignores data until a connection is adopted.
  void handleReadWrite(int events) override {
    if (is_adopted_) Pair::handleReadWrite(events);
  }

  std::atomic<bool> is_adopted_ = false;
};
#endif

class AdoptingContext final : public tcp::Context {
 public:
  using Context::Context;

  std::unique_ptr<gloo::transport::Pair>& createPair(int rank) override {
    std::unique_ptr<gloo::transport::Pair>& pair = pairs_[static_cast<std::size_t>(rank)];
    constexpr int most_tries = 100;
    for (int i = 0; i < most_tries; ++i) {
      auto made = std::make_unique<AdoptedPair>(this, device_.get(), rank, getTimeout());
      if (!made->stop_listening()) continue;
      pair = std::move(made);
      return pair;
    }
    throw MachineError("cannot create a Gloo connection: another process connects to every port that Gloo opens");
  }
};

}  // namespace

std::shared_ptr<gloo::transport::Context> make_adopting_context(const std::shared_ptr<gloo::transport::Device>& device,
                                                                int rank, int size) {
  return std::make_shared<AdoptingContext>(std::dynamic_pointer_cast<tcp::Device>(device), rank, size);
}

void adopt(gloo::transport::Context& context, int rank, Socket socket) {
  const int descriptor = socket.release();
  // The job store, not TCP, detects lost peers.
  const int off = 0;
  setsockopt(descriptor, SOL_SOCKET, SO_KEEPALIVE, &off, sizeof off);
  setsockopt(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, &off, sizeof off);
  dynamic_cast<AdoptedPair&>(*context.getPair(rank)).adopt(descriptor);
}

}  // namespace furlong
