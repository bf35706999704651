#include "datasets/tokenizers/sentencepiece_checks.h"

#include <algorithm>
#include <vector>

#include "datasets/tokenizers/normalization_map.h"
#include "datasets/tokenizers/wire_format.h"
#include "framework/core/error.h"

namespace furlong {
namespace {

// Fields of sentencepiece_model.proto.
constexpr std::uint64_t pieces = 1, normalizer_spec = 3, self_test_data = 4, denormalizer_spec = 5;
constexpr std::uint64_t precompiled_charsmap = 2, piece_text = 1, piece_type = 3;
constexpr std::int32_t user_defined = 4;

void check_map(std::string_view bytes, std::string_view origin) {
  // As text may grow elsewhere (text_growth.h). SentencePiece itself has no limit, and its own maps need 33 bytes.
  constexpr std::size_t max_replacement_bytes = 64;
  constexpr std::size_t max_matches = 32;  // Normalizer::kMaxTrieResultsSize
  const auto map = NormalizationMap::parse(bytes);
  if (!map)
    throw UserError("{}: not a SentencePiece model (its precompiled_charsmap is damaged); download or copy it again",
                    origin);
  if (map->has_text_of_more_than(max_replacement_bytes))
    throw UserError("{}: its precompiled_charsmap replaces a character by more than {} bytes", origin,
                    max_replacement_bytes);
  if (map->may_match_more_than(max_matches))
    throw UserError("{}: its precompiled_charsmap has more than {} entries that begin with one another", origin,
                    max_matches);
}

/// Returns the text of a piece if it is user-defined, as the library's prefix matcher sees it: up to its first NUL.
std::string_view user_defined_text(std::string_view piece, std::string_view origin) {
  std::string_view text;
  std::int32_t type = 0;
  for (WireFields fields(piece, origin); fields.next();) {
    if (fields.is_bytes(piece_text)) text = fields.bytes();
    const auto value = static_cast<std::int32_t>(fields.number());  // others than those of the enumeration are unknown
    if (fields.is_integer(piece_type) && value >= 1 && value <= 6) type = value;
  }
  return type == user_defined ? text.substr(0, text.find('\0')) : std::string_view();
}

void check_user_defined(std::vector<std::string_view>& texts, std::string_view origin) {
  constexpr std::size_t max_matches = 64;  // PrefixMatcher::PrefixMatch
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  std::vector<std::string_view> open;  // each begins with the one before it
  for (const std::string_view text : texts) {
    while (!open.empty() && !text.starts_with(open.back())) open.pop_back();
    open.push_back(text);
    if (open.size() > max_matches)
      throw UserError("{}: has more than {} user-defined pieces that begin with one another", origin, max_matches);
  }
}

}  // namespace

void check_sentencepiece_model(std::string_view model, std::string_view origin) {
  std::vector<std::string_view> texts;
  for (WireFields fields(model, origin); fields.next();) {
    if (fields.is_bytes(pieces)) {
      if (const std::string_view text = user_defined_text(fields.bytes(), origin); !text.empty()) texts.push_back(text);
    }
    if (!fields.is_bytes(normalizer_spec) && !fields.is_bytes(denormalizer_spec)) continue;
    for (WireFields inner(fields.bytes(), origin); inner.next();) {
      if (inner.is_bytes(precompiled_charsmap) && !inner.bytes().empty()) check_map(inner.bytes(), origin);
    }
  }
  check_user_defined(texts, origin);
}

std::string without_self_tests(std::string_view model, std::string_view origin) {
  std::string kept;
  kept.reserve(model.size());
  for (WireFields fields(model, origin); fields.next();) {
    if (!fields.is_bytes(self_test_data)) kept += fields.whole();
  }
  return kept;
}

}  // namespace furlong
