// Converts the Unigram model of a tokenizer.json back to the SentencePiece model it came from.
#include <limits>
#include <set>

#include "datasets/tokenizers/base64.h"
#include "datasets/tokenizers/sentencepiece_proto.h"
#include "datasets/tokenizers/tokenizer_kinds.h"

namespace furlong {
namespace {

/// Appends the steps of a normalizer or pre-tokenizer, with sequences flattened.
void flatten(const JsonView& json, const char* members, std::vector<JsonView>& steps) {
  if (json.is_null()) return;
  if (json.at("type").text() != "Sequence") {
    steps.push_back(json);
    return;
  }
  for (const JsonView& item : json.at(members).items()) flatten(item, members, steps);
}

constexpr std::string_view space_mark = "\u2581";  // in place of a space

/// Whether the step removes spaces at an end or runs of spaces, as SentencePiece's remove_extra_whitespaces does.
bool removes_extra_whitespace(const JsonView& step) {
  const std::string& type = step.at("type").text();
  if (type == "Strip") return step.boolean("strip_right", true);
  if (type != "Replace" || !step.at("pattern").has("Regex")) return false;
  const std::string &pattern = step.at("pattern").at("Regex").text(), &content = step.at("content").text();
  if (pattern == " {2,}") return content == " " || content == space_mark;
  return content.empty() && (pattern == "\\A +" || pattern == "( |\u2581)+\\z");
}

bool escapes_spaces(const JsonView& step) {
  return step.at("type").text() == "Replace" && step.at("pattern").text("String", "") == " " &&
         step.at("content").text() == space_mark;
}

/// Of files of furlong export: the normalizer does what Metaspace does in others, after all its other steps.
bool escapes_spaces(const std::vector<JsonView>& steps) { return !steps.empty() && escapes_spaces(steps.back()); }

void read_normalizer(const std::vector<JsonView>& steps, const JsonView& tokenizer, SentencePieceParts& parts,
                     SentencePieceProto& proto) {
  const bool is_complete = escapes_spaces(steps);
  nlohmann::json before = nlohmann::json::array();
  bool compiled = false, removes = false, prepends = false;
  for (const JsonView& step : steps) {
    const std::string& type = step.at("type").text();
    if (type == "Precompiled") {
      if (compiled) throw UserError("{}: a second Precompiled normalizer is not supported", step.name());
      compiled = true;
      const JsonView map = step.at("precompiled_charsmap");
      const auto bytes = from_base64(map.text());
      if (!bytes) throw UserError("{}: not valid base64", map.name());
      proto.normalization_map = *bytes;
    } else if ((compiled || is_complete) && removes_extra_whitespace(step)) {
      removes = true;
    } else if (is_complete && type == "Prepend" && step.at("prepend").text() == space_mark) {
      prepends = true;
    } else if (is_complete && escapes_spaces(step)) {
      continue;
    } else if (!compiled) {
      before.push_back(step.value());
    } else {
      throw UserError("{}: the normalizer '{}' after Precompiled is not supported", step.name(), type);
    }
  }
  if (is_complete) {
    proto.remove_extra_whitespaces = removes;
    proto.add_dummy_prefix = prepends;
  } else if (!compiled) {
    throw UserError(
        "{}: a Unigram model needs a Precompiled normalizer; use a model made by SentencePiece, or "
        "its *.model file",
        tokenizer.name());
  }
  if (!before.empty()) parts.normalizer = {{"type", "Sequence"}, {"normalizers", before}};
}

void read_pre_tokenizer(const JsonView& tokenizer, SentencePieceProto& proto) {
  std::vector<JsonView> steps;
  if (tokenizer.has("pre_tokenizer")) flatten(tokenizer.at("pre_tokenizer"), "pretokenizers", steps);
  bool has_metaspace = false;
  for (const JsonView& step : steps) {
    const std::string& type = step.at("type").text();
    if (type == "WhitespaceSplit" && !has_metaspace) continue;  // words are separated by single spaces at this point
    if (type != "Metaspace" || has_metaspace || step.text("replacement", "\u2581") != "\u2581") {
      throw UserError(
          "{}: the pre_tokenizer '{}' with a Unigram model is not supported; expected Metaspace, optionally after "
          "WhitespaceSplit",
          step.name(), type);
    }
    has_metaspace = true;
    proto.add_dummy_prefix =
        step.text("prepend_scheme", step.boolean("add_prefix_space", true) ? "always" : "never") != "never";
  }
  if (!has_metaspace)
    throw UserError(
        "{}: a Unigram model needs the pre_tokenizer Metaspace; use a model made by SentencePiece, or its *.model file",
        tokenizer.name());
}

}  // namespace

SentencePieceParts sentencepiece_of_unigram(const JsonView& tokenizer) {
  SentencePieceParts parts;
  SentencePieceProto proto;
  std::vector<JsonView> normalizers;
  if (tokenizer.has("normalizer")) flatten(tokenizer.at("normalizer"), "normalizers", normalizers);
  read_normalizer(normalizers, tokenizer, parts, proto);
  if (!escapes_spaces(normalizers)) read_pre_tokenizer(tokenizer, proto);
  const JsonView model = tokenizer.at("model");
  proto.byte_fallback = model.boolean("byte_fallback", false);
  const std::int64_t unknown = model.at("unk_id").integer();
  for (const JsonView& item : model.at("vocab").items()) {
    proto.pieces.push_back({item.item(0).text(), static_cast<float>(item.item(1).real())});
    const std::string& text = proto.pieces.back().text;
    if (proto.byte_fallback && text.size() == 6 && text.starts_with("<0x"))
      proto.pieces.back().type = SentencePieceProto::Type::byte;
  }
  const auto n_pieces = static_cast<std::int64_t>(proto.pieces.size());
  if (unknown < 0 || unknown >= n_pieces)
    throw UserError("{}: {} is not a token id; there are {} tokens", model.at("unk_id").name(), unknown, n_pieces);
  if (tokenizer.has("added_tokens")) {
    for (const JsonView& item : tokenizer.at("added_tokens").items()) {
      AddedToken token{.content = item.at("content").text(),
                       .id = item.at("id").token_id(),
                       .special = item.boolean("special", false)};
      if (token.id < n_pieces && token.special && token.id != unknown) {
        proto.pieces[static_cast<std::size_t>(token.id)].type = SentencePieceProto::Type::control;
      }
      if (token.id != unknown) parts.added.push_back(std::move(token));
    }
  }
  proto.pieces[static_cast<std::size_t>(unknown)].type = SentencePieceProto::Type::unknown;
  parts.model = proto.serialized();
  if (tokenizer.has("post_processor")) parts.frame = frame_of_processor(tokenizer.at("post_processor"));
  return parts;
}

}  // namespace furlong
