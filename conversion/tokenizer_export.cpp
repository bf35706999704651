#include "conversion/tokenizer_export.h"

#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "conversion/sentencepiece_json.h"
#include "conversion/tokenizer_json.h"
#include "datasets/tokenizers/base64.h"
#include "framework/io/json_bounds.h"

namespace furlong {
namespace {

using Json = nlohmann::ordered_json;

/// Returns the special tokens under Hugging Face's keys.
Json tokenizer_config_of(const Vocabulary& vocabulary, const char* class_name, bool has_segments) {
  const SpecialTokens& special = vocabulary.tokenizer()->special();
  Json config{{"tokenizer_class", class_name}, {"clean_up_tokenization_spaces", false}};
  // Versions of transformers have different defaults, and GPT-2 takes token_type_ids for tokens.
  config["model_input_names"] =
      has_segments ? Json{"input_ids", "token_type_ids", "attention_mask"} : Json{"input_ids", "attention_mask"};
  const auto add = [&](const char* key, const std::optional<std::int32_t>& id) {
    if (id) config[key] = vocabulary.symbol(*id);
  };
  add("unk_token", special.unknown);
  add("bos_token", special.beginning);
  add("eos_token", special.end);
  add("pad_token", special.padding);
  add("mask_token", vocabulary.mask_id());
  add("cls_token", vocabulary.class_id());
  add("sep_token", special.separator);
  return config;
}

/// Whether each id has a token: Hugging Face gives a new token the next id.
bool has_all_tokens(const Tokenizer& tokenizer) {
  for (std::int32_t id = 0; id < tokenizer.size(); ++id)
    if (tokenizer.token(id).empty()) return false;
  return true;
}

/// Appends <mask> and <class>, if the vocabulary has them in addition to its tokenizer's tokens.
template <class AnyJson>
void add_encoder_tokens(const Vocabulary& vocabulary, AnyJson& tokenizer) {
  for (std::int32_t id = vocabulary.tokenizer()->size(); id < vocabulary.size(); ++id) {
    Json token = special_token_json(id, vocabulary.symbol(id));
    // A word in place of the mask would have the space before it in its token.
    token["lstrip"] = id == vocabulary.mask_id();
    tokenizer["added_tokens"].emplace_back(std::move(token));
  }
}

/// Returns a post_processor that adds `frame`, and trims offsets if `existing` does.
nlohmann::json with_frame(const nlohmann::json& existing, const nlohmann::json& frame) {
  const auto trims = [](const nlohmann::json& step) {
    return step.is_object() && step.value("type", "") == "ByteLevel";
  };
  const nlohmann::json* level = trims(existing) ? &existing : nullptr;
  if (existing.is_object() && existing.contains("processors"))
    for (const nlohmann::json& step : existing["processors"])
      if (trims(step)) level = &step;
  if (!level) return frame;
  return {{"type", "Sequence"}, {"processors", {*level, frame}}};
}

/// Of a tokenizer that is a tokenizer.json itself.
TokenizerExport of_pipeline(const Vocabulary& vocabulary, const SequenceFrame& frame, nlohmann::json tokenizer,
                            const std::string& chat_template, bool has_segments) {
  TokenizerExport result;
  Json config = tokenizer_config_of(vocabulary, "PreTrainedTokenizerFast", has_segments);
  const nlohmann::json normalizer = tokenizer.value("normalizer", nlohmann::json());
  if (normalizer.is_object() && normalizer.value("type", "") == "BertNormalizer") {
    config["do_lower_case"] = normalizer.at("lowercase");
    config["strip_accents"] = normalizer.at("strip_accents");
    config["tokenize_chinese_chars"] = normalizer.at("handle_chinese_chars");
  }
  if (!chat_template.empty()) config["chat_template"] = chat_template;
  const bool has_more = vocabulary.size() > vocabulary.tokenizer()->size();
  if (!has_more || has_all_tokens(*vocabulary.tokenizer())) {
    if (has_more && tokenizer.value("added_tokens", nlohmann::json()).is_null())
      tokenizer["added_tokens"] = nlohmann::json::array();
    add_encoder_tokens(vocabulary, tokenizer);
    if (frame.front != vocabulary.frame_front() || frame.back != vocabulary.frame_back())
      tokenizer["post_processor"] =
          with_frame(tokenizer.value("post_processor", nlohmann::json()), frame_json(vocabulary, frame));
  } else {
    result.obstacle = "some of its ids have no token";
    for (const char* key : {"mask_token", "cls_token"}) config.erase(key);
  }
  result.files = {{"tokenizer.json", tokenizer.dump(2) + "\n"}, {"tokenizer_config.json", config.dump(2) + "\n"}};
  return result;
}

/// Appends tokens that a SentencePiece model does not have. Returns why they cannot be added; empty: they are.
std::string add_own_tokens(const nlohmann::json& added, const SentencePieceProto& proto, Json& tokenizer) {
  auto next = static_cast<std::int32_t>(proto.pieces.size());
  std::map<std::int32_t, const nlohmann::json*> by_id;
  for (const nlohmann::json& token : added) by_id[token.at("id")] = &token;
  for (const auto& [id, token] : by_id) {
    // A model of a tokenizer.json lists its control tokens as added ones too.
    if (id < next && proto.pieces[static_cast<std::size_t>(id)].type == SentencePieceProto::Type::control) continue;
    if (id > next) return "some of its ids have no token";
    if (id == next) ++next;
    Json item = special_token_json(id, token->at("content"));
    item["special"] = token->at("special");
    for (const char* flag : {"single_word", "lstrip", "rstrip"}) item[flag] = token->value(flag, false);
    tokenizer["added_tokens"].push_back(std::move(item));
  }
  return "";
}

TokenizerExport of_sentencepiece(const Vocabulary& vocabulary, const SequenceFrame& frame, const nlohmann::json& parts,
                                 const std::string& chat_template, bool has_segments) {
  const std::string model = from_base64(parts.at("sentencepiece").get<std::string>()).value();
  const SentencePieceProto proto = SentencePieceProto::parsed(model, "the tokenizer");
  TokenizerExport result{{{"tokenizer.model", model}}, sentencepiece_obstacle(proto)};
  Json tokenizer;
  if (result.obstacle.empty()) {
    const std::string text = parts.value("normalizer", nlohmann::json()).dump();
    foreign::check_ordered_json(text, "the tokenizer's normalizer");
    const Json normalizer = Json::parse(text);
    tokenizer = sentencepiece_json(proto, normalizer.is_null()                 ? Json::array()
                                          : normalizer.contains("normalizers") ? normalizer["normalizers"]
                                                                               : Json::array({normalizer}));
    result.obstacle = add_own_tokens(parts.value("added", nlohmann::json::array()), proto, tokenizer);
  }
  if (result.obstacle.empty()) {
    add_encoder_tokens(vocabulary, tokenizer);
    tokenizer["post_processor"] = frame_json(vocabulary, frame);
    Json config = tokenizer_config_of(vocabulary, "PreTrainedTokenizerFast", has_segments);
    // What pads is masked, and so may be any token.
    if (const auto end = vocabulary.document_id(); end && !config.contains("pad_token"))
      config["pad_token"] = vocabulary.symbol(*end);
    if (!chat_template.empty()) config["chat_template"] = chat_template;
    result.files.emplace_back("tokenizer.json", tokenizer.dump(2) + "\n");
    result.files.emplace_back("tokenizer_config.json", config.dump(2) + "\n");
  } else if (!chat_template.empty()) {
    Json config = tokenizer_config_of(vocabulary, "LlamaTokenizer", has_segments);
    config["add_bos_token"] = !vocabulary.frame_front().empty();
    config["add_eos_token"] = !vocabulary.frame_back().empty();
    config["chat_template"] = chat_template;
    result.files.emplace_back("tokenizer_config.json", config.dump(2) + "\n");
  }
  return result;
}

}  // namespace

TokenizerExport export_tokenizer(const Vocabulary& vocabulary, const SequenceFrame& frame,
                                 const std::string& chat_template, bool has_segments) {
  if (!vocabulary.tokenizer()) return {};
  const Tokenizer& tokenizer = *vocabulary.tokenizer();
  // Not ordered_json, whose objects find a key in linear time. The text has its keys in alphabetical order.
  nlohmann::json object = nlohmann::json::parse(tokenizer.to_json());
  if (object.contains("tokenizer"))
    return of_pipeline(vocabulary, frame, std::move(object["tokenizer"]), chat_template, has_segments);
  if (object.contains("sentencepiece")) return of_sentencepiece(vocabulary, frame, object, chat_template, has_segments);
  std::string letters;
  for (std::int32_t id = 0; id < tokenizer.size(); ++id) letters += tokenizer.token(id) + "\n";
  return {{{"vocab.txt", letters}}, ""};
}

std::string completed_tokenizer_config(const std::string& existing, const std::string& own) {
  foreign::check_ordered_json(existing, "tokenizer_config.json");
  Json config = Json::parse(existing, nullptr, false);
  if (!config.is_object()) return existing;
  const bool has_class = config.contains("tokenizer_class");
  const std::size_t before = config.size();
  const Json additions = Json::parse(own);  // named, because items() refers to it
  for (const auto& [key, value] : additions.items()) {
    // How a class decodes is its own default.
    if (!config.contains(key) && !(has_class && key == "clean_up_tokenization_spaces")) config[key] = value;
  }
  return config.size() == before ? existing : config.dump(2) + "\n";
}

}  // namespace furlong
