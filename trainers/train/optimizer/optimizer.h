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

/// AdamW over a parameter store: decoupled weight decay on the parameters that ask for it, none on norms, biases and
/// convolutions; and, when optimizer.ema_decay is set, the exponential moving average of the values.
///
/// With optimizer.stochastic_rounding a step rounds the bfloat16 copy of what it changes at random, by its own number
/// and each element's place. The copy is no state of a run: refresh_compute_values() makes the same one from the values
/// and the numbers of the steps that changed them last. Values that no step has changed, frozen ones among them, and
/// averages are rounded to the nearest.
///
/// Sharded over processes, it has moments and averages of its own ranges alone, and changes the values there; the
/// others' come by `Gather`.
class Optimizer {
 public:
  /// Makes a tensor laid out like the store's flat ones whole, of which each process has its own ranges.
  using Gather = std::function<void(const Stream& stream, const Tensor& flat)>;

  /// `seed` keys what is rounded at random.
  Optimizer(const OptimizerSettings& settings, ParameterStore& store, std::uint64_t seed = 0);
  /// Of these ranges of the store, ascending, and the rest of them elsewhere.
  Optimizer(const OptimizerSettings& settings, ParameterStore& store, std::uint64_t seed,
            std::vector<OwnedRange> ranges, Gather gather);

  /// One step from the store's gradients times `gradient_scale`. Updates the compute copy of the values in the same
  /// pass.
  void step(const Stream& stream, double learning_rate, double gradient_scale);
  /// The same by numbers in the device's memory, where it may also say that nothing is to change. Who calls it counts
  /// the step (count_step) once it is known whether it was one.
  void step(const Stream& stream, const ops::AdamWDeviceStep& numbers);
  /// From now on steps change those trained parameters alone for which `chosen` is true; null: all. Not where it is
  /// sharded.
  void restrict_to(const std::function<bool(const Parameter&)>& chosen);
  /// The moving average, where there is one, begins again at the present values: after they were loaded.
  void restart_average();
  /// Steps taken, which the bias corrections count.
  std::int64_t steps() const { return steps_; }
  /// Another step was taken: update number `number`, which keys what it drew.
  void count_step(std::int64_t number);

  /// The number of the update that changed each trained parameter last, by name (0: none did). They differ where
  /// restrict_to() was used.
  using LastSteps = std::map<std::string, std::int64_t>;
  bool rounds_stochastically() const { return settings_.stochastic_rounding && copies(); }
  LastSteps last_steps() const;
  /// After a load: `steps` were taken, and these updates were the last; none has changed a parameter that is not named.
  void restore_steps(std::int64_t steps, const LastSteps& last_steps);
  /// Makes the store's compute copy anew: the bits that the steps wrote, where the values are theirs.
  void refresh_compute_values(const Stream& stream);

  bool is_sharded() const { return gather_ != nullptr; }
  /// What this process updates.
  const std::vector<OwnedRange>& ranges() const { return ranges_; }
  /// Flat tensors laid out by ranges(): like store.values() where it is not sharded.
  const Tensor& first_moment() const { return first_moment_; }
  const Tensor& second_moment() const { return second_moment_; }
  /// Of a parameter's state, whole and on the host, what this process has goes into `own`: one of these tensors.
  void put(const Parameter& parameter, const Tensor& whole, const Tensor& own) const;
  bool averages() const { return average_.defined(); }
  const Tensor& average() const { return average_; }

  /// While it lives the store holds the averaged values (where there are any): for validation.
  class WithAverages {
   public:
    explicit WithAverages(Optimizer& optimizer);
    ~WithAverages() noexcept(false);
    WithAverages(const WithAverages&) = delete;
    WithAverages& operator=(const WithAverages&) = delete;

   private:
    Optimizer& optimizer_;
    int exceptions_ = std::uncaught_exceptions();
  };

 private:
  bool copies() const { return !store_.compute_values().shares_memory_with(store_.values()); }
  std::vector<const Parameter*> trained() const;
  ops::StochasticRounding rounding_from(std::int64_t first_element) const;
  void update(const Stream& stream, const ops::AdamWStep& step, const ops::AdamWDeviceStep* numbers);
  /// One after the other: elements of the store's values, and of a tensor of ranges().
  void copy_ranges(const std::function<void(const Tensor& values, const Tensor& own)>& copy, const Tensor& own) const;
  void refresh_after_exchange();

  OptimizerSettings settings_;
  ParameterStore& store_;
  std::uint64_t seed_;
  std::vector<OwnedRange> ranges_;
  Gather gather_;  // null: all of it is here
  Tensor first_moment_, second_moment_, average_, spare_;
  bool restricted_ = false;
  std::vector<const Parameter*> chosen_;  // where restricted
  std::int64_t steps_ = 0;
  std::vector<std::int64_t> last_steps_;  // of trained(), one by one
};

}  // namespace furlong
