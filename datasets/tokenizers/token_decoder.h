#pragma once
// Decodes tokens to text: the "decoder" of a tokenizer.json.
#include <memory>
#include <string>
#include <vector>

#include "datasets/tokenizers/json_view.h"
#include "datasets/tokenizers/text_growth.h"

namespace furlong {

/// A sequence of steps over the tokens of a text; the results are joined. Supported types: ByteFallback, ByteLevel,
/// Fuse, Metaspace, Replace, Sequence, Strip and WordPiece. Without any step, tokens are joined with spaces.
class TokenDecoder {
 public:
  TokenDecoder() = default;
  /// Throws UserError, naming the type, if a step is not supported.
  explicit TokenDecoder(const JsonView& json);

  /// Returns the text of the tokens. Throws UserError if it grows beyond the limit of TextGrowth.
  std::string decode(std::vector<std::string> tokens) const;
  /// Whether each token is decoded on its own, whatever its neighbors are.
  bool decodes_each_token() const;

  /// One step; maps tokens to tokens. Const calls are thread-safe.
  class Step {
   public:
    virtual ~Step() = default;
    /// A step that can multiply the length of a token checks `growth` with the total length while it runs.
    virtual std::vector<std::string> apply(std::vector<std::string> tokens, const TextGrowth& growth) const = 0;
    /// Whether it changes each token on its own.
    virtual bool ignores_neighbors() const { return false; }
  };

 private:
  void add(const JsonView& json);
  std::string name_;
  std::vector<std::shared_ptr<const Step>> steps_;
};

}  // namespace furlong
