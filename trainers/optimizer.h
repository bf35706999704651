#pragma once
#include <functional>
#include <vector>

#include "framework/autodiff/parameter_store.h"
#include "framework/ops/optimizer.h"
#include "trainers/settings.h"

namespace furlong {

/// AdamW over a parameter store: decoupled weight decay on the parameters that ask for it, none on norms, biases and convolutions; and,
/// when optimizer.ema_decay is set, the exponential moving average of the values.
class Optimizer {
 public:
  Optimizer(const OptimizerSettings& settings, ParameterStore& store);

  /// One step from the store's gradients times `gradient_scale`. Updates the compute copy of the values in the same pass.
  void step(const Stream& stream, double learning_rate, double gradient_scale);
  /// The same by numbers in the device's memory, where it may also say that nothing is to change. Who calls it counts the step
  /// (set_steps) once it is known whether it was one.
  void step(const Stream& stream, const ops::AdamWDeviceStep& numbers);
  /// From now on steps change those trained parameters alone for which `chosen` is true; null: all.
  void restrict_to(const std::function<bool(const Parameter&)>& chosen);
  /// The moving average, where there is one, begins again at the present values: after they were loaded.
  void restart_average();
  /// Steps taken, which the bias corrections count.
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }

  /// Flat tensors laid out like store.values().
  const Tensor& first_moment() const { return first_moment_; }
  const Tensor& second_moment() const { return second_moment_; }
  bool averages() const { return average_.defined(); }
  const Tensor& average() const { return average_; }

  /// While it lives the store holds the averaged values (where there are any): for validation.
  class WithAverages {
   public:
    explicit WithAverages(Optimizer& optimizer);
    ~WithAverages();
    WithAverages(const WithAverages&) = delete;
    WithAverages& operator=(const WithAverages&) = delete;

   private:
    Optimizer& optimizer_;
  };

 private:
  void update(const Stream& stream, const ops::AdamWStep& step, const ops::AdamWDeviceStep* numbers);

  OptimizerSettings settings_;
  ParameterStore& store_;
  Tensor first_moment_, second_moment_, average_, spare_;
  bool restricted_ = false;
  std::vector<const Parameter*> chosen_;  // where restricted
  std::int64_t steps_ = 0;
};

}  // namespace furlong
