#include "cli/held_output.h"

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "datasets/prepare/dataset_writer.h"
#include "framework/core/file_error.h"
#include "framework/core/log.h"
#include "framework/io/checkpoint_file.h"
#include "framework/io/hdf5.h"

namespace furlong::command_line {
namespace {

void check(bool done) {
  if (!done) throw MachineError("cannot use a temporary file; free some space, or give --output a file");
}

bool is_dataset(const hdf5::File& file) {
  try {
    return file.has_attribute("format") && file.text("format") == tokenized_dataset_format;
  } catch (const UserError&) {
    return false;  // an attribute of another type
  }
}

/// Returns which kind of data a file is that must not be replaced, or an empty text. Throws UserError if it cannot be
/// opened.
std::string data_in(const std::filesystem::path& path) {
  if (checkpoint_checksum(path)) return "a checkpoint";
  if (hdf5::File::lacks_signature(path)) return "";
  std::unique_ptr<const hdf5::File> file;
  try {
    file = std::make_unique<const hdf5::File>(hdf5::File::open_checksummed(path.string()));
  } catch (const UnusableFile&) {
    throw;
  } catch (const UserError&) {
    return "an HDF5 file that is damaged or of another version, and may be a tokenized dataset";
  }
  return is_dataset(*file) ? "a tokenized dataset" : "";
}

}  // namespace

void refuse_replacing_data(const std::filesystem::path& output, const char* option) {
  std::error_code missing;
  if (!std::filesystem::is_regular_file(output, missing)) return;
  if (const std::string data = data_in(output); !data.empty())
    throw UserError("{}: is {}; this command does not replace it; choose another {}, or remove the file",
                    output.string(), data, option);
}

bool write_when_free(const std::filesystem::path& path, std::string_view text) {
  constexpr int attempts = 20;
  for (int attempt = 1;; ++attempt) {
    try {
      write_file_atomically(path, text);
      return true;
    } catch (const FileInUse& error) {
      if (attempt < attempts) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        continue;
      }
      log_warn("--json-file: {}", error.what());
      return false;
    }
  }
}

HeldOutput::HeldOutput(const std::filesystem::path& path) {
  if (!path.empty()) {
    file_ = std::make_unique<AtomicFile>(path);
  } else if (!(held_ = std::tmpfile())) {
    throw MachineError("cannot make a temporary file; give --output a file");
  }
}

HeldOutput::~HeldOutput() {
  if (held_) std::fclose(held_);
}

void HeldOutput::write(std::string_view text) {
  if (file_) return file_->write(text);
  check(std::fwrite(text.data(), 1, text.size(), held_) == text.size());
}

void HeldOutput::finish() {
  if (file_) return file_->commit_last();
  check(std::fflush(held_) == 0 && std::fseek(held_, 0, SEEK_SET) == 0);
  std::vector<char> block(1 << 16);
  while (const std::size_t count = std::fread(block.data(), 1, block.size(), held_))
    std::fwrite(block.data(), 1, count, stdout);  // main() reports its errors
  check(std::ferror(held_) == 0);
}

}  // namespace furlong::command_line
