#pragma once
// Export of models that no class of Hugging Face transformers can compute. The exported directory contains the model's
// code (the Python files of conversion/transformers/), and this file writes what that code reads: config.json and the
// names of tensors.
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trainers/model/model.h"

namespace furlong {

/// model_type in config.json.
inline constexpr const char* transformers_model_type = "furlong";

/// Returns name and text of each Python file, embedded at build time.
const std::vector<std::pair<std::string, std::string>>& transformers_sources();

/// Returns config.json as FurlongConfig (conversion/transformers/configuration_furlong.py) reads it: model_type,
/// architectures, auto_map and every key of the model.
nlohmann::ordered_json transformers_config(const Model& model);

/// Returns eos_token_id, bos_token_id and pad_token_id; null if the vocabulary has no such token.
nlohmann::ordered_json special_token_ids(const Vocabulary& vocabulary);

/// Returns the model card: what the model is and how to load it. `source` is the name of the model that it was imported
/// from; empty: none. `tokenizer_obstacle`: why AutoTokenizer does not give its ids (export_tokenizer); empty: it does.
/// The card contains transformers_card_mark.
std::string transformers_card(const Model& model, const std::string& source,
                              const std::string& tokenizer_obstacle = {});
inline constexpr const char* transformers_card_file = "README.md";
inline constexpr const char* transformers_card_mark = "Written by `furlong export`.";

/// What precedes the names of all tensors but those of heads.
inline constexpr std::string_view base_model_prefix = "model.";

/// Returns the name that modeling_furlong.py gives a parameter or buffer: "model.blocks.0.attention.mechanism.gate".
std::string transformers_name(const std::string& parameter, const Model& model);

}  // namespace furlong
