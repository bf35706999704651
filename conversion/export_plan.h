#pragma once
// Decides how a model is exported: as a family that transformers has, or with Furlong's own code.
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "conversion/architecture.h"
#include "conversion/import_origin.h"
#include "trainers/model/model.h"

namespace furlong {

/// How export_model() writes a model.
struct ExportPlan {
  const Architecture* architecture = nullptr;  ///< the family whose tensor names are used; null: Furlong's names only
  TensorNaming naming;
  bool for_hugging_face = false;
  std::string reason;
  nlohmann::ordered_json config;
  std::string verbatim;  ///< the original config.json, if nothing in it changed
  /// Parts of names of carried tensors that no longer hold, because the settings that they follow from have changed.
  std::vector<std::string> outdated;
};

/// Returns the plan for a model. A family is chosen if its config.json, read back, gives the same computation, and if
/// transformers loads it; `origin` is that of an imported model, whose family alone is tried. Otherwise `reason` says
/// why no family fits: what their classes lack, or what differs in the closest one.
ExportPlan export_plan(const Model& model, const std::optional<Origin>& origin);

}  // namespace furlong
