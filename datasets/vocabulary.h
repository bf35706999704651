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
  enum class Kind { bytes, dna, rna, protein };

  /// The token that ends each document, last in every vocabulary that has it.
  static constexpr std::string_view document_symbol = "<document>";

  /// 256 bytes, and the document token when `with_documents`.
  static Vocabulary bytes(bool with_documents);
  /// A C G T, then R Y S W K M B D H V N, then the document token: 16.
  static Vocabulary dna();
  /// The same with U in place of T.
  static Vocabulary rna();
  /// Twenty amino acids, then X B Z J U O * -, then the document token: 29.
  static Vocabulary protein();
  /// "dna", "rna" or "protein". Throws UserError on another name.
  static Vocabulary alphabet(std::string_view name);

  /// {"kind": "dna", "symbols": ["A", ...]}; a byte's symbol is "0x00" to "0xff".
  std::string to_json() const;
  /// Throws UserError, beginning with `origin` (the file it came from), for anything but what to_json() writes.
  static Vocabulary from_json(std::string_view json, std::string_view origin);

  Kind kind() const { return kind_; }
  /// "bytes", "dna", "rna", "protein".
  std::string_view kind_name() const;
  std::int32_t size() const { return static_cast<std::int32_t>(symbols_.size()); }
  const std::vector<std::string>& symbols() const { return symbols_; }
  const std::string& symbol(std::int32_t id) const;

  /// The id of a symbol; a byte may also be given as itself ("\n"), a letter in either case. Throws UserError with what there is.
  std::int32_t id_of(std::string_view symbol) const;
  /// The id of one byte of input, or -1 when it stands for nothing here.
  std::int32_t id_of_byte(unsigned char byte) const { return byte_ids_[byte]; }
  /// The document token, where there is one.
  std::optional<std::int32_t> document_id() const;
  /// What an unknown letter can be read as: N in DNA and RNA, X in proteins.
  std::optional<std::int32_t> unknown_id() const;
  /// Whether the symbol leaves open which base or residue it is (R Y S W K M B D H V N; X B Z J).
  bool is_ambiguous(std::int32_t id) const;

  /// In the alphabets "<document>" in the text is that token, and whitespace is left out. Throws UserError naming letter and position.
  std::vector<std::int32_t> encode(std::string_view text) const;
  /// Throws ContractError on an id outside the vocabulary.
  std::string decode(std::span<const std::int32_t> ids) const;

  friend bool operator==(const Vocabulary& a, const Vocabulary& b) { return a.kind_ == b.kind_ && a.symbols_ == b.symbols_; }

 private:
  Vocabulary(Kind kind, std::string_view letters, bool with_documents);

  Kind kind_;
  std::vector<std::string> symbols_;
  std::array<std::int32_t, 256> byte_ids_{};
};

}  // namespace furlong
