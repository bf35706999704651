#pragma once
// Directories of models that no class of transformers computes. furlong export writes them, transformers loads them
// with trust_remote_code (transformers_model.h), and furlong convert reads them back.
#include "conversion/import_model.h"
#include "datasets/tokenizers/tokenizer_kinds.h"

namespace furlong {

/// Tensors of the original model that Furlong carries along.
inline constexpr const char* carried_tensor_prefix = "carried.";
inline constexpr const char* performer_vocabulary_file = exported_vocabulary_file;

/// Returns true if config.json was written by furlong export for Furlong alone.
bool is_performer_config(const ForeignConfig& config);

/// Returns the vocabulary that a directory has in performer_vocabulary_file. Throws UserError if it is missing or
/// damaged.
Vocabulary written_vocabulary(const std::filesystem::path& directory);

/// Returns the config.json of such a directory: transformers_config, and the section `furlong` with version, settings
/// and origin.
nlohmann::ordered_json performer_config(const Model& model, const std::optional<Origin>& origin);

/// Opens a directory whose config satisfies is_performer_config(). Otherwise as open_source_model().
SourceModel open_performer_directory(const std::filesystem::path& directory, const ForeignConfig& config,
                                     const TensorFile& file, const ImportOptions& options);

}  // namespace furlong
