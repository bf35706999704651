// Randomly changed files: each is read, or rejected with a one-line UserError, in little memory and time.
// FURLONG_MUTATIONS sets the number of mutations per kind; default 2,000.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <random>

#include "formats/tensor_file.h"
#include "framework/core/error.h"
#include "tests/formats/foreign_bytes.h"

#ifndef FURLONG_SANITIZED
// Counts this program's allocated bytes. Under a sanitizer, which keeps its own operators, max_allocation_size_mb is
// the limit.
namespace {
std::atomic<std::int64_t> held_bytes{0}, most_held_bytes{0};
}  // namespace

// GCC warns about free() inside an inlined delete.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  void* const memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  const std::int64_t held = held_bytes += static_cast<std::int64_t>(malloc_usable_size(memory));
  if (held > most_held_bytes) most_held_bytes = held;
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  if (memory != nullptr) held_bytes -= static_cast<std::int64_t>(malloc_usable_size(memory));
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { operator delete(memory); }
#endif

namespace furlong {
namespace {

using testing::packed;

struct Valid {
  std::string kind;
  std::string bytes;  ///< what is changed
  /// Builds the file. Parts behind checksums and lengths are changed before these are computed.
  std::function<std::string(const std::string&)> file_of = [](const std::string& bytes) { return bytes; };
};

std::vector<Valid> valid_files() {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"a.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]},)"
      R"("c":{"dtype":"I64","shape":[1,2],"data_offsets":[32,48]},)"
      R"("d":{"dtype":"BOOL","shape":[],"data_offsets":[48,49]}})";
  const auto with_header = [](const std::string& text) {
    return testing::safetensors_file(text, std::string(49, '\1'));
  };
  const std::vector<testing::PickledTensor> tensors = {{"a.weight", "FloatStorage", "0", 12, 0, {3, 4}, {4, 1}},
                                                       {"t", "FloatStorage", "0", 12, 1, {2, 3}, {1, 4}},
                                                       {"ids", "LongStorage", "1", 3, 0, {1, 3}, {3, 1}}};
  const std::vector<testing::StorageBytes> storages = {{"0", 12, std::string(48, '\2')},
                                                       {"1", 3, std::string(24, '\3')}};
  const std::string pickle = testing::pickled_state(tensors);
  std::vector<testing::GgufTensor> quantized;
  for (const auto& [type, elements, bytes] : {std::tuple{2u, 32, 18},
                                              {3u, 32, 20},
                                              {6u, 32, 22},
                                              {7u, 32, 24},
                                              {8u, 32, 34},
                                              {12u, 256, 144},
                                              {13u, 256, 176},
                                              {14u, 256, 210}}) {
    quantized.push_back({"blk." + std::to_string(type),
                         {static_cast<std::uint64_t>(elements), 1},
                         type,
                         std::string(static_cast<std::size_t>(bytes), '\4')});
  }
  quantized.push_back({"norm", {3, 2}, 0, std::string(24, '\5')});
  const std::vector<std::string> pairs = {
      testing::gguf_pair("general.alignment", 4, packed<std::uint32_t>({32})),
      testing::gguf_pair("name", 8, testing::gguf_text("llama")),
      testing::gguf_pair("eps", 6, packed<float>({1e-5f})),
      testing::gguf_pair("tokens", 9, testing::gguf_array(8, 2, testing::gguf_text("a") + testing::gguf_text("bc"))),
      testing::gguf_pair("types", 9, testing::gguf_array(5, 3, packed<std::int32_t>({1, 2, 3}))),
      testing::gguf_pair("deep", 9, testing::gguf_array(9, 1, testing::gguf_array(0, 2, "xy")))};
  return {
      {"safetensors", with_header(header)},
      {"header", header, with_header},
      {"pytorch", testing::pytorch_zip(pickle, storages)},
      {"deflated", testing::pytorch_zip(pickle, storages, true)},
      {"wide", testing::pytorch_zip(pickle, storages, false, true)},
      {"pickle", pickle, [storages](const std::string& changed) { return testing::pytorch_zip(changed, storages); }},
      {"older", testing::pytorch_older(testing::pickled_state(tensors, true), storages)},
      {"gguf", testing::gguf_file(pairs, quantized)}};
}

class Mutator {
 public:
  explicit Mutator(std::uint32_t seed) : random_(seed) {}

  std::string mutate(std::string bytes) {
    for (std::size_t changes = 1 + below(2) * below(4); changes > 0 && !bytes.empty(); --changes) change(bytes);
    return bytes;
  }

 private:
  std::size_t below(std::size_t end) { return random_() % end; }

  void change(std::string& bytes) {
    const std::size_t at = below(bytes.size()), length = std::min(1 + below(16), bytes.size() - at);
    switch (below(7)) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ 1 << below(8));
        break;
      case 1:
        bytes[at] = static_cast<char>(below(256));
        break;
      case 2:
        bytes.resize(at);
        break;
      case 3:
        std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), length, below(2) == 0 ? '\xff' : '\0');
        break;
      case 4:  // a piece of the file over another place
        bytes.replace(at, length, bytes.substr(below(bytes.size()), length));
        break;
      case 5:  // ... or put in
        bytes.insert(at, bytes.substr(below(bytes.size()), 1 + below(32)));
        break;
      default: {  // a number that is too large, too small, or just off
        const std::int64_t numbers[] = {-1, 1LL << 62, 1LL << 32, 0x7fffffff, bytes[at] + 1, bytes[at] - 1};
        const std::int64_t number = numbers[below(6)];
        std::memcpy(bytes.data() + at, &number, std::min<std::size_t>(1 << below(4), bytes.size() - at));
      }
    }
  }

  std::mt19937 random_;
};

/// A file in memory, because a disk would dominate the running time.
class MemoryFile {
 public:
  MemoryFile() : descriptor_(::memfd_create("mutation", MFD_CLOEXEC)) {}
  ~MemoryFile() { ::close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string hold(const std::string& bytes) {
    EXPECT_EQ(::ftruncate(descriptor_, static_cast<off_t>(bytes.size())), 0);
    EXPECT_EQ(::pwrite(descriptor_, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    return "/proc/self/fd/" + std::to_string(descriptor_);
  }

 private:
  int descriptor_;
};

class Mutations : public ::testing::TestWithParam<Valid> {
 protected:
  MemoryFile file_;

  /// Returns whether every tensor of the file could be read; false if the file was rejected properly.
  static bool reads(const std::string& place) {
    try {
      const auto opened = open_tensor_file(place);
      for (const ForeignTensor& tensor : opened->tensors()) {
        if (tensor.stored_type[0] == 'I' || tensor.stored_type[0] == 'U' || tensor.stored_type == "BOOL") {
          opened->read_integers(tensor.name);
        } else {
          std::vector<float> values(static_cast<std::size_t>(tensor.shape.elements()));
          opened->read(tensor.name, values);
        }
      }
      return true;
    } catch (const UserError& error) {
      EXPECT_EQ(std::string_view(error.what()).find_first_of("\n\r"), std::string_view::npos) << error.what();
      return false;
    }
  }
};

TEST_P(Mutations, AreReadOrRefused) {
  ASSERT_TRUE(reads(file_.hold(GetParam().file_of(GetParam().bytes))));
  const char* wanted = std::getenv("FURLONG_MUTATIONS");
  const int n_mutations = wanted != nullptr ? std::atoi(wanted) : 2000;
  Mutator mutator(20240607);
  int n_read = 0;
  double slowest = 0;
  for (int i = 0; i < n_mutations; ++i) {
    const std::string place = file_.hold(GetParam().file_of(mutator.mutate(GetParam().bytes)));
#ifndef FURLONG_SANITIZED
    const std::int64_t before = held_bytes;
    most_held_bytes = before;
#endif
    const auto begin = std::chrono::steady_clock::now();
    bool read = false;
    ASSERT_NO_THROW(read = reads(place)) << "mutation " << i;
    n_read += read ? 1 : 0;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    slowest = std::max(slowest, seconds);
    ASSERT_LT(seconds, 1.0) << "mutation " << i;
#ifndef FURLONG_SANITIZED
    ASSERT_LT(most_held_bytes - before, 64 << 20) << "mutation " << i;
#endif
  }
  // Changed elements stay undetected in formats without checksums. If no mutation is readable, the mutations are too
  // coarse to test anything.
  EXPECT_GT(n_read, 0);
  EXPECT_LT(n_read, n_mutations);
  std::printf("%s: %d of %d read, the slowest took %.1f ms\n", GetParam().kind.c_str(), n_read, n_mutations,
              1e3 * slowest);
}

INSTANTIATE_TEST_SUITE_P(Files, Mutations, ::testing::ValuesIn(valid_files()),
                         [](const auto& info) { return info.param.kind; });

}  // namespace
}  // namespace furlong
