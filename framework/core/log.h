#pragma once
// Messages to people go to standard error; standard output belongs to results. spdlog writes them, and is included by
// log.cpp alone.
#include <fmt/format.h>

#include <cstddef>
#include <memory>
#include <string>

namespace furlong {

/// Bytes after which a message is cut.
inline constexpr std::size_t longest_message = 16384;

enum class LogLevel { debug, info, warning, error };

/// Sets up the process-wide logger: standard error, `level` one of debug, info, warning, error, quiet. Every line
/// begins with `prefix` ("[rank 3] "). A message is one line; control characters in it become \xNN. Throws UserError on
/// another level.
void configure_logging(const std::string& level, const std::string& prefix = "");

bool is_logged(LogLevel level);
/// Formats and writes a message whose level is logged. Never throws.
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

/// While it lives, it collects the messages that would go to standard error. For tests.
class LogCapture {
 public:
  LogCapture();
  ~LogCapture();
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;

  /// Not while another thread logs.
  std::string text() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace furlong
