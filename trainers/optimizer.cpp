#include "trainers/optimizer.h"

#include <algorithm>

#include "framework/ops/optimizer.h"

namespace furlong {

Optimizer::Optimizer(const OptimizerSettings& settings, ParameterStore& store, std::uint64_t seed)
    : settings_(settings), store_(store), seed_(seed) {
  const auto like_values = [&] { return Tensor::zeros(store.values().shape(), store.master_dtype(), store.device()); };
  first_moment_ = like_values();
  second_moment_ = like_values();
  if (settings.ema_decay > 0) {
    average_ = like_values();
    average_.copy_from(store.values());
    spare_ = like_values();
  }
  last_steps_.assign(trained().size(), 0);
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
  restricted_ = chosen != nullptr;
  chosen_.clear();
  for (const Parameter& parameter : store_.parameters())
    if (restricted_ && store_.is_trained(parameter) && chosen(parameter)) chosen_.push_back(&parameter);
}

void Optimizer::restart_average() {
  if (averages()) average_.copy_from(store_.values());
}

void Optimizer::update(const Stream& stream, const ops::AdamWStep& step, const ops::AdamWDeviceStep* numbers) {
  const std::int64_t decayed = store_.decayed_elements(), total = store_.values().elements();
  using Part = std::function<Tensor(const Tensor& flat)>;
  const auto update_part = [&](const Part& part, std::int64_t first_element, double weight_decay) {
    const Tensor compute = part(store_.compute_values());
    ops::AdamWStep settings = step;
    settings.weight_decay = weight_decay;
    if (rounds_stochastically()) settings.stochastic_rounding = rounding_from(first_element);
    const Tensor* compute_values = copies() ? &compute : nullptr;
    if (numbers) {
      ops::adamw_step(stream, part(store_.values()), part(store_.gradients()), part(first_moment_), part(second_moment_), settings,
                      *numbers, compute_values);
    } else {
      ops::adamw_step(stream, part(store_.values()), part(store_.gradients()), part(first_moment_), part(second_moment_), settings,
                      compute_values);
    }
  };
  const auto update_range = [&](std::int64_t begin, std::int64_t end, double weight_decay) {
    if (begin < end) update_part([&](const Tensor& flat) { return flat.narrow(0, begin, end - begin); }, begin, weight_decay);
  };
  if (restricted_) {
    for (const Parameter* parameter : chosen_)
      update_part([&](const Tensor& flat) { return store_.slice(flat, *parameter); }, store_.offset(*parameter),
                  parameter->decays() ? settings_.weight_decay : 0);
  } else {
    update_range(0, decayed, settings_.weight_decay);
    update_range(decayed, total, 0);
  }
  if (averages()) ops::ema_update(stream, average_, store_.values(), settings_.ema_decay, numbers);
}

void Optimizer::step(const Stream& stream, double learning_rate, double gradient_scale) {
  count_step(steps_ + 1);
  update(stream, {learning_rate, settings_.beta1, settings_.beta2, settings_.epsilon, 0, steps_, gradient_scale}, nullptr);
}

void Optimizer::step(const Stream& stream, const ops::AdamWDeviceStep& numbers) {
  update(stream, {0, settings_.beta1, settings_.beta2, settings_.epsilon, 0, 1, 1}, &numbers);
}

Optimizer::WithAverages::WithAverages(Optimizer& optimizer) : optimizer_(optimizer) {
  if (!optimizer_.averages()) return;
  optimizer_.spare_.copy_from(optimizer_.store_.values());
  optimizer_.store_.values().copy_from(optimizer_.average_);
  optimizer_.store_.refresh_compute_values(Stream{optimizer_.store_.device()});
}

Optimizer::WithAverages::~WithAverages() {
  if (!optimizer_.averages()) return;
  optimizer_.store_.values().copy_from(optimizer_.spare_);
  optimizer_.refresh_compute_values(Stream{optimizer_.store_.device()});
}

}  // namespace furlong
