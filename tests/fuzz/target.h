#pragma once
// Shared code of the fuzz targets. A target reads one input. It succeeds, or rejects the input with a UserError of one
// printable line. Anything else (another exception, a sanitizer's report) ends the process.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/tensor_file.h"
#include "framework/core/error.h"
#include "framework/core/printable.h"

/// The interface of libFuzzer; replay.cpp also calls it.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

/// Called by LeakSanitizer: libhdf5 1.10 leaks memory for files that it rejects.
extern "C" [[gnu::used]] inline const char* __lsan_default_suppressions() { return "leak:libhdf5\n"; }

namespace furlong::fuzzing {

[[noreturn]] inline void finding(std::string_view what, std::string_view text = "") {
  std::fprintf(stderr, "finding: %.*s: %s\n", static_cast<int>(what.size()), what.data(),
               foreign::single_line(text).c_str());
  std::abort();
}

inline void expect(bool condition, std::string_view what) {
  if (!condition) finding(what);
}

/// Returns whether `action` succeeds. If it fails, its error must be a `Kind` (a user error) of one printable line.
template <class Kind = UserError, class Action>
bool succeeds(const Action& action) {
  try {
    action();
    return true;
  } catch (const Kind& error) {
    const std::string_view message = error.what();
    if (message.empty() || foreign::single_line(message, message.size()) != message)
      finding("an error that is not one printable line", message);
    static const bool shown = std::getenv("FURLONG_FUZZ_SHOW") != nullptr;  // for examining an input
    if (shown) std::fprintf(stderr, "refused: %s\n", error.what());
    return false;
  }
}

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// Splits one input into two texts: the last byte is the length of the second one.
inline std::pair<std::string_view, std::string_view> two_texts(std::string_view input) {
  if (input.empty()) return {};
  const std::size_t second = std::min<std::size_t>(static_cast<unsigned char>(input.back()), input.size() - 1);
  input.remove_suffix(1);
  return {input.substr(0, input.size() - second), input.substr(input.size() - second)};
}

/// A folder of this process, in memory if the machine has /dev/shm; removed at exit.
class Folder {
 public:
  Folder() {
    const std::filesystem::path memory("/dev/shm");
    const bool usable = ::access(memory.c_str(), W_OK) == 0;
    // run.sh removes folders of processes that were killed, by their process id.
    std::string name = ((usable ? memory : std::filesystem::temp_directory_path()) /
                        ("furlong_fuzz_" + std::to_string(::getpid()) + "_XXXXXX"))
                           .string();
    expect(::mkdtemp(name.data()) != nullptr, "cannot create a folder for inputs");
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  static const Folder& instance() {
    static const Folder folder;
    return folder;
  }
  std::string path(std::string_view name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

/// Writes the input to a file with that name and returns its path.
inline std::string write_input(std::string_view name, std::string_view bytes) {
  std::string path = Folder::instance().path(name);
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  expect(file >= 0 && ::write(file, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()) &&
             ::close(file) == 0,
         "cannot write the input");
  return path;
}

/// Reads every tensor as floats and as integers; a type without such values must be rejected.
inline void read_tensors(const TensorFile& file) {
  // A view can state more elements than a file has bytes. The caller, who knows the shape, allocates the floats.
  constexpr std::int64_t most_elements = 1 << 20;
  std::vector<float> values;
  for (const ForeignTensor& tensor : file.tensors()) {
    const std::int64_t elements = tensor.shape.elements();
    if (elements > most_elements) continue;
    values.resize(static_cast<std::size_t>(elements));
    succeeds([&] { file.read(tensor.name, values); });
    succeeds([&] { file.read_integers(tensor.name); });
  }
}

}  // namespace furlong::fuzzing
