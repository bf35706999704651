// A .safetensors file.
#include "tests/fuzz/target.h"

namespace fuzzing = furlong::fuzzing;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string path = fuzzing::write_input("model.safetensors", fuzzing::text_of(data, size));
  fuzzing::succeeds([&] { fuzzing::read_tensors(*furlong::open_safetensors(path)); });
  return 0;
}
