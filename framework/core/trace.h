#pragma once
// What the threads of a program did, and when: spans that nest, kept in memory up to a bound, as text for
// chrome://tracing and Perfetto. Where nobody asked for it, a place that could be recorded costs one branch.
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace furlong::trace {

/// Nanoseconds of CLOCK_MONOTONIC: since this host started, the same for all of its processes.
std::int64_t now();

namespace detail {
inline std::atomic<std::int64_t> started{0};  // when recording began; 0: off
}
inline bool is_on() { return detail::started.load(std::memory_order_relaxed) != 0; }

/// What is known of a span beside its name. Below zero, or 0 for `flow`: nothing.
struct Details {
  std::int64_t bytes = -1;             ///< that it moves
  std::int64_t bucket = -1;            ///< of gradients
  std::int64_t step = -1;              ///< of the optimizer
  std::uint64_t flow = 0;              ///< what was begun in another thread and goes on here (hand_over)
  const std::string* scope = nullptr;  ///< a tape's node: the names around it, "blocks.0.attention."; outlives the span
};

/// From its construction to its destruction, in one thread. What it is given outlives it.
class Span {
 public:
  Span(const char* category, std::string_view name, const Details& details = {}) {
    if (is_on()) begin(category, name, details);
  }
  ~Span() {
    if (begin_ != 0) end();
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  friend Details hand_over();
  void begin(const char* category, std::string_view name, const Details& details);
  void end();

  std::int64_t begin_ = 0;  // 0: not recorded
  const char* category_ = nullptr;
  std::string_view name_;
  Details details_;
  const Span* outer_ = nullptr;
};

/// A span that ends now and began where this thread's latest span, or node, began or ended: for ops that are known when
/// they are done.
void note_node(const char* category, const std::string& scope, std::string_view name);
inline void node(const char* category, const std::string& scope, std::string_view name) {
  if (is_on()) note_node(category, scope, name);
}

/// What the innermost span of this thread is about, for the span of a thread that goes on with it; an arrow between the
/// two is drawn.
Details hand_over();

/// Of the calling thread, for as long as it lives ("communication"). The program's first is "main" by itself.
void name_thread(const char* name);

struct Event {
  enum class Kind : std::uint8_t { span, node, departure } kind = Kind::span;  ///< departure: hand_over()
  const char* category = "";
  std::string name, scope;
  std::int64_t begin = 0, end = 0;  ///< now()
  int thread = 0;                   ///< in Recording::threads
  Details details;                  ///< without its scope
};

struct Recording {
  std::vector<Event> events;         ///< in the order in which they ended
  std::vector<std::string> threads;  ///< names
  std::int64_t dropped = 0;          ///< that there was no room for
};

/// Of one process; 2^18 events take some 40 MB. Spans that began before start() or end behind stop() are not in it.
/// Throws ContractError when it is on already.
void start(std::size_t most_events = std::size_t{1} << 18);
/// Empty where nothing was started.
Recording stop();

/// Which process recorded, as the trace shows it.
struct Process {
  int rank = 0;
  std::string name;               ///< "rank 0 on node07"
  std::int64_t clock_offset = 0;  ///< nanoseconds from this host's clock to that of the trace
};

/// Events of Chrome's trace format, between commas, without the array around them: spans, nodes within spans of the
/// scopes that they share with their neighbours, arrows, and the names of process and threads. Times are microseconds.
std::string to_json(const Recording& recording, const Process& process);

}  // namespace furlong::trace
