// SentencePiece (Kudo and Richardson 2018, arXiv:1808.06226): unigram and BPE models, with its library.
#include <sentencepiece_processor.h>

#include <algorithm>
#include <cmath>
#include <new>
#include <utility>

#include "datasets/tokenizers/base64.h"
#include "datasets/tokenizers/normalizer.h"
#include "datasets/tokenizers/sentencepiece_checks.h"
#include "datasets/tokenizers/token_table.h"
#include "datasets/tokenizers/tokenizer_kinds.h"
#include "datasets/tokenizers/unicode.h"
#include "framework/core/printable.h"

namespace furlong {
namespace {

void check(const sentencepiece::util::Status& status, std::string_view origin) {
  if (status.ok()) return;
  std::string what = status.ToString();
  for (char& letter : what) letter = letter == '\n' ? ' ' : letter;
  throw UserError("{}: not a SentencePiece model ({})", origin, what);
}

class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(SentencePieceParts parts, SpecialNames names, const SpecialTokens* special,
                         std::string_view origin)
      : parts_(std::move(parts)), normalizer_(JsonView(parts_.normalizer, std::string(origin) + ": normalizer")) {
    if (parts_.model.empty()) throw UserError("{}: not a SentencePiece model (it is empty)", origin);
    check_sentencepiece_model(parts_.model, origin);
    load(origin);
    size_ = processor_.GetPieceSize();
    read_added(origin);
    const auto name = [&](const char* key, int id) {
      if (id >= 0) names.try_emplace(key, processor_.IdToPiece(id));
    };
    name("unk_token", processor_.unk_id());
    name("bos_token", processor_.bos_id());
    name("eos_token", processor_.eos_id());
    name("pad_token", processor_.pad_id());
    special_ = special ? *special : special_tokens(names, [&](std::string_view token) { return find(token); });
    frame_front_ = parts_.frame.front;
    frame_back_ = parts_.frame.back;
    check_special_tokens(*this, origin);
    keeps_text_ = keeps_text();
  }

  std::string_view kind() const override { return "sentencepiece"; }
  std::int32_t size() const override { return size_; }

  std::vector<std::int32_t> encode(std::string_view text, SpecialTokenMode special) const override {
    std::vector<std::int32_t> ids;
    found_in_text_.split(text, special, [&](std::string_view part, std::optional<std::int32_t> id) {
      if (id) return ids.push_back(*id);
      std::vector<int> part_ids;
      const bool valid = unicode::valid_length(part) == part.size();
      const auto status =
          normalizer_.empty()
              ? processor_.Encode(part, &part_ids)
              : processor_.Encode(normalizer_.apply(valid ? std::string(part) : unicode::with_replacements(part)),
                                  &part_ids);
      if (!status.ok())
        throw UserError("the tokenizer's SentencePiece model cannot encode {} bytes of text; it may be damaged ({})",
                        part.size(), foreign::single_line(status.ToString()));
      ids.insert(ids.end(), part_ids.begin(), part_ids.end());
    });
    return ids;
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    std::vector<int> run;
    const auto flush = [&] {
      std::string part;
      const auto status = processor_.Decode(run, &part);
      require(status.ok(), "SentencePiece cannot decode: {}", status.ToString());
      text += part;
      run.clear();
    };
    for (const std::int32_t id : ids) {
      require(id >= 0 && id < size_, "token {} of a tokenizer of {}", id, size_);
      if (is_text(id)) {
        run.push_back(id);
        continue;
      }
      flush();
      text += token(id);
    }
    flush();
    return text;
  }

  std::string token(std::int32_t id) const override {
    require(id >= 0 && id < size_, "token {} of a tokenizer of {}", id, size_);
    if (id < processor_.GetPieceSize()) return processor_.IdToPiece(id);
    return extra_tokens_.has(id) ? extra_tokens_.token(id) : std::string();
  }

  std::optional<std::size_t> text_bytes(std::int32_t id) const override {
    if (!keeps_text_ || !is_text(id) || processor_.IsUnknown(id)) return std::nullopt;
    return bytes_of_piece(id);
  }

  std::optional<std::int32_t> find(std::string_view token) const override {
    // The library returns the unknown token's id for unknown pieces.
    const int id = processor_.PieceToId(token);
    if (id >= 0 && id < processor_.GetPieceSize() && processor_.IdToPiece(id) == token) return id;
    return extra_tokens_.find(token);
  }

  std::string to_json() const override {
    nlohmann::json object{{"kind", kind()},
                          {"special", special_to_json(special_)},
                          {"sentencepiece", to_base64(parts_.model)},
                          {"frame", frame_to_json(parts_.frame)}};
    if (!parts_.normalizer.is_null()) object["normalizer"] = parts_.normalizer;
    for (const AddedToken& token : parts_.added) {
      nlohmann::json item{{"content", token.content}, {"id", token.id}, {"special", token.special}};
      // Left out if false: the hash of the vocabulary stays that of earlier versions.
      for (const auto& [name, flag] :
           {std::pair{"single_word", token.single_word}, {"lstrip", token.lstrip}, {"rstrip", token.rstrip}})
        if (flag) item[name] = true;
      object["added"].push_back(std::move(item));
    }
    return object.dump();
  }

 private:
  void load(std::string_view origin) {
    sentencepiece::util::Status status;
    try {
      status = processor_.LoadFromSerializedProto(without_self_tests(parts_.model, origin));
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& failure) {  // thrown by its tries if a piece starts with NUL
      throw UserError("{}: not a SentencePiece model ({})", origin, failure.what());
    }
    check(status, origin);
    for (int id = 0; id < processor_.GetPieceSize(); ++id) {
      if (!std::isfinite(processor_.GetScore(id)))
        throw UserError("{}: the score of token {} ('{}') is {}; expected a finite number", origin, id,
                        foreign::printable(processor_.IdToPiece(id)), processor_.GetScore(id));
    }
  }

  std::size_t bytes_of_piece(int id) const {
    if (processor_.IsByte(id)) return 1;
    constexpr std::string_view space = "\xe2\x96\x81";  // U+2581
    const std::string& piece = processor_.IdToPiece(id);
    std::size_t bytes = piece.size();
    for (std::size_t at = piece.find(space); at != std::string::npos; at = piece.find(space, at + space.size()))
      bytes -= space.size() - 1;
    return bytes;
  }

  /// Returns whether tokens have exactly the bytes of their text: encodes one that every normalization would change.
  bool keeps_text() const {
    const std::string text = "  A\xcc\x81 \xef\xac\x81\t\n b ";  // decomposed letter, ligature, spaces at both ends
    const std::vector<std::int32_t> ids = encode(text, SpecialTokenMode::as_text);
    std::size_t bytes = 0;
    for (const std::int32_t id : ids) bytes += bytes_of_piece(id);
    return normalizer_.empty() && bytes == text.size() && decode(ids) == text;
  }

  bool is_text(std::int32_t id) const { return id < processor_.GetPieceSize() && !processor_.IsControl(id); }

  /// The model's control tokens are matched in text like other special tokens; the library never does this.
  void read_added(std::string_view origin) {
    std::vector<AddedToken> tokens;
    for (int id = 0; id < processor_.GetPieceSize(); ++id) {
      if (processor_.IsControl(id)) tokens.push_back({.content = processor_.IdToPiece(id), .id = id, .special = true});
    }
    for (const AddedToken& token : parts_.added) {
      const auto known = find(token.content);
      if ((known && *known != token.id) || (!known && token.id < processor_.GetPieceSize())) {
        throw UserError("{}: the token '{}' has the id {}; the model has another token or id for it", origin,
                        token.content, token.id);
      }
      if (known && processor_.IsControl(token.id)) continue;
      if (!known) extra_tokens_.add(token.content, token.id, origin);
      tokens.push_back(token);
    }
    size_ = std::max(size_, extra_tokens_.size());
    found_in_text_ = AddedTokens(std::move(tokens));
  }

  SentencePieceParts parts_;
  Normalizer normalizer_;
  sentencepiece::SentencePieceProcessor processor_;
  TokenTable extra_tokens_;  // tokens that the model lacks
  AddedTokens found_in_text_;
  std::int32_t size_ = 0;
  bool keeps_text_ = false;
};

}  // namespace

std::shared_ptr<const Tokenizer> make_sentencepiece_tokenizer(SentencePieceParts parts, const SpecialNames& names,
                                                              const SpecialTokens* special, std::string_view origin) {
  return std::make_shared<SentencePieceTokenizer>(std::move(parts), names, special, origin);
}

}  // namespace furlong
