#include "conversion/tokenizer_export.h"

#include <array>
#include <nlohmann/json.hpp>

#include "datasets/tokenizers/base64.h"
#include "framework/core/error.h"

namespace furlong {
namespace {

using Json = nlohmann::ordered_json;

/// Returns the special tokens under Hugging Face's keys.
Json special_tokens(const Tokenizer& tokenizer, const char* class_name, bool has_segments) {
  const SpecialTokens& special = tokenizer.special();
  Json config{{"tokenizer_class", class_name}, {"clean_up_tokenization_spaces", false}};
  // Versions of transformers have different defaults, and GPT-2 takes token_type_ids for tokens.
  config["model_input_names"] =
      has_segments ? Json{"input_ids", "token_type_ids", "attention_mask"} : Json{"input_ids", "attention_mask"};
  const auto add = [&](const char* key, const std::optional<std::int32_t>& id) {
    if (id) config[key] = tokenizer.token(*id);
  };
  add("unk_token", special.unknown);
  add("bos_token", special.beginning);
  add("eos_token", special.end);
  add("pad_token", special.padding);
  add("mask_token", special.mask);
  add("cls_token", special.classify);
  add("sep_token", special.separator);
  return config;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> tokenizer_files(const Vocabulary& vocabulary,
                                                                 const std::string& chat_template, bool has_segments) {
  if (!vocabulary.tokenizer()) return {};
  const Tokenizer& tokenizer = *vocabulary.tokenizer();
  // Not ordered_json, whose objects find a key in linear time. The text has its keys in alphabetical order.
  const nlohmann::json object = nlohmann::json::parse(tokenizer.to_json());
  if (object.contains("tokenizer")) {
    Json config = special_tokens(tokenizer, "PreTrainedTokenizerFast", has_segments);
    const nlohmann::json& normalizer = object.at("tokenizer").value("normalizer", nlohmann::json());
    if (normalizer.is_object() && normalizer.value("type", "") == "BertNormalizer") {
      config["do_lower_case"] = normalizer.at("lowercase");
      config["strip_accents"] = normalizer.at("strip_accents");
      config["tokenize_chinese_chars"] = normalizer.at("handle_chinese_chars");
    }
    if (!chat_template.empty()) config["chat_template"] = chat_template;
    return {{"tokenizer.json", object.at("tokenizer").dump(2) + "\n"},
            {"tokenizer_config.json", config.dump(2) + "\n"}};
  }
  if (object.contains("sentencepiece")) {
    std::vector<std::pair<std::string, std::string>> files{
        {"tokenizer.model", from_base64(object.at("sentencepiece").get<std::string>()).value()}};
    if (chat_template.empty()) return files;
    Json config = special_tokens(tokenizer, "LlamaTokenizer", has_segments);
    config["add_bos_token"] = !vocabulary.frame_front().empty();
    config["add_eos_token"] = !vocabulary.frame_back().empty();
    config["chat_template"] = chat_template;
    files.emplace_back("tokenizer_config.json", config.dump(2) + "\n");
    return files;
  }
  std::string letters;
  for (std::int32_t id = 0; id < tokenizer.size(); ++id) letters += tokenizer.token(id) + "\n";
  return {{"vocab.txt", letters}};
}

std::string completed_tokenizer_config(const std::string& existing, const std::string& own) {
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
