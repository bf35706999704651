#pragma once
// Messages go to standard error; standard output is for results. Only log.cpp includes spdlog, which writes them.
#include <fmt/format.h>

#include <cstddef>
#include <memory>
#include <string>

namespace furlong {

/// Length in bytes at which a message is truncated.
inline constexpr std::size_t max_message_bytes = 16384;

/// Severity of a message. Level `warning` prints warnings and errors, and so on.
enum class LogLevel { debug, info, warning, error };

/// Configures the process-wide logger on standard error. `level` is debug, info, warning, error or quiet; throws
/// UserError for another one. Every line starts with `prefix` ("[rank 3] "). A message is one line; its control
/// characters are printed as \xNN.
void configure_logging(const std::string& level, const std::string& prefix = "");

/// Returns whether messages of this level are printed.
bool is_logged(LogLevel level);
/// Formats and writes a message if its level is enabled. Never throws.
void log_message(LogLevel level, fmt::string_view format, fmt::format_args arguments) noexcept;

template <class... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  log_message(LogLevel::debug, format, fmt::make_format_args(args...));
}

template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_message(LogLevel::info, format, fmt::make_format_args(args...));
}

template <class... Args>
void log_warn(fmt::format_string<Args...> format, Args&&... args) {
  log_message(LogLevel::warning, format, fmt::make_format_args(args...));
}

template <class... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log_message(LogLevel::error, format, fmt::make_format_args(args...));
}

/// Collects messages instead of writing them to standard error while this object exists. For tests.
class LogCapture {
 public:
  LogCapture();
  ~LogCapture();
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;

  /// Returns the collected messages. Must not run while another thread logs.
  std::string text() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace furlong
