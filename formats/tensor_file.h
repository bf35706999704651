#pragma once
// Checkpoints of other programs, read as named tensors: safetensors, PyTorch's pickles, GGUF. Nothing in such a file is
// trusted or executed: every size, offset and name is checked against the file before it is used, and a file that lies
// gives one UserError.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "framework/core/shape.h"

namespace furlong {

/// A tensor as a foreign file describes it. `shape` is row-major, [outer, ..., inner], in every format (GGUF's own
/// order is the reverse).
struct ForeignTensor {
  std::string name;
  Shape shape;
  std::string stored_type;  ///< in safetensors' words where it has one: "F32", "F16", "BF16", "F64", "I64", "BOOL";
                            ///< GGUF's quantised: "Q4_1"
};

/// One foreign checkpoint, in however many files. Opening reads the description alone; tensors are read when they are
/// asked for, by any number of threads at once. Every function throws UserError where the file is at fault and
/// MachineError where reading it fails.
class TensorFile {
 public:
  virtual ~TensorFile() = default;
  /// What was opened: the file, or the directory.
  virtual const std::string& path() const = 0;
  /// All tensors, sorted by name.
  virtual const std::vector<ForeignTensor>& tensors() const = 0;
  /// The tensor of that name; nullptr where there is none.
  const ForeignTensor* find(std::string_view name) const;
  /// Reads a whole tensor as float32, row-major: exact for F32, F16 and BF16, rounded to nearest for F64, dequantised
  /// for GGUF's quantised types. `values` holds exactly the tensor's elements (ContractError). Throws UserError where
  /// there is no such tensor, or where its type is one that is not read, or integers.
  virtual void read(const std::string& name, std::span<float> values) const = 0;
  /// Reads a whole tensor of integers or truth values (0 and 1). Throws UserError where there is no such tensor or it
  /// holds other values.
  virtual std::vector<std::int64_t> read_integers(const std::string& name) const = 0;
};

/// A .safetensors file, or a directory with model.safetensors, or with model.safetensors.index.json and the shards that
/// it names.
std::unique_ptr<TensorFile> open_safetensors(const std::filesystem::path& path);

/// What torch.save wrote of a state dict (zip archives since PyTorch 1.6, the older format too), or a directory with
/// pytorch_model.bin, or with pytorch_model.bin.index.json and the shards that it names. Of pickle only what state
/// dicts are made of is understood, nothing is executed.
std::unique_ptr<TensorFile> open_pytorch(const std::filesystem::path& path);

/// Picks the format by content: GGUF's magic, a zip archive or pickle (PyTorch), else safetensors. In a directory:
/// safetensors, before pytorch_model.bin, before a GGUF file where there is just one.
std::unique_ptr<TensorFile> open_tensor_file(const std::filesystem::path& path);

}  // namespace furlong
