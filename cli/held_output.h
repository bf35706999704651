#pragma once
// Results of a command that appear whole, or not at all.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string_view>

#include "framework/io/atomic_file.h"

namespace furlong::command_line {

/// Where text goes: a file that appears whole, or standard output, which gets all of it at the end.
class HeldOutput {
 public:
  /// An empty path is standard output. Throws as AtomicFile; MachineError without room for a temporary file.
  explicit HeldOutput(const std::filesystem::path& path);
  ~HeldOutput();
  HeldOutput(const HeldOutput&) = delete;
  HeldOutput& operator=(const HeldOutput&) = delete;

  void write(std::string_view text);
  /// Makes the text appear. Call once, last.
  void finish();

 private:
  std::unique_ptr<AtomicFile> file_;
  std::FILE* held_ = nullptr;
};

}  // namespace furlong::command_line
