#include "trainers/train/recording/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "framework/core/clock.h"
#include "framework/core/error.h"
#include "framework/core/log.h"
#include "framework/core/printable.h"
#include "framework/core/standard_streams.h"

namespace furlong {
namespace {

/// Whether the terminal understands the escape sequence that a bar ends with.
bool moves_cursor() {
  const char* terminal = std::getenv("TERM");
  return terminal != nullptr && *terminal != '\0' && std::strcmp(terminal, "dumb") != 0;
}

}  // namespace

Progress::Progress(const std::string& style, std::int64_t first, std::int64_t last)
    : first_(first), last_(last), start_(std::chrono::steady_clock::now()) {
  if (style == "bar")
    style_ = Style::bar;
  else if (style == "lines")
    style_ = Style::lines;
  else if (style == "none")
    style_ = Style::none;
  else if (style == "auto")
    style_ = isatty(STDERR_FILENO) && moves_cursor() ? Style::bar : Style::lines;
  else
    throw UserError("log.progress '{}' is unknown; expected auto, bar, lines or none", style);
}

Progress::~Progress() {
  if (drawn_) write_message(STDERR_FILENO, "\n");
}

std::string Progress::duration(double seconds) {
  const auto whole = static_cast<std::int64_t>(seconds + 0.5);
  if (whole >= 3600) return fmt::format("{}h{:02}m", whole / 3600, whole / 60 % 60);
  if (whole >= 60) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}s", whole);
}

void Progress::step(std::int64_t step, double loss, double tokens_per_second, double learning_rate,
                    double gradient_norm, std::int64_t memory_bytes, bool report) {
  if (style_ == Style::none || (style_ == Style::lines && !report) || !is_logged(LogLevel::info)) return;
  const double elapsed = seconds_since(start_);
  const double left =
      step > first_ ? elapsed / static_cast<double>(step - first_) * static_cast<double>(last_ - step) : 0;
  const std::string numbers =
      fmt::format("step {}/{}  loss {}  {:.0f} tokens/s  lr {:.2e}  |g| {:.3f}  {:.0f} MiB  {} left", step, last_,
                  std::isnan(loss) ? "none" : fmt::format("{:.4f}", loss), tokens_per_second, learning_rate,
                  gradient_norm, static_cast<double>(memory_bytes) / 1048576, duration(left));
  if (style_ == Style::lines) {
    write_message(STDERR_FILENO, numbers + "\n");
  } else {
    constexpr int width = 20;
    const auto filled = static_cast<int>(width * step / std::max<std::int64_t>(last_, 1));
    std::string line = fmt::format("[{:=<{}}{: <{}}] {}", "", filled, "", width - filled, numbers);
    winsize window{};
    // A wrapped line cannot be redrawn, so it is cut at the window's width.
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 1)
      line.resize(std::min<std::size_t>(line.size(), window.ws_col - 1u));
    write_message(STDERR_FILENO, "\r" + line + "\x1b[K");
    drawn_ = true;
  }
}

void Progress::print(const std::string& line) {
  if (!is_logged(LogLevel::info)) return;
  write_message(STDERR_FILENO, (drawn_ ? "\r\x1b[K" : "") + foreign::single_line(line, max_message_bytes) + "\n");
  drawn_ = false;
}

}  // namespace furlong
