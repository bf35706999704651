#include "datasets/prepare/document_encoder.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "framework/core/error.h"
#include "framework/core/parallel.h"
#include "framework/core/printable.h"

namespace furlong {
namespace {

constexpr std::size_t kContextBytes = 256;
constexpr std::size_t kTokensPerWrite = 8192;
constexpr std::size_t kMaxWaitPieces = 8;  // maximum wait for a good place to cut, in pieces

bool is_space(char byte) { return std::isspace(static_cast<unsigned char>(byte)) != 0; }
bool continues_character(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

}  // namespace

DocumentEncoder::DocumentEncoder(const Vocabulary& vocabulary, DocumentSink& writer, std::size_t queue_bytes,
                                 std::size_t piece_bytes)
    : vocabulary_(vocabulary),
      writer_(writer),
      queue_bytes_(queue_bytes),
      piece_bytes_(piece_bytes),
      next_cut_(piece_bytes) {
  require(vocabulary.tokenizer() != nullptr && piece_bytes > 0, "documents encoded by a {} vocabulary",
          vocabulary.kind_name());
}

void DocumentEncoder::write(const std::vector<std::int32_t>& ids) {
  if (ids.empty()) return;
  if (!std::exchange(started_, true)) writer_.append(vocabulary_.frame_front());
  writer_.append(ids);
}

void DocumentEncoder::put_token(std::int32_t id) {
  ids_.push_back(id);
  if (ids_.size() < kTokensPerWrite) return;
  write(ids_);
  ids_.clear();
}

/// Returns the number of bytes that can be encoded now, or 0 to wait for more text.
std::size_t DocumentEncoder::find_cut() const {
  std::size_t line_end = 0;
  for (std::size_t place = text_.size() - 1; place > 1; --place) {
    if (text_[place - 1] != '\n') continue;
    // No tokenizer joins whitespace across a single line break between two words.
    if (!is_space(text_[place]) && !is_space(text_[place - 2])) return place;
    if (line_end == 0) line_end = place;
  }
  if (text_.size() < kMaxWaitPieces * piece_bytes_) return 0;
  if (line_end > 0) return line_end;
  for (std::size_t place = text_.size() - 1; place > text_.size() - piece_bytes_ && place > 1; --place) {
    if (text_[place] == ' ' && !is_space(text_[place - 1])) return place;
  }
  std::size_t place = text_.size() - 1;
  while (place > 1 && continues_character(text_[place])) --place;
  return place;
}

void DocumentEncoder::encode_piece() {
  const std::size_t cut = find_cut();
  if (cut > 0) {
    std::size_t context = cut - std::min(cut, kContextBytes);
    while (context > 0 && continues_character(text_[context])) --context;
    std::string end = text_.substr(context, cut - context);
    enqueue({context_ + text_.substr(0, cut), context_.size()});
    context_ = std::move(end);
    text_.erase(0, cut);
    if (!std::exchange(cut_, true)) ++n_cut_documents_;
  }
  // The rest is searched again when it has grown by half a piece.
  next_cut_ = std::max(piece_bytes_, text_.size() + piece_bytes_ / 2 + 1);
}

/// Returns the ids of the piece without those of its context.
std::vector<std::int32_t> DocumentEncoder::ids_of(const Piece& piece) const {
  const std::string_view text = piece.text, context = text.substr(0, piece.context);
  if (context.empty()) return vocabulary_.encode(text);
  std::vector<std::int32_t> all = vocabulary_.encode(text);
  const std::vector<std::int32_t> before = vocabulary_.encode(context);
  if (before.size() > all.size() || !std::equal(before.begin(), before.end(), all.begin()))
    return vocabulary_.encode(text.substr(piece.context));  // a token crosses the cut
  all.erase(all.begin(), all.begin() + std::ssize(before));
  return all;
}

void DocumentEncoder::enqueue(Piece piece) {
  queued_bytes_ += sizeof(Piece) + piece.text.size();
  queue_.push_back(std::move(piece));
  if (queued_bytes_ >= queue_bytes_) flush();
}

void DocumentEncoder::flush() {
  std::vector<std::vector<std::int32_t>> ids(queue_.size());
  std::vector<std::uint64_t> ignored(queue_.size());
  std::vector<char> invalid(queue_.size());
  parallel_tasks(std::ssize(queue_), [&](std::int64_t i) {
    const auto place = static_cast<std::size_t>(i);
    const Piece& piece = queue_[place];
    if (piece.text.size() == piece.context) return;
    ids[place] = ids_of(piece);
    const std::string_view text = std::string_view(piece.text).substr(piece.context);
    ignored[place] = vocabulary_.tokenizer()->count_ignored(text);
    invalid[place] = !vocabulary_.tokenizer()->keeps_invalid_bytes() && !foreign::is_utf8(text);
  });
  for (std::size_t i = 0; i < queue_.size(); ++i) {
    write(ids[i]);
    ignored_.characters += ignored[i];
    has_ignored_ = has_ignored_ || ignored[i] > 0;
    has_invalid_ = has_invalid_ || invalid[i];
    if (!queue_[i].ends_document) continue;
    if (started_) writer_.append(vocabulary_.frame_back());
    writer_.end_document();
    started_ = false;
    if (std::exchange(has_ignored_, false)) ++ignored_.documents;
    if (std::exchange(has_invalid_, false)) ++ignored_.not_utf8;
  }
  queue_.clear();
  queued_bytes_ = 0;
}

void DocumentEncoder::end_document() {
  write(ids_);
  ids_.clear();
  next_cut_ = piece_bytes_;
  cut_ = false;
  enqueue({context_ + text_, context_.size(), true});
  text_.clear();
  context_.clear();
}

}  // namespace furlong
