#pragma once
// furlong train --trace: some steps of all processes, as one file for chrome://tracing and Perfetto.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "communication/process_group.h"
#include "framework/core/device.h"

namespace furlong {

struct TraceOptions {
  std::filesystem::path path;
  std::int64_t first = 3, last = 6;  ///< of the steps that one call of train() takes, counted from 1
};

/// "3-6", or "5" for one step. Throws UserError that names `--trace-steps`.
void parse_trace_steps(const std::string& text, TraceOptions& options);

/// All processes construct it and call what is not const in the same order. Without options nothing happens.
class StepTrace {
 public:
  /// `group` outlives it. On rank 0 throws UserError where the file cannot be made.
  StepTrace(const std::optional<TraceOptions>& options, const ProcessGroup& group, const Device& device);
  ~StepTrace();
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  void begin_step();
  /// Behind a step, its validation and its checkpoint. Behind the last one to be traced, rank 0 writes what all have
  /// recorded; where that fails it warns, and training goes on.
  void end_step();
  /// Behind the last step that there is: the same, where it came sooner than asked for.
  void finish();

 private:
  void write();

  std::optional<TraceOptions> options_;  // none: nothing to do, or all done
  const ProcessGroup& group_;
  Device device_;
  std::int64_t steps_ = 0, traced_ = 0;
  bool recording_ = false;
};

/// How this process's clock, `now`, stands to rank 0's.
struct ClockOffset {
  std::int64_t nanoseconds = 0;  ///< to be added
  std::int64_t uncertainty = 0;  ///< at most so wrong; 0: it is the same clock
};

/// Processes whose `clock` is rank 0's text have the same clock; the others ask rank 0 for its time, many times: half
/// of the quickest round trip is the uncertainty (Cristian 1989, "Probabilistic clock synchronization"). All processes
/// call it.
ClockOffset measure_clock_offset(const ProcessGroup& group, const std::string& clock,
                                 const std::function<std::int64_t()>& now);

}  // namespace furlong
