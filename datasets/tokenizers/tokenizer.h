#pragma once
// The tokenizers of published models, read from the files that come with a checkpoint.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace furlong {

/// Ids of the tokens that stand for no text. A tokenizer need not have all of them.
struct SpecialTokens {
  std::optional<std::int32_t> unknown, beginning, end, padding, mask, classify, separator;
  friend bool operator==(const SpecialTokens&, const SpecialTokens&) = default;
};

/// How a special token in the text ("<|endoftext|>", "[MASK]") is read: as plain text, or as that token. Untrusted text
/// must not inject special tokens, so is_text is the default.
enum class SpecialTokenMode { as_text, as_token };

/// Maps text to exactly the ids that the model was trained on, and back. Const calls are thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// Returns "bpe", "unigram", "wordpiece", "sentencepiece" or "letters".
  virtual std::string_view kind() const = 0;
  /// Returns the number of ids, added tokens included. Ids are 0 to size() - 1; some may have no token.
  virtual std::int32_t size() const = 0;
  /// Returns the ids of the text alone, without special tokens around it (see framed()). The text need not be valid
  /// UTF-8: tokenizers that work on characters read an invalid byte as U+FFFD.
  virtual std::vector<std::int32_t> encode(std::string_view text, SpecialTokenMode special) const = 0;
  /// The same with special tokens read as plain text.
  std::vector<std::int32_t> encode(std::string_view text) const { return encode(text, SpecialTokenMode::as_text); }
  /// Returns the number of characters of the text that become no token because the vocabulary lacks them and has no
  /// unknown token (BPE), or because they match no pattern of the tokenizer and are no whitespace (SMILES).
  virtual std::uint64_t count_ignored(std::string_view /*text*/) const { return 0; }
  /// Whether bytes that are not UTF-8 become tokens of their own, rather than U+FFFD.
  virtual bool keeps_invalid_bytes() const { return false; }
  /// Returns the text of the ids. For byte-level BPE without a normalizer this is the exact inverse of encode(), if the
  /// vocabulary has all bytes; as in the reference implementation, encode() skips missing bytes. Other tokenizers do
  /// not restore spacing or case. Special tokens appear by name. Throws ContractError if an id is outside of 0 to
  /// size() - 1.
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
  /// Whether the text of a sequence is the concatenation of the texts of its tokens, as with byte-level BPE.
  virtual bool decodes_each_token() const { return false; }
  /// Returns the token as the vocabulary writes it ("Ġthe", "##ing", "▁the"), or an empty string for an id without a
  /// token. Throws ContractError if the id is not in 0 to size() - 1.
  virtual std::string token(std::int32_t id) const = 0;
  /// Returns the number of bytes of text that a token stands for, of the text as normalized (NFC, for example); nothing
  /// if that depends on its neighbors, or if the tokenizer adds to a text or drops parts of it, such as spaces.
  virtual std::optional<std::size_t> text_bytes(std::int32_t /*id*/) const { return std::nullopt; }
  /// Returns the id of a token, written as token() returns it, or nullopt if there is none.
  virtual std::optional<std::int32_t> find(std::string_view token) const = 0;
  /// Returns the special tokens.
  const SpecialTokens& special() const { return special_; }
  /// Returns a whole document with the special tokens around it: [CLS] ids [SEP] for BERT-like models, a beginning
  /// token before the ids for Llama, only the ids for GPT-2.
  std::vector<std::int32_t> framed(std::span<const std::int32_t> ids) const;
  /// Returns the complete tokenizer as one JSON object, which tokenizer_from_json() reads. Its keys are "kind",
  /// "special", and one of "tokenizer" (a tokenizer.json document), "sentencepiece" (a serialized model in base64) and
  /// "letters" (tokens by id).
  virtual std::string to_json() const = 0;

 protected:
  SpecialTokens special_;
  std::vector<std::int32_t> frame_front_, frame_back_;
};

/// Reads a tokenizer from one file or a model's directory: tokenizer.json; vocab.json with merges.txt; vocab.txt (with
/// tokenizer_config.json, if it exists); a SentencePiece model (*.model); GGUF. In a directory, the tokenizer of
/// furlong_vocabulary.json is read, or the first existing file of this list. Throws UserError, naming the file and the
/// part of it, if anything is missing, damaged, or of a kind that would not produce the model's own ids.
std::shared_ptr<const Tokenizer> load_tokenizer(const std::filesystem::path& directory_or_file);

/// Reads what to_json() writes. Throws UserError, starting with `origin` (the file it came from), for anything else.
std::shared_ptr<const Tokenizer> tokenizer_from_json(std::string_view json, std::string_view origin);

}  // namespace furlong
