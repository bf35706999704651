#pragma once
// What a run measured, step by step: metrics.jsonl (one JSON object a line) and TensorBoard event files.
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace furlong {

/// One line of metrics.jsonl. What was not measured stays NaN and is written as null.
struct MetricsRecord {
  static constexpr double not_measured = std::numeric_limits<double>::quiet_NaN();
  std::int64_t step = 0;                    ///< optimizer steps taken so far
  std::string split = "train";              ///< train, validation or test
  double loss = not_measured;               ///< mean cross-entropy, nats per token
  std::int64_t tokens = 0;                  ///< train: tokens trained on so far; otherwise tokens evaluated
  double tokens_per_second = not_measured;  ///< of this process group, since the last line of this split
  double learning_rate = not_measured;
  double gradient_norm = not_measured;               ///< global norm before clipping
  std::int64_t memory_bytes = 0;                     ///< peak so far
  std::vector<std::pair<std::string, double>> more;  ///< further keys, written behind those above
};

/// The record as one line of JSON without a newline: keys in the order of the struct, numbers that read back to the
/// same double, null for NaN and infinities.
std::string to_json_line(const MetricsRecord& record);

/// Appends to metrics.jsonl. Each line reaches the kernel in one call, so that a killed process leaves whole lines and
/// at most one torn one.
class MetricsWriter {
 public:
  /// Opens or creates the file. A torn last line is removed. Throws UserError or MachineError as AtomicFile does.
  explicit MetricsWriter(std::filesystem::path path);
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  /// Appends one line. When the disk is full the file is left as it was before the call and MachineError is thrown.
  void write(const MetricsRecord& record);
  /// Waits until all lines are on disk. Call it before a checkpoint is committed: after a power loss the lines up to
  /// its step are there.
  void flush();

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

/// Removes every line whose step is above `step` and a torn last line, atomically; all other lines keep their bytes. A
/// line in the middle that is no metrics object is removed with a warning. A missing file is left missing. Returns the
/// number of lines removed. No MetricsWriter may have the file open meanwhile.
std::int64_t cut_back(const std::filesystem::path& path, std::int64_t step);

/// The time that the training steps up to `step` took, in seconds, as the lines of a metrics.jsonl tell it: tokens
/// divided by their rate, so that what was interrupted or killed and taken up again is in it. 0 where there is no such
/// file.
double training_seconds(const std::filesystem::path& path, std::int64_t step);

/// Writes scalars for TensorBoard: TFRecord frames (length, masked CRC-32C, data, masked CRC-32C) around
/// `tensorflow.Event` messages.
class TensorboardWriter {
 public:
  /// Creates `directory` where missing and in it a new file events.out.tfevents.<seconds>.<host>.<process>.<n>. After a
  /// resume from `resumed_from_step` TensorBoard is told to forget what earlier files hold for later steps.
  explicit TensorboardWriter(std::filesystem::path directory,
                             std::optional<std::int64_t> resumed_from_step = std::nullopt);
  ~TensorboardWriter();
  TensorboardWriter(const TensorboardWriter&) = delete;
  TensorboardWriter& operator=(const TensorboardWriter&) = delete;

  /// The measured values of a record as scalars "<split>/<key>", in one event. TensorBoard's scalars are float32.
  void write(const MetricsRecord& record);
  /// One scalar.
  void scalar(std::string_view tag, std::int64_t step, double value);
  const std::filesystem::path& path() const { return path_; }

 private:
  void write_event(std::string_view event);
  std::filesystem::path path_;
  int descriptor_ = -1;
};

/// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78) as RFC 3720 defines it; "123456789" gives 0xE3069283.
std::uint32_t crc32c(std::string_view data);

}  // namespace furlong
