// The files of a tokenizer without tokenizer.json, and a text to encode. The first byte selects vocab.txt, or
// vocab.json with merges.txt. The byte 0xff separates the files: tokens, merges, tokenizer_config.json,
// special_tokens_map.json, added_tokens.json, and the text.
#include "tests/datasets/tokenizers/small_tokenizers.h"
#include "tests/fuzz/tokenizer.h"

namespace fuzzing = furlong::fuzzing;

namespace {

/// Adds a token for each byte, without which every byte-level vocabulary is rejected.
std::string with_all_bytes(std::string_view text) {
  nlohmann::json vocabulary = nlohmann::json::parse(text, nullptr, false);
  if (!vocabulary.is_object()) return std::string(text);
  for (const nlohmann::json& id : vocabulary) {
    if (id.is_structured()) return std::string(text);  // may be nested too deep to be written
  }
  for (int byte = 0; byte < 256; ++byte) vocabulary.emplace(furlong::testing::byte_character(byte), byte);
  return vocabulary.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string_view next_part(std::string_view& rest) {
  const std::string_view part = rest.substr(0, rest.find('\xff'));
  rest.remove_prefix(std::min(part.size() + 1, rest.size()));
  return part;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const bool pairs = data[0] % 2 == 1;
  std::string_view rest = fuzzing::text_of(data + 1, size - 1);
  const std::string_view tokens = next_part(rest), merges = next_part(rest);
  std::string path;
  if (pairs) {
    fuzzing::write_input("merges.txt", merges);
    path = fuzzing::write_input("vocab.json", with_all_bytes(tokens));
  } else {
    path = fuzzing::write_input("vocab.txt", tokens);
  }
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"}) {
    const std::string_view part = next_part(rest);
    if (part.empty()) {
      std::filesystem::remove(fuzzing::Folder::instance().path(name));
    } else {
      fuzzing::write_input(name, part);
    }
  }
  std::shared_ptr<const furlong::Tokenizer> tokenizer;
  if (fuzzing::succeeds([&] { tokenizer = furlong::load_tokenizer(path); })) fuzzing::use_tokenizer(*tokenizer, rest);
  return 0;
}
