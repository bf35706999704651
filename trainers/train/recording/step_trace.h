#pragma once
// furlong train --trace: writes a trace of some steps of all ranks as one file for chrome://tracing and Perfetto.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "communication/process_group.h"
#include "framework/core/device.h"

namespace furlong {

/// Which steps to trace, and where to.
struct TraceOptions {
  std::filesystem::path path;
  std::int64_t first = 3, last = 6;  ///< step numbers within one call of train(), counted from 1
};

/// Parses "3-6", or "5" for one step. Throws UserError that names `--trace-steps`.
void parse_trace_steps(const std::string& text, TraceOptions& options);

/// Records a trace. All ranks construct it and call its non-const functions in the same order. Does nothing without
/// options.
class StepTrace {
 public:
  /// `group` must outlive this object. On rank 0, throws UserError if the file cannot be created.
  StepTrace(const std::optional<TraceOptions>& options, const ProcessGroup& group, const Device& device);
  ~StepTrace();
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  /// Call this before each step. Starts recording at step options.first.
  void begin_step();
  /// Call this after a step, its validation and its checkpoint. After the last traced step rank 0 writes the records of
  /// all ranks. If the write fails it warns, and training continues.
  void end_step();
  /// Call this after the last step. Writes the trace if training ended before the last step to trace. If it ended
  /// before the first one, rank 0 logs a warning.
  void finish();

 private:
  void write();

  std::optional<TraceOptions> options_;  // nullopt: no trace, or already written
  const ProcessGroup& group_;
  Device device_;
  std::int64_t steps_ = 0, traced_ = 0;
  bool recording_ = false;
};

/// The offset of this process's clock to rank 0's.
struct ClockOffset {
  std::int64_t nanoseconds = 0;  ///< to add to this process's clock
  std::int64_t uncertainty = 0;  ///< upper bound of the error; 0: the same clock
};

/// Measures the offset of the clock `now` to rank 0's clock. A rank whose `clock` text equals rank 0's shares its
/// clock. Other ranks ask rank 0 for its time repeatedly: half of the quickest round trip is the uncertainty (Cristian
/// 1989, "Probabilistic clock synchronization"). All ranks call it.
ClockOffset measure_clock_offset(const ProcessGroup& group, const std::string& clock,
                                 const std::function<std::int64_t()>& now);

}  // namespace furlong
