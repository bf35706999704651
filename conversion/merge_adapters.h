#pragma once
#include <string>
#include <vector>

#include "trainers/model/model.h"

namespace furlong {

/// Adds (alpha / rank) B A to each weight with an adapter (LoRA), and sets B to zero, so that the model computes the
/// same. Its settings no longer have an adapter. Returns the names of the changed weights. The model must be on the
/// CPU, in float32.
std::vector<std::string> merge_adapters(Model& model);

}  // namespace furlong
