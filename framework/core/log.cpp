#include "framework/core/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

#include "framework/core/error.h"

namespace furlong {

void configure_logging(const std::string& level, const std::string& prefix) {
  auto logger = spdlog::get("furlong");
  if (!logger) {
    logger = spdlog::stderr_color_mt("furlong");
    spdlog::set_default_logger(logger);
  }
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

}  // namespace furlong
