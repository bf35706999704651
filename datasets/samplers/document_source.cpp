#include "datasets/samplers/document_source.h"

#include <algorithm>
#include <limits>

#include "datasets/samplers/labeled_source.h"
#include "datasets/samplers/sampler.h"
#include "framework/core/error.h"

namespace furlong {

DocumentSource::DocumentSource(const TokenizedDataset& dataset, Split split, const DocumentOptions& options)
    : dataset_(&dataset), split_(split), options_(options) {
  require(options.sequence_length > 0, "a sequence length of {}", options.sequence_length);
  const std::vector<std::uint64_t> starts = document_starts(dataset, split);
  const auto n = static_cast<std::uint64_t>(options.sequence_length);
  // A document's last token is an input only in masked language modeling.
  const std::uint64_t last = options.next_tokens ? 1 : 0;
  documents_.reserve(starts.size());
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const std::uint64_t begin = starts[i], end = i + 1 < starts.size() ? starts[i + 1] : dataset.size(split);
    const std::uint64_t inputs = end - begin - last;
    if (inputs == 0) continue;
    documents_.push_back({begin, end, n_rows_});
    n_rows_ += (inputs + n - 1) / n;
    n_cut_ += inputs > n;
  }
  if (n_rows_ == 0) {
    throw UserError("{}: the {} split has no document{}; prepare more data for it", dataset.path(), name_of(split),
                    options.next_tokens ? " of two tokens or more" : "");
  }
  if (options.reverse_complement) other_strand_.emplace(dataset.vocabulary(), options.seed);
  ignored_.assign(static_cast<std::size_t>(dataset.vocabulary().size()), false);
  for (const std::string& symbol : options.ignore_tokens)
    ignored_[static_cast<std::size_t>(dataset.vocabulary().id_of(symbol))] = true;
}

DocumentSource::Row DocumentSource::row(std::uint64_t index) const {
  const std::uint64_t place = index % n_rows_;
  const std::uint64_t number =
      options_.shuffled ? permuted_index(place, n_rows_, options_.seed, index / n_rows_) : place;
  const auto after =
      std::upper_bound(documents_.begin(), documents_.end(), number,
                       [](std::uint64_t wanted, const Document& document) { return wanted < document.first_row; });
  const Document& document = *(after - 1);
  const auto n = static_cast<std::uint64_t>(options_.sequence_length);
  const std::uint64_t begin = document.begin + (number - document.first_row) * n;
  const std::uint64_t inputs = std::min<std::uint64_t>(n, document.end - begin - (options_.next_tokens ? 1 : 0));
  return {begin, static_cast<std::int64_t>(inputs)};
}

std::int64_t DocumentSource::tokens_in(std::uint64_t index) const { return row(index).inputs; }

void DocumentSource::fill(std::uint64_t index, const Row& row, Batch& batch, std::size_t place) const {
  const auto count = static_cast<std::size_t>(row.inputs);
  std::vector<std::int32_t> tokens = dataset_->read(split_, row.begin, count + (options_.next_tokens ? 1 : 0));
  if (other_strand_) other_strand_->apply(index, tokens);
  const auto offset = static_cast<std::ptrdiff_t>(place);
  std::copy_n(tokens.begin(), count, batch.inputs.begin() + offset);
  std::fill_n(batch.mask.begin() + offset, count, 1);
  if (!options_.next_tokens) {
    batch.n_tokens += row.inputs;
    return;
  }
  for (std::size_t t = 0; t + 1 < tokens.size(); ++t) {
    if (ignored_[static_cast<std::size_t>(tokens[t + 1])]) continue;
    batch.targets[place + t] = tokens[t + 1];
    ++batch.n_targets;
    ++batch.n_tokens;
  }
}

Batch DocumentSource::make_batch(std::uint64_t first, std::int64_t samples, std::uint64_t end) const {
  require(samples > 0, "a batch of {}", samples);
  const auto count = static_cast<std::size_t>(samples);
  std::vector<Row> rows;
  for (std::uint64_t index = first; index < end && rows.size() < count; ++index) rows.push_back(row(index));
  std::int64_t longest = 1, tokens = 0;
  for (const Row& one : rows) {
    longest = std::max(longest, one.inputs);
    tokens += one.inputs;
  }
  Batch made;
  made.batch = samples;
  // Round up to few distinct lengths, because each new shape sets up new matrix products.
  made.n =
      options_.pad_to_longest ? std::min((longest + 63) / 64 * 64, options_.sequence_length) : options_.sequence_length;
  const auto n = static_cast<std::size_t>(made.n);
  made.inputs.assign(count * n, 0);
  made.targets.assign(count * n, ignored_target);
  made.mask.assign(count * n, 0);
  for (std::size_t i = 0; i < rows.size(); ++i) fill(first + i, rows[i], made, i * n);
  // Without padding there is no mask, and attention uses a faster path.
  if (tokens == made.batch * made.n) made.mask.clear();
  return made;
}

std::string DocumentSource::note() const {
  if (n_cut_ == 0) return {};
  return fmt::format(
      "{} of the {} documents of the {} split are longer than {} tokens (data.sequence_length) and are split into "
      "several rows; each row starts without context",
      n_cut_, documents_.size(), name_of(split_), options_.sequence_length);
}

Batch DocumentSource::batch(std::uint64_t first, std::int64_t samples) const {
  return make_batch(first, samples, std::numeric_limits<std::uint64_t>::max());
}
Batch DocumentSource::single_pass_batch(std::uint64_t first, std::int64_t samples) const {
  return make_batch(first, samples, n_rows_);
}

}  // namespace furlong
