#pragma once
// A checkpoint whose tensors several processes wrote, each a part: the checkpoint itself, written last, names the other
// files and their checksums, and what the whole tensors are (docs/file_formats.md).
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace furlong {

/// Where the part of `rank` belongs: step_00000010.shard_1_of_4.h5 beside step_00000010.h5.
std::filesystem::path shard_path(const std::filesystem::path& checkpoint, int rank, int processes);
/// The step_<step> in the name of such a file; nothing for other names.
std::optional<std::string> checkpoint_of_shard(const std::string& file_name);

/// A shard's name for the elements of a tensor from `first` on: "parameters/blocks.0.norm.weight@128".
std::string piece_name(const std::string& tensor, std::int64_t first);

/// What the checkpoint says of its shards, in the text "shards".
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
  /// Throws UserError, naming `origin`, where it is nothing that to_json() wrote.
  static ShardIndex from_json(std::string_view text, const std::string& origin);
};

/// A part of a tensor, and where it lies.
struct Piece {
  std::size_t file = 0;
  std::string name;
  std::int64_t first = 0, elements = 0;
};

/// Which pieces each of the index's tensors is made of, ascending. `found`: of each file the names of its tensors and
/// their elements. Throws UserError, naming `origin`, where pieces are missing, overlap or go beyond.
std::map<std::string, std::vector<Piece>> assemble(const ShardIndex& index,
                                                   const std::vector<std::map<std::string, std::int64_t>>& found,
                                                   const std::string& origin);

}  // namespace furlong
