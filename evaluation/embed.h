#pragma once
// Vectors that a model gives for sequences: what furlong embed does.
#include <memory>

#include "evaluation/sequences/sequence_reader.h"
#include "framework/io/atomic_file.h"
#include "trainers/model/model.h"

namespace furlong {

struct EmbedOptions {
  /// mean: over the tokens of a sequence; class_token: the state of the token in front; last: of the last token; none:
  /// the states of all tokens.
  enum class Pooling : std::uint8_t { mean, class_token, last, none } pooling = Pooling::mean;
  std::int64_t layer = -1;           ///< after this many blocks, 0: the embeddings; negative: from the end, -1 the last
  bool normalize = false;            ///< scales each vector to length 1
  bool skip_special = false;         ///< mean, last and none leave out the frame ([CLS], [SEP], <document>)
  std::int64_t batch_tokens = 8192;  ///< of a batch, padding included; of a piece of a long sequence
  std::string model = {};            ///< its name, for the file's attributes
  std::function<void(std::uint64_t bytes, std::uint64_t sequences)> progress = {};
};

struct EmbedReport {
  ReadSummary read;
  std::int64_t width = 0, layer = 0;
};

/// Writes a vector of each sequence, or of each of its tokens, to `output` (EmbeddingFile). Decoders take sequences of
/// more than `batch_tokens` tokens in pieces, with the state of their attention in between. Throws UserError as
/// read_sequences, and for a layer or pooling that the model does not have; the output is then as it was before.
EmbedReport embed(Model& model, const SequenceInput& input, std::unique_ptr<AtomicFile> output,
                  const EmbedOptions& options);

}  // namespace furlong
