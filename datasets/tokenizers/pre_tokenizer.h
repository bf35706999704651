#pragma once
// Splits text into the pieces that the model encodes separately: the "pre_tokenizer" of a tokenizer.json.
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "datasets/tokenizers/json_view.h"

namespace furlong {

/// A part of the text.
struct TextPiece {
  std::string_view text;
  bool at_start;         ///< no text precedes it, which some models mark
  bool in_word = false;  ///< bytes that are not UTF-8 precede it, so it begins no word
};

/// Receives the pieces.
using PieceSink = std::function<void(TextPiece)>;

/// A sequence of steps, each splitting the pieces of the previous one. Supported types: BertPreTokenizer, ByteLevel,
/// Digits, Metaspace, Punctuation, Sequence, Split, Whitespace and WhitespaceSplit. Pieces are passed on as they are
/// found, so memory does not grow with the text.
class PreTokenizer {
 public:
  PreTokenizer() = default;
  /// Throws UserError, naming the type, if a step is not supported.
  explicit PreTokenizer(const JsonView& json);

  /// Splits valid UTF-8 and passes the pieces to `sink`, in order. No piece is empty; each is valid only during its
  /// call. Throws UserError if the pieces of a step have more bytes than TextGrowth allows.
  void split(TextPiece piece, const PieceSink& sink) const;
  /// Whether the last step is ByteLevel: the model's letters are bytes.
  bool byte_level() const { return byte_level_; }

  class Step {
   public:
    virtual ~Step() = default;
    virtual void split(TextPiece piece, const PieceSink& sink) const = 0;
  };

 private:
  struct Pass;
  void add(const JsonView& json);
  void run(std::size_t step, TextPiece piece, Pass& pass) const;
  std::string name_;
  std::vector<std::shared_ptr<const Step>> steps_;
  bool byte_level_ = false;
};

/// The expression with which GPT-2 splits text before merging byte pairs (Radford et al. 2019; its released code).
extern const std::string_view gpt2_pattern;

}  // namespace furlong
