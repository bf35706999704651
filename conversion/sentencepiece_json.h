#pragma once
// SentencePiece models as tokenizers of Hugging Face.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "datasets/tokenizers/sentencepiece_proto.h"

namespace furlong {

/// Returns why no tokenizer.json gives the ids of the model, for example "it has user-defined tokens"; empty if one
/// does.
std::string sentencepiece_obstacle(const SentencePieceProto& proto);

/// Returns the normalizer, the model and the decoder of a tokenizer.json with the ids of the model. `before` are
/// normalizers that come before the model's own.
nlohmann::ordered_json sentencepiece_json(const SentencePieceProto& proto, const nlohmann::ordered_json& before);

}  // namespace furlong
