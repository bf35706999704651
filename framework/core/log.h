#pragma once
// Messages to people go to standard error through spdlog; standard output belongs to results.
#include <spdlog/spdlog.h>

#include <string>

namespace furlong {

/// Sets up the process-wide logger: standard error, `level` one of debug, info, warning, error, quiet. Every line
/// begins with `prefix` ("[rank 3] "). Throws UserError on another level.
void configure_logging(const std::string& level, const std::string& prefix = "");

}  // namespace furlong
