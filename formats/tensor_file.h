#pragma once
// Reads checkpoints of other programs as named tensors: safetensors, PyTorch pickles, GGUF. Nothing in such a file is
// trusted or executed. Every size, offset and name is validated before use; an invalid file gives one UserError.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "framework/core/shape.h"

namespace furlong {

/// A tensor in a foreign file. `shape` is row-major, [outer, ..., inner], in every format (GGUF's own order is the
/// reverse).
struct ForeignTensor {
  std::string name;
  Shape shape;
  /// The type's safetensors name if it has one ("F32", "F16", "BF16", "F64", "I64", "BOOL"), else its GGUF name
  /// ("Q4_1").
  std::string stored_type;
};

/// A foreign checkpoint in one or more files. Opening reads only the headers. Tensors are read on request, by any
/// number of threads at once. Every function throws UserError if the file is invalid and MachineError if reading fails.
class TensorFile {
 public:
  virtual ~TensorFile() = default;
  /// Returns the opened file or directory.
  virtual const std::string& path() const = 0;
  /// Returns all tensors, sorted by name.
  virtual const std::vector<ForeignTensor>& tensors() const = 0;
  /// Returns the tensor with this name; nullptr if there is none.
  const ForeignTensor* find(std::string_view name) const;
  /// Reads a whole tensor as float32, row-major. Exact for F32, F16 and BF16; F64 is rounded to nearest; GGUF's
  /// quantized types are dequantized. `values.size()` must equal the tensor's elements (ContractError). Throws
  /// UserError if the tensor does not exist, or if its type is unsupported or an integer type.
  virtual void read(const std::string& name, std::span<float> values) const = 0;
  /// Reads a whole tensor of integers or booleans (0 and 1). Throws UserError if the tensor does not exist or has
  /// another type.
  virtual std::vector<std::int64_t> read_integers(const std::string& name) const = 0;
};

/// Opens a .safetensors file, or a directory with model.safetensors or with model.safetensors.index.json and its
/// shards.
std::unique_ptr<TensorFile> open_safetensors(const std::filesystem::path& path);

/// Opens a state dict written by torch.save (the zip format since PyTorch 1.6 or the legacy format), or a directory
/// with pytorch_model.bin or with pytorch_model.bin.index.json and its shards. Only the pickle subset of state dicts is
/// supported; nothing is executed.
std::unique_ptr<TensorFile> open_pytorch(const std::filesystem::path& path);

/// Opens a file by content: GGUF's magic, a zip archive or pickle (PyTorch), else safetensors. In a directory,
/// safetensors takes precedence over pytorch_model.bin, and that over a single GGUF file.
std::unique_ptr<TensorFile> open_tensor_file(const std::filesystem::path& path);

}  // namespace furlong
