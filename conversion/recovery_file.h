#pragma once
// Where furlong finetune leaves what it has measured.
#include <filesystem>

#include "conversion/finetune.h"

namespace furlong {

/// Writes RUN/recovery.json: what was measured, and with which config, overrides and settings each stage was trained.
/// Where the file that is there has a stage that was not measured now and is still in the run, that file stays, and
/// RUN/recovery_1_transfer.json (of the stages measured) is written. Returns the path.
std::filesystem::path write_recovery(const FinetunePlan& plan, const FinetuneOptions& options,
                                     const Recovery& recovery);

}  // namespace furlong
