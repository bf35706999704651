#include "datasets/samplers/mixture_source.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "datasets/samplers/labeled_source.h"
#include "framework/core/error.h"

namespace furlong {
namespace {

/// Returns how many samples of a block each source gives; the sum is block_size.
std::vector<std::uint64_t> quotas(const std::vector<double>& weights) {
  double sum = 0;
  for (const double weight : weights) {
    require(weight >= 0 && std::isfinite(weight), "a weight of {}", weight);
    sum += weight;
  }
  require(sum > 0 && std::isfinite(sum) && weights.size() <= 65536, "{} weights with the sum {}", weights.size(), sum);
  constexpr auto size = static_cast<double>(MixtureSource::block_size);
  std::vector<std::uint64_t> found;
  std::vector<double> missing;  // share minus quota
  std::uint64_t given = 0;
  for (const double weight : weights) {
    const double share = weight / sum * size;
    found.push_back(weight > 0 ? std::max<std::uint64_t>(1, static_cast<std::uint64_t>(share)) : 0);
    missing.push_back(weight > 0 ? share - static_cast<double>(found.back()) : -size);
    given += found.back();
  }
  while (given != MixtureSource::block_size) {
    const bool too_few = given < MixtureSource::block_size;
    const auto place = too_few ? std::max_element(missing.begin(), missing.end()) - missing.begin()
                               : std::max_element(found.begin(), found.end()) - found.begin();
    const auto source = static_cast<std::size_t>(place);
    found[source] += too_few ? 1 : -1;
    missing[source] += too_few ? -1 : 1;
    given += too_few ? 1 : -1;
  }
  return found;
}

}  // namespace

MixtureSource::MixtureSource(std::vector<std::unique_ptr<BatchSource>> sources, const std::vector<double>& weights,
                             std::uint64_t seed)
    : sources_(std::move(sources)), ends_(quotas(weights)), seed_(seed) {
  require(sources_.size() == weights.size(), "{} weights for {} sources", weights.size(), sources_.size());
  std::partial_sum(ends_.begin(), ends_.end(), ends_.begin());
}

MixtureSource::Drawn& MixtureSource::drawn(std::uint64_t block) const {
  Drawn& found = recent_[block % recent_.size()];
  if (found.block != block || found.counts.empty()) found = {block, {}, {}, std::vector<std::uint32_t>(ends_.size())};
  return found;
}

MixtureSource::Draw MixtureSource::draw(std::uint64_t index) const {
  const std::uint64_t block = index / block_size, wanted = index % block_size;
  const std::lock_guard lock(mutex_);
  Drawn& known = drawn(block);
  for (std::uint64_t next = known.ranks.size(); next <= wanted; ++next) {
    const std::uint64_t place = permuted_index(next, block_size, seed_, block);
    const auto source = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), place) - ends_.begin());
    known.sources.push_back(static_cast<std::uint16_t>(source));
    known.ranks.push_back(known.counts[source]++);
  }
  const std::size_t source = known.sources[wanted];
  const std::uint64_t quota = ends_[source] - (source == 0 ? 0 : ends_[source - 1]);
  return {source, block * quota + known.ranks[wanted]};
}

std::uint64_t MixtureSource::n_samples() const {
  std::uint64_t sum = 0;
  for (const auto& source : sources_) sum += source->n_samples();
  return sum;
}

Batch MixtureSource::batch(std::uint64_t first, std::int64_t samples) const {
  require(samples > 0, "a batch of {}", samples);
  Batch made;
  for (std::uint64_t index = first; index < first + static_cast<std::uint64_t>(samples); ++index) {
    const Draw one = draw(index);
    append(made, sources_[one.source]->batch(one.index, 1));
  }
  return made;
}

Batch MixtureSource::single_pass_batch(std::uint64_t first, std::int64_t samples) const {
  const std::uint64_t end = first + static_cast<std::uint64_t>(samples), n = n_samples();
  Batch made;
  if (first < n) made = batch(first, static_cast<std::int64_t>(std::min(end, n) - first));
  for (std::uint64_t index = std::max(first, n); index < end; ++index)
    append(made, sources_.front()->single_pass_batch(sources_.front()->n_samples(), 1));
  return made;
}

std::string MixtureSource::note() const {
  std::string notes;
  for (const auto& source : sources_) {
    const std::string note = source->note();
    if (!note.empty()) notes += (notes.empty() ? "" : "; ") + note;
  }
  return notes;
}

}  // namespace furlong
