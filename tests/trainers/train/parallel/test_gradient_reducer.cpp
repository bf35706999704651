// Gradient reduction: buckets, their order and timing, and the result.
#include "trainers/train/parallel/gradient_reducer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "framework/autodiff/tape.h"
#include "tests/communication/communicator_testing.h"
#include "tests/trainers/parallel_testing.h"

namespace furlong {
namespace {

using communicator_testing::value;
using parallel_testing::Curves;
using parallel_testing::Report;
using parallel_testing::run_world;
using ::testing::ElementsAre;

/// One of `size` ranks, which only records requests.
class RecordingCommunicator : public Communicator {
 public:
  explicit RecordingCommunicator(int size) : Communicator(0, size) {}
  const char* engine() const override { return "recording"; }
  void abort(const std::string&) noexcept override {}

  std::vector<Tensor> reduced;
  std::vector<std::int64_t> scattered;
  bool breaks = false;  // wait() of later operations throws

 private:
  Work do_all_reduce(const Stream&, const Tensor& values, Reduction) override {
    struct Broken final : Work::State {
      void wait() override { throw MachineError("this operation was abandoned"); }
      bool done() override { return false; }
    };
    reduced.push_back(values);
    return breaks ? Work(std::make_shared<Broken>()) : Work();
  }
  Work do_reduce_scatter(const Stream&, const Tensor& input, const Tensor&, Reduction) override {
    scattered.push_back(input.elements());
    return Work();
  }
  Work do_all_gather(const Stream&, const Tensor&, const Tensor&) override { return Work(); }
  Work do_broadcast(const Stream&, const Tensor&, int) override { return Work(); }
  Work do_exchange(const Stream&, std::vector<Message>) override { return Work(); }
  Work do_barrier(const Stream&) override { return Work(); }
};

/// Four matrices a to d, a frozen one, and two vectors that do not decay. Each is a multiple of 64 elements long.
struct Parameters {
  explicit Parameters(DType compute = DType::float32) : store(compute, Device{}) {
    for (const char* name : {"a", "b", "c", "frozen", "d"}) store.add(name, {64, 2}, Initializer::zeros(), true);
    for (const char* name : {"x", "y"}) store.add(name, {64}, Initializer::zeros(), false);
    store.freeze([](const Parameter& parameter) { return parameter.name() == "frozen"; });
    store.allocate(1);
  }
  ParameterStore store;
};

/// Element i of the gradient of the parameter that is the `draw`-th in the alphabet, on one rank.
double gradient(int draw, int rank, std::int64_t i) { return value<double>(draw, rank, i); }

/// A backward pass that gives the parameters these gradients, the last one first; starts `reducer`.
void backward(ParameterStore& store, const std::vector<std::string>& names, int rank = 0,
              GradientReducer* reducer = nullptr) {
  Tape tape{Stream{}};
  const Tensor zero = Tensor::zeros({}, store.compute_dtype());
  Variable sum(zero);
  for (const std::string& name : names) {
    const int draw = name[0] - 'a';
    sum = tape.record_one("gradient", {sum, store.find(name).variable()}, Tensor::zeros({}, store.compute_dtype()), {},
                          [draw, rank](BackwardContext& context) {
                            if (context.wants(0)) context.pass(0, context.d_output());
                            const GradientTarget target = context.d_input(1);
                            for (std::int64_t i = 0; i < target.tensor.elements(); ++i) {
                              const double add = gradient(draw, rank, i);
                              if (target.tensor.dtype() == DType::float64) {
                                double& place = target.tensor.data<double>()[i];
                                place = target.accumulates() ? place + add : add;
                              } else {
                                float& place = target.tensor.data<float>()[i];
                                place =
                                    static_cast<float>(target.accumulates() ? static_cast<double>(place) + add : add);
                              }
                            }
                          });
  }
  store.forget_gradients();
  if (reducer) reducer->begin(tape);
  tape.backward(sum);
}

/// The same after a reducer's begin, up to its finish.
std::size_t step(ParameterStore& store, GradientReducer& reducer, const std::vector<std::string>& names, int rank = 0) {
  backward(store, names, rank, &reducer);
  store.complete_gradients(Stream{});
  reducer.finish(Stream{});
  return reducer.overlapped_buckets();
}

/// Offsets of the reduced tensors in the flat gradients.
std::vector<std::string> names_of(const ParameterStore& store, const std::vector<Tensor>& reduced) {
  std::vector<std::string> names;
  for (const Tensor& values : reduced) {
    std::string inside;
    for (const Parameter& parameter : store.parameters()) {
      if (!store.is_trained(parameter)) continue;
      const char *begin = static_cast<const char*>(values.address()),
                 *own = static_cast<const char*>(parameter.gradient().address());
      if (own >= begin && own < begin + values.elements() * size_of(values.dtype())) inside += parameter.name();
    }
    names.push_back(inside);
  }
  return names;
}

TEST(GradientReducerTest, BucketsRunFromLastParameterToFirst) {
  Parameters parameters;
  RecordingCommunicator communicator(2);
  const std::vector<std::string> forward{"x", "y", "a", "b", "c", "d"};
  {
    const ShardLayout layout(parameters.store, 1, 2);
    GradientReducer reducer(parameters.store, communicator, layout, DType::float32, false);
    EXPECT_EQ(step(parameters.store, reducer, forward), 5u) << "all but the last bucket overlap with backward";
    EXPECT_THAT(names_of(parameters.store, communicator.reduced), ElementsAre("d", "c", "b", "a", "y", "x"));
    // The order stays if backward has another order; a bucket that is ready early waits.
    communicator.reduced.clear();
    EXPECT_EQ(step(parameters.store, reducer, {"d", "c", "b", "a", "y", "x"}), 0u)
        << "the last node has d's gradient, for which all buckets wait";
    EXPECT_THAT(names_of(parameters.store, communicator.reduced), ElementsAre("d", "c", "b", "a", "y", "x"));
  }
  communicator.reduced.clear();
  const ShardLayout layout(parameters.store, 200, 2);  // more than one matrix
  GradientReducer reducer(parameters.store, communicator, layout, DType::float32, false);
  EXPECT_EQ(step(parameters.store, reducer, forward), 2u);
  EXPECT_THAT(names_of(parameters.store, communicator.reduced), ElementsAre("cd", "ab", "xy"));
  std::int64_t elements = 0;
  for (const Tensor& values : communicator.reduced) elements += values.elements();
  EXPECT_EQ(elements, parameters.store.gradients().elements()) << "every element exactly once";
}

TEST(GradientReducerTest, ParameterWithoutGradientDelaysItsBucketAndLaterOnes) {
  Parameters parameters;
  RecordingCommunicator communicator(2);
  const ShardLayout layout(parameters.store, 1, 2);
  GradientReducer reducer(parameters.store, communicator, layout, DType::float32, false);
  EXPECT_EQ(step(parameters.store, reducer, {"x", "y", "a", "c", "d"}), 2u) << "d and c";
  EXPECT_THAT(names_of(parameters.store, communicator.reduced), ElementsAre("d", "c", "b", "a", "y", "x"));
  const std::vector<float> zeros = parameters.store.find("b").gradient().to_vector<float>();
  EXPECT_EQ(std::count(zeros.begin(), zeros.end(), 0.0f), 128) << "a missing gradient counts as zero";
}

TEST(GradientReducerTest, ReducesOnlyLastAccumulatedBatch) {
  Parameters parameters;
  RecordingCommunicator communicator(2);
  const ShardLayout layout(parameters.store, 1, 2);
  GradientReducer reducer(parameters.store, communicator, layout, DType::float32, false);
  backward(parameters.store, {"a", "b", "c", "d"});
  EXPECT_TRUE(communicator.reduced.empty());
  step(parameters.store, reducer, {"a", "b", "c", "d"});
  EXPECT_EQ(communicator.reduced.size(), 6u);
}

// As after a recording that failed: its operations are not waited for, and its tape is not used.
TEST(GradientReducerTest, AbandonedReductionIsForgotten) {
  Parameters parameters;
  RecordingCommunicator communicator(2);
  const ShardLayout layout(parameters.store, 1, 2);
  GradientReducer reducer(parameters.store, communicator, layout, DType::float32, false);
  communicator.breaks = true;
  backward(parameters.store, {"x", "y", "a", "b", "c", "d"}, 0, &reducer);
  EXPECT_FALSE(communicator.reduced.empty());
  reducer.abandon();
  communicator.breaks = false;
  communicator.reduced.clear();
  backward(parameters.store, {"a", "b", "c", "d"});  // accumulated
  EXPECT_TRUE(communicator.reduced.empty());
  EXPECT_EQ(step(parameters.store, reducer, {"x", "y", "a", "b", "c", "d"}), 5u);
  EXPECT_EQ(communicator.reduced.size(), 6u);
}

TEST(GradientReducerTest, ReducesAndScattersShardedBuckets) {
  Parameters parameters;
  RecordingCommunicator communicator(2);
  const ShardLayout layout(parameters.store, 300, 2);
  GradientReducer reducer(parameters.store, communicator, layout, DType::float32, true);
  step(parameters.store, reducer, {"x", "y", "a", "b", "c", "d"});
  // b, c and d make 384 elements and a 128, of which each of two has half; x and y 64 each.
  EXPECT_THAT(communicator.scattered, ElementsAre(384, 128, 128));
  EXPECT_TRUE(communicator.reduced.empty()) << "no remainder";
}

/// The sum of all ranks' gradients, element by element.
std::vector<double> sums(int size) {
  std::vector<double> all;
  for (const char name : {'a', 'b', 'c', 'd', 'x', 'y'}) {
    for (int i = 0; i < (name < 'x' ? 128 : 64); ++i) {
      double sum = 0;
      for (int rank = 0; rank < size; ++rank) sum += gradient(name - 'a', rank, i);
      all.push_back(sum);
    }
  }
  return all;
}

struct Travel {
  DType compute, dtype;
  double tolerance;
};

// Values are below 1: three of them are rounded when sent and their sums twice, by half a unit in the last place of at
// most 4.
TEST(GradientReducerTest, EveryRankHasSummedGradients) {
  constexpr int size = 3;
  for (const Travel& travel :
       {Travel{DType::float64, DType::float32, 4e-15}, Travel{DType::float32, DType::float32, 8e-7},
        Travel{DType::float32, DType::bfloat16, 0.03}}) {
    for (const bool is_sharded : {false, true}) {
      const Curves found = run_world(size, [&](ProcessGroup& group, const Report& report) {
        Parameters parameters(travel.compute);
        const ShardLayout layout(parameters.store, 1, size);
        GradientReducer reducer(parameters.store, group.communicator(), layout, travel.dtype, is_sharded);
        for (int i = 0; i < 2; ++i) {  // a second step is like the first
          EXPECT_EQ(step(parameters.store, reducer, {"x", "y", "a", "b", "c", "d"}, group.rank()), 5u);
          if (is_sharded) reducer.gather(Stream{}, parameters.store.gradients());
          const Tensor& flat = parameters.store.gradients();
          if (flat.dtype() == DType::float64) {
            report.add(flat.to_vector<double>());
          } else {
            const auto narrow = flat.to_vector<float>();
            report.add({narrow.begin(), narrow.end()});
          }
        }
      });
      const std::vector<double> expected = sums(size);
      double largest = 0;
      ASSERT_EQ(found[0].size(), 2 * expected.size());
      for (std::size_t i = 0; i < found[0].size(); ++i)
        largest = std::max(largest, std::abs(found[0][i] - expected[i % expected.size()]));
      EXPECT_LE(largest, travel.tolerance) << name_of(travel.dtype) << is_sharded;
      EXPECT_EQ(largest > 1e-3, travel.dtype == DType::bfloat16) << "only bfloat16 rounds the exchanged gradients";
      for (const std::vector<double>& rank : found) EXPECT_EQ(rank, found[0]);
    }
  }
}

}  // namespace
}  // namespace furlong
