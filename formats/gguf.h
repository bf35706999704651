#pragma once
// GGUF, the file format of llama.cpp: metadata (hyperparameters, tokenizer) and tensors, most of them quantised.
// Versions 2 and 3.
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

/// A value of GGUF's metadata; integers of all widths as int64 and float32 as double. std::monostate stands for what is
/// checked but not kept, for no key of a language model has it: arrays of arrays, and integers beyond int64.
using GgufValue = std::variant<std::monostate, std::int64_t, double, bool, std::string, std::vector<std::int64_t>,
                               std::vector<double>, std::vector<bool>, std::vector<std::string>>;

class GgufFile : public TensorFile {
 public:
  /// All metadata, sorted by key.
  virtual const std::map<std::string, GgufValue, std::less<>>& metadata() const = 0;

  bool has(std::string_view key) const { return metadata().find(key) != metadata().end(); }
  /// The value of a key. Throw UserError, naming file and key, where it is missing or of another type; real() takes an
  /// integer too.
  std::string text(std::string_view key) const;
  std::int64_t integer(std::string_view key) const;
  double real(std::string_view key) const;
  bool boolean(std::string_view key) const;
  /// Arrays; reals() takes integers too. Empty arrays are of any type.
  const std::vector<std::string>& texts(std::string_view key) const;
  const std::vector<std::int64_t>& integers(std::string_view key) const;
  std::vector<double> reals(std::string_view key) const;
  const std::vector<bool>& booleans(std::string_view key) const;
  /// The same where the key is there, `fallback` where it is missing.
  std::string text(std::string_view key, std::string_view fallback) const;
  std::int64_t integer(std::string_view key, std::int64_t fallback) const;
  double real(std::string_view key, double fallback) const;
  bool boolean(std::string_view key, bool fallback) const;
};

/// Throws UserError where the file is none, or damaged, or of a version or byte order that is not read. Tensors of
/// types that are not read are listed; only reading one throws.
std::unique_ptr<GgufFile> open_gguf(const std::filesystem::path& path);

}  // namespace furlong
