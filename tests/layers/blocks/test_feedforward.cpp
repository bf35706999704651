// The feedforward of a block: one fused op if possible, equal to its separate ops.
#include "layers/blocks/feedforward.h"

#include <gtest/gtest.h>

#include "framework/ops/elementwise/weighted_sum.h"
#include "framework/primitives/arithmetic.h"

namespace furlong::layers {
namespace {

struct Result {
  std::map<std::string, std::int64_t> kept;
  std::vector<float> y, d_x;
  std::map<std::string, std::vector<float>> gradients;
};

Tensor values(const Shape& shape, const char* name) {
  std::vector<float> numbers(static_cast<std::size_t>(shape.elements()));
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = random_normal({3, 0, random_stream(name)}, i);
  return Tensor::from(numbers, shape);
}

/// Runs forward and backward of `map` on the parameters of a feedforward.
template <class Map>
Result run(Activation activation, bool bias, const AdapterConfig& adapter, const Map& map) {
  ParameterStore store(DType::float32, Device{});
  ModelConfig config;
  config.d_model = 12;
  config.d_feedforward = 20;
  config.activation = activation;
  config.bias = bias;
  config.initializer_range = 0.3;
  config.adapter = adapter;
  const FeedForward layer(store, "ff", config);
  store.allocate(8);
  for (const Parameter& parameter : store.parameters()) {  // biases and adapters are initialized to zero
    const Tensor drawn = values(parameter.shape(), parameter.name().c_str());
    ops::add(Stream{}, parameter.master(), drawn, GradientMode::accumulate);
  }
  store.refresh_compute_values(Stream{});
  store.forget_gradients();
  Tape tape(Stream{});
  tape.set_recomputes_values(true);
  ForwardContext context{tape, true};
  const Variable x = Variable::leaf(values({2, 7, 12}, "x"));
  const Variable y = map(context, layer, store, x);
  Result result{tape.saved_bytes(), y.value().to_vector<float>(), {}, {}};
  tape.backward({y}, {values({2, 7, 12}, "d_y")});
  result.d_x = x.gradient().to_vector<float>();
  for (const Parameter& parameter : store.parameters())
    result.gradients[parameter.name()] = parameter.gradient().to_vector<float>();
  return result;
}

Variable whole(ForwardContext& context, const FeedForward& layer, ParameterStore&, const Variable& x) {
  return layer.forward(context, x);
}

TEST(FeedForward, FusedOpMatchesSeparateOps) {
  for (const Activation activation : all_values<Activation>()) {
    if (is_gated(activation)) continue;
    const ops::ActivationKind kind = kind_of(activation);
    for (bool bias : {false, true}) {
      const Result found = run(activation, bias, {}, whole);
      const Result expected =
          run(activation, bias, {},
              [&](ForwardContext& context, const FeedForward&, ParameterStore& store, const Variable& x) {
                const auto linear = [&](const Variable& in, const std::string& name) {
                  if (!bias) return ops::linear(context.tape, in, store.find(name + ".weight").variable(), nullptr);
                  const Variable added = store.find(name + ".bias").variable();
                  return ops::linear(context.tape, in, store.find(name + ".weight").variable(), &added);
                };
                return linear(ops::activation(context.tape, linear(x, "ff.input"), kind), "ff.output");
              });
      EXPECT_EQ(found.kept.size(), 1u);
      ASSERT_TRUE(found.kept.contains("feed_forward"));
      // x, the activation's input and two weights, as the three separate ops store them.
      std::int64_t of_parts = 0;
      for (const auto& [name, bytes] : expected.kept) of_parts += bytes;
      EXPECT_EQ(found.kept.at("feed_forward"), of_parts);
      EXPECT_EQ(found.y, expected.y) << name_of(activation);
      EXPECT_EQ(found.d_x, expected.d_x) << name_of(activation);
      EXPECT_EQ(found.gradients, expected.gradients) << name_of(activation);
    }
  }
}

TEST(FeedForward, GatesAndAdaptersUseSeparateOps) {
  for (const Activation gated : {Activation::swiglu, Activation::geglu})
    EXPECT_FALSE(run(gated, true, {}, whole).kept.contains("feed_forward")) << name_of(gated);
  const AdapterConfig adapter{.rank = 2, .alpha = 6};
  const Result found = run(Activation::gelu, true, adapter, whole);
  EXPECT_FALSE(found.kept.contains("feed_forward"));
  const Result expected =
      run(Activation::gelu, true, adapter,
          [&](ForwardContext& context, const FeedForward&, ParameterStore& store, const Variable& x) {
            const auto linear = [&](const Variable& in, const std::string& name) {
              const Variable bias = store.find(name + ".bias").variable();
              const Variable y = ops::linear(context.tape, in, store.find(name + ".weight").variable(), &bias);
              const Variable inside =
                  ops::linear(context.tape, in, store.find(name + ".lora_a.weight").variable(), nullptr);
              const Variable beside =
                  ops::linear(context.tape, inside, store.find(name + ".lora_b.weight").variable(), nullptr);
              return ops::weighted_sum(context.tape, y, beside, adapter.scale());
            };
            return linear(ops::activation(context.tape, linear(x, "ff.input"), ops::ActivationKind::gelu), "ff.output");
          });
  EXPECT_EQ(found.y, expected.y);
  EXPECT_EQ(found.gradients, expected.gradients);
}

}  // namespace
}  // namespace furlong::layers
