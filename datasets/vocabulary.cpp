#include "datasets/vocabulary.h"

#include <xxhash.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "formats/json_text.h"
#include "framework/core/error.h"
#include "framework/core/printable.h"

namespace furlong {

namespace {

constexpr std::string_view kDna = "ACGTRYSWKMBDHVN";
constexpr std::string_view kRna = "ACGURYSWKMBDHVN";
constexpr std::string_view kProtein = "ACDEFGHIKLMNPQRSTVWYXBZJUO*-";
constexpr std::string_view kCopySymbols = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
constexpr std::string_view kCopyMarks = "<=";  // marker, separator

std::string printable(unsigned char byte) {
  return byte > 0x20 && byte < 0x7f ? fmt::format("'{}'", static_cast<char>(byte)) : fmt::format("byte 0x{:02x}", byte);
}

}  // namespace

Vocabulary::Vocabulary(Kind kind, std::string_view letters, bool with_documents) : kind_(kind) {
  if (kind == Kind::bytes) {
    for (int byte = 0; byte < 256; ++byte) {
      symbols_.push_back(fmt::format("0x{:02x}", byte));
      byte_ids_[static_cast<std::size_t>(byte)] = byte;
    }
  } else {
    byte_ids_.fill(-1);
    for (const char letter : letters) {
      const auto id = static_cast<std::int32_t>(symbols_.size());
      symbols_.emplace_back(1, letter);
      byte_ids_[static_cast<unsigned char>(letter)] = id;
      if (kind != Kind::copy)
        byte_ids_[static_cast<unsigned char>(std::tolower(static_cast<unsigned char>(letter)))] = id;
    }
  }
  n_data_symbols_ = size();
  if (with_documents) symbols_.emplace_back(document_symbol);
}

Vocabulary::Vocabulary(std::shared_ptr<const Tokenizer> tokenizer)
    : kind_(Kind::tokenizer), tokenizer_(std::move(tokenizer)) {
  byte_ids_.fill(-1);
  tokenizer_size_ = tokenizer_->size();
  const std::string content = tokenizer_->to_json();
  const XXH128_hash_t hash = XXH3_128bits(content.data(), content.size());
  tokenizer_hash_ = fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
  find_frame();
  const SpecialTokens& special = tokenizer_->special();
  const auto add = [&](std::optional<std::int32_t> id) {
    if (id && std::find(special_ids_.begin(), special_ids_.end(), *id) == special_ids_.end())
      special_ids_.push_back(*id);
  };
  for (const auto& id : {special.unknown, special.beginning, special.end, special.padding, special.mask,
                         special.classify, special.separator})
    add(id);
  for (const std::vector<std::int32_t>& frame : {frame_front_, frame_back_})
    for (const std::int32_t id : frame) add(id);
  n_data_symbols_ = tokenizer_size_ - static_cast<std::int32_t>(special_ids_.size());
}

/// Finds the frame: what framed() puts around a token that is not part of the frame.
void Vocabulary::find_frame() {
  const std::vector<std::int32_t> empty = tokenizer_->framed({});
  for (std::int32_t id = 0; id < tokenizer_size_; ++id) {
    if (std::find(empty.begin(), empty.end(), id) != empty.end()) continue;
    const std::vector<std::int32_t> framed = tokenizer_->framed({&id, 1});
    const auto place = std::find(framed.begin(), framed.end(), id);
    require(place != framed.end(), "a tokenizer's frame without the document");
    frame_front_.assign(framed.begin(), place);
    frame_back_.assign(place + 1, framed.end());
    return;
  }
}

Vocabulary Vocabulary::of_tokenizer(std::shared_ptr<const Tokenizer> tokenizer) {
  require(tokenizer != nullptr && tokenizer->size() > 0, "a vocabulary of no tokenizer");
  return Vocabulary(std::move(tokenizer));
}

Vocabulary Vocabulary::with_encoder_tokens() const {
  Vocabulary extended = *this;
  if (!mask_id()) extended.symbols_.emplace_back(mask_symbol);
  if (!class_id()) extended.symbols_.emplace_back(class_symbol);
  return extended;
}

Vocabulary Vocabulary::with_labels(std::vector<std::string> names, std::vector<LabelScale> scales) const {
  require(scales.empty() || scales.size() == names.size(), "{} scales of {} labels", scales.size(), names.size());
  Vocabulary extended = *this;
  extended.labels_ = std::move(names);
  extended.label_scales_ = std::move(scales);
  return extended;
}

Vocabulary Vocabulary::with_ended_documents() const {
  Vocabulary marked = *this;
  marked.ends_documents_ = true;
  return marked;
}

Vocabulary Vocabulary::bytes(bool with_documents) { return {Kind::bytes, {}, with_documents}; }
Vocabulary Vocabulary::dna() { return {Kind::dna, kDna, true}; }
Vocabulary Vocabulary::rna() { return {Kind::rna, kRna, true}; }
Vocabulary Vocabulary::protein() { return {Kind::protein, kProtein, true}; }

Vocabulary Vocabulary::copy(std::int64_t n_symbols) {
  require(n_symbols >= 1 && n_symbols <= max_copy_symbols, "a copy task over {} symbols", n_symbols);
  return {Kind::copy, fmt::format("{}{}", kCopySymbols.substr(0, static_cast<std::size_t>(n_symbols)), kCopyMarks),
          false};
}

Vocabulary Vocabulary::alphabet(std::string_view name) {
  if (name == "dna") return dna();
  if (name == "rna") return rna();
  if (name == "protein") return protein();
  throw UserError("unknown alphabet '{}'; expected dna, rna or protein", name);
}

std::string Vocabulary::to_json() const {
  nlohmann::ordered_json json;
  json["kind"] = kind_name();
  json["symbols"] = symbols_;
  if (!labels_.empty()) json["labels"] = labels_;
  for (const LabelScale& of : label_scales_) json["label_scales"].push_back({of.mean, of.scale});
  if (ends_documents_) json["ends_documents"] = true;
  std::string text = json.dump();
  if (tokenizer_) {
    // Insert the tokenizer's JSON unchanged, because equality compares its bytes.
    text.pop_back();
    text += ",\"tokenizer\":" + tokenizer_->to_json() + "}";
  }
  return text;
}

namespace {

/// Reads a vocabulary with a tokenizer, and the symbols added for encoders.
Vocabulary tokenizer_vocabulary(const nlohmann::json& json, std::string_view origin,
                                const std::function<Vocabulary(std::string_view)>& refuse) {
  if (!json.contains("tokenizer") || !json["tokenizer"].is_object()) return refuse("the tokenizer is missing");
  const Vocabulary plain = Vocabulary::of_tokenizer(tokenizer_from_json(json["tokenizer"].dump(), origin));
  const Vocabulary extended = plain.with_encoder_tokens();
  std::vector<std::string> added;
  for (std::int32_t id = plain.size(); id < extended.size(); ++id) added.push_back(extended.symbol(id));
  const nlohmann::json& symbols = json["symbols"];
  if (symbols.is_array() && symbols.empty()) return plain;
  return symbols == added ? extended : refuse("its symbols are not those of an encoder with this tokenizer");
}

/// Reads the symbols of a vocabulary without a tokenizer.
Vocabulary symbol_vocabulary(const nlohmann::json& json, const std::function<Vocabulary(std::string_view)>& refuse) {
  const std::string kind = json["kind"];
  nlohmann::json symbols = json["symbols"];
  const auto holds = [&](const Vocabulary& candidate) {
    std::vector<std::string> own;
    for (std::int32_t id = 0; id < candidate.size(); ++id) own.push_back(candidate.symbol(id));
    return symbols == own;
  };
  const bool encoder = symbols.is_array() && symbols.size() > 2 && symbols.back() == Vocabulary::class_symbol &&
                       symbols[symbols.size() - 2] == Vocabulary::mask_symbol;
  if (encoder) {
    symbols.erase(symbols.size() - 1);
    symbols.erase(symbols.size() - 1);
    if (!symbols.empty() && symbols.back() == Vocabulary::class_symbol) return refuse("<class> occurs twice");
  }
  const auto as_stored = [&](const Vocabulary& plain) { return encoder ? plain.with_encoder_tokens() : plain; };
  if (kind == "bytes") {
    const Vocabulary candidate = Vocabulary::bytes(symbols.size() == 257);
    return holds(candidate) ? as_stored(candidate)
                            : refuse("expected the 256 byte symbols in order, optionally followed by <document>");
  }
  if (kind == "copy") {
    const auto n_symbols = static_cast<std::int64_t>(symbols.size()) - static_cast<std::int64_t>(kCopyMarks.size());
    const bool possible = n_symbols >= 1 && n_symbols <= Vocabulary::max_copy_symbols;
    return possible && holds(Vocabulary::copy(n_symbols)) ? as_stored(Vocabulary::copy(n_symbols))
                                                          : refuse("its symbols are not those of the copy task");
  }
  if (kind != "dna" && kind != "rna" && kind != "protein") {
    return refuse(fmt::format("unknown kind '{}', expected bytes, dna, rna, protein, copy or tokenizer",
                              foreign::printable(kind)));
  }
  const Vocabulary candidate = Vocabulary::alphabet(kind);
  return holds(candidate) ? as_stored(candidate)
                          : refuse(fmt::format("its symbols are not those of the {} alphabet", kind));
}

}  // namespace

Vocabulary Vocabulary::from_json(std::string_view text, std::string_view origin) {
  foreign::check_json_depth(text, origin);
  const auto json = nlohmann::json::parse(text, nullptr, false);
  const auto refuse = [&](std::string_view why) -> Vocabulary {
    throw UserError("{}: the vocabulary is damaged: {}; copy the file again", origin, why);
  };
  if (!json.is_object() || !json.contains("kind") || !json.contains("symbols"))
    return refuse("expected JSON with 'kind' and 'symbols'");
  if (!json["kind"].is_string()) return refuse("'kind' is not a string");
  std::vector<std::string> labels;
  if (json.contains("labels")) {
    if (!json["labels"].is_array()) return refuse("'labels' is not an array");
    for (const auto& label : json["labels"]) {
      if (!label.is_string()) return refuse("a label is not a string");
      labels.push_back(label);
    }
    if (std::set<std::string_view>(labels.begin(), labels.end()).size() != labels.size())
      return refuse("a label occurs twice");
  }
  std::vector<LabelScale> scales;
  if (json.contains("label_scales")) {
    const nlohmann::json& pairs = json["label_scales"];
    if (!pairs.is_array() || pairs.size() != labels.size()) return refuse("'label_scales' does not match 'labels'");
    for (const auto& pair : pairs) {
      if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number() || !pair[1].is_number())
        return refuse("a label scale is not a pair of numbers");
      scales.push_back({pair[0], pair[1]});
      if (!(scales.back().scale > 0)) return refuse("a label scale is not positive");
    }
  }
  if (json.contains("ends_documents") && !json["ends_documents"].is_boolean())
    return refuse("'ends_documents' is neither true nor false");
  Vocabulary plain =
      json["kind"] == "tokenizer" ? tokenizer_vocabulary(json, origin, refuse) : symbol_vocabulary(json, refuse);
  plain.ends_documents_ = json.value("ends_documents", false);
  return plain.with_labels(std::move(labels), std::move(scales));
}

std::string_view Vocabulary::kind_name() const {
  constexpr std::array<std::string_view, 6> names{"bytes", "dna", "rna", "protein", "copy", "tokenizer"};
  return names[static_cast<std::size_t>(kind_)];
}

std::string Vocabulary::description() const {
  if (!tokenizer_) return std::string(kind_name());
  return fmt::format("{} tokenizer of {} tokens, {}", tokenizer_->kind(), tokenizer_size_,
                     tokenizer_hash_.substr(0, 8));
}

std::string Vocabulary::symbol(std::int32_t id) const {
  require(id >= 0 && id < size(), "token {} outside a vocabulary of {}", id, size());
  return id < tokenizer_size_ ? tokenizer_->token(id) : symbols_[static_cast<std::size_t>(id - tokenizer_size_)];
}

std::int32_t Vocabulary::id_of(std::string_view symbol) const {
  const auto found = std::find(symbols_.begin(), symbols_.end(), symbol);
  if (found != symbols_.end()) return tokenizer_size_ + static_cast<std::int32_t>(found - symbols_.begin());
  if (tokenizer_) {
    if (const auto id = tokenizer_->find(symbol)) return *id;
    throw UserError("'{}' is not a token of the {}; write tokens as in the tokenizer's files", symbol, description());
  }
  if (symbol.size() == 1) {
    const std::int32_t id = id_of_byte(static_cast<unsigned char>(symbol[0]));
    if (id >= 0) return id;
  }
  const std::string known = kind_ == Kind::bytes ? "single bytes, 0x00 to 0xff" : letters(" ");
  throw UserError("'{}' is not a symbol of the {} vocabulary; it has {}{}", symbol, kind_name(), known,
                  document_id() ? " and <document>" : "");
}

std::string Vocabulary::letters(std::string_view separator) const {
  std::vector<std::string_view> single;
  for (const std::string& symbol : symbols_) {
    if (symbol.size() == 1) single.push_back(symbol);
  }
  return fmt::format("{}", fmt::join(single, separator));
}

std::optional<std::int32_t> Vocabulary::document_id() const {
  if (tokenizer_) {
    if (!frame_back_.empty()) return frame_back_.back();
    const SpecialTokens& special = tokenizer_->special();
    return special.end ? special.end : special.separator;
  }
  if (n_data_symbols_ == size() || symbols_[static_cast<std::size_t>(n_data_symbols_)] != document_symbol)
    return std::nullopt;
  return n_data_symbols_;
}

std::optional<std::int32_t> Vocabulary::mask_id() const {
  if (tokenizer_ && tokenizer_->special().mask) return tokenizer_->special().mask;
  const auto found = std::find(symbols_.begin(), symbols_.end(), mask_symbol);
  if (found == symbols_.end()) return std::nullopt;
  return tokenizer_size_ + static_cast<std::int32_t>(found - symbols_.begin());
}

std::optional<std::int32_t> Vocabulary::class_id() const {
  if (tokenizer_ && tokenizer_->special().classify) return tokenizer_->special().classify;
  if (symbols_.empty() || symbols_.back() != class_symbol) return std::nullopt;
  return size() - 1;
}

bool Vocabulary::is_data_symbol(std::int32_t id) const {
  require(id >= 0 && id < size(), "token {} outside a vocabulary of {}", id, size());
  if (!tokenizer_) return id < n_data_symbols_;
  return id < tokenizer_size_ && std::find(special_ids_.begin(), special_ids_.end(), id) == special_ids_.end();
}

std::optional<std::int32_t> Vocabulary::unknown_id() const {
  if (tokenizer_) {
    // GPT-2 has no unknown token; its files name the end-of-text token instead.
    const auto unknown = tokenizer_->special().unknown;
    return unknown == document_id() ? std::nullopt : unknown;
  }
  if (kind_ == Kind::bytes || kind_ == Kind::copy) return std::nullopt;
  return byte_ids_[static_cast<unsigned char>(kind_ == Kind::protein ? 'X' : 'N')];
}

bool Vocabulary::is_ambiguous(std::int32_t id) const {
  if (kind_ != Kind::dna && kind_ != Kind::rna && kind_ != Kind::protein) return false;
  const std::string name = symbol(id);
  return name.size() == 1 &&
         std::string_view(kind_ == Kind::protein ? "XBZJ" : "RYSWKMBDHVN").find(name[0]) != std::string_view::npos;
}

std::vector<std::int32_t> Vocabulary::encode(std::string_view text) const {
  if (tokenizer_) return tokenizer_->encode(text);
  std::vector<std::int32_t> ids;
  ids.reserve(text.size());
  for (std::size_t position = 0; position < text.size(); ++position) {
    const auto byte = static_cast<unsigned char>(text[position]);
    const std::int32_t id = id_of_byte(byte);
    if (id >= 0) {
      ids.push_back(id);
    } else if (document_id() && text.substr(position).starts_with(document_symbol)) {
      ids.push_back(*document_id());
      position += document_symbol.size() - 1;
    } else if (std::isspace(byte) == 0) {
      throw UserError("{} at position {} is not a letter of the {} alphabet; expected one of {}", printable(byte),
                      position + 1, kind_name(), letters(""));
    }
  }
  return ids;
}

std::vector<std::int32_t> Vocabulary::encode_prompt(std::string_view text, SpecialTokenMode special) const {
  const bool tokens = special == SpecialTokenMode::as_token;
  if (tokens && !tokenizer_)
    throw UserError("the {} vocabulary has no special tokens; only the tokenizer of a published model has them",
                    kind_name());
  std::vector<std::int32_t> ids = tokens ? tokenizer_->encode(text, special) : encode(text);
  if (!tokens || !std::equal(frame_front_.begin(), frame_front_.end(), ids.begin(),
                             ids.begin() + std::min(ids.size(), frame_front_.size())))
    ids.insert(ids.begin(), frame_front_.begin(), frame_front_.end());
  return ids;
}

std::string Vocabulary::prompt_warning(std::string_view prompt) const {
  if (prompt.size() > 256) prompt.remove_prefix(prompt.size() - 256);  // a prompt can be a long document
  const std::string_view text = prompt.substr(0, prompt.find_last_not_of(' ') + 1);
  if (!tokenizer_ || text.empty() || text.size() == prompt.size() || encode(text) == encode(prompt)) return "";
  return "the prompt ends with a space, which is part of the next word's token in the training data; remove it";
}

std::string Vocabulary::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  if (tokenizer_) {
    // Decode each run of the tokenizer's own tokens as a whole, because joining depends on the tokenizer.
    for (std::size_t begin = 0; begin < ids.size();) {
      std::size_t end = begin;
      while (end < ids.size() && ids[end] < tokenizer_size_) ++end;
      if (end > begin) text += tokenizer_->decode(ids.subspan(begin, end - begin));
      if (end < ids.size()) text += symbol(ids[end++]);
      begin = end;
    }
    return text;
  }
  text.reserve(ids.size());
  for (const std::int32_t id : ids) {
    const std::string name = symbol(id);
    if (kind_ == Kind::bytes && id < 256) {
      text.push_back(static_cast<char>(id));
    } else {
      text += name;
    }
  }
  return text;
}

std::string difference_hint(const Vocabulary& data, const Vocabulary& model) {
  if (data.size() != model.size() && data.description() == model.description()) {
    const bool more = data.size() > model.size();
    const Vocabulary& larger = more ? data : model;
    std::string symbols;
    for (std::int32_t id = std::min(data.size(), model.size()); id < larger.size(); ++id)
      symbols += (symbols.empty() ? "" : " ") + larger.symbol(id);
    return fmt::format("; only the {} has {}", more ? "dataset's" : "model's", symbols);
  }
  if (!data.tokenizer() || !model.tokenizer()) return "";
  const std::string_view one = data.tokenizer()->kind(), other = model.tokenizer()->kind();
  const bool changed = (one == "sentencepiece" && other == "unigram") || (one == "unigram" && other == "sentencepiece");
  if (!changed) return "";
  return "; earlier versions read Unigram tokenizers as sentencepiece: prepare the dataset again with the model's "
         "present tokenizer (--tokenizer)";
}

}  // namespace furlong
