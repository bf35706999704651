#include "datasets/tokenizers/special_tokens.h"

#include <array>
#include <initializer_list>
#include <nlohmann/json.hpp>

namespace furlong {
namespace {

struct Part {
  std::optional<std::int32_t> SpecialTokens::*id;
  const char* name;        // in special_to_json()
  const char* config_key;  // in a tokenizer_config.json
  std::initializer_list<const char*> spellings;
};

const std::array<Part, 7> parts{{
    {&SpecialTokens::unknown, "unknown", "unk_token", {"[UNK]", "<unk>", "<|endoftext|>"}},
    {&SpecialTokens::beginning, "beginning", "bos_token", {"<s>", "<|begin_of_text|>", "<bos>", "<|endoftext|>"}},
    {&SpecialTokens::end, "end", "eos_token", {"</s>", "<|end_of_text|>", "<eos>", "<|endoftext|>"}},
    {&SpecialTokens::padding, "padding", "pad_token", {"[PAD]", "<pad>"}},
    {&SpecialTokens::mask, "mask", "mask_token", {"[MASK]", "<mask>"}},
    {&SpecialTokens::classify, "classify", "cls_token", {"[CLS]", "<cls>"}},
    {&SpecialTokens::separator, "separator", "sep_token", {"[SEP]", "<sep>"}},
}};

}  // namespace

SpecialNames special_names(const JsonView& config) {
  SpecialNames names;
  for (const Part& part : parts) {
    if (!config.has(part.config_key)) continue;
    const JsonView value = config.at(part.config_key);
    names[part.config_key] = value.value().is_object() ? value.at("content").text() : value.text();
  }
  return names;
}

SpecialTokens special_tokens(const SpecialNames& names, const FindToken& find) {
  SpecialTokens special;
  for (const Part& part : parts) {
    if (const auto named = names.find(part.config_key); named != names.end()) {
      special.*part.id = find(named->second);
      continue;
    }
    for (const char* spelling : part.spellings) {
      if (!(special.*part.id)) special.*part.id = find(spelling);
    }
  }
  return special;
}

nlohmann::json special_to_json(const SpecialTokens& special) {
  nlohmann::json object = nlohmann::json::object();
  for (const Part& part : parts) {
    if (special.*part.id) object[part.name] = *(special.*part.id);
  }
  return object;
}

SpecialTokens special_from_json(const JsonView& json) {
  SpecialTokens special;
  for (const Part& part : parts) {
    if (json.has(part.name)) special.*part.id = json.at(part.name).token_id();
  }
  return special;
}

void check_special_tokens(const Tokenizer& tokenizer, std::string_view origin) {
  for (const Part& part : parts) {
    const auto id = tokenizer.special().*part.id;
    if (id && *id >= tokenizer.size())
      throw UserError("{}: special.{}: token {} does not exist; ids are below {}; use the tokenizer files of one model",
                      origin, part.name, *id, tokenizer.size());
  }
  for (const std::int32_t id : tokenizer.framed({})) {
    if (id >= tokenizer.size())
      throw UserError(
          "{}: special tokens added around a text: token {} does not exist; ids are below {}; use the tokenizer files "
          "of one model",
          origin, id, tokenizer.size());
  }
}

}  // namespace furlong
