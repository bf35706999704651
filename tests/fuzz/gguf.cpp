// A GGUF file: metadata, tensors, and the tokenizer in it.
#include "formats/gguf.h"

#include "datasets/tokenizers/gguf_tokenizer.h"
#include "tests/fuzz/tokenizer.h"

namespace fuzzing = furlong::fuzzing;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string path = fuzzing::write_input("model.gguf", fuzzing::text_of(data, size));
  std::unique_ptr<furlong::GgufFile> file;
  if (!fuzzing::succeeds([&] { file = furlong::open_gguf(path); })) return 0;
  fuzzing::read_tensors(*file);
  std::shared_ptr<const furlong::Tokenizer> tokenizer;
  if (fuzzing::succeeds([&] { tokenizer = furlong::load_tokenizer(path); }))
    fuzzing::use_tokenizer(*tokenizer, "The quick brown fox, 12 of \xc3\xa9.");
  return 0;
}
