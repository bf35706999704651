// Tokenizers of protein and molecule models: a fixed list of letters, or of the elements of SMILES.
#include <algorithm>
#include <utility>

#include "datasets/tokenizers/pattern.h"
#include "datasets/tokenizers/token_table.h"
#include "datasets/tokenizers/tokenizer_kinds.h"
#include "datasets/tokenizers/unicode.h"

namespace furlong {
namespace {

class LetterTokenizer : public Tokenizer {
 public:
  LetterTokenizer(LetterParts parts, const SpecialNames& names, const SpecialTokens* special, std::string_view origin)
      : parts_(std::move(parts)), smiles_(smiles_pattern, "SMILES") {
    if (parts_.tokens.empty()) throw UserError("{}: the list of tokens is empty", origin);
    for (std::size_t id = 0; id < parts_.tokens.size(); ++id)
      table_.add(parts_.tokens[id], static_cast<std::int32_t>(id), origin);
    special_ = special ? *special : special_tokens(names, [&](std::string_view token) { return find(token); });
    if (!special_.unknown) throw UserError("{}: there is no unknown token; expected [UNK] or <unk>", origin);
    frame_front_ = parts_.frame.front;
    frame_back_ = parts_.frame.back;
    check_special_tokens(*this, origin);
    std::vector<AddedToken> added;
    for (const auto& id : {special_.unknown, special_.beginning, special_.end, special_.padding, special_.mask,
                           special_.classify, special_.separator}) {
      if (id) added.push_back({.content = token(*id), .id = *id, .special = true});
    }
    found_in_text_ = AddedTokens(std::move(added));
  }

  std::string_view kind() const override { return "letters"; }
  std::int32_t size() const override { return table_.size(); }

  std::vector<std::int32_t> encode(std::string_view text, SpecialTokenMode special) const override {
    std::vector<std::int32_t> ids;
    found_in_text_.split(text, special, [&](std::string_view part, std::optional<std::int32_t> id) {
      if (id) return ids.push_back(*id);
      parts_.units == LetterParts::Units::letters ? encode_letters(part, ids) : encode_smiles(part, ids);
    });
    return ids;
  }

  std::uint64_t count_ignored(std::string_view text) const override {
    if (parts_.units == LetterParts::Units::letters) return 0;
    const std::string valid = unicode::with_replacements(text);
    std::uint64_t count = 0;
    std::size_t position = 0;
    const auto skip_to = [&](std::size_t end) {
      while (position < end) count += unicode::is_whitespace(unicode::next(valid, position)) ? 0 : 1;
    };
    Pattern::Search search(smiles_, valid);
    while (const auto match = search.next()) {
      skip_to(match->first);
      position = match->second;
    }
    skip_to(valid.size());
    return count;
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (const std::int32_t id : ids) text += token(id);
    return text;
  }

  std::string token(std::int32_t id) const override {
    require(id >= 0 && id < size(), "token {} of a tokenizer of {}", id, size());
    return table_.token(id);
  }
  std::optional<std::int32_t> find(std::string_view token) const override { return table_.find(token); }

  std::string to_json() const override {
    return nlohmann::json{{"kind", kind()},
                          {"special", special_to_json(special_)},
                          {"letters", parts_.tokens},
                          {"units", parts_.units == LetterParts::Units::smiles ? "smiles" : "letters"},
                          {"joins_unknown", parts_.joins_unknown},
                          {"frame", frame_to_json(parts_.frame)}}
        .dump();
  }

 private:
  /// Whitespace separates letters and is otherwise ignored.
  void encode_letters(std::string_view text, std::vector<std::int32_t>& ids) const {
    bool after_unknown = false;
    for (std::size_t position = 0; position < text.size();) {
      const std::size_t begin = position;
      if (unicode::is_whitespace(unicode::next(text, position))) {
        after_unknown = false;
        continue;
      }
      const auto id = find(text.substr(begin, position - begin));
      if (id || !(after_unknown && parts_.joins_unknown)) ids.push_back(id.value_or(*special_.unknown));
      after_unknown = !id;
    }
  }

  /// Characters outside SMILES are skipped, as in the models' training (count_ignored).
  void encode_smiles(std::string_view text, std::vector<std::int32_t>& ids) const {
    const std::string valid = unicode::with_replacements(text);
    Pattern::Search search(smiles_, valid);
    while (const auto match = search.next()) {
      ids.push_back(
          find(std::string_view(valid).substr(match->first, match->second - match->first)).value_or(*special_.unknown));
    }
  }

  LetterParts parts_;
  Pattern smiles_;
  TokenTable table_;
  AddedTokens found_in_text_;
};

}  // namespace

std::shared_ptr<const Tokenizer> make_letter_tokenizer(LetterParts parts, const SpecialNames& names,
                                                       const SpecialTokens* special, std::string_view origin) {
  return std::make_shared<LetterTokenizer>(std::move(parts), names, special, origin);
}

}  // namespace furlong
