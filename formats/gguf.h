#pragma once
// GGUF, the file format of llama.cpp, versions 2 and 3: metadata (hyperparameters, tokenizer) and tensors, most of them
// quantized.
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "formats/tensor_file.h"

namespace furlong {

/// A metadata value. Integers of all widths are int64; float32 is double. std::monostate stands for values that are
/// validated but not stored: arrays of arrays and integers beyond int64. No key of a language model has these.
using GgufValue = std::variant<std::monostate, std::int64_t, double, bool, std::string, std::vector<std::int64_t>,
                               std::vector<double>, std::vector<bool>, std::vector<std::string>>;

class GgufFile : public TensorFile {
 public:
  /// Returns all metadata, sorted by key.
  virtual const std::map<std::string, GgufValue, std::less<>>& metadata() const = 0;

  bool has(std::string_view key) const { return metadata().find(key) != metadata().end(); }
  /// Return the value of a key. Throw UserError that names file and key if the key is missing or has another type;
  /// real() also accepts an integer.
  std::string text(std::string_view key) const;
  std::int64_t integer(std::string_view key) const;
  double real(std::string_view key) const;
  bool boolean(std::string_view key) const;
  /// Return the array of a key; reals() also accepts integers. An empty array matches any type.
  const std::vector<std::string>& texts(std::string_view key) const;
  const std::vector<std::int64_t>& integers(std::string_view key) const;
  std::vector<double> reals(std::string_view key) const;
  const std::vector<bool>& booleans(std::string_view key) const;
  /// Return the value of a key, or `fallback` if the key is missing.
  std::string text(std::string_view key, std::string_view fallback) const;
  std::int64_t integer(std::string_view key, std::int64_t fallback) const;
  double real(std::string_view key, double fallback) const;
  bool boolean(std::string_view key, bool fallback) const;
};

/// Whether the file exists and begins as a GGUF file does.
bool is_gguf(const std::filesystem::path& path);

/// Opens a GGUF file. Throws UserError if the file is not GGUF, is damaged, or has an unsupported version or byte
/// order. Tensors of unsupported types are listed; reading one throws.
std::unique_ptr<GgufFile> open_gguf(const std::filesystem::path& path);

}  // namespace furlong
