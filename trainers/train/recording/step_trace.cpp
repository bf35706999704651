#include "trainers/train/recording/step_trace.h"

#include <charconv>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "framework/core/error.h"
#include "framework/core/log.h"
#include "framework/core/trace.h"
#include "framework/core/version.h"
#include "framework/io/atomic_file.h"

namespace furlong {
namespace {

/// Identifies the running kernel, whose processes share one CLOCK_MONOTONIC.
std::string clock_of_this_host() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

Tensor tensor_of(const void* bytes, std::size_t count) {
  const Tensor tensor = Tensor::empty({static_cast<std::int64_t>(count)}, DType::uint8);
  if (bytes && count > 0) std::memcpy(tensor.address(), bytes, count);
  return tensor;
}

std::string text_of(const Tensor& tensor) {
  return {static_cast<const char*>(tensor.address()), static_cast<std::size_t>(tensor.elements())};
}

std::int64_t number_of(const Tensor& tensor) {
  std::int64_t number = 0;
  std::memcpy(&number, tensor.address(), sizeof number);
  return number;
}

/// Returns each rank's text on rank 0; empty texts on the others.
std::vector<std::string> gather_texts(const ProcessGroup& group, const std::string& text) {
  std::vector<std::string> texts(static_cast<std::size_t>(group.size()));
  Communicator& communicator = group.communicator();
  for (int rank = 1; rank < group.size(); ++rank) {
    const auto length = static_cast<std::int64_t>(text.size());
    if (group.rank() == rank) {
      communicator.send(Stream{}, tensor_of(&length, sizeof length), 0).wait();
      communicator.send(Stream{}, tensor_of(text.data(), text.size()), 0).wait();
    } else if (group.is_first()) {
      const Tensor number = tensor_of(nullptr, sizeof length);
      communicator.receive(Stream{}, number, rank).wait();
      const Tensor bytes = tensor_of(nullptr, static_cast<std::size_t>(number_of(number)));
      communicator.receive(Stream{}, bytes, rank).wait();
      texts[static_cast<std::size_t>(rank)] = text_of(bytes);
    }
  }
  if (group.is_first()) texts[0] = text;
  return texts;
}

}  // namespace

void parse_trace_steps(const std::string& text, TraceOptions& options) {
  const char *at = text.data(), *end = text.data() + text.size();
  std::int64_t first = 0, last = 0;
  auto read = std::from_chars(at, end, first);
  if (read.ec == std::errc() && read.ptr == end) {
    last = first;
  } else if (read.ec == std::errc() && *read.ptr == '-') {
    read = std::from_chars(read.ptr + 1, end, last);
  }
  if (read.ec != std::errc() || read.ptr != end || first < 1 || last < first)
    throw UserError("--trace-steps {}: expected a range of steps such as 3-6, or one step; steps are counted from 1",
                    text);
  options.first = first;
  options.last = last;
}

ClockOffset measure_clock_offset(const ProcessGroup& group, const std::string& clock,
                                 const std::function<std::int64_t()>& now) {
  constexpr int rounds = 32;
  const std::string first_clock = group.broadcast_text(clock);
  const double differs = clock.empty() || clock != first_clock ? 1 : 0;
  ClockOffset found;
  found.uncertainty = differs != 0 ? std::numeric_limits<std::int64_t>::max() : 0;
  Communicator& communicator = group.communicator();
  const Tensor message = tensor_of(nullptr, sizeof(std::int64_t));
  for (int rank = 1; rank < group.size(); ++rank) {
    std::vector<double> asks{group.rank() == rank ? differs : 0};
    group.sum(asks);
    if (asks[0] == 0) continue;
    for (int round = 0; round < rounds; ++round) {
      if (group.is_first()) {
        communicator.receive(Stream{}, message, rank).wait();
        const std::int64_t time = now();
        std::memcpy(message.address(), &time, sizeof time);
        communicator.send(Stream{}, message, rank).wait();
      } else if (group.rank() == rank) {
        const std::int64_t asked = now();
        communicator.send(Stream{}, message, 0).wait();
        communicator.receive(Stream{}, message, 0).wait();
        const std::int64_t answered = now(), uncertainty = (answered - asked) / 2;
        if (uncertainty < found.uncertainty) found = {number_of(message) - asked - uncertainty, uncertainty};
      }
    }
  }
  if (group.is_first()) found = {};
  return found;
}

StepTrace::StepTrace(const std::optional<TraceOptions>& options, const ProcessGroup& group, const Device& device)
    : options_(options), group_(group), device_(device) {
  if (!options_) return;
  require(options_->first >= 1 && options_->last >= options_->first, "trace of steps {} to {}", options_->first,
          options_->last);
  if (group.is_first()) AtomicFile(options_->path).discard();  // report a bad path before training starts
}

StepTrace::~StepTrace() {
  if (recording_) trace::stop();
}

void StepTrace::begin_step() {
  if (!options_ || ++steps_ < options_->first) return;
  if (!recording_) trace::start();
  recording_ = true;
  ++traced_;
}

void StepTrace::end_step() {
  if (options_ && steps_ == options_->last) write();
}

void StepTrace::finish() {
  if (!options_) return;
  if (recording_) {
    write();
  } else if (group_.is_first()) {
    log_warn("--trace-steps {}-{}: training took only {} steps; {} was not written", options_->first, options_->last,
             steps_, options_->path.string());
  }
}

void StepTrace::write() {
  const trace::Recording recording = trace::stop();
  recording_ = false;
  const ClockOffset offset = measure_clock_offset(group_, clock_of_this_host(), trace::now);
  const std::string& host = group_.environment().host;
  const std::string name = fmt::format("rank {}{}", group_.rank(), host.empty() ? "" : " on " + host);
  const std::vector<std::string> events =
      gather_texts(group_, trace::to_json(recording, {group_.rank(), name, offset.nanoseconds}));
  const nlohmann::ordered_json about{{"rank", group_.rank()},
                                     {"host", host},
                                     {"device", device_.text()},
                                     {"events", recording.events.size()},
                                     {"dropped", recording.dropped},
                                     {"clock_offset_ns", offset.nanoseconds},
                                     {"clock_uncertainty_ns", offset.uncertainty}};
  const std::vector<std::string> processes = gather_texts(group_, about.dump());
  const TraceOptions options = *options_;
  options_.reset();
  if (!group_.is_first()) return;
  nlohmann::ordered_json data{
      {"program", fmt::format("furlong {} ({})", version(), commit())},
      {"steps", traced_},
      {"clock",
       "CLOCK_MONOTONIC of rank 0's host; times of other hosts are shifted by clock_offset_ns, which is accurate to "
       "clock_uncertainty_ns"},
      {"spans", "work of the host's threads; for a GPU they show when work was launched, not when it ran"}};
  for (const std::string& process : processes) data["processes"].push_back(nlohmann::ordered_json::parse(process));
  try {
    AtomicFile file(options.path);
    file.write("{\"displayTimeUnit\":\"ms\",\"otherData\":" + data.dump() + ",\n\"traceEvents\":[\n");
    for (std::size_t i = 0; i < events.size(); ++i) file.write(events[i] + (i + 1 < events.size() ? ",\n" : "\n"));
    file.write("]}\n");
    file.commit();
    log_info("{} steps traced: {}", traced_, options.path.string());
  } catch (const Error& error) {
    log_warn("the trace was not written: {}", error.what());
  }
}

}  // namespace furlong
