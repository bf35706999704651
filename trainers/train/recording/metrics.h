#pragma once
// Metrics of a run: metrics.jsonl (one JSON object per line) and TensorBoard event files.
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace furlong {

/// One line of metrics.jsonl. A value that was not measured stays NaN and is written as null.
struct MetricsRecord {
  static constexpr double not_measured = std::numeric_limits<double>::quiet_NaN();
  std::int64_t step = 0;                    ///< optimizer steps taken so far
  std::string split = "train";              ///< train or validation
  double loss = not_measured;               ///< mean cross-entropy, nats per token
  std::int64_t tokens = 0;                  ///< train: tokens trained on so far; otherwise tokens evaluated
  double tokens_per_second = not_measured;  ///< over all ranks, since the last line of this split
  double learning_rate = not_measured;
  double gradient_norm = not_measured;               ///< global norm before clipping
  std::int64_t memory_bytes = 0;                     ///< peak so far
  std::vector<std::pair<std::string, double>> more;  ///< further keys, written after the ones above
};

/// Returns the record as one line of JSON without a newline. Keys have the order of the struct, numbers round-trip to
/// the same double, NaN and infinities become null.
std::string to_json_line(const MetricsRecord& record);

/// Appends to metrics.jsonl. Each line is one write call, so a killed process leaves complete lines and at most one
/// torn line.
class MetricsWriter {
 public:
  /// Opens or creates the file, and removes a torn last line. Throws UserError or MachineError like AtomicFile.
  explicit MetricsWriter(std::filesystem::path path);
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  /// Appends one line. If the disk is full, restores the file to its state before the call and throws MachineError.
  void write(const MetricsRecord& record);
  /// Blocks until all lines are on disk (fsync). Throws MachineError if that fails. Call it before a checkpoint is
  /// committed, so that a power loss cannot lose lines up to its step.
  void flush();

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

/// Removes every line whose step is above `step`, and a torn last line, atomically; other lines keep their bytes.
/// Removes a line in the middle that is not a metrics object, with a warning. Does nothing if the file is missing.
/// Returns the number of removed lines. No MetricsWriter may have the file open.
std::int64_t cut_back(const std::filesystem::path& path, std::int64_t step);

/// Returns the largest step in a metrics.jsonl; 0 if there is none, or no file.
std::int64_t last_step(const std::filesystem::path& path);

/// Returns the time of the training steps up to `step` in seconds, computed from the lines of a metrics.jsonl: tokens
/// divided by their rate. It therefore includes the parts before an interruption. Returns 0 if the file does not exist.
double training_seconds(const std::filesystem::path& path, std::int64_t step);

/// Writes scalars for TensorBoard: TFRecord frames (length, masked CRC-32C, data, masked CRC-32C) around
/// `tensorflow.Event` messages.
class TensorboardWriter {
 public:
  /// Creates `directory` if it is missing, and in it a new file events.out.tfevents.<seconds>.<host>.<process>.<n>.
  /// Throws UserError or MachineError if that fails.
  /// After a resume from `resumed_from_step`, a marker makes TensorBoard drop later steps of earlier files.
  explicit TensorboardWriter(std::filesystem::path directory,
                             std::optional<std::int64_t> resumed_from_step = std::nullopt);
  ~TensorboardWriter();
  TensorboardWriter(const TensorboardWriter&) = delete;
  TensorboardWriter& operator=(const TensorboardWriter&) = delete;

  /// Writes the measured values of a record as scalars "<split>/<key>" in one event. TensorBoard scalars are float32.
  void write(const MetricsRecord& record);
  /// Writes one scalar.
  void scalar(std::string_view tag, std::int64_t step, double value);
  const std::filesystem::path& path() const { return path_; }

 private:
  void write_event(std::string_view event);
  std::filesystem::path path_;
  int descriptor_ = -1;
};

/// Returns the CRC-32C (Castagnoli, reflected polynomial 0x82F63B78) of RFC 3720; for "123456789" it is 0xE3069283.
std::uint32_t crc32c(std::string_view data);

}  // namespace furlong
