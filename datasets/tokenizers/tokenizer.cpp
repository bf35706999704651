#include "datasets/tokenizers/tokenizer.h"

#include <utility>

#include "datasets/tokenizers/base64.h"
#include "datasets/tokenizers/tokenizer_kinds.h"
#include "framework/core/printable.h"

namespace furlong {
namespace {

std::vector<AddedToken> added_from_json(const JsonView& json) {
  std::vector<AddedToken> tokens;
  for (const JsonView& item : json.items()) {
    tokens.push_back({.content = item.at("content").text(),
                      .id = item.at("id").token_id(),
                      .special = item.at("special").boolean(),
                      .single_word = item.boolean("single_word", false),
                      .lstrip = item.boolean("lstrip", false),
                      .rstrip = item.boolean("rstrip", false)});
  }
  return tokens;
}

std::shared_ptr<const Tokenizer> sentencepiece_from_json(const JsonView& json, const SpecialTokens& special,
                                                         std::string_view origin) {
  SentencePieceParts parts;
  const auto model = from_base64(json.at("sentencepiece").text());
  if (!model) throw UserError("{}: not valid base64", json.at("sentencepiece").name());
  parts.model = *model;
  if (json.has("normalizer")) parts.normalizer = json.at("normalizer").value();
  if (json.has("added")) parts.added = added_from_json(json.at("added"));
  parts.frame = frame_from_json(json.at("frame"));
  return make_sentencepiece_tokenizer(std::move(parts), {}, &special, origin);
}

std::shared_ptr<const Tokenizer> letters_from_json(const JsonView& json, const SpecialTokens& special,
                                                   std::string_view origin) {
  LetterParts parts;
  for (const JsonView& item : json.at("letters").items()) parts.tokens.push_back(item.text());
  const std::string units = json.at("units").text();
  if (units != "letters" && units != "smiles")
    throw UserError("{}: unknown value '{}'; expected letters or smiles", json.at("units").name(), units);
  parts.units = units == "smiles" ? LetterParts::Units::smiles : LetterParts::Units::letters;
  parts.joins_unknown = json.at("joins_unknown").boolean();
  parts.frame = frame_from_json(json.at("frame"));
  return make_letter_tokenizer(std::move(parts), {}, &special, origin);
}

std::shared_ptr<const Tokenizer> read_tokenizer(std::string_view json, std::string_view origin) {
  nlohmann::json document = parse_json(json, origin);
  const JsonView all(document, std::string(origin) + ":");
  const std::string kind = all.at("kind").text();
  const SpecialTokens special = special_from_json(all.at("special"));
  std::shared_ptr<const Tokenizer> tokenizer;
  if (kind == "sentencepiece") {
    tokenizer = sentencepiece_from_json(all, special, origin);
  } else if (kind == "letters") {
    tokenizer = letters_from_json(all, special, origin);
  } else if (kind == "bpe" || kind == "unigram" || kind == "wordpiece") {
    all.at("tokenizer");
    tokenizer =
        make_pipeline_tokenizer(std::move(document["tokenizer"]), {}, &special, std::string(origin) + ": tokenizer");
  } else {
    throw UserError("{}: unknown tokenizer '{}'; expected bpe, wordpiece, sentencepiece or letters",
                    all.at("kind").name(), kind);
  }
  check_special_tokens(*tokenizer, origin);
  return tokenizer;
}

}  // namespace

std::vector<std::int32_t> Tokenizer::framed(std::span<const std::int32_t> ids) const {
  std::vector<std::int32_t> all(frame_front_);
  all.insert(all.end(), ids.begin(), ids.end());
  all.insert(all.end(), frame_back_.begin(), frame_back_.end());
  return all;
}

std::shared_ptr<const Tokenizer> tokenizer_from_json(std::string_view json, std::string_view origin) {
  return foreign::with_single_line_errors([&] { return read_tokenizer(json, origin); });
}

}  // namespace furlong
