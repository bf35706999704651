#include "trainers/train/optimizer/optimizer.h"

#include <gmock/gmock.h>

#include <cmath>
#include <span>

#include "framework/io/checkpoint_file.h"
#include "tests/temporary_folder.h"
#include "trainers/train/optimizer/outlier_filter.h"

namespace furlong {
namespace {

OptimizerSettings optimizer_settings(double weight_decay, double ema_decay = 0) {
  OptimizerSettings settings;
  settings.weight_decay = weight_decay;
  settings.ema_decay = ema_decay;
  return settings;
}

// A matrix with weight decay, a bias and a gain without, and a buffer that the optimizer ignores.
struct Store {
  explicit Store(DType compute = DType::float32) : store(compute, Device{}) {
    weight = &store.add("weight", {5, 13}, Initializer::normal(1), true);
    bias = &store.add("bias", {7}, Initializer::normal(1), false);
    gain = &store.add("gain", {3}, Initializer::ones(), false);
    buffer = &store.add_buffer("directions", {4, 2});
    store.allocate(3);
    set_gradients(0);
  }
  void set_gradients(float value) {
    std::vector<float> flat(static_cast<std::size_t>(store.gradients().elements()), value);
    store.gradients().copy_from(Tensor::from(flat, store.gradients().shape()));
  }
  std::vector<float> values() const { return store.values().to_vector<float>(); }
  std::vector<std::uint16_t> compute_bits() const {
    const auto* bits = static_cast<const std::uint16_t*>(store.compute_values().address());
    return {bits, bits + store.compute_values().elements()};
  }

  /// The parameters' elements without the padding between them, which is zero in a model but arbitrary here.
  std::vector<std::uint16_t> parameter_bits() const {
    std::vector<std::uint16_t> found;
    for (const Parameter* parameter : {weight, bias, gain})
      for (const bfloat16 value : parameter->variable().value().to_vector<bfloat16>()) found.push_back(value.bits);
    return found;
  }

  ParameterStore store;
  Parameter *weight, *bias, *gain, *buffer;
};

TEST(Optimizer, DecaysOnlyMarkedParameters) {
  Store s;
  const auto weight = s.weight->master().to_vector<float>(), bias = s.bias->master().to_vector<float>(),
             gain = s.gain->master().to_vector<float>();
  const auto buffer = s.buffer->master().to_vector<float>();
  Optimizer optimizer(optimizer_settings(0.1), s.store);
  // Without gradients nothing moves but by the decay: values * (1 - learning_rate * weight_decay).
  optimizer.step(Stream{}, 0.5, 1);
  const auto decayed = s.weight->master().to_vector<float>();
  for (std::size_t i = 0; i < weight.size(); ++i)
    EXPECT_NEAR(decayed[i], weight[i] * 0.95, 1e-7 * std::abs(weight[i])) << i;
  EXPECT_EQ(s.bias->master().to_vector<float>(), bias);
  EXPECT_EQ(s.gain->master().to_vector<float>(), gain);
  EXPECT_EQ(s.buffer->master().to_vector<float>(), buffer);
  EXPECT_EQ(optimizer.steps(), 1);
}

TEST(Optimizer, FirstStepLengthEqualsLearningRate) {
  Store s;
  const auto before = s.values();
  Optimizer optimizer(optimizer_settings(0), s.store);
  s.set_gradients(-0.25f);
  optimizer.step(Stream{}, 0.01, 1);
  // Bias corrections make m_hat = g and v_hat = g^2: the step is learning_rate * sign(g), whatever the size of g.
  for (const auto* parameter : {s.weight, s.bias, s.gain}) {
    const auto after = s.store.slice(s.store.values(), *parameter).to_vector<float>();
    const auto moment = s.store.slice(optimizer.first_moment(), *parameter).to_vector<float>();
    for (std::size_t i = 0; i < after.size(); ++i) EXPECT_NEAR(moment[i], -0.025f, 1e-8) << parameter->name();
  }
  const auto after = s.values();
  // Up to one rounding of the result (values below 4: 2.4e-7).
  for (std::size_t i = 0; i < after.size(); ++i) EXPECT_NEAR(after[i] - before[i], 0.01, 5e-7) << i;
}

TEST(Optimizer, GradientScaleScalesGradients) {
  Store scaled, plain;
  Optimizer a(optimizer_settings(0.1), scaled.store), b(optimizer_settings(0.1), plain.store);
  for (int step = 0; step < 3; ++step) {
    scaled.set_gradients(8.0f * static_cast<float>(step + 1));
    plain.set_gradients(static_cast<float>(step + 1));
    a.step(Stream{}, 0.01, 0.125);
    b.step(Stream{}, 0.01, 1);
  }
  EXPECT_EQ(scaled.values(), plain.values());
}

TEST(Optimizer, EmaFollowsValues) {
  Store s;
  Optimizer optimizer(optimizer_settings(0.1, 0.75), s.store);
  ASSERT_TRUE(optimizer.has_ema());
  const auto first = s.values();
  std::vector<double> expected(first.begin(), first.end());
  EXPECT_EQ(optimizer.ema().to_vector<float>(), first);
  for (int step = 0; step < 4; ++step) {
    s.set_gradients(step % 2 ? 1.0f : -3.0f);
    optimizer.step(Stream{}, 0.1, 1);
    const auto now = s.values();
    for (std::size_t i = 0; i < expected.size(); ++i)
      expected[i] = 0.75 * expected[i] + 0.25 * static_cast<double>(now[i]);
  }
  const auto average = optimizer.ema().to_vector<float>();
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(average[i], expected[i], 1e-6) << i;
  EXPECT_NE(average, s.values());
}

TEST(Optimizer, WithEmaRestoresValuesBitwise) {
  for (const DType compute : {DType::float32, DType::bfloat16}) {
    Store s(compute);
    Optimizer optimizer(optimizer_settings(0.1, 0.5), s.store);
    s.set_gradients(1);
    for (int step = 0; step < 3; ++step) optimizer.step(Stream{}, 0.1, 1);
    const auto values = s.values(), average = optimizer.ema().to_vector<float>();
    ASSERT_NE(values, average);
    const auto bits = compute == DType::bfloat16 ? s.compute_bits() : std::vector<std::uint16_t>{};
    {
      const Optimizer::WithEma guard(optimizer);
      EXPECT_EQ(s.values(), average);
      if (compute == DType::bfloat16) {
        EXPECT_NE(s.compute_bits(), bits) << "the copy that the layers compute with has to follow";
      }
    }
    EXPECT_EQ(s.values(), values);
    EXPECT_EQ(optimizer.ema().to_vector<float>(), average);
    if (compute == DType::bfloat16) {
      EXPECT_EQ(s.compute_bits(), bits);
    }
  }
}

TEST(Optimizer, StochasticallyRoundedCopyIsReproducible) {
  OptimizerSettings settings = optimizer_settings(0.1, 0.5);
  settings.stochastic_rounding = true;
  Store s(DType::bfloat16), plain(DType::bfloat16);
  Optimizer optimizer(settings, s.store, 5), nearest(optimizer_settings(0.1, 0.5), plain.store, 5);
  EXPECT_TRUE(optimizer.rounds_stochastically());
  EXPECT_FALSE(nearest.rounds_stochastically());
  EXPECT_EQ(s.parameter_bits(), plain.parameter_bits()) << "before the first step all are rounded to nearest";
  const auto steps = [](Optimizer& one, Store& store, int count) {
    for (int step = 0; step < count; ++step) {
      store.set_gradients(step % 2 ? 1.0f : -0.7f);
      one.step(Stream{}, 0.1, 1);
    }
  };
  steps(optimizer, s, 2);
  steps(nearest, plain, 2);
  EXPECT_EQ(s.values(), plain.values());
  EXPECT_NE(s.parameter_bits(), plain.parameter_bits());
  // From here on only the weight changes; the others stay as rounded by their own last step.
  optimizer.restrict_to([&](const Parameter& parameter) { return &parameter == s.weight; });
  const auto before = s.parameter_bits();
  steps(optimizer, s, 3);
  const auto after = s.parameter_bits();
  EXPECT_NE(after, before);
  const auto weights = static_cast<std::ptrdiff_t>(s.weight->shape().elements());
  EXPECT_TRUE(std::equal(after.begin() + weights, after.end(), before.begin() + weights));
  EXPECT_EQ(optimizer.last_steps(), (Optimizer::LastSteps{{"weight", 5}, {"bias", 2}, {"gain", 2}}));
  { const Optimizer::WithEma guard(optimizer); }
  EXPECT_EQ(s.parameter_bits(), after);

  // Another optimizer with the same values and steps, as after a load.
  Store loaded(DType::bfloat16);
  Optimizer again(settings, loaded.store, 5);
  loaded.store.values().copy_from(s.store.values());
  again.restore_steps(5, optimizer.last_steps());
  again.refresh_compute_values(Stream{});
  EXPECT_EQ(loaded.parameter_bits(), after);
  again.restore_steps(5, {});
  again.refresh_compute_values(Stream{});
  EXPECT_NE(loaded.parameter_bits(), after) << "a run that rounds to nearest has other bits";
}

TEST(Optimizer, StochasticRoundingSkipsFrozenParameters) {
  ParameterStore store(DType::bfloat16, Device{});
  Parameter& frozen = store.add("frozen", {5, 13}, Initializer::normal(1), true);
  store.add("weight", {4, 3}, Initializer::normal(1), true);
  store.freeze([](const Parameter& parameter) { return parameter.name() == "frozen"; });
  store.allocate(3);
  OptimizerSettings settings = optimizer_settings(0.1);
  settings.stochastic_rounding = true;
  Optimizer optimizer(settings, store, 5);
  const auto bits = [&] {
    const auto* values = static_cast<const std::uint16_t*>(frozen.variable().value().address());
    return std::vector<std::uint16_t>(values, values + frozen.shape().elements());
  };
  const auto before = bits();
  optimizer.step(Stream{}, 0.1, 1);
  optimizer.refresh_compute_values(Stream{});
  EXPECT_EQ(bits(), before);
  EXPECT_EQ(optimizer.last_steps(), (Optimizer::LastSteps{{"weight", 1}}));
}

TEST(Optimizer, WithEmaWithoutEmaDoesNothing) {
  Store s;
  Optimizer optimizer(optimizer_settings(0.1), s.store);
  EXPECT_FALSE(optimizer.has_ema());
  const auto values = s.values();
  {
    const Optimizer::WithEma guard(optimizer);
    EXPECT_EQ(s.values(), values);
  }
  EXPECT_EQ(s.values(), values);
}

TEST(Optimizer, FrozenParametersStayAndHaveNoState) {
  for (const DType compute : {DType::float32, DType::bfloat16}) {
    ParameterStore store(compute, Device{});
    Parameter& frozen = store.add("frozen", {5, 13}, Initializer::normal(1), true);
    Parameter& weight = store.add("weight", {4, 3}, Initializer::normal(1), true);
    Parameter& bias = store.add("bias", {7}, Initializer::normal(1), false);
    Parameter& gain = store.add("frozen.gain", {3}, Initializer::ones(), false);
    store.freeze([](const Parameter& parameter) { return parameter.name().starts_with("frozen"); });
    store.allocate(3);
    Optimizer optimizer(optimizer_settings(0.1, 0.5), store);
    for (const Tensor* state : {&optimizer.first_moment(), &optimizer.second_moment(), &optimizer.ema()})
      EXPECT_EQ(state->elements(), 2 * 64) << "weight and bias take one aligned block each";
    const auto values = [&](const Parameter& parameter) { return parameter.master().to_vector<float>(); };
    const auto bits = [](const Tensor& tensor) {
      const auto* bytes = static_cast<const std::uint8_t*>(tensor.address());
      return std::vector<std::uint8_t>(bytes, bytes + tensor.bytes());
    };
    const auto frozen_before = values(frozen), weight_before = values(weight), bias_before = values(bias),
               gain_before = values(gain);
    const auto compute_before = bits(frozen.variable().value());
    store.gradients().copy_from(Tensor::from(std::vector<float>(128, 1.0f), {128}));
    for (int step = 0; step < 3; ++step) optimizer.step(Stream{}, 0.1, 1);
    {
      const Optimizer::WithEma guard(optimizer);
      EXPECT_EQ(values(frozen), frozen_before);
      EXPECT_EQ(bits(frozen.variable().value()), compute_before);
    }
    EXPECT_EQ(values(frozen), frozen_before) << "no weight decay either";
    EXPECT_EQ(values(gain), gain_before);
    EXPECT_EQ(bits(frozen.variable().value()), compute_before);
    EXPECT_NE(values(weight), weight_before);
    EXPECT_NE(values(bias), bias_before);
  }
}

TEST(OutlierFilter, ThresholdIsAMultipleOfTheMedian) {
  OutlierFilter filter(2);
  for (int i = 0; i < 8; ++i) filter.note(3);
  EXPECT_EQ(filter.threshold(), 0) << "too few";
  for (int i = 0; i < 8; ++i) filter.note(1);
  EXPECT_EQ(filter.threshold(), 4) << "the mean of the middle ones";
  filter.note(1);
  EXPECT_EQ(filter.threshold(), 2);
  for (int i = 0; i < 64; ++i) filter.note(5);
  EXPECT_EQ(filter.threshold(), 10) << "of the last 64";
  filter.forget();
  EXPECT_EQ(filter.threshold(), 0);
}

class OutlierFilterFile : public testing::WithTemporaryFolder {};

TEST_F(OutlierFilterFile, RejectsWhatItDoesNotSave) {
  const auto load = [&](const char* dtype, const std::vector<double>& norms) {
    CheckpointWriter writer(path("norms.h5"));
    const std::int64_t count = static_cast<std::int64_t>(norms.size());
    writer.tensor("recent_gradient_norms", dtype, std::span(&count, 1), norms.data());
    writer.finish();
    OutlierFilter filter(2);
    filter.load(CheckpointReader::open(path("norms.h5")));
    return filter.threshold();
  };
  EXPECT_EQ(load("float64", {}), 0);
  EXPECT_EQ(load("float64", std::vector<double>(64, 3)), 6);
  EXPECT_THROW(load("int64", std::vector<double>(64, 3)), UserError);
  EXPECT_THROW(load("float64", std::vector<double>(65, 3)), UserError);
  for (const double value : {std::nan(""), HUGE_VAL, -1.0})
    EXPECT_THAT(testing::message_of<UserError>([&] {
                  load("float64", {1, value});
                }),
                ::testing::HasSubstr("recent_gradient_norms"));
}

}  // namespace
}  // namespace furlong
