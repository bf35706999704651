#pragma once
// Writes a .safetensors file, tensor by tensor.
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/tensor_file.h"
#include "framework/io/atomic_file.h"

namespace furlong {

/// Writes a safetensors file to a partial file; finish() renames the complete file to its final name. Tensors are
/// declared first because the header precedes them; their values may then come in any order. Layout and padding equal
/// the reference library's: wide element types first, then by name.
/// Throws UserError or MachineError as AtomicFile does. Throws ContractError for a duplicate name, an unsupported type,
/// a tensor that is undeclared or has another size, and a tensor that is written twice or never. Without finish() no
/// file is created.
class SafetensorsWriter {
 public:
  /// Declares the tensors. `stored_type` is F32, F16 or BF16, or for write_integers I64, I32, I16, I8, U8 or BOOL.
  /// `overwrite` as in AtomicFile.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<ForeignTensor> tensors, bool overwrite = true,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

  /// Writes all values of a tensor, row-major; rounds to nearest even for F16 and BF16.
  void write(std::string_view name, std::span<const float> values);
  /// Writes all values of an integer tensor. Each must fit the type (ContractError).
  void write_integers(std::string_view name, std::span<const std::int64_t> values);
  /// Flushes the file to disk in advance, so that little in finish() can fail.
  void flush() { file_.flush(); }
  /// Flushes the file and renames it to its final name.
  void finish();

 private:
  struct Slot {
    ForeignTensor tensor;
    std::uint64_t offset = 0;  ///< from the start of the file
    bool written = false;
  };
  /// Returns the slot of a declared, unwritten tensor with `n_values` values.
  Slot& claim(std::string_view name, std::size_t n_values);

  AtomicFile file_;
  std::map<std::string, Slot, std::less<>> slots_;
};

}  // namespace furlong
