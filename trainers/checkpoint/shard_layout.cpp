#include "trainers/checkpoint/shard_layout.h"

#include <algorithm>
#include <utility>

#include "framework/core/error.h"

namespace furlong {
namespace {

constexpr std::int64_t alignment = 64;  // elements; the alignment of parameters in the store

}  // namespace

ShardLayout::ShardLayout(const ParameterStore& store, std::int64_t bucket_elements, int processes)
    : processes_(processes) {
  require(bucket_elements > 0 && processes > 0, "buckets of {} elements for {} ranks", bucket_elements, processes);
  std::vector<const Parameter*> trained;
  for (const Parameter& parameter : store.parameters())
    if (store.is_trained(parameter)) trained.push_back(&parameter);
  std::sort(trained.begin(), trained.end(),
            [&](const Parameter* a, const Parameter* b) { return store.offset(*a) < store.offset(*b); });
  add_part(store, trained, true, store.decayed_elements(), bucket_elements);
  add_part(store, trained, false, store.values().elements(), bucket_elements);
}

void ShardLayout::add_part(const ParameterStore& store, const std::vector<const Parameter*>& ascending, bool decays,
                           std::int64_t part_end, std::int64_t bucket_elements) {
  Bucket bucket;
  bucket.end = part_end;
  const auto close = [&](std::int64_t next_end) {
    bucket.decays = decays;
    bucket.part = (bucket.end - bucket.begin) / (alignment * processes_) * alignment;
    buckets_.push_back(std::exchange(bucket, Bucket()));
    bucket.end = next_end;
  };
  for (auto parameter = ascending.rbegin(); parameter != ascending.rend(); ++parameter) {
    if ((store.offset(**parameter) < store.decayed_elements()) != decays) continue;
    bucket.begin = store.offset(**parameter);
    bucket.parameters.push_back(*parameter);
    if (bucket.end - bucket.begin >= bucket_elements) close(bucket.begin);
  }
  if (!bucket.parameters.empty()) close(0);
}

std::vector<OwnedRange> ShardLayout::ranges(int rank) const {
  std::vector<OwnedRange> ranges;
  for (const Bucket& bucket : buckets_) {
    const std::int64_t own = bucket.begin + rank * bucket.part, rest = bucket.begin + processes_ * bucket.part;
    if (bucket.part > 0) ranges.push_back({own, own + bucket.part, 0, bucket.decays, false});
    if (rest < bucket.end) ranges.push_back({rest, bucket.end, 0, bucket.decays, true});
  }
  std::sort(ranges.begin(), ranges.end(), [](const OwnedRange& a, const OwnedRange& b) { return a.begin < b.begin; });
  std::int64_t place = 0;
  for (OwnedRange& range : ranges) {
    range.place = place;
    place += range.elements();
  }
  return ranges;
}

}  // namespace furlong
