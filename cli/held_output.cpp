#include "cli/held_output.h"

#include <vector>

namespace furlong::command_line {
namespace {

void check(bool done) {
  if (!done) throw MachineError("cannot use a temporary file; free some space, or give --output a file");
}

}  // namespace

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
