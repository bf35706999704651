#include "datasets/masking.h"

#include <algorithm>
#include <limits>

#include "framework/core/error.h"
#include "framework/core/random.h"

namespace furlong {
namespace {

double uniform(std::uint32_t word) { return static_cast<double>(word) * 0x1p-32; }

}  // namespace

MaskedSource::MaskedSource(Sampler windows, const Vocabulary& vocabulary, const MaskingOptions& options)
    : windows_(std::move(windows)), options_(options), n_data_symbols_(vocabulary.n_data_symbols()) {
  require(vocabulary.mask_id().has_value(), "a vocabulary without <mask>");
  mask_id_ = *vocabulary.mask_id();
  never_.assign(static_cast<std::size_t>(vocabulary.size()), false);
  std::fill(never_.begin() + n_data_symbols_, never_.end(), true);
  for (const std::string& symbol : options.ignore_tokens) never_[static_cast<std::size_t>(vocabulary.id_of(symbol))] = true;
}

Batch MaskedSource::masked(Batch windows, std::uint64_t first, std::uint64_t end) const {
  const auto n = static_cast<std::size_t>(windows.n);
  const RandomKey key{options_.seed, 0, random_stream(options_.stream)};
  std::fill(windows.targets.begin(), windows.targets.end(), ignored_target);
  windows.n_targets = windows.n_tokens = 0;
  windows.mask.assign(windows.inputs.size(), 0);
  for (std::size_t row = 0; row < static_cast<std::size_t>(windows.batch) && first + row < end; ++row) {
    const auto count = static_cast<std::size_t>(windows_.tokens_in(first + row));
    windows.n_tokens += static_cast<std::int64_t>(count);
    for (std::size_t position = 0; position < count; ++position) {
      const std::size_t place = row * n + position;
      windows.mask[place] = 1;
      std::int32_t& token = windows.inputs[place];
      if (never_[static_cast<std::size_t>(token)]) continue;
      const auto words = philox(key, (first + row) * n + position);
      if (uniform(words[0]) >= options_.probability) continue;
      windows.targets[place] = token;
      ++windows.n_targets;
      const double fate = uniform(words[1]);
      if (fate < options_.mask_token_share) {
        token = mask_id_;
      } else if (fate < options_.mask_token_share + options_.random_token_share) {
        token = static_cast<std::int32_t>(uniform(words[2]) * n_data_symbols_);
      }
    }
  }
  // Without padding attention has nothing to leave out, and takes the shorter way.
  if (windows.n_tokens == windows.batch * windows.n) windows.mask.clear();
  return windows;
}

Batch MaskedSource::batch(std::uint64_t first, std::int64_t samples) const {
  return masked(windows_.batch(first, samples), first, std::numeric_limits<std::uint64_t>::max());
}

Batch MaskedSource::batch_of_one_pass(std::uint64_t first, std::int64_t samples) const {
  return masked(windows_.batch_of_one_pass(first, samples), first, windows_.n_samples());
}

}  // namespace furlong
