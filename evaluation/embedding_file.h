#pragma once
// Vectors of sequences, or of their tokens, into a file.
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "framework/io/atomic_file.h"

namespace furlong {

/// Writes vectors as they come; the file appears, whole, with finish().
class EmbeddingFile {
 public:
  virtual ~EmbeddingFile() = default;
  virtual void begin(const std::string& id) = 0;
  /// float32 [n, width]: one vector of a sequence, or those of its next tokens.
  virtual void rows(std::span<const float> values) = 0;
  virtual void end() = 0;
  virtual void finish() = 0;
};

struct EmbeddingFormat {
  std::int64_t width = 0;
  bool per_token = false;
  /// What the numbers are: model, pooling, layer and so on. Attributes in HDF5, which has no truth values: 0 or 1.
  std::vector<std::pair<std::string, std::variant<std::string, std::int64_t>>> attributes = {};
};

/// By the extension of `place`, to which it writes.
/// .h5, .hdf5: `embeddings` [sequences, width] and `ids` [sequences], UTF-8 of variable length. Per token `embeddings`
/// is [tokens, width], and `offsets` [sequences + 1] has where each sequence begins.
/// .npy: [sequences, width], without ids; not per token.
/// .tsv: a header, then a line for each vector: id, of tokens the position from 1, and the values.
/// Throws UserError for other extensions.
std::unique_ptr<EmbeddingFile> make_embedding_file(std::unique_ptr<AtomicFile> place, const EmbeddingFormat& format);

}  // namespace furlong
