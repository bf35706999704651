#pragma once
// Messages to people go to standard error through spdlog; standard output belongs to results.
#include <spdlog/spdlog.h>

#include <string>

namespace furlong {

/// Sets up the process-wide logger: standard error, `level` one of debug, info, warning, error, quiet. Throws UserError on another name.
void configure_logging(const std::string& level);

}  // namespace furlong
