// The pickle of a PyTorch file, in a valid archive, so that no checksum hides the pickle reader.
#include "tests/formats/foreign_bytes.h"
#include "tests/fuzz/target.h"

namespace fuzzing = furlong::fuzzing;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string pickle(fuzzing::text_of(data, size));
  const std::string archive =
      furlong::testing::pytorch_zip(pickle, {{"0", 12, std::string(48, '\2')}, {"1", 3, std::string(24, '\3')}});
  const std::string path = fuzzing::write_input("pytorch_model.bin", archive);
  fuzzing::succeeds([&] { fuzzing::read_tensors(*furlong::open_pytorch(path)); });
  return 0;
}
