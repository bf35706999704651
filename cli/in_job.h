#pragma once
#include "communication/process_group.h"
#include "framework/core/error.h"
#include "trainers/train/signals.h"

namespace furlong::command_line {

/// Returns the result of `prepare`, which runs before training. In a job, a UserError of any rank is reported once: all
/// ranks connect before they exit.
template <class Prepare>
auto in_job(const Prepare& prepare) {
  try {
    return prepare();
  } catch (const UserError& error) {
    const LaunchEnvironment environment = discover_launch();
    if (environment.world_size > 1) {
      const StopRequests stop_requests;
      ProcessGroup::Options options;
      options.stop_requested = [&stop_requests] { return stop_requests.received(); };
      try {
        ProcessGroup(environment, options).fail(error);
      } catch (const PeerError& peer) {  // another rank was faster, with the same error
        if (!peer.is_reported_here()) throw PeerError(peer.what(), false, error.exit_status());
      }
    }
    throw;
  }
}

}  // namespace furlong::command_line
