#include "framework/core/log.h"

#include <spdlog/details/os.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>
#include <mutex>
#include <sstream>

#include "framework/core/error.h"
#include "framework/core/printable.h"
#include "framework/core/standard_streams.h"

namespace furlong {
namespace {

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return spdlog::level::debug;
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::warning:
      return spdlog::level::warn;
    case LogLevel::error:
      break;
  }
  return spdlog::level::err;
}

/// Writes to standard error, with the level in color on a terminal. spdlog's own sink blocks while a reader is paused.
class StandardErrorSink final : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    message.color_range_start = message.color_range_end = 0;  // the formatter sets them to the place of the level
    spdlog::memory_buf_t formatted;
    formatter_->format(message, formatted);
    std::string line(formatted.data(), formatted.size());
    if (has_color_ && message.color_range_end > message.color_range_start) {
      line.insert(message.color_range_end, "\033[m");
      line.insert(message.color_range_start, color_of(message.level));
    }
    write_message(STDERR_FILENO, line);
  }
  void flush_() override {}

 private:
  static const char* color_of(spdlog::level::level_enum level) {
    switch (level) {
      case spdlog::level::debug:
        return "\033[36m";
      case spdlog::level::info:
        return "\033[32m";
      case spdlog::level::warn:
        return "\033[33m\033[1m";
      default:
        return "\033[31m\033[1m";
    }
  }

  bool has_color_ = spdlog::details::os::in_terminal(stderr) && spdlog::details::os::is_color_terminal();
};

/// The logger, created and set as default on first use. Owned here because spdlog drops a replaced default logger.
spdlog::logger& own_logger() {
  static const std::shared_ptr<spdlog::logger> logger = [] {
    auto made = std::make_shared<spdlog::logger>("furlong", std::make_shared<StandardErrorSink>());
    spdlog::set_default_logger(made);
    return made;
  }();
  return *logger;
}

}  // namespace

void configure_logging(const std::string& level, const std::string& prefix) {
  spdlog::logger* const logger = &own_logger();
  logger->set_pattern(prefix + "%^%l%$: %v");
  if (level == "debug")
    logger->set_level(spdlog::level::debug);
  else if (level == "info")
    logger->set_level(spdlog::level::info);
  else if (level == "warning")
    logger->set_level(spdlog::level::warn);
  else if (level == "error")
    logger->set_level(spdlog::level::err);
  else if (level == "quiet")
    logger->set_level(spdlog::level::off);
  else
    throw UserError("log level '{}' is unknown; expected debug, info, warning, error or quiet", level);
}

bool is_logged(LogLevel level) { return spdlog::should_log(spdlog_level(level)); }

void log_message(LogLevel level, fmt::string_view format, fmt::format_args arguments) noexcept {
  if (!is_logged(level)) return;
  // One line without control characters: file names may contain them and control a terminal.
  std::string line;
  try {
    line = foreign::single_line(fmt::vformat(format, arguments), max_message_bytes);
  } catch (const std::exception&) {
    return;  // failing to log must not stop the work
  }
  spdlog::default_logger_raw()->log(spdlog_level(level), spdlog::string_view_t(line.data(), line.size()));
}

struct LogCapture::State {
  std::ostringstream text;
  std::shared_ptr<spdlog::logger> before = spdlog::default_logger();
};

LogCapture::LogCapture() {
  own_logger();  // otherwise the first configure_logging() would replace the capture
  state_ = std::make_unique<State>();
  auto sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(state_->text);
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("captured", std::move(sink)));
}

LogCapture::~LogCapture() { spdlog::set_default_logger(state_->before); }

std::string LogCapture::text() const { return state_->text.str(); }

}  // namespace furlong
