#include "datasets/tokenizers/added_tokens.h"

#include <algorithm>
#include <utility>

#include "datasets/tokenizers/unicode.h"

namespace furlong {
namespace {

char32_t last_character(std::string_view text) {
  std::size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return unicode::next(text, begin);
}

bool stands_alone(std::string_view text, std::size_t begin, std::size_t end) {
  if (begin > 0 && unicode::is_word(last_character(text.substr(0, begin)))) return false;
  return end == text.size() || !unicode::is_word(unicode::next(text, end));
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    if (!tokens_[i].content.empty()) by_first_byte_[static_cast<unsigned char>(tokens_[i].content[0])].push_back(i);
  }
  for (auto& places : by_first_byte_) {
    std::stable_sort(places.begin(), places.end(), [&](std::size_t a, std::size_t b) {
      return tokens_[a].content.size() > tokens_[b].content.size();
    });
  }
}

const AddedToken* AddedTokens::longest_at(std::string_view text, std::size_t position) const {
  for (const std::size_t place : by_first_byte_[static_cast<unsigned char>(text[position])]) {
    if (text.substr(position).starts_with(tokens_[place].content)) return &tokens_[place];
  }
  return nullptr;
}

void AddedTokens::split(std::string_view text, SpecialTokenMode special, const Sink& sink) const {
  std::size_t done = 0;  // end of the text already passed to `sink`
  for (std::size_t position = 0; position < text.size() && !tokens_.empty();) {
    const AddedToken* token = longest_at(text, position);
    if (!token) {
      ++position;
      continue;
    }
    std::size_t begin = position, end = position + token->content.size();
    // A skipped token still hides shorter tokens inside it.
    position = end;
    if (token->special && special == SpecialTokenMode::as_text) continue;
    if (token->single_word && !stands_alone(text, begin, end)) continue;
    while (token->lstrip && begin > done) {
      const char32_t character = last_character(text.substr(0, begin));
      if (!unicode::is_whitespace(character)) break;
      do --begin;
      while (begin > done && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80);
    }
    while (token->rstrip && end < text.size()) {
      std::size_t next = end;
      if (!unicode::is_whitespace(unicode::next(text, next))) break;
      end = next;
    }
    begin = std::max(begin, done);
    if (begin > done) sink(text.substr(done, begin - done), std::nullopt);
    sink(token->content, token->id);
    done = std::max(end, done);
    position = std::max(position, end);
  }
  if (done < text.size()) sink(text.substr(done), std::nullopt);
}

}  // namespace furlong
