#pragma once
#include "communication/process_group.h"
#include "framework/core/error.h"

namespace furlong::command_line {

/// Returns the result of `prepare`, which runs before training. In a job, a UserError of any rank is reported once: all
/// ranks connect before they exit.
template <class Prepare>
auto in_job(const Prepare& prepare) {
  try {
    return prepare();
  } catch (const UserError& error) {
    const LaunchEnvironment environment = discover_launch();
    if (environment.world_size > 1) ProcessGroup(environment, {}).fail(error);
    throw;
  }
}

}  // namespace furlong::command_line
