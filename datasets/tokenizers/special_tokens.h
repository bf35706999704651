#pragma once
// Which tokens have which part to play, and their place in JSON.
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "datasets/tokenizers/json_view.h"
#include "datasets/tokenizers/tokenizer.h"

namespace furlong {

/// Spellings of special tokens by the keys of a tokenizer_config.json: "bos_token", "eos_token", "unk_token",
/// "pad_token", "mask_token", "cls_token", "sep_token".
using SpecialNames = std::map<std::string, std::string, std::less<>>;

/// What a tokenizer_config.json or special_tokens_map.json says; tokens are strings or objects with "content". Other
/// keys are passed over.
SpecialNames special_names(const JsonView& config);

using FindToken = std::function<std::optional<std::int32_t>(std::string_view)>;

/// The ids of what is named; for parts that `names` leaves open, of the spellings that published models use ("[CLS]",
/// "<s>", "<|endoftext|>").
SpecialTokens special_tokens(const SpecialNames& names, const FindToken& find);

/// {"unknown": 0, ...}, those there are.
nlohmann::json special_to_json(const SpecialTokens& special);
/// Throws UserError for what is no id. Whether the tokenizer has it is not looked at.
SpecialTokens special_from_json(const JsonView& json);

/// Throws UserError, beginning with `origin`, where the tokenizer does not have one of its special tokens or of those
/// that frame a text: that would be found only in the middle of a training.
void check_special_tokens(const Tokenizer& tokenizer, std::string_view origin);

}  // namespace furlong
