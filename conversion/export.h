#pragma once
// Models of ours as a Hugging Face directory: safetensors, config.json, and the tokenizer's files.
#include <filesystem>
#include <string>
#include <vector>

#include "conversion/import_model.h"

namespace furlong {

struct ExportOptions {
  std::string dtype = "original";  ///< original (of a tensor without one: float32), float32, bfloat16, float16
  bool overwrite = false;
};

struct ExportReport {
  std::string model_type;         ///< as config.json says
  bool for_hugging_face = false;  ///< whether transformers loads it; otherwise only Furlong does
  std::string reason;             ///< why not
  std::int64_t tensors = 0;
  std::int64_t rounded = 0;  ///< of these, tensors some of whose values the chosen type cannot hold
  std::vector<std::string> files, left_out;
  std::vector<std::string> removed;  ///< files of an earlier model that this one does not have
  nlohmann::ordered_json json() const;
};

/// Writes model.safetensors, config.json and what there is of tokenizer files into a directory, which is made. A
/// softmax model of a family that Hugging Face has gets its names and config: one that was imported goes back bit for
/// bit, under the names that it had. Any other keeps the names where a tensor has one, carries the rest as
/// furlong.NAME, and has a config that only Furlong reads. Adapters (LoRA) are added to the weights that they stand
/// beside. Throws UserError where the directory holds a model already and is not to be overwritten; where it is, files
/// that belong to that model go, by the names that models' files have, and no others.
ExportReport export_model(SourceModel& source, const std::filesystem::path& directory, const ExportOptions& options);

}  // namespace furlong
