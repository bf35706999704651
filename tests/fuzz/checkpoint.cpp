// A checkpoint. Checksum and length are recomputed so that mutations pass them; those of HDF5's metadata are not
// (token_store.cpp).
#include "framework/io/checkpoint_file.h"

#include <xxhash.h>

#include <cstring>

#include "datasets/vocabulary.h"
#include "framework/io/checkpoint_header.h"
#include "tests/fuzz/target.h"

namespace fuzzing = furlong::fuzzing;
using furlong::CheckpointReader;
using furlong::detail::CheckpointHeader;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string bytes(fuzzing::text_of(data, size));
  if (CheckpointHeader header; size >= sizeof header) {
    std::memcpy(&header, bytes.data(), sizeof header);
    header.total_bytes = size;
    header.checksum = XXH3_64bits(bytes.data() + sizeof header, size - sizeof header);
    std::memcpy(bytes.data(), &header, sizeof header);
  }
  const std::string path = fuzzing::write_input("step_00000001.h5", bytes);
  fuzzing::succeeds([&] {
    const CheckpointReader reader = CheckpointReader::open(path);
    for (const furlong::TensorInfo& tensor : reader.tensors()) {
      fuzzing::expect(tensor.bytes <= size, "a tensor is larger than its file");
      std::vector<char> values(tensor.bytes);
      fuzzing::succeeds([&] { reader.read(tensor.name, values.data(), values.size()); });
    }
    for (const char* name : {"config", "empty", "vocabulary"}) {
      std::string text;
      if (fuzzing::succeeds([&] { text = reader.text(name); }) && std::string_view(name) == "vocabulary")
        fuzzing::succeeds([&] { furlong::Vocabulary::from_json(text, path); });
    }
    for (const char* name : {"trainer/step", "trainer/loss"}) {
      fuzzing::succeeds([&] { reader.integer(name); });
      fuzzing::succeeds([&] { reader.number(name); });
    }
  });
  fuzzing::succeeds([&] { CheckpointReader::shards_of(path); });
  return 0;
}
