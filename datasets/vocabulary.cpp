#include "datasets/vocabulary.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "framework/core/error.h"

namespace furlong {

namespace {

constexpr std::string_view kDna = "ACGTRYSWKMBDHVN";
constexpr std::string_view kRna = "ACGURYSWKMBDHVN";
constexpr std::string_view kProtein = "ACDEFGHIKLMNPQRSTVWYXBZJUO*-";

std::string_view letters_of(Vocabulary::Kind kind) {
  switch (kind) {
    case Vocabulary::Kind::dna:
      return kDna;
    case Vocabulary::Kind::rna:
      return kRna;
    case Vocabulary::Kind::protein:
      return kProtein;
    case Vocabulary::Kind::bytes:
      break;
  }
  return {};
}

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
      byte_ids_[static_cast<unsigned char>(std::tolower(static_cast<unsigned char>(letter)))] = id;
    }
  }
  if (with_documents) symbols_.emplace_back(document_symbol);
}

Vocabulary Vocabulary::bytes(bool with_documents) { return {Kind::bytes, {}, with_documents}; }
Vocabulary Vocabulary::dna() { return {Kind::dna, kDna, true}; }
Vocabulary Vocabulary::rna() { return {Kind::rna, kRna, true}; }
Vocabulary Vocabulary::protein() { return {Kind::protein, kProtein, true}; }

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
  return json.dump();
}

Vocabulary Vocabulary::from_json(std::string_view text, std::string_view origin) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  const auto refuse = [&](std::string_view why) -> Vocabulary { throw UserError("{}: the vocabulary is damaged: {}", origin, why); };
  if (!json.is_object() || !json.contains("kind") || !json.contains("symbols")) return refuse("expected JSON with kind and symbols");
  if (!json["kind"].is_string()) return refuse("kind is not text");
  const std::string kind = json["kind"];
  const nlohmann::json& symbols = json["symbols"];
  if (kind == "bytes") {
    const Vocabulary candidate = bytes(symbols.size() == 257);
    return symbols == candidate.symbols_ ? candidate : refuse("bytes have 256 symbols, with documents 257, in order");
  }
  if (kind != "dna" && kind != "rna" && kind != "protein") {
    return refuse(fmt::format("unknown kind '{}', expected bytes, dna, rna or protein", kind));
  }
  const Vocabulary candidate = alphabet(kind);
  return symbols == candidate.symbols_ ? candidate : refuse(fmt::format("its symbols are not those of the {} alphabet", kind));
}

std::string_view Vocabulary::kind_name() const {
  constexpr std::array<std::string_view, 4> names{"bytes", "dna", "rna", "protein"};
  return names[static_cast<std::size_t>(kind_)];
}

const std::string& Vocabulary::symbol(std::int32_t id) const {
  require(id >= 0 && id < size(), "token {} outside a vocabulary of {}", id, size());
  return symbols_[static_cast<std::size_t>(id)];
}

std::int32_t Vocabulary::id_of(std::string_view symbol) const {
  const auto found = std::find(symbols_.begin(), symbols_.end(), symbol);
  if (found != symbols_.end()) return static_cast<std::int32_t>(found - symbols_.begin());
  if (symbol.size() == 1) {
    const std::int32_t id = id_of_byte(static_cast<unsigned char>(symbol[0]));
    if (id >= 0) return id;
  }
  const std::string known = kind_ == Kind::bytes ? "single bytes, 0x00 to 0xff" : fmt::format("{}", fmt::join(letters_of(kind_), " "));
  throw UserError("'{}' is not a symbol of the {} vocabulary; it has {}{}", symbol, kind_name(), known,
                  document_id() ? " and <document>" : "");
}

std::optional<std::int32_t> Vocabulary::document_id() const {
  if (symbols_.back() != document_symbol) return std::nullopt;
  return size() - 1;
}

std::optional<std::int32_t> Vocabulary::unknown_id() const {
  if (kind_ == Kind::bytes) return std::nullopt;
  return byte_ids_[static_cast<unsigned char>(kind_ == Kind::protein ? 'X' : 'N')];
}

bool Vocabulary::is_ambiguous(std::int32_t id) const {
  const std::string& name = symbol(id);
  if (kind_ == Kind::bytes || name.size() != 1) return false;
  return std::string_view(kind_ == Kind::protein ? "XBZJ" : "RYSWKMBDHVN").find(name[0]) != std::string_view::npos;
}

std::vector<std::int32_t> Vocabulary::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  ids.reserve(text.size());
  for (std::size_t position = 0; position < text.size(); ++position) {
    const auto byte = static_cast<unsigned char>(text[position]);
    const std::int32_t id = id_of_byte(byte);
    if (id >= 0) {
      ids.push_back(id);
    } else if (text.substr(position).starts_with(document_symbol)) {
      ids.push_back(*document_id());
      position += document_symbol.size() - 1;
    } else if (std::isspace(byte) == 0) {
      throw UserError("{} at position {} is not a letter of the {} alphabet, which has {}", printable(byte), position + 1, kind_name(),
                      letters_of(kind_));
    }
  }
  return ids;
}

std::string Vocabulary::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  text.reserve(ids.size());
  for (const std::int32_t id : ids) {
    const std::string& name = symbol(id);
    if (kind_ == Kind::bytes && id < 256) {
      text.push_back(static_cast<char>(id));
    } else {
      text += name;
    }
  }
  return text;
}

}  // namespace furlong
