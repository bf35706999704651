#pragma once
// furlong attend: one attention on tensors from a file, and its gradients, into another file.
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "evaluation/attend/attend_operation.h"

namespace furlong {

struct AttendOptions {
  AttendOptions() { config.causal = false; }
  std::filesystem::path input, output;
  /// Heads, widths and the number of features come from the file and from `features`.
  layers::AttentionConfig config;
  std::int64_t features = 0;  ///< m; 0: what the file's directions give, or twice d
  /// How directions are drawn where the file has none: orthogonal and seed 0 where not given. Given for nothing, they
  /// are refused.
  std::optional<std::string> directions_kind;
  std::optional<std::uint64_t> seed;
  std::int64_t projected_length = 0;  ///< linformer with mean pooling: r
  DType dtype = DType::float32;       ///< of query, key and value in memory
  bool gradients = false;
  bool recurrent = false;
  std::int64_t prefill = 0;  ///< recurrent: tokens at once before the others one by one
  Device device;
};

struct AttendReport {
  Shape output;               ///< [batch, heads, n, d_value]
  std::int64_t features = 0;  ///< m; 0 without features
  bool drew_directions = false;
  double forward_seconds = 0, backward_seconds = 0;
  /// The most that was allocated at once beyond the inputs: output, gradients, and whatever the attention needed on the
  /// way.
  std::int64_t peak_bytes = 0;
  ops::DenominatorReport denominators;
  bool denominators_told = false;  ///< whether the attention reports them
  std::vector<std::string> read;   ///< datasets of the input that were used
};

/// Reads, computes, writes; docs/file_formats.md has both files. Throws UserError, one line naming option or file,
/// dataset and shape; the output is whole or as it was before.
AttendReport attend(const AttendOptions& options);

}  // namespace furlong
