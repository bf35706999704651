#pragma once
#include "datasets/tokenizers/tokenizer.h"
#include "tests/fuzz/target.h"

namespace furlong::fuzzing {

/// Encodes and decodes. The tokenizer rebuilt from its JSON must produce the same ids.
inline void use_tokenizer(const Tokenizer& tokenizer, std::string_view text) {
  const auto ids_of = [&](const Tokenizer& some, SpecialTokenMode special) {
    std::vector<std::int32_t> ids;
    const bool encoded = succeeds([&] { ids = some.framed(some.encode(text, special)); });
    expect(std::all_of(ids.begin(), ids.end(), [&](std::int32_t id) { return id >= 0 && id < some.size(); }),
           "an id is outside the tokenizer");
    return std::pair(encoded, ids);
  };
  const auto ids = ids_of(tokenizer, SpecialTokenMode::as_text);
  succeeds([&] { tokenizer.decode(ids.second); });
  const auto special = ids_of(tokenizer, SpecialTokenMode::as_token);
  std::shared_ptr<const Tokenizer> copy;
  expect(succeeds([&] { copy = tokenizer_from_json(tokenizer.to_json(), "copy"); }), "its own JSON is rejected");
  expect(copy->size() == tokenizer.size() && copy->special() == tokenizer.special(),
         "its JSON gives another tokenizer");
  expect(ids_of(*copy, SpecialTokenMode::as_text) == ids && ids_of(*copy, SpecialTokenMode::as_token) == special,
         "its JSON gives other ids");
}

}  // namespace furlong::fuzzing
