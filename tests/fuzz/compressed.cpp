// An input of `furlong prepare`: plain, gzip, xz or zstd. The result must not depend on the block size.
#include "datasets/prepare/byte_source.h"

#include "tests/fuzz/target.h"

namespace fuzzing = furlong::fuzzing;

namespace {

/// Returns the start of the expanded file, or why it is rejected.
std::string expanded(const std::string& path, std::size_t block) {
  constexpr std::size_t most_bytes = 1 << 20;
  std::string result, buffer(block, '\0');
  fuzzing::succeeds([&] {
    try {
      furlong::ByteSource source(path);
      for (std::size_t count = 1; count > 0 && result.size() < most_bytes;) {
        count = source.read(buffer.data(), std::min(block, most_bytes - result.size()));
        result.append(buffer, 0, count);
      }
    } catch (const furlong::UserError& error) {
      result = error.what();
      throw;
    }
  });
  return result;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string path = fuzzing::write_input("input", fuzzing::text_of(data, size));
  const std::string whole = expanded(path, 1 << 20);
  fuzzing::expect(expanded(path, 4096) == whole, "the result depends on the block size");
  return 0;
}
