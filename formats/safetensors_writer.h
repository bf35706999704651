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

/// Writes a safetensors file beside its place; finish() makes it appear, whole. The tensors are declared first, for the
/// header stands before them; their values may then come in any order. Layout and padding are those of the reference
/// library: elements of wide types first, then by name. Throws UserError or MachineError as AtomicFile does,
/// ContractError for a name used twice, a type that is not written, a tensor that was not declared, of another size, or
/// written twice or never. Without finish() no file appears.
class SafetensorsWriter {
 public:
  /// `stored_type` of each: F32, F16 or BF16, and for write_integers I64, I32, I16, I8, U8 or BOOL.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<ForeignTensor> tensors,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

  /// All values of a tensor, row-major; rounded to nearest even where the type is F16 or BF16.
  void write(std::string_view name, std::span<const float> values);
  /// All values of a tensor of integers, each within the type (ContractError).
  void write_integers(std::string_view name, std::span<const std::int64_t> values);
  /// Flushes the file to disk, so that little is left in finish() that can fail.
  void flush() { file_.flush(); }
  /// Flushes the file and renames it to its place.
  void finish();

 private:
  struct Slot {
    ForeignTensor tensor;
    std::uint64_t offset = 0;  ///< from the beginning of the file
    bool written = false;
  };
  /// The slot of a tensor that is due to be written with so many values.
  Slot& claim(std::string_view name, std::size_t n_values);

  AtomicFile file_;
  std::map<std::string, Slot, std::less<>> slots_;
};

}  // namespace furlong
