#pragma once
// Directories of models that only Furlong can run, written by furlong export and read by furlong convert. Tensors that
// Hugging Face has keep their names there; other tensors and config.json are Furlong's own.
#include "conversion/import_model.h"

namespace furlong {

inline constexpr const char* performer_model_type = "furlong_performer";
inline constexpr const char* performer_tensor_prefix = "furlong.";
inline constexpr const char* performer_vocabulary_file = "furlong_vocabulary.json";

/// Returns true if config.json was written by furlong export for Furlong alone.
bool is_performer_config(const ForeignConfig& config);

/// Returns the rows of the architecture's table whose parameter exists in this model with the table's shape.
std::vector<Mapping> shared_mappings(const Architecture& architecture, const Model& model, const TensorNaming& naming);

/// Returns the config.json of such a directory.
nlohmann::ordered_json performer_config(const Model& model, const std::optional<Origin>& origin);

/// Opens a directory whose config satisfies is_performer_config(). Otherwise as open_source_model().
SourceModel open_performer_directory(const std::filesystem::path& directory, const ForeignConfig& config,
                                     const TensorFile& file, const ImportOptions& options);

}  // namespace furlong
