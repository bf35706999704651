#pragma once
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

namespace furlong::fuzzing {

inline std::string content(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// The inverse of two_texts().
inline std::string with_text(std::string file, const std::string& text) {
  return (file += text) += static_cast<char>(text.size());
}

using WriteSeed = std::function<void(const std::string& target, const std::string& name, const std::string& bytes)>;

/// Writes the seeds of targets that read inputs of models.
void write_model_seeds(const WriteSeed& seed);

}  // namespace furlong::fuzzing
