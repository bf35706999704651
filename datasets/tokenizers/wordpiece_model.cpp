#include <algorithm>

#include "datasets/tokenizers/piece_model.h"
#include "datasets/tokenizers/unicode.h"

namespace furlong {
namespace {

class WordPieceModel : public PieceModel {
 public:
  WordPieceModel(const JsonView& model, const TokenTable& vocabulary)
      : vocabulary_(vocabulary), prefix_(model.text("continuing_subword_prefix", "##")) {
    const std::int64_t max_characters = model.integer("max_input_chars_per_word", 100);
    if (max_characters < 1)
      throw UserError("{}: expected 1 or more, found {}", model.at("max_input_chars_per_word").name(), max_characters);
    max_characters_ = static_cast<std::size_t>(max_characters);
    const std::string unknown = model.text("unk_token", "[UNK]");
    const auto id = vocabulary.find(unknown);
    if (!id) throw UserError("{}: the unknown token '{}' is not in the vocabulary", model.name(), unknown);
    unknown_ = *id;
    for (std::int32_t token = 0; token < vocabulary.size(); ++token)
      longest_token_ = std::max(longest_token_, vocabulary.token(token).size());
    // At each place of a word all lengths up to that of the longest token are looked up.
    constexpr std::size_t long_word = 1000, long_token = 256;
    if (max_characters_ > long_word && longest_token_ > long_token)
      throw UserError("{}: found {}, expected at most {} with a token of {} bytes",
                      model.at("max_input_chars_per_word").name(), max_characters, long_word, longest_token_);
  }

  void encode(std::string_view word, std::vector<std::int32_t>& ids) const override {
    const std::size_t before = ids.size();
    bool known = unicode::count(word) <= max_characters_;
    std::string inside = prefix_;
    for (std::size_t begin = 0; known && begin < word.size();) {
      std::size_t end = begin;
      const auto id = longest_token(word, begin, inside, end);
      known = id.has_value();
      if (known) ids.push_back(*id);
      begin = end;
    }
    if (known) return;
    // A word with an unknown part is unknown as a whole.
    ids.resize(before);
    ids.push_back(unknown_);
  }

 private:
  std::optional<std::int32_t> longest_token(std::string_view word, std::size_t begin, std::string& inside,
                                            std::size_t& end) const {
    end = std::min(word.size(), begin + longest_token_);
    while (end > begin) {
      const bool whole = end == word.size() || (static_cast<unsigned char>(word[end]) & 0xC0) != 0x80;
      if (whole) {
        std::string_view candidate = word.substr(begin, end - begin);
        if (begin > 0) {
          inside.resize(prefix_.size());
          inside += candidate;
          candidate = inside;
        }
        if (const auto id = vocabulary_.find(candidate)) return id;
      }
      --end;
    }
    return std::nullopt;
  }

  const TokenTable& vocabulary_;
  std::string prefix_;
  std::size_t max_characters_ = 100, longest_token_ = 0;
  std::int32_t unknown_ = 0;
};

}  // namespace

std::unique_ptr<PieceModel> make_wordpiece_model(const JsonView& model, const TokenTable& vocabulary) {
  return std::make_unique<WordPieceModel>(model, vocabulary);
}

}  // namespace furlong
