#pragma once
#include <chrono>
#include <cstdint>
#include <string>

namespace furlong {

/// What a person sees while training: one line that rewrites itself on a terminal, plain lines elsewhere. On standard
/// error.
class Progress {
 public:
  /// style: auto (bar on a terminal, else lines), bar, lines, none. Steps from `first` to `last`.
  Progress(const std::string& style, std::int64_t first, std::int64_t last);
  ~Progress();

  /// After each step. `report`: time for a line where lines are written.
  void step(std::int64_t step, double loss, double tokens_per_second, double learning_rate, double gradient_norm,
            std::int64_t memory_bytes, bool report);
  /// A line of its own between steps; shown at log level info and below, whatever the style.
  void say(const std::string& line);
  /// "1h02m", "3m05s", "12s"
  static std::string duration(double seconds);

 private:
  /// Nobody may be reading, or the disk of a log be full: that is no reason to end a training.
  void write(const std::string& text);

  enum class Style : std::uint8_t { bar, lines, none } style_;
  std::int64_t first_, last_;
  std::chrono::steady_clock::time_point start_;
  bool drawn_ = false;
  std::int64_t dropped_ = 0;  // lines that standard error did not take
};

}  // namespace furlong
