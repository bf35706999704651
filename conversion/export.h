#pragma once
// Writes a model as a Hugging Face directory: safetensors, config.json, and the tokenizer's files.
#include <filesystem>
#include <string>
#include <vector>

#include "conversion/export_directory.h"
#include "conversion/import_model.h"

namespace furlong {

struct ExportOptions {
  /// original, float32, bfloat16 or float16. "original" stores a tensor without an original type as float32.
  std::string dtype = "original";
  bool overwrite = false;  ///< replace a model in the directory
};

struct ExportReport {
  std::string model_type;  ///< as in config.json
  /// True if a transformers class loads the model without custom code. Otherwise the directory contains its code.
  bool for_hugging_face = false;
  std::string reason;  ///< why for_hugging_face is false
  std::int64_t tensors = 0;
  std::int64_t rounded = 0;  ///< number of tensors with values that the chosen type cannot represent exactly
  std::vector<std::string> files;
  std::string tokenizer_obstacle;     ///< why AutoTokenizer does not give the model's ids; empty: it does
  std::vector<std::string> left_out;  ///< parameters that the source's format lacks
  std::vector<std::string> removed;   ///< files of an earlier model in the directory that this model does not have
  nlohmann::ordered_json json() const;
};

/// Writes model.safetensors, config.json and the tokenizer's files, and creates the directory if it is missing.
///
/// A softmax model of a family that Hugging Face has gets that family's tensor names and config. Exporting an unchanged
/// imported softmax model, with dtype "original", reproduces its tensors bit for bit under their names. Any other model
/// is written with its code in Python (transformers_model.h). Adapters (LoRA) are merged into the weights.
///
/// Throws UserError if a value is not finite, or too large for the type in which it is stored. Throws UserError if the
/// directory holds a model and options.overwrite is false. With overwrite, removes files of the earlier model,
/// recognized by their names, and no other files. Throws StoppedBySignal on the signals of StopRequests. After a throw
/// an earlier model is complete, and a new directory is removed, unless the system fails to rename a written file.
ExportReport export_model(SourceModel& source, const std::filesystem::path& directory, const ExportOptions& options);
/// The same, to a directory that the caller has created, and thereby locked, before it read the model.
/// options.overwrite has no effect.
ExportReport export_model(SourceModel& source, ExportDirectory& directory, const ExportOptions& options);

}  // namespace furlong
