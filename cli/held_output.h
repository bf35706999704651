#pragma once
// Results of a command that appear whole, or not at all.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string_view>

#include "framework/io/atomic_file.h"

namespace furlong::command_line {

/// Throws UserError if a checkpoint or a tokenized dataset has this path, which only a command that writes such files
/// replaces, with --force; so it does for a file that cannot be read. `option`: where the path comes from.
void refuse_replacing_data(const std::filesystem::path& output, const char* option = "--output");

/// Atomically replaces `path`, given by --json-file, by a file with the results of work that is done: if another
/// process is writing the file, waits for it up to a second, then warns. Returns whether the file has the text. Throws
/// as AtomicFile for other failures.
bool write_when_free(const std::filesystem::path& path, std::string_view text);

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
