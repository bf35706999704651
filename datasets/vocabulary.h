#pragma once
// What the numbers in a token store stand for.
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace furlong {

/// A list of symbols, token id = place in the list. Letters of the DNA, RNA and protein alphabets are the IUPAC ones
/// (doi:10.1093/nar/13.9.3021, doi:10.1351/pac198456050595), read in either case; bytes are themselves. Ids are the same in every store
/// of a kind, and go with the model into its checkpoints as JSON.
class Vocabulary {
 public:
  enum class Kind { bytes, dna, rna, protein, copy };

  /// The token that ends each document, behind the symbols of the data in every vocabulary that has it.
  static constexpr std::string_view document_symbol = "<document>";
  /// Tokens that only encoders have, behind all others: what a hidden token is shown as, and one that stands for a whole document.
  static constexpr std::string_view mask_symbol = "<mask>", class_symbol = "<class>";

  /// 256 bytes, and the document token when `with_documents`.
  static Vocabulary bytes(bool with_documents);
  /// A C G T, then R Y S W K M B D H V N, then the document token: 16.
  static Vocabulary dna();
  /// The same with U in place of T.
  static Vocabulary rna();
  /// Twenty amino acids, then X B Z J U O * -, then the document token: 29.
  static Vocabulary protein();
  /// Of the copy task (datasets/copy_task.h): `n_symbols` of 0-9, A-Z and a-z, then the marker "<" and the separator "=". 1 to 62 symbols.
  static Vocabulary copy(std::int64_t n_symbols);
  static constexpr std::int64_t most_copy_symbols = 62;
  /// "dna", "rna" or "protein". Throws UserError on another name.
  static Vocabulary alphabet(std::string_view name);

  /// The same with <mask> and <class> at the end; itself when it has them. Both are there whatever an encoder learns, so that one that
  /// has learned to fill in tokens can go on to classify.
  Vocabulary with_encoder_tokens() const;
  /// The same with names for the labels 0, 1, ... of documents.
  Vocabulary with_labels(std::vector<std::string> names) const;

  /// {"kind": "dna", "symbols": ["A", ...]} and, where there are any, "labels": [...]; a byte's symbol is "0x00" to "0xff".
  std::string to_json() const;
  /// Throws UserError, beginning with `origin` (the file it came from), for anything but what to_json() writes.
  static Vocabulary from_json(std::string_view json, std::string_view origin);

  Kind kind() const { return kind_; }
  /// "bytes", "dna", "rna", "protein", "copy".
  std::string_view kind_name() const;
  std::int32_t size() const { return static_cast<std::int32_t>(symbols_.size()); }
  const std::vector<std::string>& symbols() const { return symbols_; }
  const std::string& symbol(std::int32_t id) const;

  /// The id of a symbol; a byte may also be given as itself ("\n"), a letter of an alphabet in either case. Throws UserError with what
  /// there is.
  std::int32_t id_of(std::string_view symbol) const;
  /// The id of one byte of input, or -1 when it stands for nothing here.
  std::int32_t id_of_byte(unsigned char byte) const { return byte_ids_[byte]; }
  /// The document token, where there is one.
  std::optional<std::int32_t> document_id() const;
  /// <mask> and <class>, in the vocabularies of encoders.
  std::optional<std::int32_t> mask_id() const;
  std::optional<std::int32_t> class_id() const;
  /// Symbols that data can hold: all but <document>, <mask> and <class>; their ids begin at 0.
  std::int32_t n_data_symbols() const { return n_data_symbols_; }
  /// Names of the labels that documents have; empty: they have none.
  const std::vector<std::string>& labels() const { return labels_; }
  /// What an unknown letter can be read as: N in DNA and RNA, X in proteins.
  std::optional<std::int32_t> unknown_id() const;
  /// Whether the symbol leaves open which base or residue it is (R Y S W K M B D H V N; X B Z J).
  bool is_ambiguous(std::int32_t id) const;

  /// In the alphabets "<document>" in the text is that token, and whitespace is left out. Throws UserError naming letter and position.
  std::vector<std::int32_t> encode(std::string_view text) const;
  /// Throws ContractError on an id outside the vocabulary.
  std::string decode(std::span<const std::int32_t> ids) const;

  friend bool operator==(const Vocabulary& a, const Vocabulary& b) {
    return a.kind_ == b.kind_ && a.symbols_ == b.symbols_ && a.labels_ == b.labels_;
  }

 private:
  Vocabulary(Kind kind, std::string_view letters, bool with_documents);
  /// The symbols of one letter, in order.
  std::string letters(std::string_view separator) const;

  Kind kind_;
  std::vector<std::string> symbols_, labels_;
  std::int32_t n_data_symbols_ = 0;
  std::array<std::int32_t, 256> byte_ids_{};
};

}  // namespace furlong
