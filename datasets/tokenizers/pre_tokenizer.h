#pragma once
// How a tokenizer cuts text into the pieces that its model looks at one by one: the "pre_tokenizer" of a
// tokenizer.json.
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "datasets/tokenizers/json_view.h"

namespace furlong {

/// A part of the text; `at_start`: nothing of the text stands before it, which some models mark.
struct TextPiece {
  std::string_view text;
  bool at_start;
};

using PieceSink = std::function<void(TextPiece)>;

/// A row of steps, each cutting the pieces of the one before. Those read are BertPreTokenizer, ByteLevel, Digits,
/// Metaspace, Punctuation, Sequence, Split, Whitespace and WhitespaceSplit. Pieces are handed on as they are found, so
/// that memory does not grow with the text.
class PreTokenizer {
 public:
  PreTokenizer() = default;
  /// Throws UserError naming what is not supported.
  explicit PreTokenizer(const JsonView& json);

  /// Hands the pieces of valid UTF-8 to `sink`, in order; none is empty, and each is valid only during its call.
  void split(TextPiece piece, const PieceSink& sink) const { run(0, piece, sink); }
  /// Whether it ends in ByteLevel: the model's letters are bytes.
  bool byte_level() const { return byte_level_; }

  class Step {
   public:
    virtual ~Step() = default;
    virtual void split(TextPiece piece, const PieceSink& sink) const = 0;
  };

 private:
  void add(const JsonView& json);
  void run(std::size_t step, TextPiece piece, const PieceSink& sink) const;
  std::vector<std::shared_ptr<const Step>> steps_;
  bool byte_level_ = false;
};

/// What GPT-2 (Radford et al. 2019; its released code) splits text with before byte pairs are merged.
extern const std::string_view gpt2_pattern;

}  // namespace furlong
