#pragma once
// Special tokens: their roles, and their form in JSON.
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "datasets/tokenizers/json_view.h"
#include "datasets/tokenizers/tokenizer.h"

namespace furlong {

/// Special tokens as text, by the keys of a tokenizer_config.json: "bos_token", "eos_token", "unk_token", "pad_token",
/// "mask_token", "cls_token", "sep_token".
using SpecialNames = std::map<std::string, std::string, std::less<>>;

/// Reads a tokenizer_config.json or special_tokens_map.json. Tokens are strings or objects with "content". Other keys
/// are ignored.
SpecialNames special_names(const JsonView& config);

/// Returns the id of a token.
using FindToken = std::function<std::optional<std::int32_t>(std::string_view)>;

/// Returns the ids of the named tokens. For a role missing in `names`, tries the names that published models use
/// ("[CLS]", "<s>", "<|endoftext|>").
SpecialTokens special_tokens(const SpecialNames& names, const FindToken& find);

/// Returns {"unknown": 0, ...} with the roles that have a token.
nlohmann::json special_to_json(const SpecialTokens& special);
/// Reads special_to_json(). Throws UserError if a value is not a valid id. Does not check that the tokenizer has the
/// token.
SpecialTokens special_from_json(const JsonView& json);

/// Checks that the tokenizer has all its special tokens, also those that it puts around a document, so that the error
/// occurs at load time and not during training. Throws UserError, starting with `origin`.
void check_special_tokens(const Tokenizer& tokenizer, std::string_view origin);

}  // namespace furlong
