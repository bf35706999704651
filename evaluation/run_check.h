#pragma once
#include "trainers/settings/settings.h"

namespace furlong {

/// Throws UserError, with the differences, if settings.run_directory has checkpoints of a run with other settings. Keys
/// that do not change a result may differ: threads, log.
void refuse_other_run(const Settings& settings);

}  // namespace furlong
