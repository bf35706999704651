#pragma once
// The meaning of token ids.
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "datasets/tokenizers/tokenizer.h"

namespace furlong {

/// Maps a number that documents have as their label to the output of a model: (number - mean) / scale.
struct LabelScale {
  double mean = 0, scale = 1;
};

/// A list of symbols; the token id is the index in the list. The letters of DNA, RNA and protein are the IUPAC codes
/// (doi:10.1093/nar/13.9.3021, doi:10.1351/pac198456050595), in upper or lower case. Symbols of `bytes` are the bytes
/// themselves; those of a tokenizer are its tokens. All datasets of a kind (or of a tokenizer) have the same ids.
/// Checkpoints contain the vocabulary as JSON.
class Vocabulary {
 public:
  enum class Kind { bytes, dna, rna, protein, copy, tokenizer };

  /// The token that ends each document. In every vocabulary that has it, it follows the data symbols.
  static constexpr std::string_view document_symbol = "<document>";
  /// Tokens that only encoders have, after all others: the one that replaces a masked token, and the one that
  /// represents a whole document.
  static constexpr std::string_view mask_symbol = "<mask>", class_symbol = "<class>";

  /// 256 bytes, then the document token if `with_documents`.
  static Vocabulary bytes(bool with_documents);
  /// A C G T, then R Y S W K M B D H V N, then the document token: 16.
  static Vocabulary dna();
  /// The same with U instead of T.
  static Vocabulary rna();
  /// Twenty amino acids, then X B Z J U O * -, then the document token: 29.
  static Vocabulary protein();
  /// The vocabulary of the copy task (datasets/tasks/copy_task.h): `n_symbols` of 0-9, A-Z and a-z, then the marker "<"
  /// and the separator "=". `n_symbols` is 1 to 62.
  static Vocabulary copy(std::int64_t n_symbols);
  static constexpr std::int64_t max_copy_symbols = 62;
  /// Returns the vocabulary "dna", "rna" or "protein". Throws UserError for any other name.
  static Vocabulary alphabet(std::string_view name);
  /// The tokens of a tokenizer, with its ids.
  static Vocabulary of_tokenizer(std::shared_ptr<const Tokenizer> tokenizer);

  /// Returns this vocabulary with <mask> and <class> at the end. Both are added whatever the encoder's objective is, so
  /// that a masked language model can continue as a classifier. A tokenizer's own mask and classify tokens are used;
  /// only missing ones are added.
  Vocabulary with_encoder_tokens() const;
  /// Returns this vocabulary with names of the document labels 0, 1, ..., and scales if they are numbers
  /// (LabelKind::numbers).
  Vocabulary with_labels(std::vector<std::string> names, std::vector<LabelScale> scales = {}) const;
  /// Returns this vocabulary with the mark that ends_documents() returns.
  Vocabulary with_ended_documents() const;

  /// Returns {"kind": "dna", "symbols": ["A", ...]}, with "labels": [...], "label_scales": [[mean, scale], ...] and
  /// "ends_documents": true if there are any. The symbols of `bytes` are "0x00" to "0xff". With a tokenizer: {"kind":
  /// "tokenizer", "symbols": [tokens added for encoders], "tokenizer": {Tokenizer::to_json()}}.
  std::string to_json() const;
  /// Reads what to_json() writes. Throws UserError, starting with `origin` (the file it came from), for anything else.
  static Vocabulary from_json(std::string_view json, std::string_view origin);

  Kind kind() const { return kind_; }
  /// Returns "bytes", "dna", "rna", "protein", "copy" or "tokenizer".
  std::string_view kind_name() const;
  /// Returns the kind, for messages. With a tokenizer, also its kind, size and hash: "bpe tokenizer of 49152 tokens,
  /// 0f3c90a1".
  std::string description() const;
  std::int32_t size() const { return tokenizer_size_ + static_cast<std::int32_t>(symbols_.size()); }
  /// Returns the symbol of an id. With a tokenizer: see Tokenizer::token().
  std::string symbol(std::int32_t id) const;
  /// Returns the tokenizer, or null for other kinds.
  const std::shared_ptr<const Tokenizer>& tokenizer() const { return tokenizer_; }

  /// Returns the id of a symbol. A byte may also be given as itself ("\n"), a letter of an alphabet in either case.
  /// Throws UserError with the known symbols if there is no such symbol.
  std::int32_t id_of(std::string_view symbol) const;
  /// Returns the id of one input byte, or -1 if it has none. Always -1 with a tokenizer.
  std::int32_t id_of_byte(unsigned char byte) const { return byte_ids_[byte]; }
  /// Returns the document token, if the vocabulary has one. With a tokenizer: the last special token that it puts after
  /// a document (the post_processor of a tokenizer.json), else its end token, else its separator token.
  std::optional<std::int32_t> document_id() const;
  /// Returns <mask> and <class> if the vocabulary has encoder tokens; with a tokenizer, its mask and classify tokens.
  std::optional<std::int32_t> mask_id() const;
  std::optional<std::int32_t> class_id() const;
  /// Whether the token is data: not <document>, <mask>, <class>, or a special token of the tokenizer.
  bool is_data_symbol(std::int32_t id) const;
  /// Returns the number of data symbols. Without a tokenizer their ids start at 0.
  std::int32_t n_data_symbols() const { return n_data_symbols_; }
  /// Returns the names of the document labels; empty if there are none.
  const std::vector<std::string>& labels() const { return labels_; }
  /// Returns one scale for each label if labels are numbers; otherwise empty. Ignored by comparisons: a model keeps the
  /// scales of its training data.
  const std::vector<LabelScale>& label_scales() const { return label_scales_; }
  /// Whether the model of this vocabulary was trained with document_id() after each sequence, although its tokenizer
  /// does not put it there. Exported models say so, whose settings name no data. Ignored by comparisons.
  bool ends_documents() const { return ends_documents_; }
  /// Returns the id that unknown letters can be read as: N for DNA and RNA, X for protein, the unknown token of a
  /// tokenizer.
  std::optional<std::int32_t> unknown_id() const;
  /// Whether the symbol stands for more than one base or residue (R Y S W K M B D H V N; X B Z J).
  bool is_ambiguous(std::int32_t id) const;

  /// Encodes text. In alphabets, "<document>" is the document token and whitespace is ignored. Throws UserError with
  /// letter and position if a letter is unknown. A tokenizer adds no special tokens around the text, and treats special
  /// tokens in the text as plain text.
  std::vector<std::int32_t> encode(std::string_view text) const;
  /// Encodes text as the start of a document that a model continues. With a tokenizer, the tokens that it puts before a
  /// document come first, unless the text starts with them (is_token). `special` selects how special tokens in the text
  /// are read. Throws UserError for is_token if the vocabulary has no tokenizer.
  std::vector<std::int32_t> encode_prompt(std::string_view text,
                                          SpecialTokenMode special = SpecialTokenMode::as_text) const;
  /// Returns a warning if a tokenizer encodes the spaces at the end of a prompt as tokens of their own, otherwise "".
  /// In the training data such spaces are part of the next word's token, so a model continues the prompt badly.
  std::string prompt_warning(std::string_view prompt) const;
  /// Returns the special tokens that a tokenizer puts before and after a document, such as [CLS] and [SEP] (the
  /// post_processor of a tokenizer.json); empty without a tokenizer.
  const std::vector<std::int32_t>& frame_front() const { return frame_front_; }
  const std::vector<std::int32_t>& frame_back() const { return frame_back_; }
  /// Decodes ids to text. Throws ContractError if an id is outside the vocabulary.
  std::string decode(std::span<const std::int32_t> ids) const;

  /// Tokenizers are equal if their contents are (128-bit XXH3 of their JSON).
  friend bool operator==(const Vocabulary& a, const Vocabulary& b) {
    return a.kind_ == b.kind_ && a.tokenizer_hash_ == b.tokenizer_hash_ && a.symbols_ == b.symbols_ &&
           a.labels_ == b.labels_;
  }

 private:
  Vocabulary(Kind kind, std::string_view letters, bool with_documents);
  explicit Vocabulary(std::shared_ptr<const Tokenizer> tokenizer);
  void find_frame();
  /// All one-letter symbols, in order.
  std::string letters(std::string_view separator) const;

  Kind kind_;
  // symbols_ excludes a tokenizer's own tokens
  std::vector<std::string> symbols_, labels_;
  std::vector<LabelScale> label_scales_;
  std::int32_t n_data_symbols_ = 0;
  std::array<std::int32_t, 256> byte_ids_{};
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::int32_t tokenizer_size_ = 0;
  bool ends_documents_ = false;
  std::string tokenizer_hash_;
  std::vector<std::int32_t> special_ids_, frame_front_, frame_back_;
};

/// Returns what to add to the error that a dataset's vocabulary differs from a model's: "; " and the tokens that only
/// one of two vocabularies with the same description has, or what to do if one was read by an earlier version, which
/// read Unigram models of a tokenizer.json as SentencePiece; otherwise "".
std::string difference_hint(const Vocabulary& data, const Vocabulary& model);

}  // namespace furlong
