#include "framework/core/trace.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <utility>

#include "framework/core/error.h"

namespace furlong::trace {
namespace {

/// The recorded events of all threads. A span is added when it ends, so a span dropped for lack of space leaves the
/// others nested.
struct Recorder {
  std::mutex mutex;
  std::size_t max_events = 0;
  Recording recording;
};
Recorder& recorder() {
  static Recorder one;
  return one;
}

struct Lane {
  const char* name = nullptr;
  std::int64_t session = 0;  // start of the recording that `number` belongs to
  int number = 0;
  std::int64_t latest = 0;  // latest start or end of a span
  const Span* innermost = nullptr;
};
thread_local Lane lane;

std::string lane_name(std::size_t number) {
  if (lane.name) return lane.name;
  return ::gettid() == ::getpid() ? "main" : fmt::format("thread {}", number);
}

void add(Event&& event) {
  Recorder& all = recorder();
  const std::lock_guard lock(all.mutex);
  const std::int64_t session = detail::started.load(std::memory_order_relaxed);
  if (session == 0 || event.begin < session) return;
  if (all.recording.events.size() >= all.max_events) {
    ++all.recording.dropped;
    return;
  }
  if (lane.session != session) {
    lane.session = session;
    lane.number = static_cast<int>(all.recording.threads.size());
    all.recording.threads.push_back(lane_name(all.recording.threads.size()));
  }
  event.thread = lane.number;
  event.details.scope = nullptr;
  all.recording.events.push_back(std::move(event));
}

}  // namespace

std::int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void Span::begin(const char* category, std::string_view name, const Details& details) {
  category_ = category;
  name_ = name;
  details_ = details;
  outer_ = std::exchange(lane.innermost, this);
  begin_ = lane.latest = now();
}

void Span::end() {
  lane.innermost = outer_;
  lane.latest = now();
  const bool is_node = details_.scope != nullptr;
  add({is_node ? Event::Kind::node : Event::Kind::span, category_, std::string(name_), is_node ? *details_.scope : "",
       begin_, lane.latest, 0, details_});
}

void note_node(const char* category, const std::string& scope, std::string_view name) {
  const std::int64_t begin = std::max(lane.latest, detail::started.load(std::memory_order_relaxed));
  lane.latest = now();
  add({Event::Kind::node, category, std::string(name), scope, begin, lane.latest, 0, {}});
}

Details start_flow() {
  if (!is_on()) return {};
  static std::atomic<std::uint64_t> flows{0};
  Details details = lane.innermost ? lane.innermost->details_ : Details{};
  details.scope = nullptr;
  details.flow = ++flows;
  const std::int64_t time = now();
  add({Event::Kind::departure, "operation", "operation", "", time, time, 0, details});
  return details;
}

void name_thread(const char* name) { lane.name = name; }

void start(std::size_t max_events) {
  Recorder& all = recorder();
  const std::lock_guard lock(all.mutex);
  require(!is_on(), "a trace is being recorded already");
  all.max_events = max_events;
  all.recording = {};
  detail::started.store(now(), std::memory_order_relaxed);
}

Recording stop() {
  Recorder& all = recorder();
  const std::lock_guard lock(all.mutex);
  detail::started.store(0, std::memory_order_relaxed);
  return std::exchange(all.recording, {});
}

}  // namespace furlong::trace
