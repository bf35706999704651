// Writes the Trace Event Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "framework/core/error.h"
#include "framework/core/json_output.h"
#include "framework/core/trace.h"

namespace furlong::trace {
namespace {

/// One bar of the timeline.
struct Slice {
  std::string name;
  std::int64_t begin = 0, end = 0;
  int depth = 0;
  const Event* event = nullptr;  // null: nodes that share a scope
};

/// The slices of one thread: nested spans, and slices around consecutive nodes for their common scopes.
class Nesting {
 public:
  explicit Nesting(std::vector<const Event*> events) {
    std::vector<std::size_t> order(events.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    // At equal times, the event recorded later ended later and encloses the other.
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      if (events[a]->begin != events[b]->begin) return events[a]->begin < events[b]->begin;
      if (events[a]->end != events[b]->end) return events[a]->end > events[b]->end;
      return a > b;
    });
    open_.emplace_back();
    for (const std::size_t i : order) place(*events[i]);
    while (!open_.empty()) close();
    std::stable_sort(slices_.begin(), slices_.end(), [](const Slice& a, const Slice& b) {
      if (a.begin != b.begin) return a.begin < b.begin;
      if (a.end != b.end) return a.end > b.end;
      return a.depth < b.depth;
    });
  }
  const std::vector<Slice>& slices() const { return slices_; }

 private:
  /// An open span, with the scopes of its latest node.
  struct Open {
    const Event* event = nullptr;  // null: the thread
    int depth = 0;
    std::vector<Slice> scopes{};
  };

  void place(const Event& event) {
    while (open_.back().event && (event.begin >= open_.back().event->end || event.end > open_.back().event->end))
      close();
    const bool is_node = event.kind == Event::Kind::node;
    if (is_node) enter_scopes(event);
    Open& parent = open_.back();
    const int depth = parent.depth + (is_node ? static_cast<int>(parent.scopes.size()) : 0) + 1;
    slices_.push_back({event.name, event.begin, event.end, depth, &event});
    open_.push_back({&event, depth});
  }

  void enter_scopes(const Event& node) {
    Open& parent = open_.back();
    const std::size_t known =
        parent.event && node.scope.starts_with(parent.event->scope) ? parent.event->scope.size() : 0;
    std::size_t depth = 0;
    for (std::size_t dot = node.scope.find('.', known); dot != std::string::npos;
         dot = node.scope.find('.', dot + 1), ++depth) {
      const std::string scope = node.scope.substr(0, dot);
      if (depth < parent.scopes.size() && parent.scopes[depth].name != scope) leave_scopes(parent, depth);
      if (depth == parent.scopes.size())
        parent.scopes.push_back({scope, node.begin, node.end, parent.depth + static_cast<int>(depth) + 1, nullptr});
      parent.scopes[depth].end = node.end;
    }
    leave_scopes(parent, depth);
  }

  void leave_scopes(Open& parent, std::size_t down_to) {
    for (; parent.scopes.size() > down_to; parent.scopes.pop_back()) slices_.push_back(parent.scopes.back());
  }
  void close() {
    leave_scopes(open_.back(), 0);
    open_.pop_back();
  }

  std::vector<Open> open_;
  std::vector<Slice> slices_;
};

class Writer {
 public:
  explicit Writer(const Process& process) : process_(process) {}

  void name(const char* what, int thread, const std::string& name) { metadata(what, thread, "name", quoted(name)); }
  void place(const char* what, int thread, int place) { metadata(what, thread, "sort_index", fmt::to_string(place)); }

  void slice(const Slice& slice, int thread) {
    std::string arguments;
    if (slice.event) {
      const Details& details = slice.event->details;
      const auto add = [&](const char* key, std::int64_t value) {
        if (value >= 0) arguments += fmt::format(R"({}"{}":{})", arguments.empty() ? "" : ",", key, value);
      };
      add("step", details.step);
      add("bucket", details.bucket);
      add("bytes", details.bytes);
      if (slice.event->kind == Event::Kind::node && !slice.event->scope.empty())
        arguments = R"("scope":)" + quoted(slice.event->scope.substr(0, slice.event->scope.size() - 1));
    }
    add(fmt::format(R"({{"ph":"X",{},"dur":{},"cat":{},"name":{},"args":{{{}}}}})", at(thread, slice.begin),
                    time(slice.end - slice.begin), quoted(slice.event ? slice.event->category : "scope"),
                    quoted(slice.name), arguments));
    if (slice.event && slice.event->details.flow != 0) arrow("f", *slice.event, thread);
  }

  /// Draws an arrow from where an operation is issued to where it runs.
  void arrow(const char* phase, const Event& event, int thread) {
    add(fmt::format(R"({{"ph":"{}","bp":"e","id":{},{},"cat":"operation","name":"operation"}})", phase,
                    (static_cast<std::uint64_t>(process_.rank) << 32) + event.details.flow, at(thread, event.begin)));
  }

  std::string take() { return std::move(text_); }

 private:
  static std::string quoted(const std::string& text) { return json_line(nlohmann::json(text)); }
  /// Microseconds, exact.
  static std::string time(std::int64_t nanoseconds) {
    const bool is_negative = nanoseconds < 0;
    const std::uint64_t size =
        is_negative ? 0 - static_cast<std::uint64_t>(nanoseconds) : static_cast<std::uint64_t>(nanoseconds);
    return fmt::format("{}{}.{:03}", is_negative ? "-" : "", size / 1000, size % 1000);
  }
  std::string at(int thread, std::int64_t moment) const {
    return fmt::format(R"("pid":{},"tid":{},"ts":{})", process_.rank, thread, time(moment + process_.clock_offset));
  }
  void metadata(const char* what, int thread, const char* key, const std::string& value) {
    add(fmt::format(R"({{"ph":"M","pid":{},"tid":{},"name":"{}","args":{{"{}":{}}}}})", process_.rank, thread, what,
                    key, value));
  }
  void add(const std::string& event) { text_ += (text_.empty() ? "" : ",\n") + event; }

  const Process& process_;
  std::string text_;
};

}  // namespace

std::string to_json(const Recording& recording, const Process& process) {
  Writer writer(process);
  writer.name("process_name", 0, process.name);
  writer.place("process_sort_index", 0, process.rank);
  for (std::size_t i = 0; i < recording.threads.size(); ++i) {
    const int thread = static_cast<int>(i);
    writer.name("thread_name", thread, recording.threads[i]);
    writer.place("thread_sort_index", thread, thread);
    std::vector<const Event*> spans;
    for (const Event& event : recording.events) {
      if (event.thread != thread) continue;
      if (event.kind == Event::Kind::departure) {
        writer.arrow("s", event, thread);
      } else {
        spans.push_back(&event);
      }
    }
    const Nesting nesting(std::move(spans));
    for (const Slice& slice : nesting.slices()) writer.slice(slice, thread);
  }
  return writer.take();
}

}  // namespace furlong::trace
