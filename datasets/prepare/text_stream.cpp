#include "datasets/prepare/text_stream.h"

#include <algorithm>

namespace furlong {
namespace {

constexpr std::size_t kContextTokens = 8;                  // more than any decoder looks back
constexpr std::size_t kMaxPendingTokens = 8;               // maximum pending tokens; no character has that many bytes
constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD: an incomplete character

bool decodes_each_token(const Vocabulary& vocabulary) {
  return !vocabulary.tokenizer() || vocabulary.tokenizer()->decodes_each_token();
}

}  // namespace

TextStream::TextStream(const Vocabulary& vocabulary, std::span<const std::int32_t> prompt) : vocabulary_(&vocabulary) {
  const std::span<const std::int32_t> last = prompt.last(std::min(kContextTokens, prompt.size()));
  context_.assign(last.begin(), last.end());
}

std::string TextStream::next(std::int32_t token) {
  if (decodes_each_token(*vocabulary_)) return vocabulary_->decode({&token, 1});
  pending_.push_back(token);
  if (pending_.size() < kMaxPendingTokens && vocabulary_->decode(pending_).ends_with(kReplacement)) return {};
  return decode_pending();
}

std::string TextStream::finish() { return pending_.empty() ? std::string() : decode_pending(); }

std::string TextStream::decode_pending() {
  const std::string before = vocabulary_->decode(context_);
  context_.insert(context_.end(), pending_.begin(), pending_.end());
  pending_.clear();
  const std::string text = vocabulary_->decode(context_);
  if (context_.size() > kContextTokens) context_.erase(context_.begin(), context_.end() - kContextTokens);
  // New tokens may change the end of the previous text (a space); the new text starts at the first difference.
  return {std::mismatch(text.begin(), text.end(), before.begin(), before.end()).first, text.end()};
}

std::string continuation_text(const Vocabulary& vocabulary, std::span<const std::int32_t> prompt,
                              std::span<const std::int32_t> tokens) {
  TextStream stream(vocabulary, prompt);
  std::string text;
  for (const std::int32_t token : tokens) text += stream.next(token);
  return text + stream.finish();
}

}  // namespace furlong
