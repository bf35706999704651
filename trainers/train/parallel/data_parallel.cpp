#include "trainers/train/parallel/data_parallel.h"

#include <array>

#include "framework/core/trace.h"
#include "framework/ops/optimizer/step_control.h"
#include "framework/primitives/arithmetic.h"

namespace furlong {

DataParallel::DataParallel(const Settings& settings, ParameterStore& store, const Device& device,
                           const ProcessGroup* group)
    : work_(group, static_cast<int>(settings.parallel.context_parallel_size)), store_(&store) {
  if (!this->group()) return;
  communicator_ = &group->device_communicator(device);
  const DType dtype = dtype_from_name(settings.parallel.gradient_dtype);
  layout_ = std::make_unique<ShardLayout>(store, bucket_elements(settings.parallel, dtype), group->size());
  reducer_ = std::make_unique<GradientReducer>(store, *communicator_, *layout_, dtype, settings.parallel.zero_stage);
}

Optimizer DataParallel::make_optimizer(const Settings& settings) const {
  const auto seed = static_cast<std::uint64_t>(settings.seed);
  if (!group() || !settings.parallel.zero_stage) return Optimizer(settings.optimizer, *store_, seed);
  return Optimizer(
      settings.optimizer, *store_, seed, owned_ranges(),
      [reducer = reducer_.get()](const Stream& stream, const Tensor& flat) { reducer->gather(stream, flat); });
}

void DataParallel::split_sums() const {
  if (is_first()) return;
  for (const Parameter& parameter : store_->parameters())
    if (parameter.accumulates_statistics()) ops::fill(Stream{store_->device()}, parameter.master(), 0.0);
}

void DataParallel::begin_reduction(const Tape& tape) {
  if (reducer_) reducer_->begin(tape);
}

void DataParallel::abandon_reduction() {
  if (reducer_) reducer_->abandon();
}

void DataParallel::finish_reduction(const Stream& stream) {
  if (reducer_) reducer_->finish(stream);
}

void DataParallel::combine_sums(const Stream& stream) const {
  if (!group()) return;
  for (const Parameter& parameter : store_->parameters())
    if (parameter.accumulates_statistics()) communicator_->all_reduce(stream, parameter.master()).wait();
}

void DataParallel::combine_numbers(const Stream& stream, const Optimizer& optimizer, const Tensor& numbers) const {
  const trace::Span span("reduction", "loss and norm");
  const Tensor sum = numbers.narrow(0, ops::step_sum_of_squares, 1);
  if (!optimizer.is_sharded()) {
    // All ranks clip by rank 0's norm. Norms computed on different CPUs could round differently, and the weights would
    // drift apart.
    if (is_first()) ops::sum_of_squares(stream, store_->gradients(), sum);
  } else {
    const Tensor part = Tensor::empty({1}, DType::float64, stream.device);
    for (const OwnedRange& range : optimizer.ranges()) {
      if (range.everywhere && !is_first()) continue;
      ops::sum_of_squares(stream, store_->gradients().narrow(0, range.begin, range.elements()), part);
      ops::add(stream, sum, part, GradientMode::accumulate);
    }
  }
  if (!group()) return;
  static_assert(ops::step_stops == ops::step_loss + 1 && ops::step_sum_of_squares == ops::step_loss + 2);
  communicator_->all_reduce(stream, numbers.narrow(0, ops::step_loss, 3)).wait();
}

void DataParallel::combine(std::int64_t& tokens, std::int64_t& targets) const {
  if (!group()) return;
  const trace::Span span("reduction", "counts");
  std::array<double, 2> counts{static_cast<double>(tokens), static_cast<double>(targets)};
  group()->sum(counts);
  tokens = static_cast<std::int64_t>(counts[0]);
  targets = static_cast<std::int64_t>(counts[1]);
}

/// All ranks count or none does, because they run the same ops.
void DataParallel::combine(ops::DenominatorReport& report) const {
  if (!group() || report.rows == 0) return;
  std::array<double, 2> counts{static_cast<double>(report.rows), static_cast<double>(report.guarded)};
  std::array<double, 1> least{static_cast<double>(report.least)};
  group()->sum(counts);
  group()->minimum(least);
  report.rows = static_cast<std::int64_t>(counts[0]);
  report.guarded = static_cast<std::int64_t>(counts[1]);
  report.least = static_cast<decltype(report.least)>(least[0]);
}

void DataParallel::check() const {
  if (communicator_) communicator_->check();
}

std::int64_t bucket_elements(const ParallelSettings& parallel, DType dtype) {
  return parallel.bucket_megabytes * 1'000'000 / size_of(dtype);
}

}  // namespace furlong
