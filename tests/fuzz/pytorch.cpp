// A file of torch.save: a zip archive or the legacy format.
#include "tests/fuzz/target.h"

namespace fuzzing = furlong::fuzzing;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string path = fuzzing::write_input("pytorch_model.bin", fuzzing::text_of(data, size));
  fuzzing::succeeds([&] { fuzzing::read_tensors(*furlong::open_pytorch(path)); });
  return 0;
}
