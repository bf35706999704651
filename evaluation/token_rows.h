#pragma once
// Reads the token ids of furlong logits.
#include <cstdint>
#include <filesystem>
#include <vector>

namespace furlong {

/// Rows of token ids, padded on the right with 0.
struct TokenRows {
  std::vector<std::int64_t> lengths;   ///< tokens of each row without padding
  std::int64_t n = 0;                  ///< longest length
  std::vector<std::int32_t> tokens;    ///< [rows, n]
  std::vector<std::int32_t> segments;  ///< [rows, n]; empty: all are segment 0
  /// Returns the number of rows.
  std::int64_t rows() const { return static_cast<std::int64_t>(lengths.size()); }
};

/// Reads token ids from a text file, with one row of ids per line (empty lines are skipped), or from HDF5: `tokens`,
/// integers [rows, n], and optionally `lengths` [rows] and `segments` [rows, n]. Throws UserError that names the line
/// or HDF5 dataset if a value is not an id below `vocabulary_size`, or if shapes do not match.
TokenRows read_token_rows(const std::filesystem::path& path, std::int64_t vocabulary_size);

}  // namespace furlong
