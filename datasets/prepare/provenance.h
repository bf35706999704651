#pragma once
// Where a tokenized dataset comes from: its attribute `provenance`.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace furlong {

class ByteSource;

/// Collects the inputs of a dataset.
class Provenance {
 public:
  /// Adds a source that was read to its end: path, size, hash, compression.
  void add(const ByteSource& source);
  /// Returns JSON: version, commit, time, sources and `options`. File names may not be UTF-8; invalid bytes become
  /// U+FFFD.
  std::string text(const nlohmann::ordered_json& options) const;

 private:
  nlohmann::ordered_json sources_ = nlohmann::ordered_json::array();
};

/// Throws UserError if `output` is one of the inputs, or if standard input ("-") is given more than once.
void check_inputs(const std::vector<std::string>& inputs, const std::string& output);

}  // namespace furlong
