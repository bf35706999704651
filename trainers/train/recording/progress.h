#pragma once
#include <chrono>
#include <cstdint>
#include <string>

namespace furlong {

/// Shows the progress of training on standard error: a bar that redraws itself on a terminal, plain lines otherwise.
class Progress {
 public:
  /// `style`: auto (bar on a terminal, otherwise lines), bar, lines, none. Covers steps `first` to `last`. Throws
  /// UserError for another style.
  Progress(const std::string& style, std::int64_t first, std::int64_t last);
  ~Progress();

  /// Call this after each step. With style lines, prints a line if `report` is true.
  void step(std::int64_t step, double loss, double tokens_per_second, double learning_rate, double gradient_norm,
            std::int64_t memory_bytes, bool report);
  /// Prints a separate line between steps, at log level info and below, in every style.
  void print(const std::string& line);
  /// Formats a duration: "1h02m", "3m05s", "12s".
  static std::string duration(double seconds);

 private:
  enum class Style : std::uint8_t { bar, lines, none } style_;
  std::int64_t first_, last_;
  std::chrono::steady_clock::time_point start_;
  bool drawn_ = false;
};

}  // namespace furlong
