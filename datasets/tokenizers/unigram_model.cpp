// The Unigram model (Kudo 2018, arXiv:1804.10959): of all segmentations of a text into pieces, the one with the largest
// sum of scores.
#include <algorithm>
#include <array>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "datasets/tokenizers/piece_model.h"
#include "datasets/tokenizers/unicode.h"

namespace furlong {
namespace {

/// Finds the tokens that a text begins with, in the sorted list of tokens: each byte narrows a range of it.
class PrefixSearch {
 public:
  PrefixSearch(const TokenTable& vocabulary, const std::vector<std::int32_t>& ids) {
    std::size_t bytes = 0;
    for (const std::int32_t id : ids) {
      entries_.push_back({vocabulary.token(id), id});
      bytes += entries_.back().token.size();
    }
    std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.token < b.token; });
    // Neighbors in the list become neighbors in memory.
    bytes_.reserve(bytes);
    for (Entry& entry : entries_) {
      bytes_ += entry.token;
      entry.token = std::string_view(bytes_).substr(bytes_.size() - entry.token.size());
    }
    std::size_t place = 0;
    for (std::size_t byte = 0; byte < 256; ++byte) {
      begins_[byte] = place;
      while (place < entries_.size() && static_cast<unsigned char>(entries_[place].token[0]) == byte) ++place;
    }
    begins_[256] = place;
  }

  /// Calls use(length, id) for each token, the shortest first.
  template <class Use>
  void operator()(std::string_view text, const Use& use) const {
    const auto first = static_cast<unsigned char>(text[0]);
    auto begin = entries_.begin() + static_cast<std::ptrdiff_t>(begins_[first]),
         end = entries_.begin() + static_cast<std::ptrdiff_t>(begins_[first + std::size_t{1}]);
    for (std::size_t length = 1; begin != end; ++length) {
      if (begin->token.size() == length) use(length, (begin++)->id);
      if (length == text.size()) return;
      const auto byte = [&](const Entry& entry) { return static_cast<unsigned char>(entry.token[length]); };
      const auto wanted = static_cast<unsigned char>(text[length]);
      begin = std::partition_point(begin, end, [&](const Entry& entry) { return byte(entry) < wanted; });
      end = std::partition_point(begin, end, [&](const Entry& entry) { return byte(entry) == wanted; });
    }
  }

 private:
  PrefixSearch(const PrefixSearch&) = delete;

  struct Entry {
    std::string_view token;  // in bytes_
    std::int32_t id;
  };
  std::string bytes_;
  std::vector<Entry> entries_;
  std::array<std::size_t, 257> begins_{};  // by first byte
};

class UnigramModel : public PieceModel {
 public:
  UnigramModel(const JsonView& model, const TokenTable& vocabulary, const std::set<std::int32_t>& special)
      : vocabulary_(vocabulary),
        unknown_(unknown_of(model, vocabulary)),
        scores_(scores_of(model)),
        unknown_score_(*std::min_element(scores_.begin(), scores_.end()) - 10),
        search_(vocabulary, texts_of(special)) {
    if (!model.boolean("byte_fallback", false)) return;
    for (int byte = 0; byte < 256; ++byte) {
      const auto id = vocabulary.find(fmt::format("<0x{:02X}>", byte));
      if (id) bytes_.push_back(*id);
    }
  }

  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override {
    const std::vector<End> ends = best_paths(text);
    std::vector<Part> parts;
    for (std::size_t end = text.size(); end > 0; end = ends[end].begin) {
      const Part part{ends[end].begin, end, ends[end].id};
      if (part.id == unknown_ && !parts.empty() && parts.back().id == unknown_) {
        parts.back().begin = part.begin;  // a run of unknown characters is one token
      } else {
        parts.push_back(part);
      }
    }
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
      if (part->id == unknown_) {
        add_unknown(text.substr(part->begin, part->end - part->begin), ids);
      } else {
        ids.push_back(part->id);
      }
    }
  }

 private:
  /// The best segmentation of the text up to a place: its score, and its last token.
  struct End {
    double score = 0;
    std::size_t begin = 0;
    std::int32_t id = none;
  };
  struct Part {
    std::size_t begin, end;
    std::int32_t id;
  };
  static constexpr std::int32_t none = -1;

  static std::int32_t unknown_of(const JsonView& model, const TokenTable& vocabulary) {
    const std::int32_t unknown = model.at("unk_id").token_id();
    if (!vocabulary.has(unknown))
      throw UserError("{}: {} is not a token id; there are {} tokens", model.at("unk_id").name(), unknown,
                      vocabulary.size());
    return unknown;
  }
  static std::vector<double> scores_of(const JsonView& model) {
    std::vector<double> scores;
    for (const JsonView& item : model.at("vocab").items()) scores.push_back(item.item(1).real());
    return scores;
  }
  /// Returns the tokens that stand for text.
  std::vector<std::int32_t> texts_of(const std::set<std::int32_t>& special) const {
    std::vector<std::int32_t> ids(scores_.size());
    std::iota(ids.begin(), ids.end(), 0);
    std::erase_if(
        ids, [&](std::int32_t id) { return id == unknown_ || special.contains(id) || vocabulary_.token(id).empty(); });
    return ids;
  }

  /// Viterbi's algorithm over characters. Of equal scores, the first found counts.
  std::vector<End> best_paths(std::string_view text) const {
    std::vector<End> ends(text.size() + 1);
    const auto offer = [&](std::size_t begin, std::size_t end, double score, std::int32_t id) {
      const double sum = ends[begin].score + score;
      if (ends[end].id == none || sum > ends[end].score) ends[end] = {sum, begin, id};
    };
    for (std::size_t begin = 0; begin < text.size();) {
      std::size_t next = begin;
      unicode::next(text, next);
      bool has_character = false;
      search_(text.substr(begin), [&](std::size_t length, std::int32_t id) {
        offer(begin, begin + length, scores_[static_cast<std::size_t>(id)], id);
        has_character = has_character || begin + length == next;
      });
      if (!has_character) offer(begin, next, unknown_score_, unknown_);
      begin = next;
    }
    return ends;
  }

  void add_unknown(std::string_view text, std::vector<std::int32_t>& ids) const {
    if (bytes_.size() < 256) return ids.push_back(unknown_);
    for (const char byte : text) ids.push_back(bytes_[static_cast<unsigned char>(byte)]);
  }

  const TokenTable& vocabulary_;
  std::int32_t unknown_;
  std::vector<double> scores_;  // by id
  double unknown_score_;
  PrefixSearch search_;
  std::vector<std::int32_t> bytes_;  // by byte, if unknown characters become bytes
};

}  // namespace

std::unique_ptr<PieceModel> make_unigram_model(const JsonView& model, const TokenTable& vocabulary,
                                               const std::set<std::int32_t>& special) {
  return std::make_unique<UnigramModel>(model, vocabulary, special);
}

}  // namespace furlong
