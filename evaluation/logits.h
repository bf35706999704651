#pragma once
// Writes a model's logits or final hidden states for given tokens to a file.
#include <filesystem>
#include <string>
#include <vector>

#include "trainers/model/model.h"

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

/// Options of write_logits().
struct LogitsOptions {
  bool hidden = false;          ///< final hidden states instead of logits
  std::int64_t batch_size = 8;  ///< rows in a batch
};

/// Writes HDF5 with `lengths` [rows], and `logits` [rows, n, vocabulary] or `hidden` [rows, n, d_model], in float32
/// (float64 for a float64 model), zero at padding. Throws UserError if a row exceeds the model's learned positions.
void write_logits(Model& model, const TokenRows& rows, const std::filesystem::path& output,
                  const LogitsOptions& options);

}  // namespace furlong
