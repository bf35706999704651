#pragma once
#include "communication/process_group.h"
#include "datasets/dataset.h"
#include "trainers/settings.h"

namespace furlong {

/// That all processes have the settings and the data of rank 0: others would train on what is nobody's batch, or wait for sums that never
/// come. Paths, threads and what is logged may differ. All of the group call it. Throws UserError, on those that differ, naming the first
/// key; of data vocabulary, sizes, and beginning and end of the splits are compared.
void check_agreement(const ProcessGroup& group, const Settings& settings, const Dataset& data);

}  // namespace furlong
