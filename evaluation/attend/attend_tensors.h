#pragma once
// The HDF5 files of `furlong attend`. docs/file_formats.md describes them.
#include <string>
#include <vector>

#include "framework/io/hdf5.h"
#include "layers/attention/mechanism.h"

namespace furlong {

/// Content of an input file. All shapes are checked against each other and the attention.
struct AttendTensors {
  /// [batch, n, n_heads·d], [batch, n_key, n_kv_heads·d], [batch, n_key, n_kv_heads·d_value].
  Tensor query, key, value;
  Tensor d_output;  ///< [batch, n, n_heads·d_value]; undefined without gradients
  std::int64_t batch = 0, n_heads = 0, n_kv_heads = 0, n = 0, n_key = 0, d = 0, d_value = 0;
  Tensor gate;  ///< windowed; undefined if the file has none
  /// linformer: E and F in the shapes of the file. If the file has no F, it is undefined, and E is used for both.
  Tensor key_projection, value_projection;
  std::int64_t projected_length = 0, max_length = 0;
  ops::LinearAttentionConstants constants;  ///< those that the attention uses and the file has
  std::string projection_name;              ///< HDF5 dataset of the random projection; empty if the file has none
  ops::AttentionMask mask;
  std::vector<std::string> read;  ///< HDF5 datasets that were used
};

/// Reads the HDF5 datasets that the mechanism uses. Converts query, key, value and d_output to `dtype`, and constants
/// to float32 (float64 for float64). `pooled_length` is r of linformer's mean pooling, which has no projections. Throws
/// UserError that names file and HDF5 dataset, with the found and the expected shape or type.
AttendTensors read_attend_tensors(const std::string& path, const layers::AttentionConfig& config, DType dtype,
                                  bool gradients, std::int64_t pooled_length, const Device& device);

/// Writes [batch, n, heads·width] as [batch, heads, n, width] in float32, or in float64 if the tensor is float64.
void write_by_heads(hdf5::Group& file, const std::string& name, const Tensor& tensor, std::int64_t heads);
/// Writes a tensor in its own shape, in the same types.
void write_unchanged(hdf5::Group& file, const std::string& name, const Tensor& tensor);

}  // namespace furlong
