#include "communication/job_store/store_client.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <limits>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "communication/job_store/store_handshake.h"
#include "framework/core/error.h"

namespace furlong {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using namespace store;

namespace {

constexpr std::size_t read_bytes = std::size_t{1} << 16;
constexpr int max_consecutive_reads = 64;
constexpr milliseconds first_pause{20};  // between attempts to connect, doubled up to the longest
constexpr milliseconds longest_pause{500};
constexpr milliseconds give_up_poll{50};
constexpr milliseconds reply_slack{250};         // for the store's timeout reply to arrive
constexpr milliseconds farewell_patience{1000};  // for a client that is destroyed without goodbye()

double seconds(steady_clock::duration time) { return std::chrono::duration<double>(time).count(); }

std::uint32_t milliseconds_until(TimePoint deadline) {
  const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now()).count();
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(left, 0, std::numeric_limits<std::uint32_t>::max()));
}

void check_key(const std::string& key) {
  require(!key.empty() && key.size() <= max_key_bytes, "job store: a key has {} bytes, expected 1 to {}", key.size(),
          max_key_bytes);
}

}  // namespace

/// The client's thread, and the state that it shares with callers.
class StoreClient::Connection {
 public:
  explicit Connection(StoreClientOptions options);
  ~Connection();

  /// Sends a request and waits for its reply, if `timeout` is given at most slightly longer than that. Throws
  /// MachineError on a fault.
  Reply ask(Request request, std::string_view value, std::optional<milliseconds> timeout = {});
  bool report_fault(const std::string& reason, std::optional<milliseconds> patience = {}) noexcept;
  void goodbye();
  std::optional<Fault> fault() const {
    const std::lock_guard lock(mutex_);
    return fault_;
  }

 private:
  struct Pending {
    Kind kind = Kind::check;
    std::shared_ptr<std::string> frame{};
    std::optional<TimePoint> deadline{};
    std::optional<Reply> reply{};
  };

  void join();
  void sleep_until(TimePoint end) const;
  [[noreturn]] void throw_refused(const Attempt& attempt, const std::string& at) const;
  void run() noexcept;
  bool run_once();
  bool reconnect();
  bool read();
  void handle_frame(const std::string& body);
  void send_pending(bool all);
  void disconnect(const std::string& why);
  void lose_store(const std::string& reason);
  void declare(Fault fault);
  TimePoint lost_at() const;

  const StoreClientOptions options_;
  Hello hello_;
  Waker waker_;
  std::atomic<bool> stop_{false};

  // Used by the thread only, once it runs.
  Socket socket_;
  SocketAddress address_;
  FrameBuffer in_;
  SendQueue out_;
  std::string server_host_;
  std::string why_broken_;
  TimePoint last_heard_{}, broken_at_{}, next_heartbeat_{}, last_turn_{};
  std::vector<char> buffer_ = std::vector<char>(read_bytes);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, Pending> pending_;
  std::uint64_t next_id_ = 1;
  std::uint64_t next_unsent_ = 1;
  std::optional<Fault> fault_;
  bool leaving_ = false;  ///< goodbye() was called, or the client is being destroyed
  bool ended_ = false;    ///< the thread answers no more requests
  std::thread thread_;
};

StoreClient::Connection::Connection(StoreClientOptions options) : options_(std::move(options)) {
  options_.times.check();
  if (options_.world_size < 1 || options_.world_size > max_world_size || options_.rank < 0 ||
      options_.rank >= options_.world_size)
    throw UserError(
        "rank {} of {}: expected 0 <= RANK < WORLD_SIZE; start the job with furlong launch, torchrun, mpirun or srun, "
        "which set both",
        options_.rank, options_.world_size);
  if (options_.secret.empty())
    throw UserError("the job store has no secret; set FURLONG_JOB_SECRET to the same value on all ranks");
  hello_.rank = options_.rank;
  hello_.world_size = options_.world_size;
  hello_.host = one_line(options_.host, max_host_bytes);
  fill_random(hello_.session);
  join();
  hello_.resuming = true;
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { run(); });
}

StoreClient::Connection::~Connection() {
  bool gone = false;
  {
    const std::lock_guard lock(mutex_);
    gone = ended_ || fault_;
    leaving_ = true;
  }
  if (!gone) report_fault("it ended without leaving the job", farewell_patience);
  stop_ = true;
  waker_.wake();
  thread_.join();
}

void StoreClient::Connection::join() {
  const TimePoint start = steady_clock::now();
  const TimePoint deadline = start + options_.connect_timeout;
  milliseconds pause = first_pause;
  std::string tried, problem;
  do {
    const std::vector<SocketAddress> addresses = resolve(options_.address, options_.port, problem);
    if (addresses.empty()) problem = "the name cannot be resolved: " + problem;
    for (const SocketAddress& address : addresses) {
      tried = address.host() == options_.address ? "" : fmt::format(" ({})", address.host());
      Attempt attempt =
          shake_hands(address, hello_, options_.secret, deadline, options_.times.timeout, options_.give_up);
      if (attempt.outcome == Attempt::Outcome::welcome) {
        socket_ = std::move(attempt.socket);
        in_ = std::move(attempt.in);
        address_ = address;
        server_host_ = attempt.server_host;
        last_heard_ = next_heartbeat_ = last_turn_ = steady_clock::now();
        return;
      }
      if (attempt.outcome != Attempt::Outcome::failed)
        throw_refused(attempt, address_text(options_.address, options_.port) + tried);
      problem = attempt.problem;
    }
    // Ranks that start at the same time retry at different times.
    sleep_until(std::min(deadline, steady_clock::now() + pause + pause * (options_.rank % 16) / 16));
    pause = std::min(2 * pause, longest_pause);
  } while (steady_clock::now() < deadline && !options_.give_up());
  throw MachineError(
      "rank {} on host {}: no job store at {}{} within {:.1f} s: {}; check that rank 0 has started and that "
      "MASTER_ADDR and MASTER_PORT name its host and port",
      options_.rank, options_.host, address_text(options_.address, options_.port), tried,
      seconds(steady_clock::now() - start), problem);
}

/// Sleeps, or returns early after give_up.
void StoreClient::Connection::sleep_until(TimePoint end) const {
  for (TimePoint now = steady_clock::now(); now < end && !options_.give_up(); now = steady_clock::now())
    std::this_thread::sleep_until(std::min(end, now + give_up_poll));
}

void StoreClient::Connection::throw_refused(const Attempt& attempt, const std::string& at) const {
  if (attempt.outcome == Attempt::Outcome::foreign)
    throw UserError(
        "MASTER_PORT {}: the service at {} is not this job's store, {}; set MASTER_PORT to a free port of rank 0's "
        "host",
        options_.port, at, attempt.problem);
  switch (attempt.refusal.reason) {
    case Refused::secret:
      throw UserError(
          "the job store at {} has another secret than this rank and may belong to another job; set MASTER_PORT to an "
          "unused port, or FURLONG_JOB_SECRET to the same value on all ranks",
          at);
    case Refused::world_size:
      throw UserError("rank {}: WORLD_SIZE is {} here and {} at rank 0 ({}); set the same value on all ranks",
                      options_.rank, options_.world_size, attempt.refusal.detail, at);
    case Refused::rank:
      throw UserError(
          "rank {} on host {}: this rank has joined already, from host {}; set a different RANK in every process",
          options_.rank, options_.host, attempt.refusal.detail);
    default:
      throw MachineError("the job store at {} refused rank {} for an unknown reason", at, options_.rank);
  }
}

Reply StoreClient::Connection::ask(Request request, std::string_view value, std::optional<milliseconds> timeout) {
  Pending pending;
  pending.kind = request.kind;
  if (timeout) {
    const auto bounded = std::clamp<std::int64_t>(timeout->count(), 0, std::numeric_limits<std::uint32_t>::max());
    pending.deadline = steady_clock::now() + milliseconds(bounded);
    request.timeout = static_cast<std::uint32_t>(bounded);
  }
  std::unique_lock lock(mutex_);
  const auto check = [&] {
    if (fault_) throw MachineError("{}", fault_->message());
    require(!ended_, "the job store was used after goodbye()");
  };
  check();
  const std::uint64_t id = request.id = next_id_++;
  request.oldest = id;
  for (const auto& [other, waiting] : pending_) {  // ordered by id
    if (!changes_state(waiting.kind)) continue;
    request.oldest = other;
    break;
  }
  pending.frame = std::make_shared<std::string>(encode(request, value));
  const auto entry = pending_.emplace(id, std::move(pending)).first;
  waker_.wake();
  const auto ready = [&] { return entry->second.reply || fault_ || ended_; };
  if (timeout) {
    changed_.wait_until(lock, *entry->second.deadline + reply_slack, ready);
  } else {
    changed_.wait(lock, ready);
  }
  const std::optional<Reply> reply = std::move(entry->second.reply);
  pending_.erase(entry);
  if (reply) return *reply;
  check();
  return {id, Status::timed_out, "the job store did not answer"};
}

bool StoreClient::Connection::report_fault(const std::string& reason, std::optional<milliseconds> patience) noexcept {
  try {
    return ask({.kind = Kind::report_fault}, reason, patience).status == Status::ok;
  } catch (...) {  // an earlier fault, or out of memory
    const std::lock_guard lock(mutex_);
    return fault_ && fault_->rank == options_.rank;
  }
}

void StoreClient::Connection::goodbye() {
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  try {
    ask({.kind = Kind::goodbye}, {});
  } catch (const ContractError&) {
    // The store ended before it replied: this rank has left anyway.
  }
  stop_ = true;
  waker_.wake();
  const std::lock_guard lock(mutex_);
  ended_ = true;
}

void StoreClient::Connection::run() noexcept {
  try {
    while (!stop_ && run_once()) {
    }
  } catch (const std::exception& failure) {
    declare({options_.rank, options_.host, fmt::format("its connection to the store failed: {}", failure.what())});
  }
  socket_.close();
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

bool StoreClient::Connection::run_once() {
  if (!socket_) return reconnect();
  const TimePoint before = steady_clock::now();
  if (before >= next_heartbeat_) {
    out_.push(encode_heartbeat());
    next_heartbeat_ = before + options_.times.heartbeat_interval;
  }
  send_pending(false);
  bool acknowledged = false;
  const Transfer sent = out_.flush(socket_, acknowledged);
  if (acknowledged) last_heard_ = before;
  if (sent.error) {
    read();  // a fault may have arrived before the connection broke
    disconnect(error_text(sent.error));
    return !fault_;
  }
  std::array<pollfd, 2> polled{{{waker_.descriptor(), POLLIN, 0},
                                {socket_.descriptor(), static_cast<short>(POLLIN | (out_.empty() ? 0 : POLLOUT)), 0}}};
  ::poll(polled.data(), polled.size(), poll_milliseconds(std::min(next_heartbeat_, lost_at())));
  const TimePoint now = steady_clock::now();
  // This process itself was suspended, perhaps the whole job: the store's silence during that time does not count.
  if (now - last_turn_ > 2 * options_.times.heartbeat_interval) last_heard_ = now;
  last_turn_ = now;
  if (polled[0].revents) waker_.clear();
  if (((polled[1].revents & ~POLLOUT) || now >= lost_at()) && !read()) return !fault_;
  if (now >= lost_at() && socket_) {
    lose_store(fmt::format("its store was silent for {:.1f} s (stopped, or disconnected from the network?)",
                           seconds(now - last_heard_)));
    return false;
  }
  return !fault_;
}

/// Reads what has arrived. Returns false if the connection is broken.
bool StoreClient::Connection::read() {
  for (int i = 0; i < max_consecutive_reads; ++i) {
    const Transfer moved = receive(socket_, buffer_);
    if (moved.bytes == 0) {
      if (moved.ended) disconnect("it was closed");
      if (moved.error) disconnect(error_text(moved.error));
      return static_cast<bool>(socket_);
    }
    last_heard_ = steady_clock::now();
    try {
      in_.append(std::span(buffer_).first(moved.bytes));
      while (const auto body = in_.next(max_frame_bytes)) handle_frame(*body);
    } catch (const ProtocolError& error) {
      disconnect(fmt::format("the store violated the protocol: it sent {}", error.what()));
      return false;
    }
  }
  return true;
}

void StoreClient::Connection::handle_frame(const std::string& body) {
  switch (kind_of(body)) {
    case Kind::heartbeat:
      return decode_heartbeat(body);
    case Kind::fault:
      return declare(decode_fault(body));
    case Kind::reply:
      break;
    default:
      throw ProtocolError("a frame of an unexpected kind");
  }
  Reply reply = decode_reply(body);
  const std::lock_guard lock(mutex_);
  const auto entry = pending_.find(reply.id);
  if (entry == pending_.end()) return;  // no caller waits any longer
  entry->second.reply = std::move(reply);
  changed_.notify_all();
}

void StoreClient::Connection::send_pending(bool all) {
  const std::lock_guard lock(mutex_);
  for (auto entry = all ? pending_.begin() : pending_.lower_bound(next_unsent_); entry != pending_.end(); ++entry) {
    Pending& pending = entry->second;
    if (pending.reply) continue;
    if (all && pending.deadline) set_timeout(*pending.frame, milliseconds_until(*pending.deadline));
    out_.push(pending.frame);
  }
  next_unsent_ = next_id_;
}

void StoreClient::Connection::disconnect(const std::string& why) {
  if (!socket_) return;
  socket_.close();
  in_ = {};
  out_.clear();
  why_broken_ = why;
  broken_at_ = steady_clock::now();
}

TimePoint StoreClient::Connection::lost_at() const {
  const TimePoint silent = last_heard_ + options_.times.timeout;
  return socket_ ? silent : std::min(silent, broken_at_ + options_.times.grace);
}

/// Resumes the session over a new connection, and sends unanswered requests again.
bool StoreClient::Connection::reconnect() {
  milliseconds pause = first_pause;
  std::string problem = "no time was left to reconnect";
  while (steady_clock::now() < lost_at()) {
    Attempt attempt =
        shake_hands(address_, hello_, options_.secret, lost_at(), options_.times.timeout, [&] { return stop_.load(); });
    if (stop_) return false;
    if (attempt.outcome == Attempt::Outcome::welcome) {
      socket_ = std::move(attempt.socket);
      in_ = std::move(attempt.in);
      last_heard_ = next_heartbeat_ = last_turn_ = steady_clock::now();
      send_pending(true);
      while (const auto body = in_.next(max_frame_bytes)) handle_frame(*body);
      return !fault_;
    }
    problem = attempt.problem;
    if (attempt.outcome != Attempt::Outcome::failed) {
      if (attempt.outcome == Attempt::Outcome::refused)
        problem = "the store that answers there does not know this rank";
      break;
    }
    pollfd woken{waker_.descriptor(), POLLIN, 0};
    ::poll(&woken, 1, poll_milliseconds(std::min(steady_clock::now() + pause, lost_at())));
    waker_.clear();
    pause = std::min(2 * pause, longest_pause);
  }
  lose_store(fmt::format("the connection to its store broke ({}), and reconnecting failed for {:.1f} s: {}",
                         why_broken_, seconds(steady_clock::now() - broken_at_), problem));
  return false;
}

void StoreClient::Connection::lose_store(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (leaving_) return;  // the store may end while this rank leaves
  }
  declare({0, server_host_, reason});
}

void StoreClient::Connection::declare(Fault fault) {
  bool tell = false;
  {
    const std::lock_guard lock(mutex_);
    if (fault_) return;
    fault_ = fault;
    tell = !stop_ && !leaving_;
    changed_.notify_all();
  }
  if (tell && options_.on_fault) options_.on_fault(fault);
}

StoreClient::StoreClient(StoreClientOptions options) : connection_(std::make_unique<Connection>(std::move(options))) {}
StoreClient::~StoreClient() = default;

void StoreClient::set(const std::string& key, std::span<const char> value) {
  check_key(key);
  require(value.size() <= max_value_bytes, "job store: a value of {} bytes for key {}, expected at most {}",
          value.size(), key_text(key), max_value_bytes);
  connection_->ask({.kind = Kind::set, .keys = {key}}, {value.data(), value.size()});
}

std::vector<char> StoreClient::get(const std::string& key, milliseconds timeout) {
  check_key(key);
  const Reply reply = connection_->ask({.kind = Kind::get, .keys = {key}}, {}, timeout);
  if (reply.status != Status::ok)
    throw MachineError("job store: waited {:.1f} s for key {}: {}", seconds(timeout), key_text(key), reply.payload);
  return {reply.payload.begin(), reply.payload.end()};
}

std::int64_t StoreClient::add(const std::string& key, std::int64_t delta) {
  check_key(key);
  const Reply reply = connection_->ask({.kind = Kind::add, .keys = {key}, .delta = delta}, {});
  require(reply.status == Status::ok, "job store: cannot add {} to key {}: {}", delta, key_text(key), reply.payload);
  return decode_number(reply.payload);
}

void StoreClient::wait(const std::vector<std::string>& keys, milliseconds timeout) {
  for (const std::string& key : keys) check_key(key);
  const Reply reply = connection_->ask({.kind = Kind::wait, .keys = keys}, {}, timeout);
  if (reply.status != Status::ok)
    throw MachineError("job store: waited {:.1f} s for {} keys: {}", seconds(timeout), keys.size(), reply.payload);
}

bool StoreClient::check(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) check_key(key);
  return connection_->ask({.kind = Kind::check, .keys = keys}, {}).payload == "\1";
}

bool StoreClient::report_fault(const std::string& reason) noexcept { return connection_->report_fault(reason); }
void StoreClient::goodbye() { connection_->goodbye(); }
std::optional<Fault> StoreClient::fault() const { return connection_->fault(); }

}  // namespace furlong
