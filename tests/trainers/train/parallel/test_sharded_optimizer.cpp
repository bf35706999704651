// ZeRO stage 1 (parallel.zero_stage: 1): training with sharded moments, EMA and updates equals training without
// sharding, and continues at any world size. Comparison with one process in float64 and float32:
// test_data_parallel.cpp, Invariance.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "framework/io/checkpoint_file.h"
#include "tests/trainers/training.h"
#include "tests/trainers/training_curves.h"

namespace furlong {
namespace {

using parallel_testing::accuracies_of;
using parallel_testing::Curves;
using parallel_testing::difference;
using parallel_testing::numbers_of;
using parallel_testing::Report;
using parallel_testing::run_world;
using parallel_testing::run_worlds;
using parallel_testing::train_some;
using parallel_testing::training;
using parallel_testing::values_of;
using parallel_testing::without_accuracies;
using Overrides = std::vector<std::string>;

constexpr auto in_shards = "parallel.zero_stage=1";

class ShardedOptimizer : public testing::WithTemporaryFolder {
 protected:
  ShardedOptimizer() : store_(testing::write_store(path("text.h5"), testing::synthetic_text(3000))) {}

  /// Dropout, EMA, and batches that do not divide evenly by two, three and four ranks.
  Settings settings(const Overrides& overrides) const {
    Overrides all{"data.batch_size=5",       "data.sequence_length=16", "trainer.max_steps=60",
                  "schedule.warmup_steps=5", "model.dropout=0.1",       "model.attention.mechanism=linear",
                  "optimizer.ema_decay=0.9"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return testing::small_settings(store_, all).settings;
  }
  Settings settings(Overrides overrides, const char* one_more) const {
    overrides.emplace_back(one_more);
    return settings(overrides);
  }
  /// RecordProperty with a readable value.
  static void note(const std::string& name, double apart) { RecordProperty(name, fmt::format("{:.2e}", apart)); }

 private:
  std::string store_;
};

// Sums have another order: reduce-scatter is Furlong's ring, and the norm is summed over shares.
TEST_F(ShardedOptimizer, LossesEqualUnshardedOptimizer) {
  constexpr int steps = 50;
  for (const auto& [compute, bounded, tolerance] :
       {std::tuple{DType::float64, 50, 1e-9}, std::tuple{DType::float32, 10, 1e-5}}) {
    const std::vector<Curves> whole = run_worlds({2, 3, 4}, training(settings({}), compute, steps));
    const std::vector<Curves> found = run_worlds({2, 3, 4}, training(settings({in_shards}), compute, steps));
    for (std::size_t i = 0; i < whole.size(); ++i) {
      EXPECT_LT(difference(found[i][0], whole[i][0], numbers_of(bounded)), tolerance)
          << whole[i].size() << " processes";
      for (const int shown : {10, steps})
        note(fmt::format("{}_{}_processes_{}_steps", name_of(compute), whole[i].size(), shown),
             difference(found[i][0], whole[i][0], numbers_of(shown)));
    }
  }
}

// A sum of two has one order. Only the norm differs, and nothing clips by it here.
TEST_F(ShardedOptimizer, WeightsOfTwoRanksWithoutClippingAreBitwiseEqual) {
  for (const Overrides& dtype :
       {Overrides{}, Overrides{"model.dtype=bfloat16"},
        Overrides{"model.dtype=bfloat16", "optimizer.stochastic_rounding=true", "parallel.gradient_dtype=bfloat16"}}) {
    const auto weights = [&](const char* sharded) {
      Overrides all = dtype;
      all.insert(all.end(), {"optimizer.gradient_clip=0", "trainer.skip_outlier_factor=0", sharded});
      const Curves found = run_world(2, [given = settings(all)](ProcessGroup& group, const Report& report) {
        const auto data = open_data(given.data);
        Trainer trainer(given, *data, Device{}, std::nullopt, &group);
        for (int i = 0; i < 10; ++i) report.add(trainer.step().loss);
        report.add(trainer.validate().loss);
        report.add(values_of(trainer.model().store->compute_values()));
      });
      EXPECT_EQ(found[0], found[1]) << sharded;
      EXPECT_GT(found[0].size(), 5000u);
      return found[0];
    };
    EXPECT_EQ(weights(in_shards), weights("parallel.zero_stage=0")) << ::testing::PrintToString(dtype);
  }
}

TEST_F(ShardedOptimizer, MovedTrainerContinues) {
  const auto losses = [&](bool moves) {
    return run_world(2, [given = settings({in_shards}), moves](ProcessGroup& group, const Report& report) {
      const auto data = open_data(given.data);
      std::optional<Trainer> trainer(std::in_place, given, *data, Device{}, std::nullopt, &group), moved;
      for (int i = 0; i < 2; ++i) report.add(trainer->step().loss);
      if (moves) {
        moved.emplace(std::move(*trainer));
        trainer.reset();
      }
      for (int i = 0; i < 3; ++i) report.add((moves ? moved : trainer)->step().loss);
      report.add((moves ? moved : trainer)->validate().loss);
    });
  };
  EXPECT_EQ(losses(true), losses(false));
}

/// The fraction of weights that differ.
double share_apart(const std::vector<double>& found, const std::vector<double>& expected, std::size_t begin,
                   std::size_t count) {
  if (found.size() < begin + count || expected.size() < begin + count) return 1;
  std::size_t apart = 0;
  for (std::size_t i = begin; i < begin + count; ++i) apart += found[i] != expected[i];
  return static_cast<double>(apart) / static_cast<double>(count);
}

/// Relative differences of losses, gradient norms and counts. In bfloat16 near ties are common, so accuracies are
/// excluded: one token predicted differently changes them by 5e-2.
double losses_apart(std::vector<double> found, std::vector<double> expected, int steps) {
  found.resize(std::min(found.size(), numbers_of(steps)));
  expected.resize(std::min(expected.size(), numbers_of(steps)));
  return difference(without_accuracies(found), without_accuracies(expected), numbers_of(steps) - accuracies_of(steps));
}

/// Bounds for two bfloat16 trainings (docs/internals/numerics.md).
struct Apart {
  double losses;
  double weights;  // the share of those that are rounded to another number
};
/// With equal world sizes ranks have the same rows, so their products are bitwise equal. Sums over ranks have another
/// order, and masters differ by float32's rounding, some 1e-7 of a weight. They round to different bfloat16 numbers,
/// whose spacing is 2^-8 of the weight, with a probability of some 1e-7 / 2^-8.
constexpr Apart in_order_of_sums{1e-4, 0.01};
/// Products of other rows have another order of summation if oneDNN's code depends on their number, as with AMX; some
/// values are then rounded to a neighbor, 2^-8 of them away. A loss is a mean and a norm a sum over hundreds of such
/// independent roundings, and changes by less than one rounding of its own. A gradient near zero can change its sign,
/// and Adam then moves its weight by the learning rate, up or down: hence a small one below. With the results of all
/// products changed randomly by up to 2^-9, losses differed by 8e-4 and 5 % of the weights differed.
constexpr Apart in_rows{0x1p-9, 0.1};
constexpr auto slowly = "optimizer.learning_rate=0.0001";

TEST_F(ShardedOptimizer, Bfloat16WeightsEqualOneProcess) {
  constexpr int steps = 10;
  std::vector<double> first_alone;
  for (const char* rounding : {"optimizer.stochastic_rounding=false", "optimizer.stochastic_rounding=true"}) {
    const Overrides narrow{"model.dtype=bfloat16", slowly, rounding};
    const std::vector<double> alone = run_world(1, training(settings(narrow, in_shards), std::nullopt, steps))[0];
    const std::size_t weights = alone.size() - numbers_of(steps);
    ASSERT_GT(weights, 5000u);
    const std::vector<Curves> whole = run_worlds({2, 3, 4}, training(settings(narrow), std::nullopt, steps));
    const std::vector<Curves> found = run_worlds({2, 3, 4}, training(settings(narrow, in_shards), std::nullopt, steps));
    for (std::size_t i = 0; i < found.size(); ++i) {
      const std::size_t size = found[i].size();
      for (const auto& [name, expected, bound] :
           {std::tuple{"one", &alone, in_rows}, std::tuple{"unsharded", &whole[i][0], in_order_of_sums}}) {
        const double apart = losses_apart(found[i][0], *expected, steps);
        const double others = share_apart(found[i][0], *expected, numbers_of(steps), weights);
        EXPECT_LT(apart, bound.losses) << size << " processes beside " << name << ", " << rounding;
        EXPECT_LT(others, bound.weights) << size << " processes beside " << name << ", " << rounding;
        note(fmt::format("{}_{}_losses_{}", size, name, rounding), apart);
        note(fmt::format("{}_{}_weights_{}", size, name, rounding), others);
      }
      for (const std::vector<double>& rank : found[i])
        EXPECT_EQ(rank, found[i][0]) << "weights of other ranks were not gathered";
    }
    if (first_alone.empty()) {
      first_alone = alone;
      continue;
    }
    const double others = share_apart(alone, first_alone, numbers_of(steps), weights);
    EXPECT_GT(others, 2 * in_rows.weights) << "the bound above would not detect the kind of rounding";
    note("nearest_and_stochastic_weights", others);
  }
}

// --- Other numbers of processes

struct Resharding {
  const char* name;
  std::vector<std::string> shards;  // zero_stage of each part of the training
};
void PrintTo(const Resharding& c, std::ostream* out) { *out << c.name; }

class Reshards : public ShardedOptimizer, public ::testing::WithParamInterface<Resharding> {
 protected:
  /// Takes ten steps with `size` ranks, from the checkpoint `from` if given, to the checkpoint `to`. The loaded state
  /// is written as `again` before the first step.
  std::vector<double> part(int size, const Settings& given, std::optional<DType> compute, const std::string& from,
                           const std::string& to, const std::string& again) const {
    return run_world(size, [&](ProcessGroup& group, const Report& report) {
      const auto data = open_data(given.data);
      Trainer trainer(given, *data, Device{}, compute, size > 1 ? &group : nullptr);
      if (!from.empty()) {
        trainer.load(CheckpointReader::open(from));
        trainer.save(again);
      }
      train_some(trainer, 10, report);
      trainer.save(to);
    })[0];
  }
};

// Bounds are those of an uninterrupted training over all forty steps.
TEST_P(Reshards, ResumesWithFourTwoThreeAndOneRanks) {
  const Overrides stochastic{"model.dtype=bfloat16", "optimizer.stochastic_rounding=true", slowly};
  struct Numbers {
    const char* name;
    std::optional<DType> compute;
    Overrides overrides;
    double tolerance;
  };
  for (const Numbers& numbers :
       {Numbers{"float64", DType::float64, {}, 1e-9}, Numbers{"float32", DType::float32, {}, 1e-5},
        Numbers{"bfloat16", std::nullopt, stochastic, in_rows.losses}}) {
    const std::vector<double> undisturbed = run_world(1, training(settings(numbers.overrides), numbers.compute, 40))[0];
    const std::vector<int> sizes{4, 2, 3, 1};
    std::vector<double> found;
    std::string from;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const std::string sharded = "parallel.zero_stage=" + GetParam().shards[i];
      const std::string to = path(fmt::format("{}_{}.h5", numbers.name, i)),
                        again = path(fmt::format("{}_{}_again.h5", numbers.name, i));
      const std::vector<double> more =
          part(sizes[i], settings(numbers.overrides, sharded.c_str()), numbers.compute, from, to, again);
      found.insert(found.end(), more.begin(), more.end());
      if (!from.empty()) testing::expect_equal_tensors(again, from);
      from = to;
    }
    const double apart =
        numbers.compute ? difference(found, undisturbed, numbers_of(40)) : losses_apart(found, undisturbed, 40);
    EXPECT_LT(apart, numbers.tolerance) << numbers.name;
    note(numbers.name, apart);
  }
}

INSTANTIATE_TEST_SUITE_P(Trainers, Reshards,
                         ::testing::Values(Resharding{"NotSharded", {"0", "0", "0", "0"}},
                                           Resharding{"sharded", {"1", "1", "1", "1"}},
                                           Resharding{"Alternating", {"1", "0", "1", "0"}}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace furlong
