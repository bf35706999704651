#include "framework/autodiff/parameter_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "framework/autodiff/tape.h"
#include "framework/core/arena.h"
#include "framework/ops/dense/linear.h"
#include "framework/primitives/arithmetic.h"
#include "tests/reference/values.h"

namespace furlong {
namespace {

constexpr std::int64_t border = 64;  // alignment of each parameter, in elements

/// Two matrices with weight decay, a bias and a gain without, declared alternately, and a buffer.
struct Model {
  ParameterStore store;
  Parameter &first, &bias, &random_projection, &second, &gain;

  explicit Model(DType compute = DType::float32, Device device = {})
      : store(compute, device),
        first(store.add("first.weight", {3, 5}, Initializer::normal(0.5), true)),
        bias(store.add("first.bias", {3}, Initializer::zeros(), false)),
        random_projection(store.add_buffer("directions", {4, 4})),
        second(store.add("second.weight", {3, 100}, Initializer::normal(2), true)),
        gain(store.add("norm.gain", {7}, Initializer::ones(), false)) {}
};

std::int64_t offset_in(const Tensor& flat, const Tensor& part) {
  return (static_cast<const char*>(part.address()) - static_cast<const char*>(flat.address())) / size_of(flat.dtype());
}

TEST(ParameterStore, PlacesDecayedParametersFirstOnAlignedOffsets) {
  Model model;
  model.store.allocate(1);
  const Tensor& values = model.store.values();
  EXPECT_EQ(offset_in(values, model.first.master()), 0);
  EXPECT_EQ(offset_in(values, model.second.master()), border);
  EXPECT_EQ(model.store.decayed_elements(), border + 5 * border);  // 15 and 300 elements, rounded up
  EXPECT_EQ(offset_in(values, model.bias.master()), 6 * border);
  EXPECT_EQ(offset_in(values, model.gain.master()), 7 * border);
  EXPECT_EQ(values.elements(), 8 * border);
  EXPECT_EQ(model.store.gradients().elements(), 8 * border);
  EXPECT_EQ(model.store.trained_parameter_count(), 15 + 3 + 300 + 7);
  EXPECT_TRUE(model.store.compute_values().shares_memory_with(values));
}

TEST(ParameterStore, PaddingIsZeroAndParametersDoNotOverlap) {
  Model model;
  model.store.allocate(1);
  std::vector<float> expected(static_cast<std::size_t>(model.store.values().elements()));
  for (const Parameter& parameter : model.store.parameters()) {
    if (model.store.is_buffer(parameter)) continue;
    const std::vector<float> own = parameter.master().to_vector<float>();
    std::copy(own.begin(), own.end(), expected.begin() + offset_in(model.store.values(), parameter.master()));
    EXPECT_EQ(model.store.slice(model.store.values(), parameter).to_vector<float>(), own);
  }
  EXPECT_EQ(model.store.values().to_vector<float>(), expected);
}

TEST(ParameterStore, FindsParametersByUniqueName) {
  Model model;
  EXPECT_THROW(model.store.add("first.weight", {1}, Initializer::zeros(), false), ContractError);
  EXPECT_THROW(model.store.add_buffer("norm.gain", {1}), ContractError);
  EXPECT_EQ(&model.store.find("norm.gain"), &model.gain);
  EXPECT_THROW(model.store.find("norm.bias"), ContractError);
  std::vector<std::string> names;
  for (const Parameter& parameter : model.store.parameters()) names.push_back(parameter.name());
  EXPECT_EQ(names,
            (std::vector<std::string>{"first.weight", "first.bias", "directions", "second.weight", "norm.gain"}));
  model.store.allocate(1);
  EXPECT_THROW(model.store.add("late", {1}, Initializer::zeros(), false), ContractError);
  EXPECT_THROW(ParameterStore(DType::int32, Device{}), ContractError);
}

TEST(ParameterStore, StoresBuffersSeparately) {
  Model model(DType::bfloat16);
  model.store.allocate(1);
  EXPECT_TRUE(model.store.is_buffer(model.random_projection));
  EXPECT_FALSE(model.store.is_buffer(model.bias));
  EXPECT_EQ(model.random_projection.master().dtype(), DType::float32);
  EXPECT_FALSE(model.random_projection.master().shares_memory_with(model.store.values()));
  EXPECT_FALSE(model.random_projection.variable().requires_gradient());
  EXPECT_FALSE(model.random_projection.gradient().defined());
  EXPECT_EQ(model.random_projection.master().to_vector<float>(), std::vector<float>(16));
  EXPECT_THROW(model.store.slice(model.store.values(), model.random_projection), ContractError);
}

TEST(ParameterStore, InitialValuesDependOnlyOnSeedAndName) {
  Model one, same, other;
  one.store.allocate(5);
  same.store.allocate(5);
  other.store.allocate(6);
  EXPECT_EQ(one.first.master().to_vector<float>(), same.first.master().to_vector<float>());
  EXPECT_NE(one.first.master().to_vector<float>(), other.first.master().to_vector<float>());

  // Another order, another layout, another dtype: the same numbers.
  ParameterStore reordered(DType::float64, Device{});
  Parameter& second = reordered.add("second.weight", {3, 100}, Initializer::normal(2), true);
  reordered.allocate(5);
  const std::vector<float> expected = one.second.master().to_vector<float>();
  const std::vector<double> found = second.master().to_vector<double>();
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_EQ(static_cast<float>(found[i]), expected[i]);

  double square = 0;
  for (double value : found) square += value * value;
  EXPECT_NEAR(square / 300, 4, 4 * 4 * std::sqrt(2.0 / 300));  // four standard errors of a variance of 2 squared
  EXPECT_EQ(one.bias.master().to_vector<float>(), std::vector<float>(3, 0));
  EXPECT_EQ(one.gain.master().to_vector<float>(), std::vector<float>(7, 1));
}

TEST(ParameterStore, WithoutSeedIsZeroUntilDrawn) {
  Model drawn, empty;
  drawn.store.allocate(5);
  empty.store.allocate(std::nullopt);
  EXPECT_EQ(empty.gain.master().to_vector<float>(), std::vector<float>(7, 0));
  EXPECT_EQ(empty.first.master().to_vector<float>(), std::vector<float>(15, 0));
  empty.store.draw(empty.first, 5);
  EXPECT_EQ(empty.first.master().to_vector<float>(), drawn.first.master().to_vector<float>());
  EXPECT_EQ(empty.second.master().to_vector<float>(), std::vector<float>(300, 0));
}

TEST(ParameterStore, InitialValuesDoNotDependOnThreadCount) {
  const auto drawn = [] {
    ParameterStore store(DType::float32, Device{});
    const Parameter& weight = store.add("weight", {70, 1000}, Initializer::normal(1), true);
    store.allocate(3);
    return weight.master().to_vector<float>();
  };
  EXPECT_TRUE(reference::with_threads(1, drawn) == reference::with_threads(5, drawn));
}

TEST(ParameterStore, IdentityTapIsOneAtLastTap) {
  ParameterStore store(DType::float32, Device{});
  Parameter& taps = store.add("taps", {2, 3}, Initializer::causal_dirac(), false);
  store.allocate(1);
  EXPECT_EQ(taps.master().to_vector<float>(), (std::vector<float>{0, 0, 1, 0, 0, 1}));
}

TEST(ParameterStore, ComputeCopyIsRoundedMaster) {
  Model model(DType::bfloat16);
  model.store.allocate(1);
  EXPECT_EQ(model.store.master_dtype(), DType::float32);
  EXPECT_EQ(model.store.compute_values().dtype(), DType::bfloat16);
  const auto expect_rounded = [&] {
    for (const Parameter* parameter : {&model.first, &model.bias, &model.second, &model.gain}) {
      const std::vector<float> master = parameter->master().to_vector<float>();
      const std::vector<bfloat16> compute = parameter->variable().value().to_vector<bfloat16>();
      ASSERT_EQ(parameter->variable().shape(), parameter->shape());
      for (std::size_t i = 0; i < master.size(); ++i)
        ASSERT_EQ(compute[i].bits, bfloat16(master[i]).bits) << parameter->name();
    }
  };
  expect_rounded();
  model.second.master().data<float>()[42] = 1.00390625f;  // halfway between two: to the even one, 1
  model.bias.master().data<float>()[1] = -3.14159265f;
  EXPECT_EQ(model.bias.variable().value().to_vector<bfloat16>()[1].bits, 0);
  model.store.refresh_compute_values(Stream{});
  expect_rounded();
  EXPECT_EQ(static_cast<float>(model.second.variable().value().to_vector<bfloat16>()[42]), 1.0f);
}

TEST(ParameterStore, Float64ParametersHaveFloat64Masters) {
  Model model(DType::float64);
  model.store.allocate(1);
  EXPECT_EQ(model.store.master_dtype(), DType::float64);
  EXPECT_EQ(model.store.gradients().dtype(), DType::float64);
  EXPECT_TRUE(model.first.variable().value().shares_memory_with(model.store.values()));
}

/// first(x) · ones. The gradient of this loss with respect to each row of first.weight is the column sum of x. That
/// with respect to the bias is the number of rows.
Variable forward(Tape& tape, Model& model, const Tensor& x) {
  const Variable bias = model.bias.variable();
  return ops::linear(tape, Variable(x), model.first.variable(), &bias);
}
Tensor ones(const Shape& shape, DType dtype) {
  const Tensor tensor = Tensor::empty(shape, dtype);
  ops::fill(Stream{}, tensor, 1.0);
  return tensor;
}

TEST(ParameterStore, WritesGradientsToFlatTensorAndZeroesOthers) {
  for (DType compute : {DType::float32, DType::bfloat16}) {
    Model model(compute);
    model.store.allocate(1);
    // Values left by an earlier step must not affect the result; padding stays zero.
    for (const Parameter* parameter : {&model.first, &model.bias, &model.second, &model.gain})
      ops::fill(Stream{}, parameter->gradient(), 99.0);
    model.store.forget_gradients();
    Tape tape(Stream{});
    const Tensor x = Tensor::empty({2, 5}, compute);
    ops::convert(Stream{}, x, Tensor::from<float>({1, 2, 3, 4, 5, 0, 10, 20, 30, 40}, {2, 5}));
    const Variable y = forward(tape, model, x);
    tape.backward({y}, {ones(y.shape(), compute)});
    EXPECT_EQ(model.gain.gradient().to_vector<float>(), std::vector<float>(7, 99));
    model.store.complete_gradients(Stream{});
    std::vector<float> expected(static_cast<std::size_t>(8 * border));
    for (std::size_t row = 0; row < 3; ++row) {
      for (std::size_t column = 0; column < 5; ++column)
        expected[row * 5 + column] = std::vector<float>{1, 12, 23, 34, 45}[column];
      expected[static_cast<std::size_t>(6 * border) + row] = 2;
    }
    EXPECT_EQ(model.store.gradients().to_vector<float>(), expected);
    EXPECT_TRUE(model.first.gradient().shares_memory_with(model.store.gradients()));
  }
}

TEST(ParameterStore, AccumulatesGradientsUntilForgotten) {
  Model model;
  model.store.allocate(1);
  const Tensor x = Tensor::from<float>({1, 2, 3, 4, 5}, {1, 5});
  const auto pass = [&] {
    Tape tape(Stream{});
    const Variable y = forward(tape, model, x);
    tape.backward({y}, {ones(y.shape(), DType::float32)});
  };
  model.store.forget_gradients();
  pass();
  pass();
  pass();
  model.store.complete_gradients(Stream{});
  EXPECT_EQ(model.bias.gradient().to_vector<float>(), std::vector<float>(3, 3));
  model.store.forget_gradients();
  pass();
  EXPECT_EQ(model.bias.gradient().to_vector<float>(), std::vector<float>(3, 1));
}

TEST(ParameterStore, CallsBackOncePerParameterWhenGradientIsFinal) {
  ParameterStore store(DType::float32, Device{});
  Parameter& shared = store.add("shared", {4, 4}, Initializer::normal(1), true);
  Parameter& last = store.add("last", {4, 4}, Initializer::normal(1), true);
  Parameter& unused = store.add("unused", {4}, Initializer::zeros(), false);
  store.allocate(1);
  std::vector<std::string> announced;
  std::vector<std::vector<float>> at_announcement;
  store.on_gradient_final([&](Parameter& parameter) {
    announced.push_back(parameter.name());
    at_announcement.push_back(parameter.gradient().to_vector<float>());
  });
  const Tensor x = Tensor::from<float>({1, -2, 3, 0.5f}, {1, 4});
  const auto pass = [&] {
    Tape tape(Stream{});
    Variable y = ops::linear(tape, Variable(x), shared.variable(), nullptr);
    y = ops::linear(tape, y, shared.variable(), nullptr);
    y = ops::linear(tape, y, last.variable(), nullptr);
    tape.backward({y}, {ones(y.shape(), DType::float32)});
  };
  store.forget_gradients();
  pass();
  EXPECT_EQ(announced, (std::vector<std::string>{"last", "shared"}));
  EXPECT_EQ(at_announcement[0], last.gradient().to_vector<float>());
  EXPECT_EQ(at_announcement[1], shared.gradient().to_vector<float>());
  store.complete_gradients(Stream{});
  EXPECT_EQ(announced.size(), 2u);
  EXPECT_EQ(unused.gradient().to_vector<float>(), std::vector<float>(4));

  store.on_gradient_final(nullptr);
  pass();
  EXPECT_EQ(announced.size(), 2u);
}

TEST(ParameterStore, ShapeOnlyAllocatesNoMemory) {
  ParameterStore store(DType::bfloat16, Device{DeviceType::shape_only, 0});
  store.add("large", {1 << 20, 1 << 16}, Initializer::normal(1), true);  // 256 GiB of master values
  store.allocate(1);
  store.forget_gradients();
  store.complete_gradients(Stream{store.device()});
  EXPECT_EQ(store.values().bytes(), std::int64_t{1} << 38);
  EXPECT_EQ(store.compute_values().bytes(), std::int64_t{1} << 37);
}

/// The model with first.weight and norm.gain frozen: one with weight decay and one without.
Model partly_frozen(DType compute = DType::float32, Device device = {}) {
  Model model(compute, device);
  model.store.freeze([](const Parameter& parameter) { return parameter.name() == "first.weight"; });
  model.store.freeze(
      [](const Parameter& parameter) { return parameter.name() == "norm.gain" || parameter.name() == "directions"; });
  model.store.allocate(1);
  return model;
}

TEST(FrozenParameters, FollowTrainedParametersOutsideFlatTensors) {
  const Model model = partly_frozen();
  const Tensor& values = model.store.values();
  EXPECT_EQ(offset_in(values, model.second.master()), 0);
  EXPECT_EQ(model.store.decayed_elements(), 5 * border);
  EXPECT_EQ(offset_in(values, model.bias.master()), 5 * border);
  EXPECT_EQ(values.elements(), 6 * border);
  EXPECT_EQ(model.store.gradients().elements(), 6 * border);
  EXPECT_EQ(model.store.compute_values().elements(), 6 * border);
  EXPECT_EQ(offset_in(values, model.first.master()), 6 * border);
  EXPECT_EQ(offset_in(values, model.gain.master()), 7 * border);
  EXPECT_EQ(model.store.trained_parameter_count(), 3 + 300);
  EXPECT_EQ(model.store.total_parameter_count(), 15 + 3 + 300 + 7);
  EXPECT_TRUE(model.store.is_frozen(model.first) && !model.store.is_trained(model.first) &&
              !model.store.is_buffer(model.first));
  EXPECT_TRUE(model.store.is_trained(model.second) && !model.store.is_frozen(model.second));
  EXPECT_TRUE(model.store.is_buffer(model.random_projection) && !model.store.is_frozen(model.random_projection))
      << "the predicate is not called for buffers";
  EXPECT_THROW(model.store.slice(values, model.first), ContractError);
  EXPECT_FALSE(model.first.gradient().defined());
  EXPECT_FALSE(model.first.variable().requires_gradient());
}

TEST(FrozenParameters, HaveTheSameInitialValues) {
  for (DType compute : {DType::float32, DType::bfloat16, DType::float64}) {
    Model trained(compute);
    trained.store.allocate(1);
    const Model frozen = partly_frozen(compute);
    const auto bits = [](const Tensor& tensor) {
      const auto* bytes = static_cast<const std::uint8_t*>(tensor.address());
      return std::vector<std::uint8_t>(bytes, bytes + tensor.bytes());
    };
    for (const Parameter& parameter : frozen.store.parameters()) {
      const Parameter& other = trained.store.find(parameter.name());
      EXPECT_EQ(bits(parameter.master()), bits(other.master())) << parameter.name();
      EXPECT_EQ(parameter.variable().value().dtype(), other.variable().value().dtype()) << parameter.name();
      EXPECT_EQ(bits(parameter.variable().value()), bits(other.variable().value())) << parameter.name();
    }
  }
}

TEST(FrozenParameters, ComputeCopyFollowsLoadedValues) {
  Model model = partly_frozen(DType::bfloat16);
  for (Parameter* parameter : {&model.first, &model.second}) ops::fill(Stream{}, parameter->master(), 1.0009765625);
  model.store.refresh_compute_values(Stream{});
  for (Parameter* parameter : {&model.first, &model.second})
    for (bfloat16 value : parameter->variable().value().to_vector<bfloat16>())
      EXPECT_EQ(static_cast<float>(value), 1.0f);
}

TEST(FrozenParameters, ReceiveNoGradientsAndLeaveOthersUnchanged) {
  const Tensor x = Tensor::from<float>({1, 2, 3, 4, 5}, {1, 5});
  Model frozen = partly_frozen(), trained;
  trained.store.allocate(1);
  std::vector<std::string> announced;
  frozen.store.on_gradient_final([&](Parameter& parameter) { announced.push_back(parameter.name()); });
  for (Model* model : {&frozen, &trained}) {
    model->store.forget_gradients();
    Tape tape(Stream{});
    const Variable y = forward(tape, *model, x);
    tape.backward({y}, {ones(y.shape(), DType::float32)});
    model->store.complete_gradients(Stream{});
  }
  EXPECT_EQ(announced, std::vector<std::string>{"first.bias"});
  EXPECT_EQ(frozen.bias.gradient().to_vector<float>(), trained.bias.gradient().to_vector<float>());
  EXPECT_EQ(frozen.second.gradient().to_vector<float>(), std::vector<float>(300));
}

TEST(FrozenParameters, MayBeAllParameters) {
  for (DType compute : {DType::float32, DType::bfloat16}) {
    Model model(compute);
    model.store.freeze([](const Parameter&) { return true; });
    model.store.allocate(1);
    EXPECT_EQ(model.store.values().elements(), 0);
    EXPECT_EQ(model.store.trained_parameter_count(), 0);
    model.store.forget_gradients();
    model.store.complete_gradients(Stream{});
    model.store.refresh_compute_values(Stream{});
    Tape tape(Stream{});
    const Tensor x = Tensor::zeros({2, 5}, compute);
    EXPECT_FALSE(forward(tape, model, x).requires_gradient());
    EXPECT_EQ(tape.node_count(), 0u) << "nothing is saved if there is no backward";
  }
}

TEST(FrozenParameters, AllocateNoGradients) {
  const auto bytes = [](bool frozen) {
    const Device device{DeviceType::shape_only, 0};
    const std::int64_t before = arena(device).counters().bytes_in_use;
    ParameterStore store(DType::bfloat16, device);
    store.add("large", {1 << 20, 64}, Initializer::normal(1), true);
    store.add("small", {64}, Initializer::normal(1), true);
    store.freeze([&](const Parameter& parameter) { return frozen && parameter.name() == "large"; });
    store.allocate(1);
    return arena(device).counters().bytes_in_use - before;
  };
  EXPECT_EQ(bytes(false) - bytes(true), (std::int64_t{1} << 26) * 4);
}

TEST(FrozenParameters, RejectFreezingAfterAllocation) {
  Model model;
  model.store.allocate(1);
  EXPECT_THROW(model.store.freeze([](const Parameter&) { return true; }), ContractError);
}

}  // namespace
}  // namespace furlong
