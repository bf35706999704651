// What processes that train one model together exchange in a step.
#include <array>

#include "framework/core/log.h"
#include "framework/core/trace.h"
#include "framework/ops/optimizer/step_control.h"
#include "framework/primitives/arithmetic.h"
#include "trainers/train/trainer.h"
#include "trainers/train/trainer_parts.h"

namespace furlong {

void Trainer::share_work() {
  if (!group_) return;
  require(!teacher_, "a teacher is for one process");
  communicator_ = &group_->device_communicator(device_);
  if (device_.is_gpu() && model_.settings.trainer.cuda_graph)
    log_debug(
        "trainer.cuda_graph: with several processes steps are launched kernel by kernel; recording NCCL's work was not "
        "measured");
  const ParallelSettings& parallel = model_.settings.parallel;
  const DType dtype = dtype_from_name(parallel.gradient_dtype);
  layout_ = std::make_unique<ShardLayout>(*model_.store, bucket_elements(parallel, dtype), group_->size());
  reducer_ =
      std::make_unique<GradientReducer>(*model_.store, *communicator_, *layout_, dtype, parallel.shard_optimizer);
}

Optimizer Trainer::make_optimizer() {
  const auto seed = static_cast<std::uint64_t>(model_.settings.seed);
  if (!group_ || !model_.settings.parallel.shard_optimizer)
    return Optimizer(model_.settings.optimizer, *model_.store, seed);
  return Optimizer(model_.settings.optimizer, *model_.store, seed, layout_->ranges(group_->rank()),
                   [this](const Stream& stream, const Tensor& flat) { reducer_->gather(stream, flat); });
}

void Trainer::split_sums() {
  if (!group_ || group_->is_first()) return;
  for (const Parameter& parameter : model_.store->parameters())
    if (parameter.adds_up()) ops::fill(Stream{device_}, parameter.master(), 0.0);
}

void Trainer::combine_sums(const Stream& stream) {
  if (!group_) return;
  for (const Parameter& parameter : model_.store->parameters())
    if (parameter.adds_up()) communicator_->all_reduce(stream, parameter.master()).wait();
}

void Trainer::combine_numbers(const Stream& stream) {
  static_assert(ops::step_stops == ops::step_loss + 1 && ops::step_sum_of_squares == ops::step_loss + 2);
  communicator_->all_reduce(stream, numbers_.narrow(0, ops::step_loss, 3)).wait();
}

void Trainer::sum_squares(const Stream& stream) {
  const trace::Span span("reduction", "loss and norm");
  const Tensor sum = numbers_.narrow(0, ops::step_sum_of_squares, 1);
  if (!optimizer_.is_sharded()) {
    // All clip by rank 0's norm: by their own, which other CPUs may round in another way, their weights would drift
    // apart.
    if (!group_ || group_->is_first()) ops::sum_of_squares(stream, model_.store->gradients(), sum);
    if (group_) combine_numbers(stream);
    return;
  }
  const Tensor part = Tensor::empty({1}, DType::float64, device_);
  for (const OwnedRange& range : optimizer_.ranges()) {
    if (range.everywhere && !group_->is_first()) continue;
    ops::sum_of_squares(stream, model_.store->gradients().narrow(0, range.begin, range.elements()), part);
    ops::add(stream, sum, part, GradientMode::accumulate);
  }
  combine_numbers(stream);
}

void Trainer::combine(StepReport& report) const {
  if (!group_) return;
  const trace::Span span("reduction", "counts");
  std::array<double, 2> counts{static_cast<double>(report.tokens), static_cast<double>(report.targets)};
  group_->sum(counts);
  report.tokens = static_cast<std::int64_t>(counts[0]);
  report.targets = static_cast<std::int64_t>(counts[1]);
}

/// Every process counts or none does: they compute the same ops.
void Trainer::combine(ops::DenominatorReport& report) const {
  if (!group_ || report.rows == 0) return;
  std::array<double, 2> counts{static_cast<double>(report.rows), static_cast<double>(report.guarded)};
  std::array<double, 1> least{static_cast<double>(report.least)};
  group_->sum(counts);
  group_->minimum(least);
  report.rows = static_cast<std::int64_t>(counts[0]);
  report.guarded = static_cast<std::int64_t>(counts[1]);
  report.least = static_cast<decltype(report.least)>(least[0]);
}

}  // namespace furlong
