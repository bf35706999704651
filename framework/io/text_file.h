#pragma once
// Small text files that somebody else may have written: configs, tokenizers, records.
#include <cstdint>
#include <filesystem>
#include <string>

namespace furlong {

/// The bytes of a regular file of at most `max_bytes`. Throws UserError where the file is missing, cannot be read, is
/// longer, or is a folder, device, pipe or socket, reading which might never end; MachineError where reading fails.
std::string read_text_file(const std::filesystem::path& path, std::uint64_t max_bytes);

}  // namespace furlong
