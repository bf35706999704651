#include "datasets/samplers/masking.h"

#include <algorithm>
#include <limits>

#include "framework/core/error.h"
#include "framework/core/random.h"

namespace furlong {
namespace {

double uniform(std::uint32_t word) { return static_cast<double>(word) * 0x1p-32; }

}  // namespace

MaskedSource::MaskedSource(Sampler windows, const Vocabulary& vocabulary, const MaskingOptions& options)
    : MaskedSource(std::make_shared<Sampler>(std::move(windows)), vocabulary, options) {}

MaskedSource::MaskedSource(std::shared_ptr<const RowSource> rows, const Vocabulary& vocabulary,
                           const MaskingOptions& options)
    : rows_(std::move(rows)), options_(options) {
  require(vocabulary.mask_id().has_value(), "a vocabulary without <mask>");
  mask_id_ = *vocabulary.mask_id();
  for (std::int32_t id = 0; id < vocabulary.size(); ++id) {
    excluded_.push_back(!vocabulary.is_data_symbol(id));
    if (!excluded_.back()) data_symbols_.push_back(id);
  }
  for (const std::string& symbol : options.ignore_tokens)
    excluded_[static_cast<std::size_t>(vocabulary.id_of(symbol))] = true;
}

Batch MaskedSource::masked(Batch rows, std::uint64_t first, std::uint64_t end) const {
  const auto n = static_cast<std::size_t>(rows.n);
  // A row's random numbers must not depend on the padding of its batch.
  const auto longest = static_cast<std::uint64_t>(rows_->sequence_length());
  const RandomKey key{options_.seed, 0, random_stream(options_.stream)};
  std::fill(rows.targets.begin(), rows.targets.end(), ignored_target);
  rows.n_targets = rows.n_tokens = 0;
  rows.mask.assign(rows.inputs.size(), 0);
  for (std::size_t row = 0; row < static_cast<std::size_t>(rows.batch) && first + row < end; ++row) {
    const auto count = static_cast<std::size_t>(rows_->tokens_in(first + row));
    rows.n_tokens += static_cast<std::int64_t>(count);
    for (std::size_t position = 0; position < count; ++position) {
      const std::size_t place = row * n + position;
      rows.mask[place] = 1;
      std::int32_t& token = rows.inputs[place];
      if (excluded_[static_cast<std::size_t>(token)]) continue;
      const auto words = philox(key, (first + row) * longest + position);
      if (uniform(words[0]) >= options_.probability) continue;
      rows.targets[place] = token;
      ++rows.n_targets;
      const double draw = uniform(words[1]);
      if (draw < options_.mask_token_fraction) {
        token = mask_id_;
      } else if (draw < options_.mask_token_fraction + options_.random_token_fraction) {
        token = data_symbols_[static_cast<std::size_t>(uniform(words[2]) * static_cast<double>(data_symbols_.size()))];
      }
    }
  }
  // Without padding there is no mask, and attention uses a faster path.
  if (rows.n_tokens == rows.batch * rows.n) rows.mask.clear();
  return rows;
}

Batch MaskedSource::batch(std::uint64_t first, std::int64_t samples) const {
  return masked(rows_->batch(first, samples), first, std::numeric_limits<std::uint64_t>::max());
}

Batch MaskedSource::single_pass_batch(std::uint64_t first, std::int64_t samples) const {
  return masked(rows_->single_pass_batch(first, samples), first, rows_->n_samples());
}

}  // namespace furlong
