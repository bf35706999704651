#pragma once
// What an imported model brings along that no training touches: where it came from, and what somebody else's program
// will want back.
#include <optional>
#include <string>
#include <vector>

#include "framework/io/checkpoint_file.h"

namespace furlong {

struct CheckpointOrigin {
  /// A tensor of the source that is not computed with, under its own name: poolers, buffers.
  struct Tensor {
    std::string name, dtype;
    std::vector<std::int64_t> shape;
    std::vector<std::byte> data;
  };
  std::string json;                ///< text `origin` (docs/file_formats.md)
  std::vector<std::string> files;  ///< texts `origin_files/0`, ...: the tokenizer's files, whose names are in `json`
  std::vector<Tensor> carried;     ///< tensors `carried/NAME`

  /// Nothing where the checkpoint's model came from nowhere else.
  static std::optional<CheckpointOrigin> read(const CheckpointReader& checkpoint);
  void write(CheckpointSink& checkpoint) const;
};

}  // namespace furlong
