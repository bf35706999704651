#pragma once
// A sharded checkpoint: several ranks each write a part of the tensors to a shard. The checkpoint itself is written
// last. It names the shards, their checksums, and the dtype and shape of each whole tensor (docs/file_formats.md).
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace furlong {

/// Returns the shard path of `rank`: step_00000010.shard_1_of_4.h5 next to step_00000010.h5.
std::filesystem::path shard_path(const std::filesystem::path& checkpoint, int rank, int world_size);
/// Returns the step_<step> part of a shard's file name; nothing for other names.
std::optional<std::string> checkpoint_of_shard(const std::string& file_name);

/// Returns the name in a shard of a tensor's elements that start at element `first`:
/// "parameters/blocks.0.norm.weight@128".
std::string piece_name(const std::string& tensor, std::int64_t first);

/// The index of the shards, stored in the checkpoint's text "shards".
struct ShardIndex {
  struct File {
    std::string name;  ///< in the checkpoint's own folder
    std::uint64_t checksum = 0;
  };
  struct Whole {
    std::string dtype;
    std::vector<std::int64_t> shape;
  };
  std::vector<File> files;
  std::map<std::string, Whole> tensors;

  std::string to_json() const;
  /// Inverse of to_json(). Throws UserError that names `origin` if the text is invalid.
  static ShardIndex from_json(std::string_view text, const std::string& origin);
};

/// A part of a tensor and its location.
struct Piece {
  std::size_t file = 0;
  std::string name;
  std::int64_t first = 0, elements = 0;
};

/// Returns the pieces of each tensor of the index, in ascending order. `found` maps, for each file, tensor names to
/// element counts. Throws UserError that names `origin` if pieces are missing, overlap or exceed the tensor.
std::map<std::string, std::vector<Piece>> assemble(const ShardIndex& index,
                                                   const std::vector<std::map<std::string, std::int64_t>>& found,
                                                   const std::string& origin);

}  // namespace furlong
