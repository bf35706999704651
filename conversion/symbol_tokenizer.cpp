#include "conversion/symbol_tokenizer.h"

#include <cctype>
#include <nlohmann/json.hpp>
#include <set>

#include "conversion/tokenizer_json.h"
#include "datasets/tokenizers/piece_model.h"
#include "datasets/tokenizers/tokenizer_kinds.h"
#include "datasets/tokenizers/unicode.h"

namespace furlong {
namespace {

using Json = nlohmann::ordered_json;

Json split(const std::string& pattern, const char* behavior, bool invert = false) {
  return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", behavior}, {"invert", invert}};
}

/// Byte-level BPE without merges: each byte is a token.
void add_bytes(Json& tokenizer) {
  Json ids = Json::object();
  for (int byte = 0; byte < 256; ++byte) {
    std::string letter;
    unicode::append(letter, letter_of_byte(static_cast<unsigned char>(byte)));
    ids[letter] = byte;
  }
  const Json bytes{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  tokenizer["pre_tokenizer"] = tokenizer["decoder"] = bytes;
  tokenizer["model"] = {{"type", "BPE"}, {"vocab", ids}, {"merges", Json::array()}};
}

/// A token for each letter, in either case, without whitespace.
void add_letters(Json& tokenizer, const Vocabulary& vocabulary) {
  Json ids = Json::object(), steps = Json::array({replacement_json("Regex", "\\s", "")});
  for (std::int32_t id = 0; id < vocabulary.n_data_symbols(); ++id) {
    const std::string symbol = vocabulary.symbol(id);
    ids[symbol] = id;
    const char letter = symbol[0];
    if (vocabulary.kind() != Vocabulary::Kind::copy && letter >= 'A' && letter <= 'Z')
      steps.push_back(replacement_json("String", std::string(1, static_cast<char>(letter - 'A' + 'a')), symbol));
  }
  tokenizer["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
  tokenizer["pre_tokenizer"] = split(".", "Isolated");
  tokenizer["decoder"] = {{"type", "Fuse"}};
  const std::string unknown = vocabulary.unknown_id() ? vocabulary.symbol(*vocabulary.unknown_id()) : "";
  tokenizer["model"] = {{"type", "WordLevel"}, {"vocab", ids}, {"unk_token", unknown}};
}

/// Returns the expression of one of the letters in a list of tokens.
std::string any_letter_of(const Tokenizer& letters) {
  std::string list;
  for (std::int32_t id = 0; id < letters.size(); ++id) {
    const std::string token = letters.token(id);
    if (unicode::count(token) != 1) continue;
    list += (std::ispunct(static_cast<unsigned char>(token[0])) != 0 ? "\\" : "") + token;
  }
  return "[" + list + "]";
}

/// A fixed list of letters, or of parts of SMILES: each piece of text is a token or unknown.
void add_list(Json& tokenizer, const Tokenizer& letters) {
  const Json list = Json::parse(letters.to_json());
  if (list.at("units") == "smiles") {
    tokenizer["pre_tokenizer"] = split(std::string(smiles_pattern), "Removed", true);
  } else {
    const bool joins_unknown = list.at("joins_unknown");
    tokenizer["pre_tokenizer"] = {
        {"type", "Sequence"},
        {"pretokenizers", {split("\\s+", "Removed"), split(joins_unknown ? any_letter_of(letters) : ".", "Isolated")}}};
  }
  Json::object_t ids;  // of distinct tokens; operator[] would search all before the new one
  for (std::int32_t id = 0; id < letters.size(); ++id) ids.emplace_back(letters.token(id), id);
  tokenizer["decoder"] = {{"type", "Fuse"}};
  tokenizer["model"] = {{"type", "WordPiece"},
                        {"unk_token", letters.token(*letters.special().unknown)},
                        {"continuing_subword_prefix", "##"},
                        {"max_input_chars_per_word", 100},
                        {"vocab", std::move(ids)}};
}

}  // namespace

std::vector<std::pair<std::string, std::string>> symbol_tokenizer_files(const Vocabulary& vocabulary,
                                                                        const SequenceFrame& frame) {
  const Tokenizer* letters = vocabulary.tokenizer() ? &*vocabulary.tokenizer() : nullptr;
  if (letters && letters->kind() != "letters") return {};
  Json tokenizer = empty_tokenizer_json();
  Json config{{"tokenizer_class", "PreTrainedTokenizerFast"},
              {"clean_up_tokenization_spaces", false},
              {"model_input_names", {"input_ids", "attention_mask"}}};
  std::set<std::int32_t> added;
  const auto add = [&](const std::optional<std::int32_t>& id, std::initializer_list<const char*> keys) {
    if (!id) return;
    const std::string symbol = vocabulary.symbol(*id);
    for (const char* key : keys) config[key] = symbol;
    if (!added.insert(*id).second) return;
    tokenizer["added_tokens"].push_back(special_token_json(*id, symbol));
  };
  if (letters) {
    add_list(tokenizer, *letters);
    const SpecialTokens& special = letters->special();
    add(special.unknown, {"unk_token"});
    add(special.beginning, {"bos_token"});
    add(special.end, {"eos_token"});
    add(special.padding, {"pad_token"});
    add(special.mask, {"mask_token"});
    add(special.classify, {"cls_token"});
    add(special.separator, {"sep_token"});
  } else if (vocabulary.kind() == Vocabulary::Kind::bytes) {
    add_bytes(tokenizer);
  } else {
    add_letters(tokenizer, vocabulary);
  }
  // What pads is masked, and so may be any token.
  if (!letters) add(vocabulary.document_id(), {"eos_token", "pad_token"});
  add(vocabulary.mask_id(), {"mask_token"});
  add(vocabulary.class_id(), {"cls_token"});
  tokenizer["post_processor"] = frame_json(vocabulary, frame);
  return {{"tokenizer.json", tokenizer.dump(2) + "\n"}, {"tokenizer_config.json", config.dump(2) + "\n"}};
}

}  // namespace furlong
