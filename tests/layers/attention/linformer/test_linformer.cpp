#include <gtest/gtest.h>

#include <cmath>

#include "framework/autodiff/gradient_check.h"
#include "framework/primitives/arithmetic.h"
#include "layers/attention/linformer/linformer_mechanism.h"
#include "tests/reference/sequence_projection.h"
#include "tests/reference/softmax_attention.h"
#include "tests/reference/values.h"
#include "tests/temporary_folder.h"

namespace furlong::layers {
namespace {

using namespace reference;

constexpr std::int64_t n_heads = 4, n_kv_heads = 2, d = 3, longest = 11;

AttentionConfig config_of(const std::string& projection, const std::string& sharing) {
  AttentionConfig config;
  config.mechanism = "linformer";
  config.projection = value_named<ops::SequenceProjection>(projection, "projection");
  config.sharing = value_named<ProjectionSharing>(sharing, "sharing");
  config.projected_length = 4;
  config.max_sequence_length = longest;
  config.n_heads = n_heads;
  config.n_kv_heads = n_kv_heads;
  config.d_head = d;
  config.causal = false;
  return config;
}

/// The Linformer layers of one model.
struct Layers {
  ParameterStore store;
  std::vector<std::unique_ptr<AttentionMechanism>> mechanisms;

  Layers(const AttentionConfig& config, std::int64_t count = 1, DType dtype = DType::float64) : store(dtype, Device{}) {
    for (std::int64_t i = 0; i < count; ++i) {
      mechanisms.push_back(make_attention(store, "blocks." + std::to_string(i) + ".attention", config));
    }
    store.allocate(7);
  }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const Parameter& parameter : store.parameters())
      names.push_back(parameter.name() + " " + parameter.shape().text());
    return names;
  }
  Variable forward(Tape& tape, const std::vector<Variable>& inputs, const Tensor& keys = {}) const {
    ForwardContext context{tape};
    context.attention_mask.keys = keys;
    return mechanisms[0]->forward(context, inputs[0], inputs[1], inputs[2]);
  }
};

std::vector<Tensor> inputs_of(std::int64_t batch, std::int64_t n, DType dtype = DType::float64) {
  return {normal_tensor({batch, n, n_heads * d}, dtype, "query"),
          normal_tensor({batch, n, n_kv_heads * d}, dtype, "key"),
          normal_tensor({batch, n, n_kv_heads * d}, dtype, "value")};
}
std::vector<Variable> constants(const std::vector<Tensor>& tensors) { return {tensors.begin(), tensors.end()}; }

/// Masks keys 0 to 3 (the first window of every projection), 6 and the end in sequence 0, and all keys in the last one.
Tensor some_keys(std::int64_t batch, std::int64_t n) {
  std::vector<std::int32_t> keys(static_cast<std::size_t>(batch * n), 1);
  for (std::int64_t t = 0; t < n; ++t) {
    if (t < 4 || t == 6 || t == n - 1) keys[static_cast<std::size_t>(t)] = 0;
    keys[static_cast<std::size_t>((batch - 1) * n + t)] = 0;
  }
  return Tensor::from(keys, {batch, n});
}

std::vector<double> slice(const std::vector<double>& values, std::int64_t index, std::int64_t count) {
  const auto length = static_cast<std::int64_t>(values.size()) / count;
  return {values.begin() + index * length, values.begin() + (index + 1) * length};
}

/// Reference: softmax(q (E k)ᵀ/√d) (F v), one sequence at a time, without the rows that only masked keys contribute to.
std::vector<double> expected(const AttentionConfig& config, const std::vector<Tensor>& inputs,
                             const std::vector<std::vector<double>>& weights, const Tensor& keys) {
  const std::int64_t batch = inputs[0].extent(0), n = inputs[0].extent(1), width = n_kv_heads * d;
  const ops::SequenceProjectionOptions options{config.projection, n_kv_heads, config.projected_length,
                                               config.max_sequence_length};
  const std::vector<std::int32_t> kept = keys.defined() ? keys.to_vector<std::int32_t>() : std::vector<std::int32_t>{};
  std::vector<double> projected[2];
  for (std::size_t i : {0, 1}) {
    projected[i] =
        reference::sequence_projection(doubles(inputs[1 + i]), weights[i], config.sharing != ProjectionSharing::none,
                                       kept, static_cast<std::size_t>(batch), static_cast<std::size_t>(n), d, options);
  }
  const std::int64_t rows = options.rows(n),
                     window = options.kind == ops::SequenceProjection::linear ? n : options.stride();
  std::vector<double> output;
  for (std::int64_t b = 0; b < batch; ++b) {
    std::vector<double> seen[2];
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t first = options.kind == ops::SequenceProjection::linear ? 0 : row * window;
      bool any = kept.empty();
      for (std::int64_t t = first; t < std::min(first + window, n); ++t)
        any = any || kept[static_cast<std::size_t>(b * n + t)] != 0;
      for (std::size_t i : {0, 1}) {
        const std::vector<double> values = slice(projected[i], b * rows + row, batch * rows);
        if (any) seen[i].insert(seen[i].end(), values.begin(), values.end());
      }
    }
    SoftmaxAttentionCase attention{1, n,    static_cast<std::int64_t>(seen[0].size()) / width, n_heads, n_kv_heads, d,
                                   d, false};
    std::vector<double> result(static_cast<std::size_t>(n * n_heads * d), 0.0);
    if (!seen[0].empty())
      result = reference::softmax_attention(attention, slice(doubles(inputs[0]), b, batch), seen[0], seen[1]).output;
    output.insert(output.end(), result.begin(), result.end());
  }
  return output;
}

/// Returns the weights of the key and the value projection; empty for a mean.
std::vector<std::vector<double>> weights_of(const Layers& layers) {
  std::vector<std::vector<double>> weights;
  for (const Parameter& parameter : layers.store.parameters()) weights.push_back(doubles(parameter.variable().value()));
  if (weights.empty()) return {{}, {}};
  return {weights.front(), weights.back()};
}

TEST(Linformer, SharingDeterminesParameters) {
  const auto names = [](const std::string& projection, const std::string& sharing) {
    return Layers(config_of(projection, sharing), 2).names();
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names("linear", "none"), (Names{"blocks.0.attention.key_projection.weight [2, 4, 11]",
                                            "blocks.0.attention.value_projection.weight [2, 4, 11]",
                                            "blocks.1.attention.key_projection.weight [2, 4, 11]",
                                            "blocks.1.attention.value_projection.weight [2, 4, 11]"}));
  EXPECT_EQ(names("linear", "heads"), (Names{"blocks.0.attention.key_projection.weight [4, 11]",
                                             "blocks.0.attention.value_projection.weight [4, 11]",
                                             "blocks.1.attention.key_projection.weight [4, 11]",
                                             "blocks.1.attention.value_projection.weight [4, 11]"}));
  EXPECT_EQ(names("linear", "key_value"), (Names{"blocks.0.attention.sequence_projection.weight [4, 11]",
                                                 "blocks.1.attention.sequence_projection.weight [4, 11]"}));
  EXPECT_EQ(names("linear", "layers"), (Names{"attention.sequence_projection.weight [4, 11]"}));
  // Windows of ⌈11 / 4⌉ = 3 tokens; each of the d or heads·d channels has its own taps.
  EXPECT_EQ(names("convolution", "none").front(), "blocks.0.attention.key_projection.weight [6, 3]");
  EXPECT_EQ(names("convolution", "layers"), (Names{"attention.sequence_projection.weight [3, 3]"}));
  for (const std::string& sharing : names_of_all<ProjectionSharing>()) EXPECT_TRUE(names("mean", sharing).empty());
}

TEST(Linformer, InitializationPreservesScale) {
  AttentionConfig config = config_of("linear", "key_value");
  config.projected_length = 64;
  config.max_sequence_length = 256;
  const Layers layers(config);
  double sum = 0;
  const std::vector<double> weight = weights_of(layers)[0];
  for (double value : weight) sum += value * value;
  // With 16,384 normal values the mean square is within 5% of its expectation: 4.5 standard deviations.
  EXPECT_NEAR(sum / (64 * 256) * (64 + 256), 1, 0.05);
}

TEST(Linformer, DefaultProjectedLengthIsAQuarter) {
  AttentionConfig config;
  for (const auto& [length, r] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 1}, {512, 128}, {1024, 256}, {65536, 256}}) {
    config.max_sequence_length = length;
    EXPECT_EQ(resolved_projected_length(config), r);
  }
  config.projected_length = 17;
  EXPECT_EQ(resolved_projected_length(config), 17);
}

template <class Body>
void for_each_kind(const Body& body) {
  for (const std::string& projection : names_of_all<ops::SequenceProjection>()) {
    for (const std::string& sharing : names_of_all<ProjectionSharing>()) {
      SCOPED_TRACE(projection + " " + sharing);
      body(config_of(projection, sharing));
    }
  }
}

TEST(Linformer, MatchesReference) {
  for_each_kind([](const AttentionConfig& config) {
    for (DType dtype : {DType::float64, DType::float32, DType::bfloat16}) {
      const Layers layers(config, 1, dtype);
      for (std::int64_t n : {longest, std::int64_t{9}, std::int64_t{5}, std::int64_t{1}}) {
        const std::vector<Tensor> inputs = inputs_of(3, n, dtype);
        for (const Tensor& keys : {Tensor{}, some_keys(3, n)}) {
          Tape tape{Stream{}};
          const Tensor output = layers.forward(tape, constants(inputs), keys).value();
          // Two sums of at most 11 terms and a softmax over at most 4 rows. bfloat16 rounds E k, F v and the output; a
          // relative error of 2^-8 in a score of order 1 causes the same error in its weight.
          const double tolerance = dtype == DType::bfloat16 ? 5 * 0x1p-8 : 30 * rounding_of(dtype);
          EXPECT_LE(relative_difference(output, expected(config, inputs, weights_of(layers), keys)), tolerance)
              << name_of(dtype) << " n = " << n << (keys.defined() ? " masked" : "");
        }
      }
    }
  });
}

TEST(Linformer, MaskedKeysHaveNoInfluence) {
  for_each_kind([](const AttentionConfig& config) {
    const Layers layers(config, 1, DType::float32);
    const Tensor keys = some_keys(3, 9);
    const auto run = [&](double poison) {
      std::vector<Variable> inputs;
      for (const Tensor& tensor : inputs_of(3, 9, DType::float32)) inputs.push_back(Variable::leaf(tensor));
      for (std::size_t i : {1, 2}) {
        for (std::int64_t t : {0, 1, 2, 3, 6, 8}) {
          if (poison != 0) ops::fill(Stream{}, inputs[i].value().narrow(0, 0, 1).narrow(1, t, 1), poison);
        }
      }
      Tape tape{Stream{}};
      const Variable output = layers.forward(tape, inputs, keys);
      tape.backward({output}, {normal_tensor(output.shape(), DType::float32, "d_output")});
      return std::vector{doubles(output.value()), doubles(inputs[0].gradient()), doubles(inputs[1].gradient()),
                         doubles(inputs[2].gradient())};
    };
    const auto clean = run(0);
    EXPECT_EQ(run(NAN), clean);
    EXPECT_EQ(run(INFINITY), clean);
    // The last sequence attends to nothing: its output and its gradients are zero.
    for (const auto& values : clean) {
      for (double value : slice(values, 2, 3)) EXPECT_EQ(value, 0);
    }
  });
}

/// All keys of sequence 1 are masked, so only sequence 0 is differentiated. One thread, because the tensors are tiny.
TEST(Linformer, GradientsOfInputsMatchFiniteDifferences) {
  for (const char* projection : {"linear", "mean", "convolution"}) {
    const Layers layers(config_of(projection, "heads"));
    for (const Tensor& keys : {Tensor{}, some_keys(2, 7).narrow(0, 0, 1)}) {
      const auto function = [&](Tape& tape, const std::vector<Variable>& inputs) {
        return layers.forward(tape, inputs, keys);
      };
      const auto result = with_threads(1, [&] { return check_gradients(function, inputs_of(1, 7)); });
      EXPECT_LE(result.worst_relative_error, 1e-9) << projection << ": " << result.where;
    }
  }
}

/// Loss of two layers, the second on the output of the first, projected on a fixed vector.
double projected_output(const Layers& layers, const Tensor& keys, bool backward) {
  const std::vector<Tensor> inputs = inputs_of(2, 9);
  Tape tape{Stream{}};
  ForwardContext context{tape};
  context.attention_mask.keys = keys;
  const Variable first =
      layers.mechanisms[0]->forward(context, Variable(inputs[0]), Variable(inputs[1]), Variable(inputs[2]));
  const Variable output = layers.mechanisms[1]->forward(context, first, Variable(inputs[2]), Variable(inputs[1]));
  const Tensor direction = normal_tensor(output.shape(), DType::float64, "direction");
  if (backward) tape.backward({output}, {direction});
  double sum = 0;
  for (std::int64_t i = 0; i < direction.elements(); ++i)
    sum += output.value().data<double>()[i] * direction.data<double>()[i];
  return sum;
}

/// Returns fourth-order central differences over one parameter.
std::vector<double> numeric_gradient(const Layers& layers, const Parameter& parameter, const Tensor& keys) {
  double* values = parameter.master().data<double>();
  const double h = 1e-3;
  std::vector<double> gradient;
  for (std::int64_t i = 0; i < parameter.shape().elements(); ++i) {
    const double before = values[i];
    const auto at = [&](double value) {
      values[i] = value;
      return projected_output(layers, keys, false);
    };
    gradient.push_back((8 * (at(before + h) - at(before - h)) - (at(before + 2 * h) - at(before - 2 * h))) / (12 * h));
    values[i] = before;
  }
  return gradient;
}

TEST(Linformer, GradientsOfProjectionsMatchFiniteDifferences) {
  with_threads(1, [] {
    for_each_kind([](const AttentionConfig& config) {
      if (config.projection == ops::SequenceProjection::mean) return;
      const Layers layers(config, 2);
      const Tensor keys = some_keys(2, 9);
      projected_output(layers, keys, true);
      for (const Parameter& parameter : layers.store.parameters()) {
        EXPECT_LE(relative_difference(parameter.gradient(), numeric_gradient(layers, parameter, keys)), 1e-9)
            << parameter.name();
      }
    });
  });
}

TEST(Linformer, SharedProjectionAccumulatesGradients) {
  const Layers one(config_of("linear", "layers"), 2), two(config_of("linear", "key_value"), 2);
  for (const Parameter& parameter : two.store.parameters())
    parameter.master().copy_from(one.store.parameters()[0].master());
  EXPECT_EQ(projected_output(one, {}, true), projected_output(two, {}, true));
  const Tensor sum = two.store.parameters()[0].gradient().clone();
  ops::add(Stream{}, sum, two.store.parameters()[1].gradient(), GradientMode::accumulate);
  EXPECT_LE(relative_difference(one.store.parameters()[0].gradient(), doubles(sum)), 1e-14);
}

void expect_refused(const std::function<void()>& what, const std::vector<std::string>& words) {
  const std::string text = furlong::testing::message_of<UserError>(what);
  for (const std::string& word : words) EXPECT_NE(text.find(word), std::string::npos) << text;
}

TEST(Linformer, RejectsInvalidConfigs) {
  const auto make = [](const auto& change) {
    AttentionConfig config = config_of("linear", "heads");
    change(config);
    return [config] { Layers{config}; };
  };
  expect_refused(make([](AttentionConfig& config) { config.causal = true; }),
                 {"causal", "mixes all positions", "later tokens"});
  expect_refused(make([](AttentionConfig& config) { config.projected_length = 12; }), {"projected_length", "12", "11"});
  expect_refused(make([](AttentionConfig& config) { config.projected_length = -1; }), {"projected_length", "-1"});
}

TEST(Linformer, RejectsUnsupportedUses) {
  const Layers layers(config_of("linear", "heads"));
  const auto forward = [&](std::int64_t n, const Tensor& documents) {
    return [&, n, documents] {
      Tape tape{Stream{}};
      ForwardContext context{tape};
      context.attention_mask.documents = documents;
      const std::vector<Variable> inputs = constants(inputs_of(1, n));
      layers.mechanisms[0]->forward(context, inputs[0], inputs[1], inputs[2]);
    };
  };
  EXPECT_NO_THROW(forward(longest, {})());
  expect_refused(forward(longest + 1, {}), {"blocks.0.attention", "12 tokens", "at most 11", "max_sequence_length"});
  expect_refused(forward(3, Tensor::zeros({1, 3}, DType::int32)), {"documents", "mixes all positions"});
  expect_refused([&] { layers.mechanisms[0]->new_state(1, 8, DType::float64, Device{}); },
                 {"generate", "whole sequence"});

  struct State : AttentionState {
    std::int64_t bytes() const override { return 0; }
    std::unique_ptr<AttentionState> repeated(const Stream&, std::int64_t) const override { return nullptr; }
  } state;
  const std::vector<Tensor> inputs = inputs_of(1, 3);
  expect_refused([&] { layers.mechanisms[0]->extend(Stream{}, inputs[0], inputs[1], inputs[2], state); },
                 {"generate", "whole sequence"});
  expect_refused(
      [&] {
        Tape tape{Stream{}};
        ForwardContext context{tape};
        layers.mechanisms[0]->forward(context, Variable(inputs[0]), Variable(inputs[1]), Variable(inputs[2]), &state);
      },
      {"recurrent state", "whole sequence"});
}

TEST(Linformer, RejectsSharedProjectionOfOtherShape) {
  ParameterStore store(DType::float32, Device{});
  AttentionConfig config = config_of("convolution", "layers");
  const auto first = make_attention(store, "a", config);
  config.projected_length = 2;
  expect_refused([&] { make_attention(store, "b", config); },
                 {"attention.sequence_projection.weight", "[3, 3]", "[3, 6]"});
}

}  // namespace
}  // namespace furlong::layers
