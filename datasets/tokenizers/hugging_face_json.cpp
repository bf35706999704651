#include "datasets/tokenizers/hugging_face_json.h"

#include "framework/core/error.h"

namespace furlong {
namespace {

using nlohmann::json;

json byte_level(bool add_prefix_space, bool use_regex) {
  return {
      {"type", "ByteLevel"}, {"add_prefix_space", add_prefix_space}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

json split(const char* expression) {
  return {{"type", "Split"}, {"pattern", {{"Regex", expression}}}, {"behavior", "Isolated"}, {"invert", false}};
}

json pre_tokenizer(const BytePairParts& parts) {
  const json bytes = byte_level(parts.add_prefix_space, false);
  switch (parts.family) {
    case BytePairFamily::llama3:
      return {{"type", "Sequence"},
              {"pretokenizers",
               {split(R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
                      R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"),
                bytes}}};
    case BytePairFamily::qwen2:
      return {{"type", "Sequence"},
              {"pretokenizers",
               {split(R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
                      R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"),
                bytes}}};
    case BytePairFamily::smollm:
      return {{"type", "Sequence"},
              {"pretokenizers",
               {json{{"type", "Digits"}, {"individual_digits", true}}, byte_level(parts.add_prefix_space, true)}}};
    case BytePairFamily::gpt2:
      break;
  }
  return byte_level(parts.add_prefix_space, true);
}

json added_json(const std::vector<AddedToken>& added) {
  json list = json::array();
  for (const AddedToken& token : added) {
    list.push_back({{"id", token.id},
                    {"content", token.content},
                    {"single_word", token.single_word},
                    {"lstrip", token.lstrip},
                    {"rstrip", token.rstrip},
                    {"normalized", token.normalized},
                    {"special", token.special}});
  }
  return list;
}

/// The post_processor: one text between two special tokens, either of which may be missing. Each text of a pair gets
/// both.
json template_of(const std::string& front, const std::string& back, const json& vocabulary,
                 const std::vector<AddedToken>& added, std::string_view origin) {
  json special = json::object(), single = json::array(), pair = json::array();
  const auto token = [&](const std::string& name, int text) {
    if (name.empty()) return;
    json id = vocabulary.contains(name) ? vocabulary[name] : json();
    for (const AddedToken& other : added) {
      if (other.content == name) id = other.id;
    }
    if (id.is_null())
      throw UserError("{}: the special token '{}' of the post_processor is not in the vocabulary", origin, name);
    special[name] = {{"id", name}, {"ids", {id}}, {"tokens", {name}}};
    const json item{{"SpecialToken", {{"id", name}, {"type_id", text}}}};
    if (text == 0) single.push_back(item);
    pair.push_back(item);
  };
  for (int text = 0; text < 2; ++text) {
    token(front, text);
    const json sequence{{"Sequence", {{"id", text == 0 ? "A" : "B"}, {"type_id", text}}}};
    if (text == 0) single.push_back(sequence);
    pair.push_back(sequence);
    token(back, text);
  }
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", special}};
}

}  // namespace

json byte_pair_json(const BytePairParts& parts, std::string_view origin) {
  const bool framed = !parts.front.empty() || !parts.back.empty();
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added_json(parts.added)},
          {"normalizer", parts.family == BytePairFamily::qwen2 ? json{{"type", "NFC"}} : json()},
          {"pre_tokenizer", pre_tokenizer(parts)},
          {"post_processor", framed ? template_of(parts.front, parts.back, parts.vocabulary, parts.added, origin)
                                    : byte_level(true, true)},
          {"decoder", byte_level(true, true)},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            // Llama 3's merges come from tiktoken's order of tokens, in which a whole token may lack the merges that
            // lead to it.
            {"ignore_merges", parts.family == BytePairFamily::llama3},
            {"vocab", parts.vocabulary},
            {"merges", parts.merges}}}};
}

json wordpiece_json(const WordPieceParts& parts, std::string_view origin) {
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added_json(parts.added)},
          {"normalizer",
           {{"type", "BertNormalizer"},
            {"clean_text", true},
            {"handle_chinese_chars", parts.space_ideographs},
            {"strip_accents", parts.strip_accents},
            {"lowercase", parts.lowercase}}},
          {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
          {"post_processor", template_of(parts.front, parts.back, parts.vocabulary, parts.added, origin)},
          {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}},
          {"model",
           {{"type", "WordPiece"},
            {"unk_token", parts.unknown},
            {"continuing_subword_prefix", "##"},
            {"max_input_chars_per_word", 100},
            {"vocab", parts.vocabulary}}}};
}

}  // namespace furlong
