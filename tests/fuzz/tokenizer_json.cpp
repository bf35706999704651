// A tokenizer.json and a text to encode with it.
#include "tests/fuzz/json_mutator.h"
#include "tests/fuzz/tokenizer.h"

namespace fuzzing = furlong::fuzzing;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto [file, text] = fuzzing::two_texts(fuzzing::text_of(data, size));
  const std::string path = fuzzing::write_input("tokenizer.json", file);
  std::shared_ptr<const furlong::Tokenizer> tokenizer;
  if (fuzzing::succeeds([&] { tokenizer = furlong::load_tokenizer(path); })) fuzzing::use_tokenizer(*tokenizer, text);
  return 0;
}

FURLONG_JSON_MUTATOR
