#pragma once
// What a model makes of given tokens: logits or final hidden states, into a file.
#include <filesystem>
#include <string>
#include <vector>

#include "trainers/model/model.h"

namespace furlong {

/// Rows of token ids, padded behind with 0 to one length.
struct TokenRows {
  std::vector<std::int64_t> lengths;   ///< tokens of each row that are none of the padding
  std::int64_t n = 0;                  ///< the longest
  std::vector<std::int32_t> tokens;    ///< [rows, n]
  std::vector<std::int32_t> segments;  ///< [rows, n], or empty: all are of segment 0
  std::int64_t rows() const { return static_cast<std::int64_t>(lengths.size()); }
};

/// From a text file, a row of ids separated by white space on each line (empty lines are passed over), or from HDF5:
/// `tokens`, integers [rows, n], and where there are `lengths` [rows] and `segments` [rows, n]. Throws UserError naming
/// the line or dataset for what is no id below `vocabulary_size`.
TokenRows read_token_rows(const std::filesystem::path& path, std::int64_t vocabulary_size);

struct LogitsOptions {
  bool hidden = false;          ///< final hidden states in the place of logits
  std::int64_t batch_size = 8;  ///< rows at once
};

/// The same model computing in float64, on the CPU: what its weights mean, but for rounding on the way.
Model in_float64(const Model& model);

/// Writes HDF5 with `logits` [rows, n, vocabulary] or `hidden` [rows, n, d_model], float32 (float64 for a model in
/// that), zeros behind the end of a row, and `lengths` [rows]. Throws UserError for rows that the model is too short
/// for.
void write_logits(Model& model, const TokenRows& rows, const std::filesystem::path& output,
                  const LogitsOptions& options);

}  // namespace furlong
