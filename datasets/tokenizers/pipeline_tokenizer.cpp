// Tokenizers as a sequence of steps: added tokens, normalizer, pre-tokenizer, model.
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>

#include "datasets/tokenizers/normalizer.h"
#include "datasets/tokenizers/piece_model.h"
#include "datasets/tokenizers/pre_tokenizer.h"
#include "datasets/tokenizers/token_decoder.h"
#include "datasets/tokenizers/tokenizer_kinds.h"
#include "datasets/tokenizers/unicode.h"
#include "datasets/tokenizers/word_cache.h"
#include "framework/io/json_bounds.h"

namespace furlong {
namespace {

class PipelineTokenizer : public Tokenizer {
 public:
  PipelineTokenizer(nlohmann::json json, const SpecialNames& names, const SpecialTokens* special,
                    std::string_view origin) {
    const JsonView all(json, std::string(origin) + ":");
    const nlohmann::json null;
    const auto part = [&](const char* key) { return all.has(key) ? all.at(key) : JsonView(null, all.name()); };
    const JsonView model = all.at("model");
    // Files from before 2021 do not name the type; only WordPiece has a limit of characters.
    type_ = model.text("type", model.has("merges") ? "BPE" : model.has("max_input_chars_per_word") ? "WordPiece" : "");
    read_vocabulary(model.at("vocab"));
    normalizer_ = Normalizer(part("normalizer"));
    read_added_tokens(part("added_tokens"));
    pre_tokenizer_ = PreTokenizer(part("pre_tokenizer"));
    decoder_ = TokenDecoder(part("decoder"));
    if (type_ == "BPE") {
      model_ = make_bpe_model(model, vocabulary_, pre_tokenizer_.byte_level());
    } else if (type_ != "WordPiece" && type_ != "Unigram") {
      throw UserError("{}: the model '{}' is not supported; expected BPE, Unigram or WordPiece", model.name(), type_);
    } else if (pre_tokenizer_.byte_level()) {
      throw UserError("{} ByteLevel with a {} model is not supported", all.name(), type_);
    } else {
      model_ = type_ == "WordPiece" ? make_wordpiece_model(model, vocabulary_)
                                    : make_unigram_model(model, vocabulary_, special_ids_);
    }
    TokenFrame frame = frame_of_processor(part("post_processor"));
    for (const auto* side : {&frame.front, &frame.back}) {
      for (const std::int32_t id : *side) {
        if (!has(id))
          throw UserError("{}: the special token {} is not in the vocabulary", all.at("post_processor").name(), id);
      }
    }
    frame_front_ = std::move(frame.front);
    frame_back_ = std::move(frame.back);
    special_ = special ? *special
                       : special_tokens(names_of(names, model, part("post_processor")),
                                        [&](std::string_view token) { return find(token); });
    // Padding and truncation of batches are not part of a tokenizer here.
    json.erase("padding");
    json.erase("truncation");
    json_ = json.dump();
    foreign::check_json_depth(json_, origin, 2);  // of the vocabulary in which it is stored
    keeps_text_ = type_ != "WordPiece" && keeps_text();
  }

  std::string_view kind() const override {
    return type_ == "BPE" ? "bpe" : type_ == "Unigram" ? "unigram" : "wordpiece";
  }
  std::int32_t size() const override { return std::max(vocabulary_.size(), extra_tokens_.size()); }

  std::vector<std::int32_t> encode(std::string_view text, SpecialTokenMode special) const override {
    Encoding encoding{*model_, {}, caches_.borrow()};
    split(text, special, encoding);
    caches_.give_back(std::move(encoding.cache));
    return std::move(encoding.ids);
  }

  std::uint64_t count_ignored(std::string_view text) const override {
    if (!model_->skips()) return 0;
    SkippedCount skipped{*model_};
    split(text, SpecialTokenMode::as_text, skipped);
    return skipped.count;
  }

  bool keeps_invalid_bytes() const override { return pre_tokenizer_.byte_level() && normalizer_.empty(); }

  std::optional<std::size_t> text_bytes(std::int32_t id) const override {
    return keeps_text_ && id != special_.unknown ? decoded_bytes(id) : std::nullopt;
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    std::vector<std::string> tokens;
    tokens.reserve(ids.size());
    for (const std::int32_t id : ids) tokens.push_back(token(id));
    return decoder_.decode(std::move(tokens));
  }

  bool decodes_each_token() const override { return decoder_.decodes_each_token(); }

  std::string token(std::int32_t id) const override {
    require(id >= 0 && id < size(), "token {} of a tokenizer of {}", id, size());
    return vocabulary_.has(id)     ? vocabulary_.token(id)
           : extra_tokens_.has(id) ? extra_tokens_.token(id)
                                   : std::string();
  }
  std::optional<std::int32_t> find(std::string_view token) const override {
    const auto id = vocabulary_.find(token);
    return id ? id : extra_tokens_.find(token);
  }

  std::string to_json() const override {
    return fmt::format(R"({{"kind":"{}","special":{},"tokenizer":{}}})", kind(), special_to_json(special_).dump(),
                       json_);
  }

 private:
  /// Returns the bytes of a token in decoded text; nothing if those of a first token differ, as in Llama 2's decoder.
  std::optional<std::size_t> decoded_bytes(std::int32_t id) const {
    const std::array twice{id, id};
    const std::size_t bytes = decode(std::span(twice).first(1)).size();
    if (decode(twice).size() != 2 * bytes) return std::nullopt;
    return bytes;
  }
  /// Whether nothing is added to a text, such as a space in front, and nothing dropped, such as spaces.
  bool keeps_text() const {
    const std::string text = "a b\n a  ";
    const std::vector<std::int32_t> ids = encode(text, SpecialTokenMode::as_text);
    std::size_t bytes = 0;
    for (const std::int32_t id : ids) bytes += decoded_bytes(id).value_or(0);
    return bytes == text.size() && decode(ids) == text;
  }

  /// Gives `sink` the text's pieces, and the ids of added tokens between them.
  template <class Sink>
  void split(std::string_view text, SpecialTokenMode special, Sink& sink) const {
    std::size_t valid = unicode::valid_length(text);
    if (valid == text.size()) return split_text({text, true}, special, sink);
    if (!keeps_invalid_bytes()) return split_text({unicode::with_replacements(text), true}, special, sink);
    // Invalid bytes become their own ids, so that decode() restores them.
    for (bool at_start = true; !text.empty(); at_start = false) {
      split_text({text.substr(0, valid), at_start, !at_start}, special, sink);
      text.remove_prefix(valid);
      std::size_t invalid = 0;
      while (invalid < text.size() && unicode::valid_length(text.substr(invalid, 4)) == 0) ++invalid;
      if (invalid > 0) sink.piece(text.substr(0, invalid));
      text.remove_prefix(invalid);
      valid = unicode::valid_length(text);
    }
  }
  template <class Sink>
  void split_text(TextPiece text, SpecialTokenMode special, Sink& sink) const {
    added_.split(text.text, special, [&](std::string_view part, std::optional<std::int32_t> id) {
      if (id) return sink.token(*id);
      const bool begins = part.data() == text.text.data(), first = text.at_start && begins;
      if (normalizer_.empty()) return split_normalized({part, first, text.in_word && begins}, special, sink);
      // transformers counts from the text's start before the normalizer, so that nothing is first if that is dropped.
      // With a letter behind it, the start is not the text's end, which has rules of its own.
      const std::string start(part.substr(0, unicode::cluster_end(part, 0)));
      const bool keeps_start = first && normalizer_.apply(start + "x") != normalizer_.apply("x");
      split_normalized({normalizer_.apply(std::string(part)), keeps_start}, special, sink);
    });
  }
  template <class Sink>
  void split_normalized(TextPiece text, SpecialTokenMode special, Sink& sink) const {
    added_normalized_.split(text.text, special, [&](std::string_view part, std::optional<std::int32_t> id) {
      if (id) return sink.token(*id);
      const bool begins = part.data() == text.text.data();
      pre_tokenizer_.split({part, text.at_start && begins, text.in_word && begins},
                           [&](TextPiece piece) { sink.piece(piece.text); });
    });
  }

  /// One call of encode().
  struct Encoding {
    const PieceModel& model;
    std::vector<std::int32_t> ids;
    std::unique_ptr<WordCache> cache;

    void token(std::int32_t id) { ids.push_back(id); }
    void piece(std::string_view piece) {
      if (piece.size() > WordCache::longest_word) return model.encode(piece, ids);
      const std::uint64_t hash = XXH3_64bits(piece.data(), piece.size());
      std::span<const std::int32_t> known;
      if (cache->find(piece, hash, known)) {
        ids.insert(ids.end(), known.begin(), known.end());
        return;
      }
      const std::size_t before = ids.size();
      model.encode(piece, ids);
      cache->insert(piece, hash, std::span(ids).subspan(before));
    }
  };

  struct SkippedCount {
    const PieceModel& model;
    std::uint64_t count = 0;

    void token(std::int32_t /*id*/) {}
    void piece(std::string_view piece) { count += model.count_skipped(piece); }
  };

  /// An object of tokens and ids, or, in a Unigram model, a list of tokens with scores.
  void read_vocabulary(const JsonView& json) {
    if (type_ == "Unigram") {
      std::int32_t id = 0;
      for (const JsonView& item : json.items()) vocabulary_.add(item.item(0).text(), id++, json.name());
      return;
    }
    if (!json.value().is_object()) throw UserError("{}: expected an object of tokens and ids", json.name());
    for (const auto& [token, id] : json.value().items())
      vocabulary_.add(token, JsonView(id, json.name()).token_id(), json.name());
  }

  bool has(std::int32_t id) const { return vocabulary_.has(id) || extra_tokens_.has(id); }

  /// Most added tokens are also in the model's vocabulary. The others are stored separately, so that the model does not
  /// produce them from text.
  void add(const AddedToken& token, const std::string& origin) {
    if (const auto known = vocabulary_.find(token.content); known == token.id) return;
    if (vocabulary_.find(token.content) || vocabulary_.has(token.id)) {
      throw UserError("{}: the token '{}' has the id {}; the vocabulary has another token or id for it", origin,
                      token.content, token.id);
    }
    extra_tokens_.add(token.content, token.id, origin);
  }

  void read_added_tokens(const JsonView& list) {
    if (list.is_null()) return;
    std::vector<AddedToken> raw, normalized;
    for (const JsonView& item : list.items()) {
      AddedToken token{
          item.at("content").text(),          item.at("id").token_id(),      item.boolean("special", false), false,
          item.boolean("single_word", false), item.boolean("lstrip", false), item.boolean("rstrip", false)};
      token.normalized = item.boolean("normalized", !token.special);
      add(token, item.name());
      if (token.special) special_ids_.insert(token.id);
      if (token.normalized) token.content = normalizer_.apply(std::move(token.content));
      (token.normalized ? normalized : raw).push_back(std::move(token));
    }
    added_ = AddedTokens(std::move(raw));
    added_normalized_ = AddedTokens(std::move(normalized));
  }

  /// The model's own unknown token is the default.
  SpecialNames names_of(SpecialNames names, const JsonView& model, const JsonView& post_processor) const {
    if (type_ == "Unigram") names.try_emplace("unk_token", vocabulary_.token(model.at("unk_id").token_id()));
    if (model.has("unk_token")) names.try_emplace("unk_token", model.at("unk_token").text());
    const std::string kind = post_processor.is_null() ? "" : post_processor.at("type").text();
    if (kind == "RobertaProcessing" || kind == "BertProcessing") {
      names.try_emplace("cls_token", post_processor.at("cls").item(0).text());
      names.try_emplace("sep_token", post_processor.at("sep").item(0).text());
    }
    return names;
  }

  std::string type_, json_;
  bool keeps_text_ = false;
  TokenTable vocabulary_, extra_tokens_;  // the model's tokens; added tokens that the model lacks
  AddedTokens added_, added_normalized_;
  std::set<std::int32_t> special_ids_;  // of added tokens
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  TokenDecoder decoder_;
  std::unique_ptr<PieceModel> model_;
  mutable WordCachePool caches_;
};

}  // namespace

std::shared_ptr<const Tokenizer> make_pipeline_tokenizer(nlohmann::json tokenizer, const SpecialNames& names,
                                                         const SpecialTokens* special, std::string_view origin) {
  return std::make_shared<PipelineTokenizer>(std::move(tokenizer), names, special, origin);
}

}  // namespace furlong
