#pragma once
// Writes a model's logits or final hidden states for given tokens to a file.
#include <filesystem>

#include "evaluation/token_rows.h"
#include "trainers/model/model.h"

namespace furlong {

/// Options of write_logits().
struct LogitsOptions {
  bool hidden = false;          ///< final hidden states instead of logits
  std::int64_t batch_size = 8;  ///< rows in a batch
};

/// Writes HDF5 with `lengths` [rows], and `logits` [rows, n, vocabulary] or `hidden` [rows, n, d_model], in float32
/// (float64 for a float64 model), zero at padding. Throws UserError if a row exceeds the model's learned positions.
void write_logits(Model& model, const TokenRows& rows, AtomicFile& output, const LogitsOptions& options);

}  // namespace furlong
