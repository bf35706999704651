#include "trainers/optimizer.h"

#include "framework/ops/optimizer.h"

namespace furlong {

Optimizer::Optimizer(const OptimizerSettings& settings, ParameterStore& store) : settings_(settings), store_(store) {
  const auto like_values = [&] { return Tensor::zeros(store.values().shape(), store.master_dtype(), store.device()); };
  first_moment_ = like_values();
  second_moment_ = like_values();
  if (settings.ema_decay > 0) {
    average_ = like_values();
    average_.copy_from(store.values());
    spare_ = like_values();
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
  const bool copies = !store_.compute_values().shares_memory_with(store_.values());
  using Part = std::function<Tensor(const Tensor& flat)>;
  const auto update_part = [&](const Part& part, double weight_decay) {
    const Tensor compute = part(store_.compute_values());
    ops::AdamWStep settings = step;
    settings.weight_decay = weight_decay;
    const Tensor* compute_values = copies ? &compute : nullptr;
    if (numbers) {
      ops::adamw_step(stream, part(store_.values()), part(store_.gradients()), part(first_moment_), part(second_moment_), settings,
                      *numbers, compute_values);
    } else {
      ops::adamw_step(stream, part(store_.values()), part(store_.gradients()), part(first_moment_), part(second_moment_), settings,
                      compute_values);
    }
  };
  const auto update_range = [&](std::int64_t begin, std::int64_t end, double weight_decay) {
    if (begin < end) update_part([&](const Tensor& flat) { return flat.narrow(0, begin, end - begin); }, weight_decay);
  };
  if (restricted_) {
    for (const Parameter* parameter : chosen_)
      update_part([&](const Tensor& flat) { return store_.slice(flat, *parameter); }, parameter->decays() ? settings_.weight_decay : 0);
  } else {
    update_range(0, decayed, settings_.weight_decay);
    update_range(decayed, total, 0);
  }
  if (averages()) ops::ema_update(stream, average_, store_.values(), settings_.ema_decay, numbers);
}

void Optimizer::step(const Stream& stream, double learning_rate, double gradient_scale) {
  ++steps_;
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
  optimizer_.store_.refresh_compute_values(Stream{optimizer_.store_.device()});
}

}  // namespace furlong
