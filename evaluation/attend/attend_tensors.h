#pragma once
// The HDF5 files of `furlong attend`: docs/file_formats.md has what they hold.
#include <string>
#include <vector>

#include "framework/io/hdf5.h"
#include "layers/attention/mechanism.h"

namespace furlong {

/// What an input file holds, checked: whatever shapes are here fit each other and the attention.
struct AttendTensors {
  Tensor query, key,
      value;        ///< [batch, n, n_heads·d], [batch, n_key, n_kv_heads·d], [batch, n_key, n_kv_heads·d_value]
  Tensor d_output;  ///< [batch, n, n_heads·d_value], where gradients are wanted
  std::int64_t batch = 0, n_heads = 0, n_kv_heads = 0, n = 0, n_key = 0, d = 0, d_value = 0;
  Tensor gate;  ///< windowed, where the file has it
  /// linformer: E and F in the shapes of the file; F undefined where the file has none, which means that it is E.
  Tensor key_projection, value_projection;
  std::int64_t projected_length = 0, max_length = 0;
  ops::LinearAttentionConstants constants;  ///< what the file has of them and the attention takes
  ops::AttentionMask mask;
  std::vector<std::string> read;  ///< the datasets used
};

/// Reads what the mechanism takes out of the file. query, key, value and d_output become `dtype`, constants float32
/// (float64 for float64). Throws UserError, one line with file, dataset, what was found and what was expected.
/// `pooled_length` is r of linformer's mean pooling, whose file holds no projections.
AttendTensors read_attend_tensors(const std::string& path, const layers::AttentionConfig& config, DType dtype,
                                  bool gradients, std::int64_t pooled_length, const Device& device);

/// Writes [batch, n, heads·width] as [batch, heads, n, width] in float32, or float64 where the tensor is float64.
void write_by_heads(hdf5::Group& file, const std::string& name, const Tensor& tensor, std::int64_t heads);
/// Writes any tensor in its own shape, likewise.
void write_as_it_is(hdf5::Group& file, const std::string& name, const Tensor& tensor);

}  // namespace furlong
