#pragma once
// What the numbers in a token store stand for.
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

/// A list of symbols, token id = place in the list. Letters of the DNA, RNA and protein alphabets are the IUPAC ones
/// (doi:10.1093/nar/13.9.3021, doi:10.1351/pac198456050595), read in either case; bytes are themselves; a tokenizer's
/// are those of the model that it came with. Ids are the same in every store of a kind (of a tokenizer), and go with
/// the model into its checkpoints as JSON.
class Vocabulary {
 public:
  enum class Kind { bytes, dna, rna, protein, copy, tokenizer };

  /// The token that ends each document, behind the symbols of the data in every vocabulary that has it.
  static constexpr std::string_view document_symbol = "<document>";
  /// Tokens that only encoders have, behind all others: what a hidden token is shown as, and one that stands for a
  /// whole document.
  static constexpr std::string_view mask_symbol = "<mask>", class_symbol = "<class>";

  /// 256 bytes, and the document token when `with_documents`.
  static Vocabulary bytes(bool with_documents);
  /// A C G T, then R Y S W K M B D H V N, then the document token: 16.
  static Vocabulary dna();
  /// The same with U in place of T.
  static Vocabulary rna();
  /// Twenty amino acids, then X B Z J U O * -, then the document token: 29.
  static Vocabulary protein();
  /// Of the copy task (datasets/tasks/copy_task.h): `n_symbols` of 0-9, A-Z and a-z, then the marker "<" and the
  /// separator "=". 1 to 62 symbols.
  static Vocabulary copy(std::int64_t n_symbols);
  static constexpr std::int64_t most_copy_symbols = 62;
  /// "dna", "rna" or "protein". Throws UserError on another name.
  static Vocabulary alphabet(std::string_view name);
  /// The tokens of a tokenizer, ids as it has them.
  static Vocabulary of_tokenizer(std::shared_ptr<const Tokenizer> tokenizer);

  /// The same with <mask> and <class> at the end; itself when it has them. Both are there whatever an encoder learns,
  /// so that one that has learned to fill in tokens can go on to classify. A tokenizer's own mask and classify tokens
  /// are those; only what it lacks is added.
  Vocabulary with_encoder_tokens() const;
  /// The same with names for the labels 0, 1, ... of documents.
  Vocabulary with_labels(std::vector<std::string> names) const;

  /// {"kind": "dna", "symbols": ["A", ...]} and, where there are any, "labels": [...]; a byte's symbol is "0x00" to
  /// "0xff". Of a tokenizer:
  /// {"kind": "tokenizer", "symbols": [what encoders have besides], "tokenizer": {Tokenizer::to_json()}}.
  std::string to_json() const;
  /// Throws UserError, beginning with `origin` (the file it came from), for anything but what to_json() writes.
  static Vocabulary from_json(std::string_view json, std::string_view origin);

  Kind kind() const { return kind_; }
  /// "bytes", "dna", "rna", "protein", "copy", "tokenizer".
  std::string_view kind_name() const;
  /// For messages: the kind; of a tokenizer also which: "bpe tokenizer of 49152 tokens, 0f3c90a1".
  std::string description() const;
  std::int32_t size() const { return tokenizer_size_ + static_cast<std::int32_t>(symbols_.size()); }
  /// As the vocabulary spells it; of a tokenizer see Tokenizer::token.
  std::string symbol(std::int32_t id) const;
  /// Null in the vocabularies of other kinds.
  const std::shared_ptr<const Tokenizer>& tokenizer() const { return tokenizer_; }

  /// The id of a symbol; a byte may also be given as itself ("\n"), a letter of an alphabet in either case. Throws
  /// UserError with what there is.
  std::int32_t id_of(std::string_view symbol) const;
  /// The id of one byte of input, or -1 when it stands for nothing here; always that with a tokenizer.
  std::int32_t id_of_byte(unsigned char byte) const { return byte_ids_[byte]; }
  /// The document token, where there is one; of a tokenizer that which ends a framed document, else its end or
  /// separator token.
  std::optional<std::int32_t> document_id() const;
  /// <mask> and <class>, in the vocabularies of encoders; a tokenizer's mask and classify tokens.
  std::optional<std::int32_t> mask_id() const;
  std::optional<std::int32_t> class_id() const;
  /// Whether data can hold the token for its own sake: all but <document>, <mask>, <class> and a tokenizer's special
  /// tokens.
  bool is_data_symbol(std::int32_t id) const;
  /// How many there are; without a tokenizer their ids begin at 0.
  std::int32_t n_data_symbols() const { return n_data_symbols_; }
  /// Names of the labels that documents have; empty: they have none.
  const std::vector<std::string>& labels() const { return labels_; }
  /// What an unknown letter can be read as: N in DNA and RNA, X in proteins; a tokenizer's unknown token.
  std::optional<std::int32_t> unknown_id() const;
  /// Whether the symbol leaves open which base or residue it is (R Y S W K M B D H V N; X B Z J).
  bool is_ambiguous(std::int32_t id) const;

  /// In the alphabets "<document>" in the text is that token, and whitespace is left out. Throws UserError naming
  /// letter and position. A tokenizer puts nothing around the text, and takes special tokens that are written in it for
  /// text.
  std::vector<std::int32_t> encode(std::string_view text) const;
  /// The same as the beginning of a document that a model is to continue: with what the tokenizer puts in front of a
  /// document, unless the text begins with that. `special`: what special tokens in the text are, in the vocabularies of
  /// tokenizers; throws UserError where others are to have them.
  std::vector<std::int32_t> encode_prompt(std::string_view text,
                                          SpecialSpelling special = SpecialSpelling::is_text) const;
  /// What a tokenizer puts in front of a document, and behind it; empty without a tokenizer.
  const std::vector<std::int32_t>& frame_front() const { return frame_front_; }
  const std::vector<std::int32_t>& frame_back() const { return frame_back_; }
  /// Throws ContractError on an id outside the vocabulary.
  std::string decode(std::span<const std::int32_t> ids) const;

  /// Tokenizers are equal when their contents are (128 bits of XXH3 of their JSON).
  friend bool operator==(const Vocabulary& a, const Vocabulary& b) {
    return a.kind_ == b.kind_ && a.tokenizer_hash_ == b.tokenizer_hash_ && a.symbols_ == b.symbols_ &&
           a.labels_ == b.labels_;
  }

 private:
  Vocabulary(Kind kind, std::string_view letters, bool with_documents);
  explicit Vocabulary(std::shared_ptr<const Tokenizer> tokenizer);
  void find_frame();
  /// The symbols of one letter, in order.
  std::string letters(std::string_view separator) const;

  Kind kind_;
  std::vector<std::string> symbols_, labels_;  // of a tokenizer, only the symbols behind its own
  std::int32_t n_data_symbols_ = 0;
  std::array<std::int32_t, 256> byte_ids_{};
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::int32_t tokenizer_size_ = 0;
  std::string tokenizer_hash_;
  std::vector<std::int32_t> special_ids_, frame_front_, frame_back_;
};

}  // namespace furlong
