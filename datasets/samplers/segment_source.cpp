#include "datasets/samplers/segment_source.h"

#include <algorithm>

#include "datasets/samplers/sampler.h"
#include "framework/core/error.h"

namespace furlong {
namespace {

std::uint64_t longest_of(const std::vector<std::uint64_t>& starts) {
  std::uint64_t longest = 0;
  for (std::size_t i = 0; i + 1 < starts.size(); ++i) longest = std::max(longest, starts[i + 1] - starts[i]);
  return longest;
}

}  // namespace

SegmentSource::SegmentSource(const TokenizedDataset& dataset, Split split, const SegmentOptions& options)
    : dataset_(&dataset), split_(split), options_(options) {
  require(options.sequence_length > 0 && options.rows > 0, "segments of {} tokens in {} rows", options.sequence_length,
          options.rows);
  const std::vector<std::uint64_t> starts = document_starts(dataset, split);
  const auto n = static_cast<std::uint64_t>(options.sequence_length);
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const std::uint64_t begin = starts[i], end = i + 1 < starts.size() ? starts[i + 1] : dataset.size(split);
    if (end - begin < 2) continue;  // a single token has no target
    documents_.push_back({begin, end, n_segments_});
    n_segments_ += (end - begin - 1 + n - 1) / n;
  }
  if (n_segments_ < static_cast<std::uint64_t>(options.rows)) {
    throw UserError(
        "{}: the {} split has {} segments of at most {} tokens, too few for {} rows of stateful training; reduce "
        "data.batch_size or data.sequence_length, or prepare more data",
        dataset.path(), name_of(split), n_segments_, n, options.rows);
  }
  streams_ = options.whole_documents ? document_streams() : even_streams();
  longest_stream_ = longest_of(streams_);
  ignored_.assign(static_cast<std::size_t>(dataset.vocabulary().size()), false);
  for (const std::string& symbol : options.ignore_tokens)
    ignored_[static_cast<std::size_t>(dataset.vocabulary().id_of(symbol))] = true;
}

std::vector<std::uint64_t> SegmentSource::even_streams() const {
  const auto rows = static_cast<std::uint64_t>(options_.rows);
  std::vector<std::uint64_t> starts;
  for (std::uint64_t row = 0; row <= rows; ++row)
    starts.push_back(static_cast<std::uint64_t>(static_cast<unsigned __int128>(n_segments_) * row / rows));
  return starts;
}

// Moves the start of each stream to the nearest document, at least one document per stream. Returns even streams if the
// longest stream becomes too long.
std::vector<std::uint64_t> SegmentSource::document_streams() const {
  const std::vector<std::uint64_t> even = even_streams();
  const std::size_t rows = even.size() - 1, n = documents_.size();
  if (n < rows) return even;
  std::vector<std::uint64_t> starts{0};
  for (std::size_t row = 1, last = 0; row < rows; ++row) {
    const auto found = std::lower_bound(
        documents_.begin(), documents_.end(), even[row],
        [](const Document& document, std::uint64_t number) { return document.first_segment < number; });
    auto next = static_cast<std::size_t>(found - documents_.begin());
    if (next == n || documents_[next].first_segment - even[row] > even[row] - documents_[next - 1].first_segment)
      --next;
    last = std::clamp(next, last + 1, n - (rows - row));
    starts.push_back(documents_[last].first_segment);
  }
  starts.push_back(n_segments_);
  return longest_of(starts) <= 2 * longest_of(even) ? starts : even;
}

std::uint64_t SegmentSource::n_samples() const { return longest_stream_ * static_cast<std::uint64_t>(options_.rows); }

void SegmentSource::make_row(std::uint64_t segment, Batch& batch, std::int64_t row) const {
  const auto after =
      std::upper_bound(documents_.begin(), documents_.end(), segment,
                       [](std::uint64_t number, const Document& document) { return number < document.first_segment; });
  const Document& document = *(after - 1);
  const auto n = static_cast<std::size_t>(options_.sequence_length);
  const std::uint64_t begin = document.begin + (segment - document.first_segment) * n;
  const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(n + 1, document.end - begin));
  const std::vector<std::int32_t> tokens = dataset_->read(split_, begin, count);
  const auto offset = row * static_cast<std::int64_t>(n);
  std::copy_n(tokens.begin(), std::min(count, n), batch.inputs.begin() + offset);
  batch.lengths[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(std::min(count, n));
  for (std::size_t t = 0; t + 1 < count; ++t) {
    if (ignored_[static_cast<std::size_t>(tokens[t + 1])]) continue;
    batch.targets[static_cast<std::size_t>(offset) + t] = tokens[t + 1];
    ++batch.n_targets;
  }
  if (begin == document.begin) batch.fresh[static_cast<std::size_t>(row)] = 1;
}

Batch SegmentSource::make_batch(std::uint64_t first, std::int64_t samples, bool one_pass) const {
  require(samples > 0 && options_.rows % samples == 0, "a batch of {} of {} rows", samples, options_.rows);
  Batch made;
  made.batch = samples;
  made.n = options_.sequence_length;
  const auto size = static_cast<std::size_t>(samples * made.n);
  made.inputs.assign(size, 0);
  made.targets.assign(size, ignored_target);
  made.fresh.assign(static_cast<std::size_t>(samples), 0);
  made.lengths.assign(static_cast<std::size_t>(samples), 0);
  const auto rows = static_cast<std::uint64_t>(options_.rows);
  for (std::int64_t row = 0; row < samples; ++row) {
    const std::uint64_t index = first + static_cast<std::uint64_t>(row), stream = index % rows, round = index / rows;
    const std::uint64_t begin = streams_[stream], length = streams_[stream + 1] - begin;
    if (round % length == 0) made.fresh[static_cast<std::size_t>(row)] = 1;
    if (!one_pass || round < length) make_row(begin + round % length, made, row);
  }
  made.n_tokens = made.n_targets;
  return made;
}

Batch SegmentSource::batch(std::uint64_t first, std::int64_t samples) const {
  return make_batch(first, samples, false);
}
Batch SegmentSource::single_pass_batch(std::uint64_t first, std::int64_t samples) const {
  return make_batch(first, samples, true);
}

}  // namespace furlong
