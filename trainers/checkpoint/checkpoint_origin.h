#pragma once
// The origin of an imported model: metadata, tokenizer files and unused tensors. Training never changes them; an export
// returns them.
#include <optional>
#include <string>
#include <vector>

#include "framework/io/checkpoint_file.h"

namespace furlong {

/// What an imported model's checkpoint keeps of its source.
struct CheckpointOrigin {
  /// A source tensor that Furlong does not compute with (a pooler, a buffer), under its name in the source.
  struct Tensor {
    std::string name, dtype;
    std::vector<std::int64_t> shape;
    std::vector<std::byte> data;
  };
  std::string json;                ///< text `origin` (docs/file_formats.md)
  std::vector<std::string> files;  ///< texts `origin_files/0`, ...: the tokenizer's files; `json` has their names
  std::vector<Tensor> carried;     ///< tensors `carried/NAME`

  /// Returns the origin stored in `checkpoint`, or nullopt if its model was not imported.
  static std::optional<CheckpointOrigin> read(const CheckpointReader& checkpoint);
  /// Writes the origin in the layout that read() expects.
  void write(CheckpointSink& checkpoint) const;
};

}  // namespace furlong
