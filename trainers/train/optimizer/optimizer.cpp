#include "trainers/train/optimizer/optimizer.h"

#include <algorithm>
#include <utility>

#include "framework/core/error.h"
#include "framework/ops/optimizer/optimizer.h"

namespace furlong {

namespace {

std::vector<OwnedRange> all_of(const ParameterStore& store) {
  const std::int64_t decayed = store.decayed_elements(), total = store.values().elements();
  std::vector<OwnedRange> ranges{{0, decayed, 0, true, false}, {decayed, total, decayed, false, false}};
  std::erase_if(ranges, [](const OwnedRange& range) { return range.elements() == 0; });
  return ranges;
}

}  // namespace

Optimizer::Optimizer(const OptimizerSettings& settings, ParameterStore& store, std::uint64_t seed)
    : Optimizer(settings, store, seed, all_of(store), nullptr) {}

Optimizer::Optimizer(const OptimizerSettings& settings, ParameterStore& store, std::uint64_t seed,
                     std::vector<OwnedRange> ranges, Gather gather)
    : settings_(settings), store_(store), seed_(seed), ranges_(std::move(ranges)), gather_(std::move(gather)) {
  std::int64_t elements = 0;
  for (const OwnedRange& range : ranges_) elements += range.elements();
  const auto of_ranges = [&] { return Tensor::zeros({elements}, store.master_dtype(), store.device()); };
  first_moment_ = of_ranges();
  second_moment_ = of_ranges();
  if (settings.ema_decay > 0) {
    average_ = of_ranges();
    spare_ = of_ranges();
    restart_average();
  }
  last_steps_.assign(trained().size(), 0);
}

void Optimizer::copy_ranges(const std::function<void(const Tensor& values, const Tensor& own)>& copy,
                            const Tensor& own) const {
  for (const OwnedRange& range : ranges_)
    copy(store_.values().narrow(0, range.begin, range.elements()), own.narrow(0, range.place, range.elements()));
}

void Optimizer::put(const Parameter& parameter, const Tensor& whole, const Tensor& own) const {
  const std::int64_t begin = store_.offset(parameter), end = begin + whole.elements();
  const Tensor flat = whole.reshape({whole.elements()});
  for (const OwnedRange& range : ranges_) {
    const std::int64_t from = std::max(begin, range.begin), to = std::min(end, range.end);
    if (from < to)
      own.narrow(0, range.place + from - range.begin, to - from).copy_from(flat.narrow(0, from - begin, to - from));
  }
}

std::vector<const Parameter*> Optimizer::trained() const {
  std::vector<const Parameter*> trained;
  for (const Parameter& parameter : store_.parameters())
    if (store_.is_trained(parameter)) trained.push_back(&parameter);
  return trained;
}

ops::StochasticRounding Optimizer::rounding_from(std::int64_t first_element) const {
  ops::StochasticRounding rounding;
  rounding.seed = seed_;
  rounding.first_element = static_cast<std::uint64_t>(first_element);
  return rounding;
}

void Optimizer::count_step(std::int64_t number) {
  ++steps_;
  if (!restricted_) {
    std::fill(last_steps_.begin(), last_steps_.end(), number);
    return;
  }
  const auto all = trained();
  for (std::size_t i = 0; i < all.size(); ++i)
    if (std::find(chosen_.begin(), chosen_.end(), all[i]) != chosen_.end()) last_steps_[i] = number;
}

Optimizer::LastSteps Optimizer::last_steps() const {
  LastSteps named;
  const auto all = trained();
  for (std::size_t i = 0; i < all.size(); ++i) named[all[i]->name()] = last_steps_[i];
  return named;
}

void Optimizer::restore_steps(std::int64_t steps, const LastSteps& last_steps) {
  steps_ = steps;
  const auto all = trained();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto found = last_steps.find(all[i]->name());
    last_steps_[i] = found == last_steps.end() ? 0 : found->second;
  }
}

void Optimizer::refresh_compute_values(const Stream& stream) {
  store_.refresh_compute_values(stream);
  if (!rounds_stochastically()) return;
  if (std::equal(last_steps_.begin() + (last_steps_.empty() ? 0 : 1), last_steps_.end(), last_steps_.begin())) {
    const std::int64_t step = last_steps_.empty() ? 0 : last_steps_[0];
    if (step > 0) ops::round_stochastically(stream, store_.compute_values(), store_.values(), rounding_from(0), step);
    return;
  }
  const auto all = trained();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (last_steps_[i] == 0) continue;
    ops::round_stochastically(stream, store_.slice(store_.compute_values(), *all[i]), all[i]->master(),
                              rounding_from(store_.offset(*all[i])), last_steps_[i]);
  }
}

void Optimizer::restrict_to(const std::function<bool(const Parameter&)>& chosen) {
  require(!is_sharded(), "a sharded optimizer is asked for some parameters alone");
  restricted_ = chosen != nullptr;
  chosen_.clear();
  for (const Parameter& parameter : store_.parameters())
    if (restricted_ && store_.is_trained(parameter) && chosen(parameter)) chosen_.push_back(&parameter);
}

void Optimizer::restart_average() {
  if (has_ema()) copy_ranges([](const Tensor& values, const Tensor& own) { own.copy_from(values); }, average_);
}

void Optimizer::update(const Stream& stream, const ops::AdamWStep& step, const ops::AdamWDeviceStep* numbers) {
  using Part = std::function<Tensor(const Tensor& flat)>;
  // `of_store` selects elements of the store's flat tensors, `own` the same elements of tensors laid out by ranges_.
  const auto update_part = [&](const Part& of_store, const Part& own, std::int64_t first_element, bool decays) {
    const Tensor compute = of_store(store_.compute_values());
    ops::AdamWStep settings = step;
    settings.weight_decay = decays ? settings_.weight_decay : 0;
    if (rounds_stochastically()) settings.stochastic_rounding = rounding_from(first_element);
    const Tensor* compute_values = copies() ? &compute : nullptr;
    const Tensor values = of_store(store_.values()), gradients = of_store(store_.gradients());
    if (numbers) {
      ops::adamw_step(stream, values, gradients, own(first_moment_), own(second_moment_), settings, *numbers,
                      compute_values);
    } else {
      ops::adamw_step(stream, values, gradients, own(first_moment_), own(second_moment_), settings, compute_values);
    }
  };
  if (restricted_) {
    for (const Parameter* parameter : chosen_) {
      const Part slice = [&](const Tensor& flat) { return store_.slice(flat, *parameter); };
      update_part(slice, slice, store_.offset(*parameter), parameter->decays());
    }
  } else {
    for (const OwnedRange& range : ranges_)
      update_part([&](const Tensor& flat) { return flat.narrow(0, range.begin, range.elements()); },
                  [&](const Tensor& flat) { return flat.narrow(0, range.place, range.elements()); }, range.begin,
                  range.decays);
  }
  if (has_ema())
    copy_ranges([&](const Tensor& values,
                    const Tensor& own) { ops::ema_update(stream, own, values, settings_.ema_decay, numbers); },
                average_);
  if (gather_) gather_(stream, store_.compute_values());
}

void Optimizer::step(const Stream& stream, double learning_rate, double gradient_scale) {
  count_step(steps_ + 1);
  update(stream, {learning_rate, settings_.beta1, settings_.beta2, settings_.epsilon, 0, steps_, gradient_scale},
         nullptr);
}

void Optimizer::step(const Stream& stream, const ops::AdamWDeviceStep& numbers) {
  update(stream, {0, settings_.beta1, settings_.beta2, settings_.epsilon, 0, 1, 1}, &numbers);
}

/// Fetches the other ranks' values after the values were exchanged.
void Optimizer::refresh_after_exchange() {
  if (gather_) gather_(Stream{store_.device()}, store_.values());
}

Optimizer::WithEma::WithEma(Optimizer& optimizer) : optimizer_(optimizer) {
  if (!optimizer_.has_ema()) return;
  optimizer_.copy_ranges([](const Tensor& values, const Tensor& own) { own.copy_from(values); }, optimizer_.spare_);
  optimizer_.copy_ranges([](const Tensor& values, const Tensor& own) { values.copy_from(own); }, optimizer_.average_);
  optimizer_.refresh_after_exchange();
  optimizer_.store_.refresh_compute_values(Stream{optimizer_.store_.device()});
}

Optimizer::WithEma::~WithEma() noexcept(false) {
  if (!optimizer_.has_ema()) return;
  optimizer_.copy_ranges([](const Tensor& values, const Tensor& own) { values.copy_from(own); }, optimizer_.spare_);
  if (optimizer_.gather_ && std::uncaught_exceptions() > exceptions_)
    return;  // an error is ending the job: the other ranks do not take part
  optimizer_.refresh_after_exchange();
  optimizer_.refresh_compute_values(Stream{optimizer_.store_.device()});
}

}  // namespace furlong
