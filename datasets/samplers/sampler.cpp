#include "datasets/samplers/sampler.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "framework/core/error.h"
#include "framework/core/random.h"

namespace furlong {

using Order = SamplerOptions::Order;

Sampler::Sampler(const TokenizedDataset& dataset, Split split, const SamplerOptions& options)
    : dataset_(&dataset), split_(split), options_(options) {
  require(options.sequence_length > 0, "a sequence length of {}", options.sequence_length);
  const std::uint64_t size = dataset.size(split);
  const auto n = static_cast<std::uint64_t>(options.sequence_length);
  const std::uint64_t beyond = options.next_tokens ? 1 : 0;  // the last token is a target only
  const std::uint64_t needed = (options.order == Order::random ? n : 1) + beyond;
  if (size < needed) {
    throw UserError(
        "{}: the {} split has {} tokens, but a sequence length of {} needs at least {}; prepare more data or reduce "
        "data.sequence_length",
        dataset.path(), name_of(split), size, n, needed);
  }
  n_windows_ = options.order == Order::random ? size - needed + 1 : (size - beyond + n - 1) / n;
  ignored_.assign(static_cast<std::size_t>(dataset.vocabulary().size()), false);
  for (const std::string& symbol : options.ignore_tokens)
    ignored_[static_cast<std::size_t>(dataset.vocabulary().id_of(symbol))] = true;
  if (options.reverse_complement) other_strand_.emplace(dataset.vocabulary(), options.seed);
  if (options.separate_documents)
    starts_ = std::make_shared<const std::vector<std::uint64_t>>(document_starts(dataset, split));
}

std::vector<std::uint64_t> Sampler::breaks(std::uint64_t position, std::uint64_t count) const {
  if (!starts_) return dataset_->breaks(split_, position, count);
  const auto first = std::upper_bound(starts_->begin(), starts_->end(), position);
  return {first, std::lower_bound(first, starts_->end(), position + count)};
}

std::uint64_t Sampler::window_start(std::uint64_t index) const {
  if (options_.order == Order::sequential)
    return index % n_windows_ * static_cast<std::uint64_t>(options_.sequence_length);
  const auto words = philox({options_.seed, 0, random_stream("sampler")}, index);
  const std::uint64_t uniform = std::uint64_t{words[1]} << 32 | words[0];
  // The high half of the product is uniform up to a bias of n_windows / 2^64.
  return static_cast<std::uint64_t>(static_cast<unsigned __int128>(uniform) * n_windows_ >> 64);
}

std::int64_t Sampler::sample(std::uint64_t index, std::span<std::int32_t> inputs,
                             std::span<std::int32_t> targets) const {
  const auto n = static_cast<std::size_t>(options_.sequence_length);
  require(inputs.size() == n && targets.size() == n, "a sample of {} tokens for {} inputs and {} targets", n,
          inputs.size(), targets.size());
  const std::uint64_t start = window_start(index);
  // With the target of the last token. The last window of a pass may have fewer tokens; the rest is padding, ignored in
  // the loss.
  const std::uint64_t wanted = options_.next_tokens ? n + 1 : n;
  const auto count = static_cast<std::size_t>(std::min(wanted, dataset_->size(split_) - start));
  std::vector<std::int32_t> tokens = dataset_->read(split_, start, count);
  const std::vector<std::uint64_t> places = breaks(start, count);
  if (other_strand_) other_strand_->apply(index, tokens, places, start);
  std::fill(inputs.begin(), inputs.end(), 0);
  std::fill(targets.begin(), targets.end(), ignored_target);
  std::copy_n(tokens.begin(), std::min(count, n), inputs.begin());
  if (!options_.next_tokens) return 0;
  std::copy(tokens.begin() + 1, tokens.end(), targets.begin());
  for (const std::uint64_t place : places) targets[place - start - 1] = ignored_target;
  std::int64_t n_targets = 0;
  for (std::int32_t& target : targets) {
    if (target != ignored_target && ignored_[static_cast<std::size_t>(target)]) target = ignored_target;
    n_targets += target != ignored_target;
  }
  return n_targets;
}

void Sampler::documents(std::uint64_t index, std::span<std::int32_t> numbers) const {
  require(starts_ != nullptr && numbers.size() == static_cast<std::size_t>(options_.sequence_length),
          "documents() for {} tokens of a sampler that {}", numbers.size(),
          starts_ ? "has another sequence length" : "does not separate documents");
  const std::uint64_t start = window_start(index);
  const auto count = static_cast<std::size_t>(tokens_in(index));
  std::fill(numbers.begin(), numbers.end(), 0);
  for (const std::uint64_t place : breaks(start, count)) numbers[place - start] = 1;
  if (count < numbers.size()) numbers[count] = 1;
  std::partial_sum(numbers.begin(), numbers.end(), numbers.begin());
}

Batch Sampler::make_batch(std::uint64_t first, std::int64_t batch, std::uint64_t end) const {
  require(batch > 0, "a batch of {}", batch);
  const auto n = static_cast<std::size_t>(options_.sequence_length);
  const auto rows = static_cast<std::size_t>(batch);
  Batch made;
  made.batch = batch;
  made.n = options_.sequence_length;
  made.inputs.assign(rows * n, 0);
  made.targets.assign(rows * n, ignored_target);
  made.lengths.assign(rows, 0);
  if (starts_) made.documents.assign(rows * n, 0);
  for (std::size_t row = 0; row < rows && first + row < end; ++row) {
    made.n_targets +=
        sample(first + row, std::span(made.inputs).subspan(row * n, n), std::span(made.targets).subspan(row * n, n));
    if (starts_) documents(first + row, std::span(made.documents).subspan(row * n, n));
    made.lengths[row] = static_cast<std::int32_t>(tokens_in(first + row));
  }
  made.n_tokens = made.n_targets;
  return made;
}

std::int64_t Sampler::tokens_in(std::uint64_t index) const {
  const auto rest = static_cast<std::int64_t>(dataset_->size(split_) - window_start(index));
  return std::min(options_.sequence_length, rest);
}

Batch Sampler::batch(std::uint64_t first, std::int64_t batch) const {
  return make_batch(first, batch, std::numeric_limits<std::uint64_t>::max());
}
Batch Sampler::single_pass_batch(std::uint64_t first, std::int64_t batch) const {
  return make_batch(first, batch, n_windows_);
}

std::vector<std::uint64_t> document_starts(const TokenizedDataset& dataset, Split split) {
  const std::vector<std::uint64_t> offsets = dataset.document_offsets();
  std::vector<std::uint64_t> starts;
  std::uint64_t position = 0;  // of the range's first token, in the split
  for (const TokenizedDataset::Range& range : dataset.ranges(split)) {
    starts.push_back(position);
    auto offset = std::upper_bound(offsets.begin(), offsets.end(), range.begin);
    for (; offset != offsets.end() && *offset < range.end; ++offset) {
      const std::uint64_t start = position + (*offset - range.begin);
      if (start != starts.back()) starts.push_back(start);  // an empty document starts where the next one does
    }
    position += range.end - range.begin;
  }
  return starts;
}

}  // namespace furlong
