#include "communication/job_store/store_server.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "communication/job_store/store_listeners.h"
#include "communication/job_store/store_table.h"
#include "framework/core/error.h"
#include "framework/core/log.h"

namespace furlong {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using namespace store;

namespace {

constexpr std::size_t read_bytes = std::size_t{1} << 16;
constexpr int max_consecutive_reads = 16;  // then the other connections are served
// Bytes queued for a client beyond which its requests are not read, until it reads its replies.
constexpr std::size_t max_unsent_bytes = 2 * max_frame_bytes;
constexpr milliseconds accept_pause{100};  // after accept() failed, for example without free descriptors
constexpr milliseconds closing_patience{500};

}  // namespace

/// The server's thread with one poll() loop: accepts, authenticates and answers clients, and detects lost ranks.
class StoreServer::Loop {
 public:
  Loop(StoreServerOptions options, std::vector<Socket> listeners)
      : options_(std::move(options)), listeners_(std::move(listeners)), state_(options_.world_size) {
    const SignalsBlocked blocked;
    thread_ = std::thread([this] { run(); });
  }
  ~Loop() {
    stop_ = true;
    waker_.wake();
    thread_.join();
  }
  std::optional<Fault> fault() const {
    const std::lock_guard lock(mutex_);
    return fault_;
  }
  bool wait_for_goodbyes(milliseconds timeout) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, timeout, [&] { return fault_ || n_left_ == options_.world_size; });
    return !fault_ && n_left_ == options_.world_size;
  }

 private:
  struct Connection {
    Socket socket;
    TimePoint since;
    Nonce nonce{};
    FrameBuffer in{};
    SendQueue out{};
    int rank = -1;         ///< -1 until authenticated
    bool refused = false;  ///< close once the refusal is sent
    bool broken = false;
  };
  struct Session {
    enum class State { joined, left, lost };
    std::string host;
    SessionId id{};
    State state = State::joined;
    Connection* connection = nullptr;
    TimePoint last_heard{};
    TimePoint broken_at{};
    std::string why_broken{};
    std::uint64_t last_id = 0;
    std::map<std::uint64_t, Reply> replies{};  ///< to state-changing requests, until the client has received them
  };

  void run() noexcept;
  void run_once();
  void accept(const Socket& listener);
  void read(Connection& connection);
  void write(Connection& connection);
  void handle_frame(Connection& connection, const std::string& body);
  void handle_hello(Connection& connection, const std::string& body);
  void refuse(Connection& connection, Refused reason, std::string detail);
  void execute(Connection& connection, Session& session, Request request);
  void answer(int rank, std::uint64_t id, const Answer& answer);
  void disconnect(Connection& connection, const std::string& why);
  void detect_lost_ranks(TimePoint now);
  void mark_lost(int rank, Session& session, const std::string& reason);
  void declare(Fault fault);
  void close();
  TimePoint lost_at(const Session& session) const;
  TimePoint next_deadline(TimePoint now);
  Connection* oldest_unauthenticated();
  bool can_accept(TimePoint now);
  void remove_closed();

  const StoreServerOptions options_;
  const std::vector<Socket> listeners_;
  Waker waker_;
  std::atomic<bool> stop_{false};

  // Used by the thread only.
  std::vector<std::unique_ptr<Connection>> connections_;
  std::map<int, Session> sessions_;
  StoreTable state_;
  int n_unauthenticated_ = 0;
  TimePoint accept_again_{}, last_turn_ = steady_clock::now();
  bool warned_of_files_ = false;
  TimePoint woke_{};                      ///< when this process was last resumed after a suspension
  steady_clock::duration stopped_for_{};  ///< duration of that suspension
  std::vector<char> buffer_ = std::vector<char>(read_bytes);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Fault> fault_;  ///< written by the thread only, under the mutex
  int n_left_ = 0;
  std::thread thread_;
};

void StoreServer::Loop::run() noexcept {
  try {
    while (!stop_) run_once();
    close();
  } catch (const std::exception& failure) {
    try {
      declare({0, options_.host, fmt::format("its store failed: {}", failure.what())});
    } catch (...) {  // out of memory: the clients notice that the connections break
    }
    connections_.clear();
  }
}

void StoreServer::Loop::run_once() {
  const TimePoint before = steady_clock::now();
  std::vector<pollfd> polled{{waker_.descriptor(), POLLIN, 0}};
  const bool listens = can_accept(before);
  for (const Socket& listener : listeners_) polled.push_back({listens ? listener.descriptor() : -1, POLLIN, 0});
  const std::size_t first = polled.size();
  for (const auto& connection : connections_) {
    const int events =
        (connection->out.size() < max_unsent_bytes ? POLLIN : 0) | (connection->out.empty() ? 0 : POLLOUT);
    polled.push_back({connection->socket.descriptor(), static_cast<short>(events), 0});
  }
  ::poll(polled.data(), polled.size(), poll_milliseconds(next_deadline(before)));
  const TimePoint now = steady_clock::now();
  // This process itself was suspended (the whole job, or the machine): the silence of the others during that time does
  // not count.
  if (now - last_turn_ > 2 * options_.times.heartbeat_interval) {
    woke_ = now;
    stopped_for_ = now - last_turn_;
    for (auto& [rank, session] : sessions_) session.last_heard = session.broken_at = now;
  }
  last_turn_ = now;
  if (polled[0].revents) waker_.clear();
  for (std::size_t i = first; i < polled.size(); ++i) {
    Connection& connection = *connections_[i - first];
    if ((polled[i].revents & ~POLLOUT) && !connection.broken) read(connection);
  }
  for (std::size_t i = 0; i < listeners_.size(); ++i) {
    if (polled[1 + i].revents) accept(listeners_[i]);
  }
  detect_lost_ranks(now);
  for (const auto& connection : connections_) write(*connection);
  remove_closed();
}

void StoreServer::Loop::accept(const Socket& listener) {
  const TimePoint now = steady_clock::now();
  while (can_accept(now)) {
    int error = 0;
    Socket socket = accept_from(listener, options_.times.timeout, error);
    if (!socket) {
      if (error != EAGAIN) accept_again_ = now + accept_pause;
      if (error == EMFILE && !std::exchange(warned_of_files_, true))
        log_warn("no further rank can connect to the job store: {}; raise ulimit -n on the host of rank 0",
                 error_text(error));
      return;
    }
    if (n_unauthenticated_ >= options_.max_unauthenticated) disconnect(*oldest_unauthenticated(), "");
    auto connection = std::make_unique<Connection>(Connection{std::move(socket), now});
    fill_random(connection->nonce);
    connection->out.push(encode(Challenge{connection->nonce}));
    connections_.push_back(std::move(connection));
    ++n_unauthenticated_;
  }
}

void StoreServer::Loop::read(Connection& connection) {
  for (int i = 0; i < max_consecutive_reads && !connection.broken; ++i) {
    // Before authentication a client sends one small frame; the store never buffers more.
    const std::size_t room = connection.rank < 0 ? max_handshake_bytes : buffer_.size();
    const Transfer moved = receive(connection.socket, std::span(buffer_).first(room));
    if (moved.bytes == 0) {
      if (moved.ended) disconnect(connection, "it was closed");
      if (moved.error) disconnect(connection, error_text(moved.error));
      return;
    }
    if (connection.refused) continue;
    if (connection.rank >= 0) sessions_.at(connection.rank).last_heard = steady_clock::now();
    try {
      connection.in.append(std::span(buffer_).first(moved.bytes));
      while (!connection.broken && !connection.refused) {
        const auto body = connection.in.next(connection.rank < 0 ? max_handshake_bytes : max_frame_bytes);
        if (!body) break;
        handle_frame(connection, *body);
      }
    } catch (const ProtocolError& error) {
      disconnect(connection, fmt::format("it violated the store's protocol and sent {}", error.what()));
    }
  }
}

void StoreServer::Loop::write(Connection& connection) {
  if (connection.broken) return;
  bool acknowledged = false;
  const Transfer moved = connection.out.flush(connection.socket, acknowledged);
  if (acknowledged && connection.rank >= 0) sessions_.at(connection.rank).last_heard = steady_clock::now();
  if (moved.error) disconnect(connection, error_text(moved.error));
  if (connection.refused && connection.out.empty()) disconnect(connection, "");
}

void StoreServer::Loop::handle_frame(Connection& connection, const std::string& body) {
  const Kind kind = kind_of(body);
  if (connection.rank < 0) {
    if (kind != Kind::hello) throw ProtocolError("a frame before the hello");
    handle_hello(connection, body);
  } else if (kind == Kind::heartbeat) {
    decode_heartbeat(body);
    connection.out.push(encode_heartbeat());
  } else {
    execute(connection, sessions_.at(connection.rank), decode_request(body));
  }
}

void StoreServer::Loop::handle_hello(Connection& connection, const std::string& body) {
  const Hello hello = decode_hello(body);
  if (!equal_in_constant_time(hello.code, code_of(hello, connection.nonce, options_.secret)))
    return refuse(connection, Refused::secret, "");
  if (hello.world_size != options_.world_size)
    return refuse(connection, Refused::world_size, std::to_string(options_.world_size));
  const auto found = sessions_.find(hello.rank);
  const bool known = found != sessions_.end() && found->second.id == hello.session;
  if (hello.resuming && !known) return refuse(connection, Refused::session, "");
  if (!known && found != sessions_.end() && found->second.state == Session::State::joined)
    return refuse(connection, Refused::rank, found->second.host);
  Session& session = sessions_[hello.rank];
  // The client has noticed a broken connection before the server, or has said goodbye.
  if (session.connection) disconnect(*session.connection, "it reconnected");
  if (!known) {
    if (session.state == Session::State::left) {  // it joins again after a goodbye
      const std::lock_guard lock(mutex_);
      --n_left_;
    }
    session = Session{hello.host, hello.session};
    state_.join(hello.rank);
  }
  session.connection = &connection;
  session.last_heard = steady_clock::now();
  connection.rank = hello.rank;
  --n_unauthenticated_;
  Welcome welcome{options_.host, {}};
  welcome.code = code_of(welcome, hello, connection.nonce, options_.secret);
  connection.out.push(encode(welcome));
  if (fault_) connection.out.push(encode(*fault_));
}

void StoreServer::Loop::refuse(Connection& connection, Refused reason, std::string detail) {
  connection.refused = true;
  connection.out.push(encode(Refusal{reason, std::move(detail)}));
}

void StoreServer::Loop::execute(Connection& connection, Session& session, Request request) {
  session.replies.erase(session.replies.begin(), session.replies.lower_bound(request.oldest));
  const int rank = connection.rank;
  const std::uint64_t id = request.id;
  if (!changes_state(request.kind)) {
    for (const auto& [waiting, reply] : state_.ask(rank, std::move(request))) answer(rank, waiting.id, reply);
    return;
  }
  if (id <= session.last_id) {  // executed before the connection broke; only the reply is missing
    const auto reply = session.replies.find(id);
    if (reply != session.replies.end())
      answer(rank, id, {reply->second.status, std::make_shared<const std::string>(reply->second.payload)});
    return;
  }
  session.last_id = id;
  Reply& reply = session.replies[id];
  if (request.kind == Kind::report_fault) {
    declare({rank, session.host, request.value.empty() ? "it gave no reason" : request.value});
  } else if (request.kind == Kind::goodbye) {
    session.state = Session::State::left;
    state_.forget_waiting(rank);
    const std::lock_guard lock(mutex_);
    ++n_left_;
  } else {
    const StoreTable::Change change = state_.change(std::move(request));
    reply.status = change.status;
    reply.payload = change.payload;
    for (const auto& [waiting, done] : change.answers) answer(waiting.rank, waiting.id, done);
  }
  answer(rank, id, {reply.status, std::make_shared<const std::string>(reply.payload)});
  changed_.notify_all();
}

void StoreServer::Loop::answer(int rank, std::uint64_t id, const Answer& answer) {
  Connection* connection = sessions_.at(rank).connection;
  if (!connection) return;
  connection->out.push(encode_reply(id, answer.status, answer.payload->size()));
  connection->out.push(answer.payload);
}

void StoreServer::Loop::disconnect(Connection& connection, const std::string& why) {
  if (connection.broken) return;
  connection.broken = true;
  if (connection.rank < 0) {
    --n_unauthenticated_;
    return;
  }
  Session& session = sessions_.at(connection.rank);
  if (session.connection != &connection) return;
  session.connection = nullptr;
  session.broken_at = steady_clock::now();
  session.why_broken = why;
  state_.forget_waiting(connection.rank);  // after reconnecting, the client repeats its pending requests
}

TimePoint StoreServer::Loop::lost_at(const Session& session) const {
  const TimePoint silent = session.last_heard + options_.times.timeout;
  return session.connection ? silent : std::min(silent, session.broken_at + options_.times.grace);
}

void StoreServer::Loop::detect_lost_ranks(TimePoint now) {
  for (auto& [rank, session] : sessions_) {
    if (session.state != Session::State::joined || now < lost_at(session)) continue;
    if (session.connection) read(*session.connection);  // data may have arrived while this thread was busy
    if (now < lost_at(session) || session.state != Session::State::joined) continue;
    const auto seconds = std::chrono::duration<double>(now - session.last_heard).count();
    if (session.connection) {
      mark_lost(rank, session,
                fmt::format("it was silent for {:.1f} s (stopped, or disconnected from the network?)", seconds));
    } else if (stopped_for_ > options_.times.timeout && session.broken_at < woke_ + options_.times.heartbeat_interval) {
      // The other ranks left because rank 0 was suspended for longer than they wait: the fault is rank 0's.
      session.state = Session::State::lost;
      const auto stopped = std::chrono::duration<double>(stopped_for_).count();
      declare(
          {0, options_.host, fmt::format("it was stopped for {:.1f} s, longer than the other ranks wait", stopped)});
    } else {
      mark_lost(rank, session,
                fmt::format("its connection broke ({}) and it did not reconnect within {:.1f} s", session.why_broken,
                            std::chrono::duration<double>(now - session.broken_at).count()));
    }
  }
  for (const auto& connection : connections_) {
    if (connection->rank < 0 && now >= connection->since + options_.handshake_timeout) disconnect(*connection, "");
  }
  for (const auto& [waiting, reply] : state_.expire(now)) answer(waiting.rank, waiting.id, reply);
}

void StoreServer::Loop::mark_lost(int rank, Session& session, const std::string& reason) {
  session.state = Session::State::lost;
  declare({rank, session.host, reason});
}

void StoreServer::Loop::declare(Fault fault) {
  if (fault_) return;
  {
    const std::lock_guard lock(mutex_);
    fault_ = Fault{fault.rank, fault.host, one_line(fault.reason, max_reason_bytes)};
  }
  changed_.notify_all();
  // Rank 0 is notified last: its process, and this thread with it, may end as soon as it knows.
  for (auto entry = sessions_.rbegin(); entry != sessions_.rend(); ++entry) {
    Connection* connection = entry->second.connection;
    if (!connection || entry->second.state == Session::State::left) continue;
    connection->out.push(encode(*fault_));
    write(*connection);
  }
}

void StoreServer::Loop::close() {
  std::vector<int> joined;
  for (const auto& [rank, session] : sessions_) {
    if (session.state == Session::State::joined) joined.push_back(rank);
  }
  if (!joined.empty())
    declare({0, options_.host,
             fmt::format("it ended while rank{} {} still ran", joined.size() > 1 ? "s" : "", fmt::join(joined, ", "))});
  const TimePoint deadline = steady_clock::now() + closing_patience;
  for (const auto& connection : connections_) {
    while (!connection->broken) {
      write(*connection);
      if (connection->broken || connection->out.empty() || !wait_for(connection->socket, POLLOUT, deadline)) break;
    }
  }
  connections_.clear();
}

TimePoint StoreServer::Loop::next_deadline(TimePoint now) {
  // At most one heartbeat interval, so that a longer wait means that this process was suspended.
  TimePoint out = std::min(now + options_.times.heartbeat_interval, state_.next_deadline());
  for (const auto& [rank, session] : sessions_) {
    if (session.state == Session::State::joined) out = std::min(out, lost_at(session));
  }
  if (const Connection* oldest = oldest_unauthenticated()) {
    out = std::min(out, oldest->since + options_.handshake_timeout);
    if (n_unauthenticated_ >= options_.max_unauthenticated && now < oldest->since + options_.min_handshake_time)
      out = std::min(out, oldest->since + options_.min_handshake_time);
  }
  return now < accept_again_ ? std::min(out, accept_again_) : out;
}

StoreServer::Loop::Connection* StoreServer::Loop::oldest_unauthenticated() {
  for (const auto& connection : connections_) {  // ordered by arrival
    if (connection->rank < 0 && !connection->broken) return connection.get();
  }
  return nullptr;
}

bool StoreServer::Loop::can_accept(TimePoint now) {
  if (now < accept_again_) return false;
  return n_unauthenticated_ < options_.max_unauthenticated ||
         now >= oldest_unauthenticated()->since + options_.min_handshake_time;
}

void StoreServer::Loop::remove_closed() {
  std::erase_if(connections_, [](const std::unique_ptr<Connection>& connection) { return connection->broken; });
}

StoreServer::StoreServer(StoreServerOptions options) {
  options.times.check();
  if (options.secret.empty())
    throw UserError("the job store has no secret; set FURLONG_JOB_SECRET to the same value on all ranks");
  if (options.world_size < 1 || options.world_size > max_world_size)
    throw UserError("world size {}: expected 1 to {}; set WORLD_SIZE to the number of ranks", options.world_size,
                    max_world_size);
  require(options.max_unauthenticated > 0 && options.handshake_timeout > options.min_handshake_time &&
              options.min_handshake_time > milliseconds(0),
          "job store: expected max_unauthenticated > 0 and 0 < min_handshake_time < handshake_timeout");
  std::vector<Socket> listeners = listen_for(options);
  port_ = own_address(listeners.front()).port();
  for (const Socket& listener : listeners) addresses_.push_back(own_address(listener).text());
  loop_ = std::make_unique<Loop>(std::move(options), std::move(listeners));
}

StoreServer::~StoreServer() = default;
std::optional<Fault> StoreServer::fault() const { return loop_->fault(); }
bool StoreServer::wait_for_goodbyes(milliseconds timeout) { return loop_->wait_for_goodbyes(timeout); }

}  // namespace furlong
