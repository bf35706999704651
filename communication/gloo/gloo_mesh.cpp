#include "communication/gloo/gloo_mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gloo/common/error.h>
#include <gloo/transport/context.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/attr.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/types.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <set>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "communication/gloo/adopted_pairs.h"
#include "framework/core/error.h"
#include "framework/core/log.h"

namespace furlong {

using gloo::transport::UnboundBuffer;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

constexpr std::uint8_t sentinel_slot = 0x61;  // Gloo's own prefixes end at 0x08
constexpr milliseconds for_ever{std::chrono::hours(1000)};

std::string key_of(const GlooOptions& options, int rank) { return fmt::format("gloo/{}/{}", options.name, rank); }

/// Listens at a free port of the first address that `host` resolves to. Throws MachineError or std::system_error.
Socket listen_at(const std::string& host) {
  std::string problem;
  const std::vector<SocketAddress> addresses = resolve(host, 0, problem);
  if (addresses.empty()) throw MachineError("{}", problem);
  return listen_on(addresses.front());
}

/// Appends a field: its length, then its bytes.
void append(std::vector<char>& to, std::string_view field) {
  const auto length = static_cast<std::uint32_t>(field.size());
  const auto* bytes = reinterpret_cast<const char*>(&length);
  to.insert(to.end(), bytes, bytes + sizeof length);
  to.insert(to.end(), field.begin(), field.end());
}

std::string_view view(const std::vector<char>& bytes) { return {bytes.data(), bytes.size()}; }

std::vector<char> next_field(std::string_view& rest) {
  std::uint32_t length = 0;
  if (rest.size() >= sizeof length) std::memcpy(&length, rest.data(), sizeof length);
  if (rest.size() < sizeof length + length) throw MachineError("the job store's record of a rank is truncated");
  const std::string_view field = rest.substr(sizeof length, length);
  rest.remove_prefix(sizeof length + length);
  return {field.begin(), field.end()};
}

const char* family_of(const SocketAddress& address) { return address.storage.ss_family == AF_INET6 ? "IPv6" : "IPv4"; }

}  // namespace

/// The buffers that a thread may wait for.
struct GlooMesh::Waiters {
  std::mutex mutex;
  std::set<UnboundBuffer*> buffers;
  bool broken = false;
  std::function<void(bool connection_broke)> give_up;

  void add(UnboundBuffer* buffer) {
    const std::lock_guard lock(mutex);
    buffers.insert(buffer);
    if (broken) wake(buffer);
  }
  void remove(UnboundBuffer* buffer) {
    const std::lock_guard lock(mutex);
    buffers.erase(buffer);
  }
  void interrupt() {
    const std::lock_guard lock(mutex);
    if (std::exchange(broken, true)) return;
    for (UnboundBuffer* buffer : buffers) wake(buffer);
  }
  bool is_broken() {
    const std::lock_guard lock(mutex);
    return broken;
  }
  /// Makes the buffer's current wait, or its next one, return false. In contrast to the exception that Gloo sets on a
  /// connection's buffers, this also interrupts half-finished transfers.
  static void wake(UnboundBuffer* buffer) {
    buffer->abortWaitRecv();
    buffer->abortWaitSend();
  }
};

/// Wraps Gloo's buffer. An interrupted wait throws, because Gloo's collectives ignore its return value. Before any
/// exception leaves, the connections are closed, so that Gloo's thread no longer uses the operation's buffers.
class GlooMesh::Buffer final : public UnboundBuffer {
 public:
  Buffer(std::shared_ptr<Waiters> waiters, std::unique_ptr<UnboundBuffer> buffer)
      : UnboundBuffer(buffer->ptr, buffer->size), waiters_(std::move(waiters)), buffer_(std::move(buffer)) {
    waiters_->add(buffer_.get());
  }
  ~Buffer() override { waiters_->remove(buffer_.get()); }

  bool waitRecv(int* rank, milliseconds timeout) override {
    return wait(timeout, [&] { return buffer_->waitRecv(rank, timeout); });
  }
  bool waitSend(int* rank, milliseconds timeout) override {
    return wait(timeout, [&] { return buffer_->waitSend(rank, timeout); });
  }
  void abortWaitRecv() override { buffer_->abortWaitRecv(); }
  void abortWaitSend() override { buffer_->abortWaitSend(); }
  void send(int to, uint64_t slot, size_t offset, size_t bytes) override {
    begin([&] { buffer_->send(to, slot, offset, bytes); });
  }
  void recv(int from, uint64_t slot, size_t offset, size_t bytes) override {
    begin([&] { buffer_->recv(from, slot, offset, bytes); });
  }
  void recv(std::vector<int> from, uint64_t slot, size_t offset, size_t bytes) override {
    begin([&] { buffer_->recv(std::move(from), slot, offset, bytes); });
  }

 private:
  template <class Action>
  void begin(const Action& action) {
    try {
      action();
    } catch (const std::exception&) {
      waiters_->give_up(true);
      throw;
    }
  }
  template <class Action>
  bool wait(milliseconds timeout, const Action& action) {
    const auto start = steady_clock::now();
    try {
      if (action()) return true;
    } catch (const std::exception&) {
      const bool late = timeout >= milliseconds(0) && steady_clock::now() - start >= timeout;
      waiters_->give_up(!late);
      if (late) throw TimedOut(timeout);
      throw;
    }
    waiters_->give_up(false);
    throw Interrupted();
  }

  std::shared_ptr<Waiters> waiters_;
  std::unique_ptr<UnboundBuffer> buffer_;
};

/// Gloo's transport with wrapped buffers.
class GlooMesh::Transport final : public gloo::transport::Context {
 public:
  Transport(std::shared_ptr<gloo::transport::Context> transport, std::shared_ptr<Waiters> waiters)
      : gloo::transport::Context(transport->rank, transport->size),
        transport_(std::move(transport)),
        waiters_(std::move(waiters)) {}

  std::unique_ptr<gloo::transport::Pair>& getPair(int rank) override { return transport_->getPair(rank); }
  std::unique_ptr<gloo::transport::Pair>& createPair(int rank) override { return transport_->createPair(rank); }
  std::unique_ptr<UnboundBuffer> createUnboundBuffer(void* pointer, size_t bytes) override {
    return std::make_unique<Buffer>(waiters_, transport_->createUnboundBuffer(pointer, bytes));
  }
  gloo::transport::Context& inner() { return *transport_; }

 private:
  std::shared_ptr<gloo::transport::Context> transport_;
  std::shared_ptr<Waiters> waiters_;
};

class GlooMesh::Context final : public gloo::Context {
 public:
  Context(std::shared_ptr<Transport> transport, std::shared_ptr<gloo::transport::Device> device, milliseconds timeout)
      : gloo::Context(transport->rank, transport->size) {
    device_ = std::move(device);
    transportContext_ = std::move(transport);
    setTimeout(timeout);
  }
};

TimedOut::TimedOut(milliseconds timeout)
    : std::runtime_error(
          fmt::format("nothing was received within {:.1f} s", std::chrono::duration<double>(timeout).count())) {}

std::string gloo_message(const std::exception& error) {
  std::string text = error.what();
  if (const auto end = text.find("] "); text.starts_with("[") && end != std::string::npos) text.erase(0, end + 2);
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

GlooMesh::GlooMesh(StoreClient& store, const GlooOptions& options)
    : rank_(options.rank),
      size_(options.size),
      host_(options.host),
      connect_timeout_(options.connect_timeout),
      ranks_(static_cast<std::size_t>(options.size)),
      peers_(static_cast<std::size_t>(options.size)) {
  require(0 <= rank_ && rank_ < size_, "communicator: rank {} of {}, expected 0 <= rank < size", rank_, size_);
  ranks_[static_cast<std::size_t>(rank_)].token.resize(link_token_bytes);
  store::fill_random(ranks_[static_cast<std::size_t>(rank_)].token);
  waiters_ = std::make_shared<Waiters>();
  waiters_->give_up = [this](bool connection_broke) { give_up(connection_broke); };
  make_transport(options);
  wait_for_ranks(store, options);
  listen(options);
  publish_address(store, options);
  read_addresses(store, options);
}

GlooMesh::~GlooMesh() { interrupt(); }

void GlooMesh::make_transport(const GlooOptions& options) {
  try {
    listen_at(options.address);  // and stops: listen() does so when all ranks are here
  } catch (const std::exception& error) {
    const auto* failure = dynamic_cast<const std::system_error*>(&error);
    if (failure != nullptr && failure->code() != std::errc::address_not_available &&
        failure->code() != std::errc::address_family_not_supported)
      throw MachineError("rank {} on host {} cannot listen for the other ranks: {}", rank_, host_, error.what());
    throw UserError(
        "rank {} on host {} cannot listen at '{}', expected an address of this host that the other ranks reach; check "
        "MASTER_ADDR: {}",
        rank_, host_, options.address, error.what());
  }
  try {
    const SignalsBlocked blocked;  // inherited by the thread that Gloo starts
    // Gloo opens ports at this address, which nobody needs because connections are adopted. No other host reaches them.
    auto device = gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr("127.0.0.1"));
    auto transport = make_adopting_context(device, rank_, size_);
    transport->setTimeout(options.connect_timeout / 5);
    transport_ = std::make_shared<Transport>(std::move(transport), waiters_);
    context_ = std::make_shared<Context>(transport_, std::move(device), options.operation_timeout);
  } catch (const std::exception& error) {
    throw MachineError("rank {} on host {} cannot start Gloo: {}", rank_, host_, gloo_message(error));
  }
}

// Waits for all ranks before connecting, so that an error names the missing rank.
void GlooMesh::wait_for_ranks(StoreClient& store, const GlooOptions& options) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < size_; ++rank) keys.push_back(key_of(options, rank) + "/here");
  const char here = 1;
  store.set(keys[static_cast<std::size_t>(rank_)], {&here, 1});
  const auto begin = steady_clock::now(), end = begin + options.connect_timeout;
  for (auto notice = begin + options.notice_after;; notice += options.notice_every) {
    const auto until = std::min(notice, end);
    try {
      return store.wait(keys, std::max(milliseconds(0), std::chrono::ceil<milliseconds>(until - steady_clock::now())));
    } catch (const MachineError&) {
      if (store.fault()) throw;
    }
    std::vector<int> missing;
    for (int rank = 0; rank < size_; ++rank) {
      if (!store.check({keys[static_cast<std::size_t>(rank)]})) missing.push_back(rank);
    }
    if (missing.empty()) return;
    if (until == end)
      throw MachineError("rank {} did not arrive to connect to rank {} on host {} within {:.1f} s", missing[0], rank_,
                         host_, std::chrono::duration<double>(connect_timeout_).count());
    warn_of_missing(missing, steady_clock::now() - begin);
  }
}

// The first rank that has arrived warns; the others wait as long.
void GlooMesh::warn_of_missing(const std::vector<int>& missing, steady_clock::duration waited) const {
  const auto below = std::count_if(missing.begin(), missing.end(), [this](int rank) { return rank < rank_; });
  if (below < rank_) return;
  std::vector<std::string> names;
  for (const int rank : missing) names.push_back(fmt::format("rank {}", rank));
  log_warn("{} {} not arrived for {:.0f} s; waiting up to {:.0f} s; check that {} started, and {}",
           fmt::join(names, ", "), names.size() == 1 ? "has" : "have", std::chrono::duration<double>(waited).count(),
           std::chrono::duration<double>(connect_timeout_).count(), names.size() == 1 ? "it has" : "they have",
           names.size() == 1 ? "its log" : "their logs");
}

void GlooMesh::listen(const GlooOptions& options) {
  try {
    for (int rank = 0; rank < size_; ++rank) {
      if (rank != rank_) transport_->createPair(rank);
    }
    listener_ = listen_at(options.address);
    ranks_[static_cast<std::size_t>(rank_)].address = own_address(listener_);
  } catch (const std::exception& error) {
    throw MachineError("rank {} on host {} cannot listen for the other ranks: {}", rank_, host_, gloo_message(error));
  }
}

void GlooMesh::publish_address(StoreClient& store, const GlooOptions& options) {
  std::vector<char> record;
  append(record, host_);
  const LinkedRank& own = ranks_[static_cast<std::size_t>(rank_)];
  append(record, view(own.token));
  append(record, {reinterpret_cast<const char*>(&own.address), sizeof own.address});
  store.set(key_of(options, rank_), record);
}

void GlooMesh::read_addresses(StoreClient& store, const GlooOptions& options) {
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    const std::vector<char> record = store.get(key_of(options, rank), options.connect_timeout);
    std::string_view rest = view(record);
    const std::vector<char> host = next_field(rest);
    peers_[static_cast<std::size_t>(rank)].host.assign(host.begin(), host.end());
    LinkedRank& linked = ranks_[static_cast<std::size_t>(rank)];
    linked.token = next_field(rest);
    const std::vector<char> address = next_field(rest);
    if (linked.token.size() != link_token_bytes || address.size() != sizeof linked.address)
      throw MachineError("the job store's record of {} is corrupt; restart the job", name_of_rank(rank));
    std::memcpy(&linked.address, address.data(), sizeof linked.address);
    const SocketAddress& own = ranks_[static_cast<std::size_t>(rank_)].address;
    if (own.storage.ss_family != linked.address.storage.ss_family) {
      throw UserError(
          "{} uses {}, but rank {} on host {} uses {} ({}); set MASTER_ADDR to the same numeric address on all ranks",
          name_of_rank(rank), family_of(linked.address), rank_, host_, family_of(own), options.address);
    }
  }
}

std::vector<int> GlooMesh::unconnected() const {
  const std::lock_guard lock(unconnected_mutex_);
  return unconnected_;
}

void GlooMesh::connect() {
  int rank = 0;
  const auto waits_for = [this](std::vector<int> missing) {
    const std::lock_guard lock(unconnected_mutex_);
    unconnected_ = std::move(missing);
  };
  try {
    std::vector<Socket> links = link_ranks(
        listener_, rank_, ranks_, steady_clock::now() + connect_timeout_, [this] { return waiters_->is_broken(); },
        waits_for);
    waits_for({});
    listener_.close();
    for (rank = 0; rank < size_; ++rank) {
      if (rank != rank_) adopt(transport_->inner(), rank, std::move(links[static_cast<std::size_t>(rank)]));
    }
    watch_connections();
  } catch (const LinkFailure& failure) {
    if (waiters_->is_broken()) throw Interrupted();
    throw MachineError("cannot connect to {}: {}", name_of_rank(failure.rank), failure.reason);
  } catch (const std::exception& error) {
    if (waiters_->is_broken()) throw Interrupted();
    throw MachineError("cannot connect to {}: {}", name_of_rank(std::min(rank, size_ - 1)), gloo_message(error));
  }
}

void GlooMesh::watch_connections() {
  const std::lock_guard lock(sentinels_mutex_);
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    auto& sentinel = peers_[static_cast<std::size_t>(rank)].sentinel;
    sentinel = transport_->inner().createUnboundBuffer(&sentinel_byte_, 1);
    sentinel->recv(rank, gloo::Slot::build(sentinel_slot, 0), 0, 1);
  }
  sentinels_posted_ = true;
}

// A wait that times out makes Gloo close all connections of its context. Gloo has no other way to interrupt connect()
// and transfers that have not started. Transfers that have started are woken one by one.
void GlooMesh::interrupt() noexcept {
  waiters_->interrupt();
  if (!transport_) return;
  try {
    char nothing = 0;
    transport_->inner().createUnboundBuffer(&nothing, 1)->waitRecv(nullptr, milliseconds(0));
  } catch (const std::exception&) {  // always thrown
  }
}

// Gloo notifies an operation's buffer and the sentinel one after the other: waits up to 100 ms for the sentinel, which
// names the lost rank.
void GlooMesh::give_up(bool connection_broke) noexcept {
  for (int i = 0; connection_broke && i < 100 && !waiters_->is_broken() && !lost_peer(); ++i)
    std::this_thread::sleep_for(milliseconds(1));
  interrupt();
}

// An interrupted wait on a sentinel returns immediately if the connection works, and throws if it broke.
std::optional<GlooMesh::Lost> GlooMesh::lost_peer() {
  const std::lock_guard lock(sentinels_mutex_);
  if (lost_ || !sentinels_posted_ || waiters_->is_broken()) return lost_;
  for (int rank = 0; rank < size_ && !lost_; ++rank) {
    const Peer& peer = peers_[static_cast<std::size_t>(rank)];
    if (rank == rank_) continue;
    try {
      peer.sentinel->abortWaitRecv();
      peer.sentinel->waitRecv(nullptr, for_ever);
    } catch (const std::exception& error) {
      lost_ = Lost{rank, gloo_message(error)};
    }
  }
  return lost_;
}

std::string GlooMesh::name_of_rank(int rank) const {
  return fmt::format("rank {} on host {}", rank, rank == rank_ ? host_ : peers_[static_cast<std::size_t>(rank)].host);
}

}  // namespace furlong
