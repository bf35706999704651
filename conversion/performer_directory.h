#pragma once
// Directories of models that no other program computes: the tensors that Hugging Face has under its names, ours beside
// them, and a config.json of our own. What furlong export writes where softmax is gone, and furlong convert reads back.
#include "conversion/import_model.h"

namespace furlong {

inline constexpr const char* performer_model_type = "furlong_performer";
inline constexpr const char* performer_tensor_prefix = "furlong.";
inline constexpr const char* performer_vocabulary_file = "furlong_vocabulary.json";

bool is_performer_config(const ForeignConfig& config);

/// The rows of an architecture's table that hold for this model: parameters that it has, in the table's shape.
std::vector<Mapping> shared_mappings(const Architecture& architecture, const Model& model, const Spelling& spelling);

nlohmann::ordered_json performer_config(const Model& model, const std::optional<Origin>& origin);

/// As open_source_model, for a directory whose config is_performer_config.
SourceModel open_performer_directory(const std::filesystem::path& directory, const ForeignConfig& config,
                                     const TensorFile& file, const ImportOptions& options);

}  // namespace furlong
