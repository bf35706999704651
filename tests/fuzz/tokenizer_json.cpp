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

#ifdef FURLONG_FUZZ
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

/// Half of the mutations change bytes of the document or the text; the others change the document's values.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  std::minstd_rand random(seed);
  const auto [file, text] = fuzzing::two_texts(fuzzing::text_of(data, size));
  nlohmann::json document = nlohmann::json::parse(file, nullptr, false);
  if (document.is_discarded() || random() % 2 == 0) return LLVMFuzzerMutate(data, size, most);
  fuzzing::change(document, random);
  std::string changed = document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  (changed += text) += static_cast<char>(text.size());
  if (changed.size() > most) return LLVMFuzzerMutate(data, size, most);
  std::copy(changed.begin(), changed.end(), data);
  return changed.size();
}
#endif
