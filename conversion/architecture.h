#pragma once
// The families of models that come from elsewhere: what their config.json says in our settings, and which of their
// tensors are which of our parameters. One file each in architectures/; to add one, write it there and name it in
// architecture.cpp.
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

/// How one checkpoint spells the names of its tensors.
struct Spelling {
  std::string prefix;       ///< of all tensors but those of heads: "bert.", "model.", "transformer.", or nothing
  bool gamma_beta = false;  ///< LayerNorm.gamma and .beta, as BERTs converted from TensorFlow have them
  bool gguf = false;        ///< llama.cpp's names and layout
  bool head = true;  ///< encoders: whether there is a head that fills in tokens (model.prediction_head other than none)
  /// The name of a norm's gain or bias after `stem`, "....LayerNorm".
  std::string norm(const std::string& stem, bool bias) const;
  bool operator==(const Spelling&) const = default;
};

struct Architecture {
  const char* model_type;             ///< in config.json, and in Furlong's own files
  const char* class_name;             ///< in config.json's "architectures", of the model with its head
  const char* headless_class_name;    ///< the same without it, for families that come so; else null
  std::vector<std::string> prefixes;  ///< that the trunk's tensors may have, the usual one first
  std::string anchor;                 ///< behind the prefix: a tensor that every checkpoint of the family has

  std::string head_anchor;  ///< a tensor of the head that fills in tokens; empty: the head belongs to the family

  /// The model part of our settings, and the objective. Throws UserError naming the key where the config asks for
  /// something that is not computed here.
  Settings (*settings)(const ForeignConfig& config, const Spelling& spelling);
  /// The whole table for such settings.
  std::vector<Mapping> (*mappings)(const layers::ModelConfig& model, const Spelling& spelling);
  std::vector<Duplicate> (*duplicates)(const layers::ModelConfig& model, const Spelling& spelling);
  /// Whether a tensor, known but not computed with, is to be kept for export: poolers, buffers.
  bool (*is_carried)(std::string_view name);
  /// config.json for such settings, as far as the family can express them; that nothing is lost shows when it is read
  /// back.
  nlohmann::ordered_json (*config)(const layers::ModelConfig& model);
};

const std::vector<Architecture>& architectures();
/// Throws UserError naming the known ones.
const Architecture& architecture_of(const ForeignConfig& config);
/// The one of that name; nullptr where there is none.
const Architecture* find_architecture(std::string_view model_type);
/// Finds prefix and spelling in the tensors that are there. Throws UserError where the anchor is nowhere.
Spelling spelling_of(const Architecture& architecture, const TensorFile& file);

/// A GGUF file's metadata as the config.json that the same model has at Hugging Face. Throws UserError for
/// architectures other than llama.
nlohmann::ordered_json config_of_gguf(const GgufFile& file);

const Architecture& gpt2_architecture();
const Architecture& llama_architecture();
const Architecture& bert_architecture();
const Architecture& albert_architecture();

}  // namespace furlong
