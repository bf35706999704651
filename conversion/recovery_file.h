#pragma once
// Writes the measurements of furlong finetune.
#include <filesystem>

#include "conversion/finetune.h"

namespace furlong {

/// Writes RUN/recovery.json: the measurements, and the config, overrides and settings of each stage. If the existing
/// file covers a stage that still exists but was not measured now, that file stays unchanged. The measurements are then
/// written to a file named after the measured stages, such as RUN/recovery_1_attention_transfer.json. Returns the path
/// written.
std::filesystem::path write_recovery(const FinetunePlan& plan, const FinetuneOptions& options,
                                     const Recovery& recovery);

}  // namespace furlong
