#include "conversion/sentencepiece_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string_view>

#include "conversion/tokenizer_json.h"
#include "datasets/tokenizers/base64.h"
#include "datasets/tokenizers/unicode.h"
#include "framework/core/printable.h"

namespace furlong {
namespace {

using Json = nlohmann::ordered_json;
using ModelPiece = SentencePieceProto::Piece;
using PieceType = SentencePieceProto::Type;

constexpr const char* space_mark = "\u2581";  // what pieces have in place of a space

/// The most bytes of a token that merges make: the search for its pairs takes quadratic time.
constexpr std::size_t max_merged_bytes = 4096;

/// Two pieces that become one.
struct PieceSplit {
  std::string_view left, right;
};

/// The pieces of text by which a BPE model merges: neither control tokens nor bytes.
std::set<std::string_view> merged_pieces(const SentencePieceProto& proto) {
  std::set<std::string_view> found;
  for (const ModelPiece& piece : proto.pieces)
    if (piece.type == PieceType::normal) found.insert(piece.text);
  return found;
}

/// All pairs of pieces that become `piece`, in the order that makes the leftmost merge come first. SentencePiece takes
/// the leftmost pair of all that become the same piece; a tokenizer.json ranks them. Where two pairs overlap in a text,
/// as (ab, a) and (a, ba) do in "ab a ba", the right part of the first is the left part of the second: it starts and
/// ends the piece.
std::vector<PieceSplit> splits_of(const std::string& piece, const std::set<std::string_view>& pieces) {
  struct Ranked {
    int rank;
    PieceSplit split;
  };
  std::vector<Ranked> found;
  const std::string_view text = piece;
  for (std::size_t at = unicode::length_at(text, 0); at < text.size(); at += unicode::length_at(text, at)) {
    const std::string_view left = text.substr(0, at), right = text.substr(at);
    if (!pieces.contains(left) || !pieces.contains(right)) continue;
    const bool first = text.starts_with(right), second = text.ends_with(left);
    found.push_back({first == second ? 1 : second ? 2 : 0, {left, right}});
  }
  // Of a run such as "aaa" the pair (aa, a) comes first: a run has been merged to pairs from the left.
  std::reverse(found.begin(), found.end());
  std::stable_sort(found.begin(), found.end(), [](const Ranked& a, const Ranked& b) { return a.rank < b.rank; });
  std::vector<PieceSplit> splits;
  for (const Ranked& ranked : found) splits.push_back(ranked.split);
  return splits;
}

std::string byte_pair_obstacle(const SentencePieceProto& proto) {
  constexpr std::size_t most_bytes = std::size_t{1} << 26, most_times = 16;
  std::size_t bytes_of_pieces = 0, bytes_of_merges = 0;
  const auto pieces = merged_pieces(proto);
  std::map<float, const ModelPiece*> by_score;
  for (const ModelPiece& piece : proto.pieces) {
    if (piece.type != PieceType::normal || unicode::count(piece.text) < 2) continue;
    if (piece.text.size() > max_merged_bytes)
      return fmt::format("it has a token of {} bytes, more than {}", piece.text.size(), max_merged_bytes);
    const std::string_view text = piece.text;
    for (std::size_t at = 0, length = 0; at < text.size(); at += length) {
      length = unicode::length_at(text, at);
      if (!pieces.contains(text.substr(at, length)))
        return fmt::format("it has '{}', but no token '{}'", foreign::printable(text),
                           foreign::printable(text.substr(at, length)));
    }
    bytes_of_pieces += text.size();
    bytes_of_merges += splits_of(piece.text, pieces).size() * text.size();
    if (bytes_of_merges > most_bytes + most_times * bytes_of_pieces)
      return fmt::format("its merges would have more than {} MiB", most_bytes >> 20);
    const auto [other, is_new] = by_score.emplace(piece.score, &piece);
    if (!is_new && !splits_of(piece.text, pieces).empty())
      return fmt::format("its tokens '{}' and '{}' have the same score", foreign::printable(other->second->text),
                         foreign::printable(text));
  }
  return "";
}

Json byte_pair_model(const SentencePieceProto& proto, const std::string& unknown) {
  const auto pieces = merged_pieces(proto);
  std::vector<const ModelPiece*> order;
  for (const ModelPiece& piece : proto.pieces)
    if (piece.type == PieceType::normal) order.push_back(&piece);
  std::stable_sort(order.begin(), order.end(),
                   [](const ModelPiece* a, const ModelPiece* b) { return a->score > b->score; });
  Json merges = Json::array();
  for (const ModelPiece* piece : order)
    for (const PieceSplit& split : splits_of(piece->text, pieces))
      merges.push_back(fmt::format("{} {}", split.left, split.right));
  // operator[] of an ordered object would search all tokens before the new one.
  Json::object_t ids;
  ids.reserve(proto.pieces.size());
  for (std::size_t id = 0; id < proto.pieces.size(); ++id) ids.emplace_back(proto.pieces[id].text, id);
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", unknown},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", true},
          {"byte_fallback", proto.byte_fallback},
          {"ignore_merges", false},
          {"vocab", std::move(ids)},
          {"merges", std::move(merges)}};
}

Json unigram_model(const SentencePieceProto& proto, std::size_t unknown) {
  // The score of an unknown letter follows from the lowest of all. SentencePiece leaves control tokens and bytes out.
  float lowest = std::numeric_limits<float>::max();
  for (const ModelPiece& piece : proto.pieces)
    if (piece.type == PieceType::normal) lowest = std::min(lowest, piece.score);
  Json pieces = Json::array();
  for (const ModelPiece& piece : proto.pieces)
    pieces.push_back(Json::array({piece.text, piece.type == PieceType::normal ? piece.score : lowest}));
  return {
      {"type", "Unigram"}, {"unk_id", unknown}, {"vocab", std::move(pieces)}, {"byte_fallback", proto.byte_fallback}};
}

Json normalizer_of(const SentencePieceProto& proto, const Json& before) {
  Json steps = before;
  if (!proto.normalization_map.empty())
    steps.push_back({{"type", "Precompiled"}, {"precompiled_charsmap", to_base64(proto.normalization_map)}});
  if (proto.remove_extra_whitespaces) {
    steps.push_back(replacement_json("Regex", " {2,}", " "));
    steps.push_back(replacement_json("Regex", "\\A +", ""));
    steps.push_back(replacement_json("Regex", fmt::format("( |{})+\\z", space_mark), ""));
  }
  if (proto.add_dummy_prefix) steps.push_back({{"type", "Prepend"}, {"prepend", space_mark}});
  steps.push_back(replacement_json("String", " ", space_mark));
  return {{"type", "Sequence"}, {"normalizers", std::move(steps)}};
}

Json decoder_of(const SentencePieceProto& proto) {
  Json steps = Json::array({replacement_json("String", space_mark, " ")});
  if (proto.byte_fallback) steps.push_back({{"type", "ByteFallback"}});
  steps.push_back({{"type", "Fuse"}});
  if (proto.add_dummy_prefix || proto.remove_extra_whitespaces)
    steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return {{"type", "Sequence"}, {"decoders", std::move(steps)}};
}

std::size_t unknown_of(const SentencePieceProto& proto) {
  const auto found = std::find_if(proto.pieces.begin(), proto.pieces.end(),
                                  [](const ModelPiece& piece) { return piece.type == PieceType::unknown; });
  return static_cast<std::size_t>(found - proto.pieces.begin());
}

}  // namespace

std::string sentencepiece_obstacle(const SentencePieceProto& proto) {
  if (proto.other_algorithm) return "it is neither BPE nor Unigram";
  if (proto.whitespace_as_suffix) return "it puts the mark of a space after a word";
  if (proto.keeps_spaces) return "it does not escape spaces";
  // SentencePiece finds user-defined tokens after the steps below, and leaves their own text as it is.
  const bool changes_text =
      proto.add_dummy_prefix || proto.remove_extra_whitespaces || !proto.normalization_map.empty();
  bool has_text = false;
  for (const ModelPiece& piece : proto.pieces) {
    if (unicode::valid_length(piece.text) != piece.text.size()) return "a token is not valid UTF-8";
    if (piece.type == PieceType::unused)
      return fmt::format("it has unused tokens, such as '{}'", foreign::printable(piece.text));
    if (piece.type == PieceType::user_defined && (changes_text || !proto.bpe))
      return fmt::format("it has user-defined tokens, such as '{}'", foreign::printable(piece.text));
    if (piece.type == PieceType::normal && piece.text.find(' ') != std::string::npos)
      return fmt::format("its token '{}' has a space", foreign::printable(piece.text));
    has_text = has_text || piece.type == PieceType::normal;
  }
  if (!has_text || unknown_of(proto) == proto.pieces.size()) return "it has no tokens";
  return proto.bpe ? byte_pair_obstacle(proto) : "";
}

Json sentencepiece_json(const SentencePieceProto& proto, const Json& before) {
  const std::size_t unknown = unknown_of(proto);
  Json tokenizer = empty_tokenizer_json();
  tokenizer["normalizer"] = normalizer_of(proto, before);
  tokenizer["decoder"] = decoder_of(proto);
  tokenizer["model"] = proto.bpe ? byte_pair_model(proto, proto.pieces[unknown].text) : unigram_model(proto, unknown);
  for (std::size_t id = 0; id < proto.pieces.size(); ++id) {
    const ModelPiece& piece = proto.pieces[id];
    if (piece.type != PieceType::control && piece.type != PieceType::unknown && piece.type != PieceType::user_defined)
      continue;
    Json token = special_token_json(static_cast<std::int32_t>(id), piece.text);
    if (piece.type == PieceType::user_defined) {
      token["special"] = false;
      token["normalized"] = true;
    }
    tokenizer["added_tokens"].push_back(std::move(token));
  }
  return tokenizer;
}

}  // namespace furlong
