#include "cli/held_output.h"

#include <vector>

#include "datasets/prepare/dataset_writer.h"
#include "framework/io/checkpoint_file.h"
#include "framework/io/hdf5.h"

namespace furlong::command_line {
namespace {

void check(bool done) {
  if (!done) throw MachineError("cannot use a temporary file; free some space, or give --output a file");
}

/// Whether a file is a tokenized dataset, of any version, or cannot be read but may be one.
bool may_be_dataset(const std::filesystem::path& path) {
  if (hdf5::File::lacks_signature(path)) return false;
  try {
    const hdf5::File file = hdf5::File::open_checksummed(path.string());
    return file.has_attribute("format") && file.text("format") == tokenized_dataset_format;
  } catch (const UserError&) {
    return true;
  }
}

}  // namespace

void refuse_replacing_data(const std::filesystem::path& output, const char* option) {
  std::error_code missing;
  if (!std::filesystem::is_regular_file(output, missing)) return;
  const bool is_checkpoint = checkpoint_checksum(output).has_value();
  if (is_checkpoint || may_be_dataset(output))
    throw UserError("{}: is a {}, which this command does not replace; choose another {}", output.string(),
                    is_checkpoint ? "checkpoint" : "tokenized dataset or a damaged HDF5 file", option);
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
  if (file_) return file_->commit();
  check(std::fflush(held_) == 0 && std::fseek(held_, 0, SEEK_SET) == 0);
  std::vector<char> block(1 << 16);
  while (const std::size_t count = std::fread(block.data(), 1, block.size(), held_))
    std::fwrite(block.data(), 1, count, stdout);  // main() reports its errors
  check(std::ferror(held_) == 0);
}

}  // namespace furlong::command_line
