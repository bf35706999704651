#pragma once
// Models that no class of transformers computes, as remote code: what transformers/*.py, which an exported directory
// brings along, reads of config.json and of the tensors.
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "trainers/model/model.h"

namespace furlong {

inline constexpr const char* transformers_model_type = "furlong";

/// Name and text of each Python file.
const std::vector<std::pair<std::string, std::string>>& transformers_sources();

/// config.json as FurlongConfig (transformers/configuration_furlong.py) takes it: model_type, architectures, auto_map
/// and every key of the model.
nlohmann::ordered_json transformers_config(const Model& model);

/// The name in modeling_furlong.py of a parameter or buffer: "model.blocks.0.attention.mechanism.gate".
std::string transformers_name(const std::string& parameter, const Model& model);

}  // namespace furlong
