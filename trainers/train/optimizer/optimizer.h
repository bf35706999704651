#pragma once
#include <exception>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "framework/autodiff/parameter_store.h"
#include "framework/ops/optimizer/optimizer.h"
#include "trainers/checkpoint/shard_layout.h"
#include "trainers/settings/settings.h"

namespace furlong {

/// AdamW over a parameter store, with decoupled weight decay on the parameters that ask for it: not on norms, biases
/// and convolutions. With optimizer.ema_decay it also updates an exponential moving average (EMA) of the values.
///
/// With optimizer.stochastic_rounding, a step rounds the bfloat16 copy of the values that it changes stochastically,
/// keyed by the step's number and the element's index. Checkpoints do not contain the copy: refresh_compute_values()
/// recomputes the same bits from the values and the numbers of the steps that last changed them. Values that no step
/// has changed (frozen ones among them) and the EMA are rounded to nearest.
///
/// If the optimizer is sharded over ranks, each rank stores moments and EMA of its own ranges alone and updates the
/// values there; `Gather` fetches the other ranks' values.
class Optimizer {
 public:
  /// Completes a tensor laid out like the store's flat tensors: every rank contributes its own ranges (all-gather).
  using Gather = std::function<void(const Stream& stream, const Tensor& flat)>;

  /// `store` must be allocated and must outlive the optimizer. `seed` keys stochastic rounding.
  Optimizer(const OptimizerSettings& settings, ParameterStore& store, std::uint64_t seed = 0);
  /// A sharded optimizer over these ranges of the store, ascending; other ranks have the rest.
  Optimizer(const OptimizerSettings& settings, ParameterStore& store, std::uint64_t seed,
            std::vector<OwnedRange> ranges, Gather gather);

  /// Takes one AdamW step with the store's gradients times `gradient_scale`; the host does not wait. Updates the
  /// compute copy of the values in the same pass.
  void step(const Stream& stream, double learning_rate, double gradient_scale);
  /// Takes one step whose numbers are in device memory, where they can also cancel the update. The caller calls
  /// count_step() once it knows whether the step was taken.
  void step(const Stream& stream, const ops::AdamWDeviceStep& numbers);
  /// Restricts later steps to trained parameters for which `chosen` returns true; null: all. Not supported by a sharded
  /// optimizer.
  void restrict_to(const std::function<bool(const Parameter&)>& chosen);
  /// Restarts the EMA, if there is one, from the current values: call this after loading values.
  void restart_average();
  /// Number of steps taken, which the bias corrections use.
  std::int64_t steps() const { return steps_; }
  /// Counts a taken step. `number` is the update's number, which keys its stochastic rounding.
  void count_step(std::int64_t number);

  /// The number of the last update that changed each trained parameter, by name (0: none did). The numbers differ only
  /// after restrict_to().
  using LastSteps = std::map<std::string, std::int64_t>;
  /// Returns whether steps round a bfloat16 copy of the values stochastically.
  bool rounds_stochastically() const { return settings_.stochastic_rounding && copies(); }
  /// Returns the last update of each trained parameter.
  LastSteps last_steps() const;
  /// Restores the counters after a load: `steps` steps were taken, and these updates were the last ones. A parameter
  /// that is not named has not been changed by any update.
  void restore_steps(std::int64_t steps, const LastSteps& last_steps);
  /// Recomputes the store's compute copy. The bits equal those that the steps wrote, if the values do.
  void refresh_compute_values(const Stream& stream);

  /// Returns whether this rank stores moments and EMA only for its own ranges.
  bool is_sharded() const { return gather_ != nullptr; }
  /// The ranges that this rank updates.
  const std::vector<OwnedRange>& ranges() const { return ranges_; }
  /// Flat tensors laid out by ranges(); laid out like store.values() if the optimizer is not sharded.
  const Tensor& first_moment() const { return first_moment_; }
  const Tensor& second_moment() const { return second_moment_; }
  /// Copies this rank's part of a parameter's state into `own`, one of the tensors of this optimizer. `whole`: the
  /// parameter's whole state, on the host.
  void put(const Parameter& parameter, const Tensor& whole, const Tensor& own) const;
  /// Returns whether there is an EMA.
  bool has_ema() const { return average_.defined(); }
  /// The EMA, laid out like the moments; undefined if there is none.
  const Tensor& ema() const { return average_; }

  /// While it lives, the store holds the EMA instead of the values, if there is an EMA: for validation.
  class WithEma {
   public:
    explicit WithEma(Optimizer& optimizer);
    ~WithEma() noexcept(false);
    WithEma(const WithEma&) = delete;
    WithEma& operator=(const WithEma&) = delete;

   private:
    Optimizer& optimizer_;
    int exceptions_ = std::uncaught_exceptions();
  };

 private:
  bool copies() const { return !store_.compute_values().shares_memory_with(store_.values()); }
  std::vector<const Parameter*> trained() const;
  ops::StochasticRounding rounding_from(std::int64_t first_element) const;
  void update(const Stream& stream, const ops::AdamWStep& step, const ops::AdamWDeviceStep* numbers);
  /// Calls `copy` for each range in turn: with elements of the store's values, and of `own`, a tensor of ranges().
  void copy_ranges(const std::function<void(const Tensor& values, const Tensor& own)>& copy, const Tensor& own) const;
  void refresh_after_exchange();

  OptimizerSettings settings_;
  ParameterStore& store_;
  std::uint64_t seed_;
  std::vector<OwnedRange> ranges_;
  Gather gather_;  // null: not sharded
  Tensor first_moment_, second_moment_, average_, spare_;
  bool restricted_ = false;
  std::vector<const Parameter*> chosen_;  // if restricted
  std::int64_t steps_ = 0;
  std::vector<std::int64_t> last_steps_;  // one per element of trained()
};

}  // namespace furlong
