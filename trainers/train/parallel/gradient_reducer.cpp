#include "trainers/train/parallel/gradient_reducer.h"

#include <map>
#include <utility>

#include "framework/core/clock.h"
#include "framework/core/error.h"
#include "framework/core/trace.h"
#include "framework/primitives/arithmetic.h"

namespace furlong {

GradientReducer::GradientReducer(ParameterStore& store, Communicator& communicator, const ShardLayout& layout,
                                 DType dtype, bool is_sharded)
    : store_(store),
      communicator_(communicator),
      layout_(layout),
      dtype_(store.master_dtype() == DType::float64 ? DType::float64 : dtype),
      is_sharded_(is_sharded) {
  require(dtype == DType::float32 || dtype == DType::bfloat16, "gradients cannot be reduced in {}", name_of(dtype));
  require(layout.processes() == communicator.size(), "a layout for {} ranks and a communicator of {}",
          layout.processes(), communicator.size());
  std::map<const Parameter*, std::size_t> bucket_of;
  for (const ShardLayout::Bucket& range : layout.buckets()) {
    for (const Parameter* parameter : range.parameters) bucket_of[parameter] = buckets_.size();
    buckets_.push_back(make_bucket(range));
  }
  store.on_gradient_final([this, bucket_of](Parameter& parameter) { note_final(bucket_of.at(&parameter)); });
}

GradientReducer::~GradientReducer() { store_.on_gradient_final(nullptr); }

GradientReducer::Bucket GradientReducer::make_bucket(const ShardLayout::Bucket& range) const {
  Bucket bucket;
  bucket.parameters = range.parameters.size();
  const std::int64_t elements = range.end - range.begin, shared = layout_.processes() * range.part;
  bucket.gradients = store_.gradients().narrow(0, range.begin, elements);
  if (dtype_ != store_.gradients().dtype()) bucket.exchanged = Tensor::empty({elements}, dtype_, store_.device());
  if (!is_sharded_) return bucket;
  const Tensor& whole = bucket.exchanged.defined() ? bucket.exchanged : bucket.gradients;
  if (range.part > 0) bucket.own = whole.narrow(0, communicator_.rank() * range.part, range.part);
  if (shared < elements) bucket.rest = whole.narrow(0, shared, elements - shared);
  return bucket;
}

void GradientReducer::begin(const Tape& tape) {
  for (Bucket& bucket : buckets_) bucket.open = bucket.parameters;
  sent_ = overlapped_ = 0;
  tape_ = &tape;
}

void GradientReducer::abandon() {
  tape_ = nullptr;
  for (Bucket& bucket : buckets_) bucket.work.clear();
}

void GradientReducer::note_final(std::size_t bucket) {
  if (!tape_) return;
  --buckets_[bucket].open;
  send_ready(Stream{store_.device()}, false);
  if (tape_->node_count() > 0) overlapped_ = sent_;  // after the last node nothing overlaps
}

void GradientReducer::send_ready(const Stream& stream, bool all) {
  for (; sent_ < buckets_.size() && (all || buckets_[sent_].open == 0); ++sent_) {
    Bucket& bucket = buckets_[sent_];
    const Tensor& whole = bucket.exchanged.defined() ? bucket.exchanged : bucket.gradients;
    const trace::Span span("reduction", "issue", {.bytes = whole.bytes(), .bucket = static_cast<std::int64_t>(sent_)});
    if (bucket.exchanged.defined()) ops::convert(stream, bucket.exchanged, bucket.gradients);
    if (!is_sharded_) {
      bucket.work.push_back(communicator_.all_reduce(stream, whole));
      continue;
    }
    if (bucket.own.defined()) {
      const std::int64_t shared = communicator_.size() * bucket.own.elements();
      bucket.work.push_back(communicator_.reduce_scatter(stream, whole.narrow(0, 0, shared), bucket.own));
    }
    if (bucket.rest.defined()) bucket.work.push_back(communicator_.all_reduce(stream, bucket.rest));
  }
}

void GradientReducer::finish(const Stream& stream) {
  require(tape_ != nullptr, "GradientReducer: finish() without begin()");
  tape_ = nullptr;
  const trace::Span finishing("reduction", "finish");
  send_ready(stream, true);
  const auto start = Clock::now();
  for (Bucket& bucket : buckets_) {
    const trace::Span span("reduction", "wait", {.bucket = &bucket - buckets_.data()});
    for (const Work& work : std::exchange(bucket.work, {})) work.wait();
    if (bucket.exchanged.defined()) ops::convert(stream, bucket.gradients, bucket.exchanged);
  }
  seconds_waited_ += seconds_since(start);
}

std::vector<std::int64_t> GradientReducer::bucket_bytes() const {
  std::vector<std::int64_t> bytes;
  for (const Bucket& bucket : buckets_)
    bytes.push_back((bucket.exchanged.defined() ? bucket.exchanged : bucket.gradients).bytes());
  return bytes;
}

void GradientReducer::gather(const Stream& stream, const Tensor& flat) const {
  const trace::Span gathering("reduction", "gather");
  std::vector<Work> under_way;
  for (const ShardLayout::Bucket& range : layout_.buckets()) {
    if (range.part == 0) continue;
    const Tensor whole = flat.narrow(0, range.begin, layout_.processes() * range.part);
    const trace::Span span("gather", "issue", {.bytes = whole.bytes(), .bucket = &range - layout_.buckets().data()});
    under_way.push_back(
        communicator_.all_gather(stream, whole.narrow(0, communicator_.rank() * range.part, range.part), whole));
  }
  for (const Work& work : under_way) work.wait();
}

}  // namespace furlong
