#pragma once
// Writes a model as a Hugging Face directory: safetensors, config.json, and the tokenizer's files.
#include <filesystem>
#include <string>
#include <vector>

#include "conversion/import_model.h"

namespace furlong {

struct ExportOptions {
  /// original, float32, bfloat16 or float16. "original" stores a tensor without an original type as float32.
  std::string dtype = "original";
  bool overwrite = false;
};

struct ExportReport {
  std::string model_type;         ///< as in config.json
  bool for_hugging_face = false;  ///< true if transformers loads the directory, false if only Furlong does
  std::string reason;             ///< why transformers cannot load it
  std::int64_t tensors = 0;
  std::int64_t rounded = 0;  ///< number of tensors with values that the chosen type cannot represent exactly
  std::vector<std::string> files, left_out;
  std::vector<std::string> removed;  ///< files of an earlier model in the directory that this model does not have
  nlohmann::ordered_json json() const;
};

/// Writes model.safetensors, config.json and the tokenizer's files, and creates the directory if it is missing.
///
/// A softmax model of a family that Hugging Face has gets that family's tensor names and config. An imported model is
/// restored bit for bit under its original names. Any other model keeps those names where they exist and stores other
/// tensors as furlong.NAME; only Furlong reads its config. Adapters (LoRA) are merged into the weights.
///
/// Throws UserError if the directory holds a model and options.overwrite is false. With overwrite, removes files of the
/// earlier model, recognised by their names, and no other files.
ExportReport export_model(SourceModel& source, const std::filesystem::path& directory, const ExportOptions& options);

}  // namespace furlong
