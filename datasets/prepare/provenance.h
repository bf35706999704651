#pragma once
// Where a tokenized dataset comes from: its attribute `provenance`.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace furlong {

class ByteSource;

/// Collects the inputs of a dataset.
class Provenance {
 public:
  /// `most_bytes`: sources whose entries take more are only counted and hashed together. The attribute can have 2^28
  /// bytes, and every rank reads it.
  explicit Provenance(std::size_t most_bytes = std::size_t{32} << 20) : most_bytes_(most_bytes) {}
  /// Adds a source that was read to its end: path, size, hash, compression.
  void add(const ByteSource& source);
  /// Returns JSON: version, commit, time, sources and `options`. File names may not be UTF-8; invalid bytes become
  /// U+FFFD.
  std::string text(const nlohmann::ordered_json& options) const;

 private:
  nlohmann::ordered_json sources_ = nlohmann::ordered_json::array();
  std::size_t most_bytes_, bytes_ = 0;  // of the entries
  struct {
    std::uint64_t files = 0, bytes = 0;
    std::string hash;  // of the hash before and the next entry
  } further_;
};

/// Throws UserError if `output` is one of the inputs, or if standard input ("-") is given more than once.
void check_inputs(const std::vector<std::string>& inputs, const std::string& output);

}  // namespace furlong
