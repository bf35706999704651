#pragma once
// Model families of other programs: how config.json becomes Furlong settings, and which tensor is which parameter. Each
// family is one file in architectures/. To add a family, add its file there and list it in architecture.cpp.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "conversion/foreign_config.h"
#include "conversion/mapping.h"
#include "formats/tensor_file.h"
#include "trainers/settings/settings.h"

namespace furlong {

class GgufFile;

/// Naming scheme of the tensors in one checkpoint.
struct TensorNaming {
  std::string prefix;       ///< of all tensors except those of heads: "bert.", "model.", "transformer.", or empty
  bool gamma_beta = false;  ///< norms are called LayerNorm.gamma and .beta (BERT converted from TensorFlow)
  bool gguf = false;        ///< llama.cpp's names and layout
  bool head = true;         ///< encoders: the checkpoint has a masked-token head (model.prediction_head is not none)
  /// Returns the name of a norm's gain or bias. `stem` is the name up to "LayerNorm".
  std::string norm(const std::string& stem, bool bias) const;
  bool operator==(const TensorNaming&) const = default;
};

/// One model family.
struct Architecture {
  const char* model_type;             ///< in config.json and in Furlong's own files
  const char* class_name;             ///< in config.json's "architectures", for the model with its head
  const char* headless_class_name;    ///< the class without the head; null if the family has none
  std::vector<std::string> prefixes;  ///< possible prefixes of the trunk's tensors, the usual one first
  std::string anchor;                 ///< a tensor that every checkpoint of the family has, without the prefix

  std::string head_anchor;  ///< a tensor of the masked-token head; empty if every checkpoint has the head

  /// Returns the model settings and the objective. Throws UserError naming the key if the config asks for something
  /// that Furlong does not support.
  Settings (*settings)(const ForeignConfig& config, const TensorNaming& naming);
  /// Returns the complete table of tensors for these model settings.
  std::vector<Mapping> (*mappings)(const layers::ModelConfig& model, const TensorNaming& naming);
  /// Returns the tensors that repeat other tensors, such as tied output weights.
  std::vector<Duplicate> (*duplicates)(const layers::ModelConfig& model, const TensorNaming& naming);
  /// Returns true for a known tensor that Furlong does not compute with but stores for export: poolers, buffers.
  bool (*is_carried)(std::string_view name);
  /// Returns config.json for these model settings, as far as the family can express them. Read the result back to check
  /// that nothing was lost.
  nlohmann::ordered_json (*config)(const layers::ModelConfig& model);
};

/// Returns all known families.
const std::vector<Architecture>& architectures();
/// Returns their names as text: "gpt2, llama, ...".
std::string family_names();
/// Returns the family of config.json's model_type, or the family named `wanted` if config.json has none. Throws
/// UserError listing the known families if there is neither, if the family is unknown, or if the two differ.
const Architecture& architecture_of(const ForeignConfig& config, const std::string& wanted);
/// Returns the family with this name, or null if it is unknown.
const Architecture* find_architecture(std::string_view model_type);
/// Derives the naming scheme from the tensors in the file. Throws UserError if the anchor tensor is missing.
TensorNaming detect_naming(const Architecture& architecture, const TensorFile& file);

/// Converts a GGUF file's metadata to the config.json that the same model has on Hugging Face. Throws UserError for
/// architectures other than llama, qwen2 and qwen3.
nlohmann::ordered_json config_of_gguf(const GgufFile& file);

// The families, one function for each file in architectures/.
const Architecture& gpt2_architecture();
const Architecture& llama_architecture();
const Architecture& mistral_architecture();
const Architecture& qwen2_architecture();
const Architecture& qwen3_architecture();
const Architecture& bert_architecture();
const Architecture& roberta_architecture();
const Architecture& albert_architecture();
const Architecture& esm_architecture();

}  // namespace furlong
