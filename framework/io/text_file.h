#pragma once
// Small text files from untrusted sources: configs, tokenizers, records.
#include <cstdint>
#include <filesystem>
#include <string>

namespace furlong {

/// Returns the bytes of a regular file of at most `max_bytes`. Throws UserError if the file is missing, unreadable or
/// longer, or if it is a folder, device, pipe or socket (reading one might never end). Throws MachineError if reading
/// fails.
std::string read_text_file(const std::filesystem::path& path, std::uint64_t max_bytes);

}  // namespace furlong
