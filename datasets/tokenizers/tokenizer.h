#pragma once
// Text as the token ids of somebody else's model: the tokenizers that published checkpoints come with, read from the
// files beside them.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace furlong {

/// Ids of the tokens that stand for no text. Whether a tokenizer has one is the business of its files.
struct SpecialTokens {
  std::optional<std::int32_t> unknown, beginning, end, padding, mask, classify, separator;
  friend bool operator==(const SpecialTokens&, const SpecialTokens&) = default;
};

/// What a special token's spelling ("<|endoftext|>", "[MASK]") in the text is: text as any other, or that token. Text
/// from outside is never trusted to speak for the model, so the first is the default.
enum class SpecialSpelling { is_text, is_token };

/// Text to ids and back, giving exactly the ids that the model was trained on. Const calls may come from several
/// threads at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// "bpe", "wordpiece", "sentencepiece" or "letters".
  virtual std::string_view kind() const = 0;
  /// Number of ids, added tokens included: ids are 0 to size() - 1, though some may belong to no token.
  virtual std::int32_t size() const = 0;
  /// The ids of the text alone: no token is put around it (see framed()). Text need not be valid UTF-8; a byte that is
  /// not is read as U+FFFD where the tokenizer works on characters.
  virtual std::vector<std::int32_t> encode(std::string_view text, SpecialSpelling special) const = 0;
  std::vector<std::int32_t> encode(std::string_view text) const { return encode(text, SpecialSpelling::is_text); }
  /// The text of the ids. The exact inverse of encode() for byte-level BPE without a normalizer whose vocabulary has
  /// all bytes (bytes that it lacks are left out, as in the reference); the usual joining for the others, which do not
  /// keep the text's spacing or case. Special tokens are written as they are spelled. Throws ContractError on an id
  /// outside 0 to size() - 1.
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
  /// The token as its vocabulary spells it ("Ġthe", "##ing", "▁the"); empty for an id without one. Throws ContractError
  /// on an id outside.
  virtual std::string token(std::int32_t id) const = 0;
  /// The id of a token spelled as token() spells it.
  virtual std::optional<std::int32_t> find(std::string_view token) const = 0;
  const SpecialTokens& special() const { return special_; }
  /// A whole document as the model wants it: [CLS] ids [SEP] for BERT and its kin, the beginning token in front for
  /// Llama's, the ids alone for GPT-2's.
  std::vector<std::int32_t> framed(std::span<const std::int32_t> ids) const;
  /// Everything needed to have the same tokenizer again: tokenizer_from_json() reads it. One object: "kind", "special",
  /// and one of "tokenizer" (as a tokenizer.json holds it), "sentencepiece" (a serialised model in base64) and
  /// "letters" (tokens in order of id).
  virtual std::string to_json() const = 0;

 protected:
  SpecialTokens special_;
  std::vector<std::int32_t> frame_front_, frame_back_;
};

/// Reads the tokenizer of a model's directory, or one file: tokenizer.json; vocab.json with merges.txt beside it;
/// vocab.txt (with tokenizer_config.json, if there); a SentencePiece model (*.model); GGUF. In a directory, the first
/// of these that is there. Throws UserError naming the file, and the part of it, that is missing, damaged, or of a kind
/// that would not give the model's own ids here.
std::shared_ptr<const Tokenizer> load_tokenizer(const std::filesystem::path& directory_or_file);

/// What to_json() wrote. Throws UserError, beginning with `origin` (the file it came from), for anything else.
std::shared_ptr<const Tokenizer> tokenizer_from_json(std::string_view json, std::string_view origin);

}  // namespace furlong
