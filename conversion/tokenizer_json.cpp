#include "conversion/tokenizer_json.h"

namespace furlong {
namespace {

using Json = nlohmann::ordered_json;

/// The frame around each of `texts`, as items of a TemplateProcessing.
Json framed_texts(std::initializer_list<const char*> texts, const Vocabulary& vocabulary, const SequenceFrame& frame) {
  Json items = Json::array();
  const auto add = [&](const std::vector<std::int32_t>& ids) {
    for (const std::int32_t id : ids)
      items.push_back({{"SpecialToken", {{"id", vocabulary.symbol(id)}, {"type_id", 0}}}});
  };
  for (const char* text : texts) {
    add(frame.front);
    items.push_back({{"Sequence", {{"id", text}, {"type_id", 0}}}});
    add(frame.back);
  }
  return items;
}

}  // namespace

Json empty_tokenizer_json() {
  Json tokenizer{{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}};
  tokenizer["added_tokens"] = Json::array();
  for (const char* step : {"normalizer", "pre_tokenizer", "post_processor", "decoder", "model"})
    tokenizer[step] = nullptr;
  return tokenizer;
}

Json special_token_json(std::int32_t id, const std::string& content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

Json replacement_json(const char* kind, const std::string& pattern, const std::string& by) {
  return {{"type", "Replace"}, {"pattern", {{kind, pattern}}}, {"content", by}};
}

Json frame_json(const Vocabulary& vocabulary, const SequenceFrame& frame) {
  Json special = Json::object();
  for (const auto& ids : {frame.front, frame.back}) {
    for (const std::int32_t id : ids) {
      const std::string symbol = vocabulary.symbol(id);
      special[symbol] = {{"id", symbol}, {"ids", Json::array({id})}, {"tokens", Json::array({symbol})}};
    }
  }
  if (special.empty()) return nullptr;
  return {{"type", "TemplateProcessing"},
          {"single", framed_texts({"A"}, vocabulary, frame)},
          {"pair", framed_texts({"A", "B"}, vocabulary, frame)},
          {"special_tokens", special}};
}

}  // namespace furlong
