#pragma once
// furlong attend: runs one attention on tensors of a file and writes its output and gradients to another file.
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "evaluation/attend/attend_operation.h"

namespace furlong {

struct AttendOptions {
  AttendOptions() { config.causal = false; }
  std::filesystem::path input, output;
  /// Heads and widths come from the file, the number of features from `features`.
  layers::AttentionConfig config;
  std::int64_t features = 0;  ///< m; 0: that of the file's random projection, or 2d
  /// Distribution and seed of the random projection if the file has none (default: orthogonal, seed 0). They are an
  /// error if nothing is drawn.
  std::optional<std::string> projection_kind;
  std::optional<std::uint64_t> seed;
  std::int64_t projected_length = 0;  ///< linformer with mean pooling: r
  DType dtype = DType::float32;       ///< of query, key and value in memory
  bool gradients = false;
  bool recurrent = false;
  std::int64_t prefill = 0;  ///< recurrent: number of tokens processed at once before the others
  Device device;
};

struct AttendReport {
  Shape output;               ///< [batch, heads, n, d_value]
  std::int64_t features = 0;  ///< m; 0 without features
  bool drew_projection = false;
  double forward_seconds = 0, backward_seconds = 0;
  /// Peak memory in addition to the inputs: output, gradients and scratch.
  std::int64_t peak_bytes = 0;
  ops::DenominatorReport denominators;
  bool has_denominators = false;  ///< whether the attention reports denominators
  std::vector<std::string> read;  ///< datasets of the input that were used
};

/// Reads the input, runs the attention and writes the output. docs/file_formats.md describes both files. Throws
/// UserError for invalid options or datasets. The output file is replaced only when complete.
AttendReport attend(const AttendOptions& options);

}  // namespace furlong
