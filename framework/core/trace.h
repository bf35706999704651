#pragma once
// Records what the threads of a program do and when: nested spans, stored in memory up to a limit, exported for
// chrome://tracing and Perfetto. While recording is off, each instrumented place costs one branch.
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace furlong::trace {

/// Returns nanoseconds of CLOCK_MONOTONIC: time since this host booted, the same for all its processes.
std::int64_t now();

namespace detail {
inline std::atomic<std::int64_t> started{0};  // start of the recording; 0: off
}
inline bool is_on() { return detail::started.load(std::memory_order_relaxed) != 0; }

/// Optional details of a span. Negative values, and 0 for `flow`, mean unknown.
struct Details {
  std::int64_t bytes = -1;   ///< bytes moved
  std::int64_t bucket = -1;  ///< gradient bucket
  std::int64_t step = -1;    ///< optimizer step
  /// Identifies an operation that another thread started and this span continues (start_flow()).
  std::uint64_t flow = 0;
  /// For a node of the tape: the enclosing module names, "blocks.0.attention.". Must outlive the span.
  const std::string* scope = nullptr;
};

/// A span in one thread, from construction to destruction. The arguments must outlive it.
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
  friend Details start_flow();
  void begin(const char* category, std::string_view name, const Details& details);
  void end();

  std::int64_t begin_ = 0;  // 0: not recorded
  const char* category_ = nullptr;
  std::string_view name_;
  Details details_;
  const Span* outer_ = nullptr;
};

/// Records a span that ends now. It starts where this thread's latest span or node started or ended. For ops that
/// become known only when they are done.
void note_node(const char* category, const std::string& scope, std::string_view name);
inline void node(const char* category, const std::string& scope, std::string_view name) {
  if (is_on()) note_node(category, scope, name);
}

/// Returns the details of this thread's innermost span, for a span in another thread that continues its work. The trace
/// shows an arrow between the two.
Details start_flow();

/// Names the calling thread in the trace for its lifetime, for example "communication". The program's first thread is
/// "main" by default.
void name_thread(const char* name);

struct Event {
  enum class Kind : std::uint8_t { span, node, departure } kind = Kind::span;  ///< departure: a call of start_flow()
  const char* category = "";
  std::string name, scope;
  std::int64_t begin = 0, end = 0;  ///< as now()
  int thread = 0;                   ///< index in Recording::threads
  Details details;                  ///< without scope
};

struct Recording {
  std::vector<Event> events;         ///< in order of their ends
  std::vector<std::string> threads;  ///< names
  std::int64_t dropped = 0;          ///< events beyond the limit
};

/// Starts recording this process's events, at most `max_events`; 2^18 events take about 40 MB. Spans that start before
/// start() or end after stop() are not recorded. Throws ContractError if recording is already on.
void start(std::size_t max_events = std::size_t{1} << 18);
/// Stops and returns the recording; empty if none was started.
Recording stop();

/// The process of a recording, as the trace shows it.
struct Process {
  int rank = 0;
  std::string name;               ///< "rank 0 on node07"
  std::int64_t clock_offset = 0;  ///< nanoseconds to add to this host's clock to get the trace's clock
};

/// Returns events in Chrome's trace format, separated by commas, without the enclosing array: spans, nodes, arrows, and
/// the names of process and threads. Neighboring nodes with a common scope are grouped in a span. Times are in
/// microseconds.
std::string to_json(const Recording& recording, const Process& process);

}  // namespace furlong::trace
