#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <queue>
#include <unordered_map>

#include "datasets/tokenizers/piece_model.h"
#include "datasets/tokenizers/unicode.h"
#include "framework/core/printable.h"

namespace furlong {
namespace {

constexpr std::int32_t none = -1;

/// Merges by their two ids, in a hash table with open addressing: every pair is looked up in the innermost loop.
class MergeTable {
 public:
  struct Merge {
    std::uint32_t rank = 0;
    std::int32_t result = none;
  };

  explicit MergeTable(std::size_t n_merges) : keys_(std::bit_ceil(n_merges * 2 + 2), empty), merges_(keys_.size()) {}

  /// The later of two equal pairs wins, as in the reference implementation.
  void set(std::int32_t left, std::int32_t right, Merge merge) {
    const std::size_t place = place_of(key(left, right));
    keys_[place] = key(left, right);
    merges_[place] = merge;
  }
  const Merge* find(std::int32_t left, std::int32_t right) const {
    const std::size_t place = place_of(key(left, right));
    return keys_[place] == empty ? nullptr : &merges_[place];
  }

 private:
  static constexpr std::uint64_t empty = ~std::uint64_t{0};
  static std::uint64_t key(std::int32_t left, std::int32_t right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
  }
  std::size_t place_of(std::uint64_t wanted) const {
    const std::size_t mask = keys_.size() - 1;
    std::size_t place = XXH3_64bits_withSeed(&wanted, sizeof wanted, seed_) & mask;
    while (keys_[place] != wanted && keys_[place] != empty) place = (place + 1) & mask;
    return place;
  }
  std::uint64_t seed_ = hash_seed();
  std::vector<std::uint64_t> keys_;
  std::vector<Merge> merges_;
};

/// The letters of one piece, as a linked list, so that a merge takes constant time.
struct Symbol {
  std::int32_t id;
  std::int32_t previous, next;  // indices; `none` at the ends
  bool gone = false;
};

struct Candidate {
  std::uint32_t rank;
  std::int32_t place;  // index of the left symbol
  std::int32_t result;
  /// std::priority_queue returns the greatest element first.
  friend bool operator<(const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.place > b.place;
  }
};

class BpeModel : public PieceModel {
  static constexpr std::size_t max_bytes = std::size_t{1} << 30;  // indices have 32 bits

 public:
  BpeModel(const JsonView& model, const TokenTable& vocabulary, bool byte_level)
      : vocabulary_(vocabulary), byte_level_(byte_level), merges_(model.at("merges").size()) {
    refuse_unsupported(model);
    fallback_ = model.boolean("byte_fallback", false);
    fuse_unknown_ = model.boolean("fuse_unk", false);
    if (model.has("unk_token")) {
      unknown_ = vocabulary.find(model.at("unk_token").text());
      if (!unknown_)
        throw UserError("{}: '{}' is not in the vocabulary", model.at("unk_token").name(),
                        model.at("unk_token").text());
    }
    for (int byte = 0; byte < 256; ++byte) {
      std::string letter;
      if (byte_level) unicode::append(letter, letter_of_byte(static_cast<unsigned char>(byte)));
      byte_ids_[static_cast<std::size_t>(byte)] =
          vocabulary.find(byte_level ? letter : fmt::format("<0x{:02X}>", byte)).value_or(none);
    }
    if (model.boolean("ignore_merges", false)) read_whole_pieces();
    read_merges(model.at("merges"));
  }

  bool skips() const override {
    return !unknown_ && !(byte_level_ && std::find(byte_ids_.begin(), byte_ids_.end(), none) == byte_ids_.end());
  }

  std::uint64_t count_skipped(std::string_view piece) const override {
    if (unknown_ || whole_pieces_.contains(piece)) return 0;
    std::uint64_t skipped = 0;
    for (std::size_t position = 0; position < piece.size();) {
      const std::size_t begin = position;
      unicode::next(piece, position);
      const std::string_view letter = piece.substr(begin, position - begin);
      const bool kept = byte_level_ ? has_bytes(letter) : vocabulary_.find(letter) || (fallback_ && has_bytes(letter));
      skipped += !kept;
    }
    return skipped;
  }

  void encode(std::string_view piece, std::vector<std::int32_t>& ids) const override {
    if (piece.size() > max_bytes)
      throw UserError(
          "the tokenizer's pre_tokenizer leaves a piece of {} bytes in one part, starting with '{}'; "
          "expected at most {}: break the text into shorter lines or documents",
          piece.size(), foreign::printable(piece.substr(0, 40)), max_bytes);
    if (const auto whole = whole_pieces_.find(piece); whole != whole_pieces_.end()) {
      ids.push_back(whole->second);
      return;
    }
    std::vector<Symbol> symbols;
    byte_level_ ? split_bytes(piece, symbols) : split_characters(piece, symbols);
    merge(symbols);
    for (const Symbol& symbol : symbols) {
      if (!symbol.gone) ids.push_back(symbol.id);
    }
  }

 private:
  static void refuse_unsupported(const JsonView& model) {
    if (model.has("dropout") && model.at("dropout").real() != 0) {
      throw UserError("{}: found {}; BPE dropout is not supported, expected 0 or null", model.at("dropout").name(),
                      model.at("dropout").real());
    }
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (!model.text(key, "").empty())
        throw UserError("{}: found '{}', which is not supported; expected null or an empty string",
                        model.at(key).name(), model.at(key).text());
    }
  }

  void read_whole_pieces() {
    for (std::int32_t id = 0; id < vocabulary_.size(); ++id) {
      if (!vocabulary_.has(id)) continue;
      const std::string& token = vocabulary_.token(id);
      if (!byte_level_) {
        whole_pieces_.emplace(token, id);
      } else if (auto bytes = bytes_of_token(token)) {
        whole_pieces_.emplace(*std::move(bytes), id);
      }
    }
  }

  /// Reads "left right" or ["left", "right"]. The merged token is the concatenation of the two.
  void read_merges(const JsonView& list) {
    for (std::size_t rank = 0; rank < list.size(); ++rank) {
      const nlohmann::json& item = list.value()[rank];
      std::string left, right;
      if (item.is_string()) {
        const std::string& text = item.get_ref<const std::string&>();
        const std::size_t space = text.find(' ');
        if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
          throw UserError("{}[{}]: '{}' is not a merge; expected two tokens separated by a space", list.name(), rank,
                          text);
        }
        left = text.substr(0, space);
        right = text.substr(space + 1);
      } else {
        const JsonView pair = list.item(rank);
        if (pair.size() != 2) throw UserError("{}: expected two tokens, found {}", pair.name(), pair.size());
        left = pair.item(0).text();
        right = pair.item(1).text();
      }
      const auto id = [&](const std::string& token) {
        const auto found = vocabulary_.find(token);
        if (!found) throw UserError("{}[{}]: '{}' is not in the vocabulary", list.name(), rank, token);
        return *found;
      };
      const std::int32_t left_id = id(left), right_id = id(right);
      merges_.set(left_id, right_id, {static_cast<std::uint32_t>(rank), id(left + right)});
    }
  }

  static void append(std::vector<Symbol>& symbols, std::int32_t id) {
    const auto place = static_cast<std::int32_t>(symbols.size());
    if (place > 0) symbols.back().next = place;
    symbols.push_back({id, place - 1, none});
  }

  void split_bytes(std::string_view piece, std::vector<Symbol>& symbols) const {
    symbols.reserve(piece.size());
    bool after_unknown = false;
    for (const char byte : piece) {
      const std::int32_t id = byte_ids_[static_cast<unsigned char>(byte)];
      if (id != none) append(symbols, id);
      after_unknown = id == none && append_unknown(symbols, after_unknown);
    }
  }

  void split_characters(std::string_view piece, std::vector<Symbol>& symbols) const {
    symbols.reserve(piece.size());
    bool after_unknown = false;
    for (std::size_t position = 0; position < piece.size();) {
      const std::string_view letter = piece.substr(position, unicode::length_at(piece, position));
      position += letter.size();
      if (const auto id = vocabulary_.find(letter)) {
        append(symbols, *id);
        after_unknown = false;
      } else if (fallback_ && has_bytes(letter)) {
        for (const char byte : letter) append(symbols, byte_ids_[static_cast<unsigned char>(byte)]);
        after_unknown = false;
      } else {
        after_unknown = append_unknown(symbols, after_unknown);
      }
    }
  }

  /// Without an unknown token the letter is skipped, as in the model's training.
  bool append_unknown(std::vector<Symbol>& symbols, bool after_unknown) const {
    if (unknown_ && !(after_unknown && fuse_unknown_)) append(symbols, *unknown_);
    return unknown_.has_value();
  }

  bool has_bytes(std::string_view letter) const {
    for (const char byte : letter) {
      if (byte_ids_[static_cast<unsigned char>(byte)] == none) return false;
    }
    return true;
  }

  void merge(std::vector<Symbol>& symbols) const {
    std::priority_queue<Candidate> candidates;
    const auto propose = [&](std::int32_t left) {
      const Symbol& symbol = symbols[static_cast<std::size_t>(left)];
      if (symbol.next == none) return;
      const auto* found = merges_.find(symbol.id, symbols[static_cast<std::size_t>(symbol.next)].id);
      if (found) candidates.push({found->rank, left, found->result});
    };
    for (std::size_t place = 0; place + 1 < symbols.size(); ++place) propose(static_cast<std::int32_t>(place));
    while (!candidates.empty()) {
      const Candidate best = candidates.top();
      candidates.pop();
      Symbol& left = symbols[static_cast<std::size_t>(best.place)];
      if (left.gone || left.next == none) continue;
      Symbol& right = symbols[static_cast<std::size_t>(left.next)];
      // The two symbols may have changed since; as in the reference implementation, the merge is valid if they still
      // become the same token.
      const auto* current = merges_.find(left.id, right.id);
      if (!current || current->result != best.result) continue;
      left.id = best.result;
      right.gone = true;
      left.next = right.next;
      if (right.next != none) symbols[static_cast<std::size_t>(right.next)].previous = best.place;
      if (left.previous != none) propose(left.previous);
      propose(best.place);
    }
  }

  const TokenTable& vocabulary_;
  bool byte_level_, fallback_ = false, fuse_unknown_ = false;
  std::optional<std::int32_t> unknown_;
  std::array<std::int32_t, 256> byte_ids_{};
  std::unordered_map<std::string, std::int32_t, TextHash, std::equal_to<>>
      whole_pieces_;  // tokens that match a whole piece, without merging
  MergeTable merges_;
};

bool is_printable(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

}  // namespace

char32_t letter_of_byte(unsigned char byte) {
  if (is_printable(byte)) return byte;
  char32_t letter = 0x100;
  for (unsigned other = 0; other < byte; ++other) letter += is_printable(other) ? 0 : 1;
  return letter;
}

std::optional<std::string> bytes_of_token(std::string_view token) {
  static const std::unordered_map<char32_t, char> byte_of_letter = [] {
    std::unordered_map<char32_t, char> map;
    for (int byte = 0; byte < 256; ++byte)
      map[letter_of_byte(static_cast<unsigned char>(byte))] = static_cast<char>(byte);
    return map;
  }();
  std::string bytes;
  for (std::size_t position = 0; position < token.size();) {
    const auto found = byte_of_letter.find(unicode::next(token, position));
    if (found == byte_of_letter.end()) return std::nullopt;
    bytes += found->second;
  }
  return bytes;
}

std::unique_ptr<PieceModel> make_bpe_model(const JsonView& model, const TokenTable& vocabulary, bool byte_level) {
  return std::make_unique<BpeModel>(model, vocabulary, byte_level);
}

}  // namespace furlong
