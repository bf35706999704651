#pragma once
// From tokens back to text: the "decoder" of a tokenizer.json.
#include <memory>
#include <string>
#include <vector>

#include "datasets/tokenizers/json_view.h"
#include "datasets/tokenizers/text_growth.h"

namespace furlong {

/// A row of steps over the tokens of a text, whose results are joined. Those read are ByteFallback,
/// ByteLevel, Fuse, Metaspace, Replace, Sequence, Strip and WordPiece; without any, tokens are joined with spaces.
class TokenDecoder {
 public:
  TokenDecoder() = default;
  /// Throws UserError naming what is not supported.
  explicit TokenDecoder(const JsonView& json);

  /// Throws UserError where the text grows beyond TextGrowth.
  std::string decode(std::vector<std::string> tokens) const;

  class Step {
   public:
    virtual ~Step() = default;
    /// One that may make much more of a token checks all of them together on the way.
    virtual std::vector<std::string> apply(std::vector<std::string> tokens, const TextGrowth& growth) const = 0;
  };

 private:
  void add(const JsonView& json);
  std::string name_;
  std::vector<std::shared_ptr<const Step>> steps_;
};

}  // namespace furlong
