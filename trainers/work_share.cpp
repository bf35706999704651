#include "trainers/work_share.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "framework/core/error.h"

namespace furlong {
namespace {

/// Columns [first, first + n) of rows of `width`.
std::vector<std::int32_t> columns(const std::vector<std::int32_t>& values, std::int64_t width, std::int64_t first, std::int64_t n) {
  std::vector<std::int32_t> part;
  part.reserve(values.size() / static_cast<std::size_t>(width) * static_cast<std::size_t>(n));
  for (auto row = values.begin(); row != values.end(); row += width) part.insert(part.end(), row + first, row + first + n);
  return part;
}

}  // namespace

/// States of all segments of a row go to all its processes, which each join those that they need: as many bytes as there are processes
/// times a state's, in one round.
class WorkShare::Segments final : public ops::SegmentExchange {
 public:
  Segments(std::unique_ptr<Communicator> row, std::int64_t place) : row_(std::move(row)), place_(place) {}

  void exchange_keys(const Stream& stream, ops::LinearAttentionState& state, bool causal) override {
    exchange(stream, state, [&](std::int64_t other) { return causal ? other < place_ : other != place_; });
  }
  void exchange_queries(const Stream& stream, ops::LinearAttentionState& state, bool causal) override {
    exchange(stream, state, [&](std::int64_t other) { return causal ? other > place_ : other != place_; });
  }
  std::int64_t first_position() const override { return first_position_; }

  /// int32 [rows, n]
  const Tensor& positions(std::int64_t rows, std::int64_t n) {
    first_position_ = place_ * n;
    if (positions_.defined() && positions_.shape() == Shape({rows, n})) return positions_;
    std::vector<std::int32_t> places(static_cast<std::size_t>(rows * n));
    for (std::size_t i = 0; i < places.size(); ++i)
      places[i] = static_cast<std::int32_t>(first_position_ + static_cast<std::int64_t>(i) % n);
    positions_ = Tensor::from(places, {rows, n});
    return positions_;
  }

 private:
  template <class Wanted>
  void exchange(const Stream& stream, ops::LinearAttentionState& state, const Wanted& wanted) {
    const std::vector<Tensor> parts{state.sum, state.normalizer, state.maximum, state.magnitude};
    std::int64_t elements = 0;
    for (const Tensor& part : parts) elements += part.elements();
    const Tensor own = Tensor::empty({elements}, state.sum.dtype()), all = Tensor::empty({row_->size() * elements}, state.sum.dtype());
    copy(parts, own, true);
    row_->all_gather(stream, own, all).wait();
    bool found = false;
    for (std::int64_t other = 0; other < row_->size(); ++other) {
      if (!wanted(other)) continue;
      ops::LinearAttentionState its = state;
      its.sum = Tensor::empty(state.sum.shape(), state.sum.dtype());
      its.normalizer = Tensor::empty(state.normalizer.shape(), state.sum.dtype());
      its.maximum = Tensor::empty(state.maximum.shape(), state.sum.dtype());
      its.magnitude = Tensor::empty(state.magnitude.shape(), state.sum.dtype());
      copy({its.sum, its.normalizer, its.maximum, its.magnitude}, all.narrow(0, other * elements, elements), false);
      if (std::exchange(found, true)) {
        ops::join(state, its);
      } else {
        state = its;
      }
    }
    if (!found) state = ops::empty_like(stream, state);
  }

  /// Tensors one behind the other in `flat`, or from it.
  static void copy(const std::vector<Tensor>& parts, const Tensor& flat, bool into_flat) {
    auto* at = static_cast<char*>(flat.address());
    for (const Tensor& part : parts) {
      const auto bytes = static_cast<std::size_t>(part.bytes());
      std::memcpy(into_flat ? at : part.address(), into_flat ? part.address() : at, bytes);
      at += bytes;
    }
  }

  std::unique_ptr<Communicator> row_;
  std::int64_t place_, first_position_ = 0;
  Tensor positions_;
};

WorkShare::WorkShare() = default;
WorkShare::WorkShare(WorkShare&&) noexcept = default;
WorkShare& WorkShare::operator=(WorkShare&&) noexcept = default;
WorkShare::~WorkShare() = default;

WorkShare::WorkShare(const ProcessGroup* group, int sequence_processes)
    : group_(group && !group->is_alone() ? group : nullptr), sequence_processes_(sequence_processes) {
  require(sequence_processes >= 1 && (sequence_processes == 1 || group_), "{} processes for each sequence, of one", sequence_processes);
  if (sequence_processes == 1) return;
  require(group_->size() % sequence_processes == 0, "{} processes for each sequence, of {}", sequence_processes, group_->size());
  place_ = group_->rank() % sequence_processes;
  segments_ = std::make_unique<Segments>(group_->row(sequence_processes), place_);
}

SampleShare WorkShare::samples(std::int64_t batch_size) const {
  if (!group_) return {0, batch_size};
  return SampleShare::of(batch_size, group_->rank() / sequence_processes_, group_->size() / sequence_processes_);
}

Batch WorkShare::cut(const Batch& batch, bool counts_targets) const {
  if (!segments_) return batch;
  require(batch.n % sequence_processes_ == 0 && batch.documents.empty() && batch.labels.empty(),
          "rows of {} tokens in {} segments; with documents: {}", batch.n, sequence_processes_, !batch.documents.empty());
  Batch part = batch;
  part.n = batch.n / sequence_processes_;
  const std::int64_t first = place_ * part.n;
  for (std::vector<std::int32_t>* values : {&part.inputs, &part.targets, &part.mask})
    if (!values->empty()) *values = columns(*values, batch.n, first, part.n);
  part.n_targets = std::count_if(part.targets.begin(), part.targets.end(), [](std::int32_t target) { return target != ignored_target; });
  const auto tokens = static_cast<std::int64_t>(part.inputs.size());
  part.n_tokens = counts_targets ? part.n_targets : part.mask.empty() ? tokens : std::count(part.mask.begin(), part.mask.end(), 1);
  return part;
}

void WorkShare::put_into(layers::ForwardContext& context, std::int64_t rows, std::int64_t n) const {
  if (!segments_) return;
  context.positions = segments_->positions(rows, n);
  context.exchange = segments_.get();
}

}  // namespace furlong
