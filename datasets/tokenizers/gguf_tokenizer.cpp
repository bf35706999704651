#include "datasets/tokenizers/gguf_tokenizer.h"

#include <limits>
#include <map>
#include <utility>

#include "datasets/tokenizers/hugging_face_json.h"
#include "datasets/tokenizers/sentencepiece_proto.h"
#include "datasets/tokenizers/tokenizer_kinds.h"
#include "datasets/tokenizers/unicode.h"

namespace furlong {
namespace {

/// tokenizer.ggml.token_type
enum TokenType : std::int64_t { normal = 1, unknown, control, user_defined, unused, byte };

struct GgufFields {
  const GgufFile& file;
  const std::vector<std::string>& tokens;
  std::vector<std::int64_t> types;
  SpecialTokens special;
};

GgufFields read_fields(const GgufFile& file) {
  GgufFields fields{file, file.texts("tokenizer.ggml.tokens"), {}, {}};
  if (fields.tokens.empty()) throw UserError("{}: tokenizer.ggml.tokens is empty", file.path());
  for (std::size_t id = 0; id < fields.tokens.size(); ++id) {
    const std::string& token = fields.tokens[id];
    if (unicode::valid_length(token) != token.size())
      throw UserError("{}: tokenizer.ggml.tokens[{}] is not valid UTF-8", file.path(), id);
  }
  fields.types.assign(fields.tokens.size(), normal);
  if (file.has("tokenizer.ggml.token_type")) {
    fields.types = file.integers("tokenizer.ggml.token_type");
    if (fields.types.size() != fields.tokens.size()) {
      throw UserError("{}: tokenizer.ggml.token_type has {} items, but tokenizer.ggml.tokens has {}", file.path(),
                      fields.types.size(), fields.tokens.size());
    }
  }
  const std::pair<const char*, std::optional<std::int32_t> SpecialTokens::*> parts[] = {
      {"bos", &SpecialTokens::beginning},
      {"eos", &SpecialTokens::end},
      {"unknown", &SpecialTokens::unknown},
      {"separator", &SpecialTokens::separator},
      {"seperator", &SpecialTokens::separator},  // the spelling of older files
      {"padding", &SpecialTokens::padding},
      {"cls", &SpecialTokens::classify},
      {"mask", &SpecialTokens::mask}};
  for (const auto& [name, id] : parts) {
    const std::string key = fmt::format("tokenizer.ggml.{}_token_id", name);
    if (!file.has(key)) continue;
    const std::int64_t value = file.integer(key);
    if (value < 0 || value >= static_cast<std::int64_t>(fields.tokens.size())) {
      throw UserError("{}: {} is {}, but there are {} tokens", file.path(), key, value, fields.tokens.size());
    }
    fields.special.*id = static_cast<std::int32_t>(value);
  }
  return fields;
}

BytePairFamily family_of(const GgufFile& file) {
  static const std::map<std::string_view, BytePairFamily> families{
      {"gpt-2", BytePairFamily::gpt2},       {"gpt2", BytePairFamily::gpt2},
      {"llama-bpe", BytePairFamily::llama3}, {"llama3", BytePairFamily::llama3},
      {"llama-v3", BytePairFamily::llama3},  {"smollm", BytePairFamily::smollm},
      {"starcoder", BytePairFamily::smollm}, {"refact", BytePairFamily::smollm},
      {"qwen2", BytePairFamily::qwen2}};
  if (!file.has("tokenizer.ggml.pre")) {
    throw UserError(
        "{}: tokenizer.ggml.pre is missing, so the text splitting is unknown; convert the model to GGUF again",
        file.path());
  }
  const std::string name = file.text("tokenizer.ggml.pre");
  const auto found = families.find(name);
  if (found == families.end()) {
    throw UserError(
        "{}: tokenizer.ggml.pre '{}' is not supported; expected gpt-2, llama-bpe, qwen2, refact, smollm or starcoder",
        file.path(), name);
  }
  return found->second;
}

std::shared_ptr<const Tokenizer> byte_pairs(const GgufFields& fields) {
  BytePairParts parts;
  parts.family = family_of(fields.file);
  parts.merges = fields.file.texts("tokenizer.ggml.merges");
  parts.add_prefix_space = fields.file.boolean("tokenizer.ggml.add_space_prefix", false);
  parts.vocabulary = nlohmann::json::object();
  for (std::size_t id = 0; id < fields.tokens.size(); ++id) {
    const auto token = static_cast<std::int32_t>(id);
    if (!parts.vocabulary.emplace(fields.tokens[id], token).second) {
      throw UserError("{}: tokenizer.ggml.tokens has '{}' twice", fields.file.path(), fields.tokens[id]);
    }
    const std::int64_t type = fields.types[id];
    if (type == control || type == user_defined)
      parts.added.push_back({.content = fields.tokens[id], .id = token, .special = type == control});
  }
  const auto frame = [&](const char* key, bool usual, const std::optional<std::int32_t>& id) {
    return fields.file.boolean(key, usual) && id ? fields.tokens[static_cast<std::size_t>(*id)] : std::string();
  };
  parts.front = frame("tokenizer.ggml.add_bos_token", parts.family == BytePairFamily::llama3, fields.special.beginning);
  parts.back = frame("tokenizer.ggml.add_eos_token", false, fields.special.end);
  return make_pipeline_tokenizer(byte_pair_json(parts, fields.file.path()), {}, &fields.special, fields.file.path());
}

std::shared_ptr<const Tokenizer> sentencepiece(const GgufFields& fields) {
  const std::vector<double> scores = fields.file.reals("tokenizer.ggml.scores");
  if (scores.size() != fields.tokens.size()) {
    throw UserError("{}: tokenizer.ggml.scores has {} items, but tokenizer.ggml.tokens has {}", fields.file.path(),
                    scores.size(), fields.tokens.size());
  }
  SentencePieceProto proto;
  proto.bpe = true;
  proto.add_dummy_prefix = fields.file.boolean("tokenizer.ggml.add_space_prefix", true);
  proto.remove_extra_whitespaces = false;
  for (std::size_t id = 0; id < fields.tokens.size(); ++id) {
    const std::int64_t type = fields.types[id];
    if (type < normal || type > byte)
      throw UserError("{}: tokenizer.ggml.token_type[{}] is {}, expected 1 to 6", fields.file.path(), id, type);
    proto.pieces.push_back(
        {fields.tokens[id], static_cast<float>(scores[id]), static_cast<SentencePieceProto::Type>(type)});
    proto.byte_fallback = proto.byte_fallback || type == byte;
  }
  const auto control_id = [&](const std::optional<std::int32_t>& id) {
    return id && fields.types[static_cast<std::size_t>(*id)] == control ? *id : -1;
  };
  proto.beginning = control_id(fields.special.beginning);
  proto.end = control_id(fields.special.end);
  proto.padding = control_id(fields.special.padding);
  SentencePieceParts parts;
  parts.model = proto.serialized();
  if (fields.file.boolean("tokenizer.ggml.add_bos_token", true) && fields.special.beginning)
    parts.frame.front.push_back(*fields.special.beginning);
  if (fields.file.boolean("tokenizer.ggml.add_eos_token", false) && fields.special.end)
    parts.frame.back.push_back(*fields.special.end);
  return make_sentencepiece_tokenizer(std::move(parts), {}, &fields.special, fields.file.path());
}

}  // namespace

std::shared_ptr<const Tokenizer> tokenizer_from_gguf(const GgufFile& file) {
  const std::string model = file.text("tokenizer.ggml.model");
  if (model == "gpt2") return byte_pairs(read_fields(file));
  if (model == "llama") return sentencepiece(read_fields(file));
  throw UserError(
      "{}: tokenizer.ggml.model '{}' is not supported; expected gpt2 (byte-level BPE) or llama (SentencePiece BPE)",
      file.path(), model);
}

}  // namespace furlong
