// What the definitions of two libraries promise beyond the figures of test_parity.cpp: gradients, masks, grouped heads,
// storage types.
#include "framework/ops/attention/compat/compat_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/framework/ops/op_testing.h"
#include "tests/reference/linear_attention.h"

namespace furlong {
namespace {

using ops::Compat;
using ops::CompatAttentionOptions;
using ops::FeatureMap;
using testing::normal_values;
using testing::relative_error;
using testing::tensor_of;
using testing::values_of;

struct Definition {
  const char* name;
  Compat library;
  FeatureMap map;
  bool stabilize;
};
const Definition definitions[] = {
    {"performer_softmax", Compat::performer_pytorch, FeatureMap::favor_positive, false},
    {"performer_relu", Compat::performer_pytorch, FeatureMap::favor_relu, false},
    {"fast_elu", Compat::fast_transformers, FeatureMap::elu1, false},
    {"fast_favor", Compat::fast_transformers, FeatureMap::favor_hyperbolic, false},
    {"fast_favor_stabilized", Compat::fast_transformers, FeatureMap::favor_hyperbolic, true},
    {"fast_relu", Compat::fast_transformers, FeatureMap::favor_relu, false}};

CompatAttentionOptions options_of(const Definition& definition, bool causal, std::int64_t n_heads = 1,
                                  std::int64_t n_kv_heads = 1) {
  CompatAttentionOptions options;
  options.library = definition.library;
  options.feature_map = definition.map;
  options.stabilize = definition.stabilize;
  options.causal = causal;
  options.n_heads = n_heads;
  options.n_kv_heads = n_kv_heads;
  return options;
}
Tensor directions_of(const Definition& definition, std::int64_t m, std::int64_t d, DType dtype = DType::float64) {
  return definition.map == FeatureMap::elu1 ? Tensor{} : tensor_of(normal_values(m * d, "directions"), {m, d}, dtype);
}
Tensor random(const Shape& shape, const char* stream, DType dtype = DType::float64) {
  return tensor_of(normal_values(shape.elements(), stream), shape, dtype);
}

class CompatAttention : public ::testing::TestWithParam<Definition> {};
INSTANTIATE_TEST_SUITE_P(Definitions, CompatAttention, ::testing::ValuesIn(definitions),
                         [](const auto& info) { return info.param.name; });

/// Not nearer to zero than elu's and relu's kinks allow finite differences of step 2e-4.
Tensor away_from_zero(const Shape& shape, const char* stream) {
  std::vector<double> values = normal_values(shape.elements(), stream);
  for (double& value : values) value += value < 0 ? -0.01 : 0.01;
  return tensor_of(values, shape, DType::float64);
}

TEST_P(CompatAttention, GradientsAreThoseOfFiniteDifferences) {
  const testing::WithThreads one(1);
  for (const bool causal : {false, true}) {
    const std::int64_t n = 6, n_key = causal ? 6 : 5;
    CompatAttentionOptions options = options_of(GetParam(), causal, 4, 2);
    // A detached maximum is no part of the function that finite differences see; without epsilons it cancels, and
    // nothing is left to differ.
    if (GetParam().map == FeatureMap::favor_positive) options.kernel_epsilon = options.denominator_epsilon = 0;
    ops::AttentionMask mask;
    std::vector<std::int32_t> keep(static_cast<std::size_t>(2 * n_key), 1);
    keep[2] = keep[static_cast<std::size_t>(n_key + 4)] = 0;
    mask.keys = Tensor::from(keep, {2, n_key});
    const Tensor directions = directions_of(GetParam(), 5, 3);
    const GradientCheckResult result = check_gradients(
        [&](Tape& tape, const std::vector<Variable>& inputs) {
          return ops::compat_attention(tape, inputs[0], inputs[1], inputs[2], directions, mask, options);
        },
        {away_from_zero({2, n, 12}, "query"), away_from_zero({2, n_key, 6}, "key"), random({2, n_key, 4}, "value")},
        2e-4);
    EXPECT_LT(result.worst_relative_error, 1e-8) << result.where;
  }
}

/// Without epsilons the libraries compute plain linear attention (the same ratio, whatever constants the features
/// carry).
TEST_P(CompatAttention, WithoutEpsilonsIsLinearAttention) {
  const std::int64_t n = 130, d = 5, m = 16;
  reference::LinearAttentionCase expected{{GetParam().map, {}, d, m, normal_values(m * d, "directions")}, n, n, 3};
  CompatAttentionOptions options = options_of(GetParam(), true);
  options.kernel_epsilon = options.denominator_epsilon = expected.features.options.kernel_epsilon = 0;
  const std::vector<double> query = normal_values(n * d, "query"), key = normal_values(n * d, "key"),
                            value = normal_values(n * 3, "value");
  for (const bool causal : {false, true}) {
    options.causal = expected.causal = causal;
    Tape tape{Stream{}};
    const Variable output = ops::compat_attention(tape, Variable(tensor_of(query, {1, n, d}, DType::float64)),
                                                  Variable(tensor_of(key, {1, n, d}, DType::float64)),
                                                  Variable(tensor_of(value, {1, n, 3}, DType::float64)),
                                                  directions_of(GetParam(), m, d), {}, options);
    EXPECT_LT(relative_error(values_of(output.value()), reference::linear_attention(expected, query, key, value)),
              1e-13);
  }
}

TEST_P(CompatAttention, GroupedHeadsAreRepeatedHeads) {
  const testing::WithThreads one(1);
  const std::int64_t n = 70, d = 4;
  const Tensor query = random({1, n, 4 * d}, "query"), key = random({1, n, 2 * d}, "key"),
               value = random({1, n, 2 * d}, "value");
  const auto repeated = [&](const Tensor& tensor) {
    const std::vector<double> values = values_of(tensor);
    std::vector<double> result;
    for (std::int64_t i = 0; i < n; ++i) {
      for (const std::int64_t head : {0, 0, 1, 1}) {
        const auto first = values.begin() + i * 2 * d + head * d;
        result.insert(result.end(), first, first + d);
      }
    }
    return tensor_of(result, {1, n, 4 * d}, DType::float64);
  };
  const Tensor directions = directions_of(GetParam(), 6, d);
  for (const bool causal : {false, true}) {
    Tape tape{Stream{}};
    const Variable grouped = ops::compat_attention(tape, Variable(query), Variable(key), Variable(value), directions,
                                                   {}, options_of(GetParam(), causal, 4, 2));
    const Variable full =
        ops::compat_attention(tape, Variable(query), Variable(repeated(key)), Variable(repeated(value)), directions, {},
                              options_of(GetParam(), causal, 4, 4));
    EXPECT_TRUE(testing::same_bits(grouped.value(), full.value()));
  }
}

TEST_P(CompatAttention, IsTheSameInEveryStorageTypeAndInstructionSet) {
  const testing::WithThreads one(1);
  const std::int64_t n = 100, d = 20, m = 37;
  const auto run = [&](DType dtype, DType stored) {
    const auto input = [&](const char* stream) {
      return Variable::leaf(
          tensor_of(testing::stored(normal_values(2 * n * 2 * d, stream), stored), {2, n, 2 * d}, dtype));
    };
    Tape tape{Stream{}};
    const Variable query = input("query"), key = input("key"), value = input("value");
    const Variable output =
        ops::compat_attention(tape, query, key, value, directions_of(GetParam(), m, d, DType::float32), {},
                              options_of(GetParam(), true, 2, 2));
    tape.backward({output}, {random(output.shape(), "d_output", dtype)});
    std::vector<std::vector<double>> results{values_of(output.value())};
    for (const Variable& leaf : {query, key, value}) results.push_back(values_of(leaf.gradient()));
    return results;
  };
  const auto exact = run(DType::float64, DType::float32);
  const auto exact_of_bfloat16 = run(DType::float64, DType::bfloat16);
  testing::for_each_instruction_set([&] {
    const auto single = run(DType::float32, DType::float32), half = run(DType::bfloat16, DType::bfloat16);
    for (std::size_t i = 0; i < exact.size(); ++i) {
      EXPECT_LT(relative_error(single[i], exact[i]), 1e-5) << i;
      // The output is rounded once. Gradients are made from rounded outputs and gradients, and rounded once more.
      EXPECT_LT(relative_error(half[i], exact_of_bfloat16[i]),
                (i == 0 ? 1.01 : 4) * testing::rounding_unit(DType::bfloat16))
          << i;
    }
  });
}

TEST_P(CompatAttention, ThreadsChangeNoBitAndGradientsAreAddedUp) {
  const std::int64_t n = 75, d = 8, m = 11;
  const auto run = [&](int threads, bool twice) {
    const testing::WithThreads with(threads);
    Tape tape{Stream{}};
    const Variable fused = Variable::leaf(random({3, n, 3 * 2 * d}, "fused", DType::float32));
    const auto parts = tape.split_last(fused, {2 * d, 2 * d, 2 * d});  // views into one tensor, in value and gradient
    std::vector<Variable> outputs;
    for (int time = 0; time < (twice ? 2 : 1); ++time)
      outputs.push_back(ops::compat_attention(tape, parts[0], parts[1], parts[2],
                                              directions_of(GetParam(), m, d, DType::float32), {},
                                              options_of(GetParam(), true, 2, 2)));
    std::vector<Tensor> gradients(outputs.size(), random(outputs[0].shape(), "d_output", DType::float32));
    tape.backward(outputs, gradients);
    return fused.gradient();
  };
  const Tensor once = run(1, false);
  EXPECT_TRUE(testing::same_bits(once, run(2, false)));
  std::vector<double> doubled = values_of(once);
  for (double& value : doubled) value *= 2;
  EXPECT_LT(relative_error(values_of(run(2, true)), doubled), 1e-6);
}

/// Their masks differ: performer-pytorch empties values and leaves keys in the denominator.
TEST(CompatAttentionDefinition, MasksActAsInTheLibrary) {
  const std::int64_t n = 9, kept = 6, d = 4;
  std::vector<std::int32_t> keep(static_cast<std::size_t>(n), 0);
  std::fill_n(keep.begin(), kept, 1);
  ops::AttentionMask mask;
  mask.keys = Tensor::from(keep, {1, n});
  const Tensor query = random({1, n, d}, "query"), key = random({1, n, d}, "key"),
               ones = tensor_of(std::vector<double>(n * d, 1.0), {1, n, d}, DType::float64);
  const auto run = [&](const Definition& definition) {
    Tape tape{Stream{}};
    CompatAttentionOptions options = options_of(definition, false);
    options.denominator_epsilon = 0;
    return values_of(ops::compat_attention(tape, Variable(query), Variable(key), Variable(ones),
                                           directions_of(definition, 6, d), mask, options)
                         .value());
  };
  for (const double output : run(definitions[1])) EXPECT_LT(output, 0.95);          // a mean of ones and zeros
  for (const double output : run(definitions[2])) EXPECT_NEAR(output, 1.0, 1e-14);  // a mean of the kept ones
}

TEST(CompatAttentionErrors, NameWhatALibraryHas) {
  const auto message = [](const auto& body) -> std::string {
    try {
      body();
    } catch (const UserError& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(message([] { ops::compat_library("performers"); }), HasSubstr("performer_pytorch and fast_transformers"));
  EXPECT_EQ(ops::compat_library("fast_transformers"), Compat::fast_transformers);
  EXPECT_THAT(
      message([] { ops::check_compat(Compat::fast_transformers, FeatureMap::favor_positive); }),
      HasSubstr("fast_transformers has no feature map favor_positive; it has elu1, favor_hyperbolic, favor_relu"));
  EXPECT_THAT(message([] { ops::check_compat(Compat::performer_pytorch, FeatureMap::elu1); }),
              HasSubstr("it has favor_positive, favor_relu"));

  Tape tape{Stream{}};
  const Variable x(random({1, 4, 3}, "query"));
  ops::AttentionMask mask;
  mask.documents = Tensor::from(std::vector<std::int32_t>{0, 0, 1, 1}, {1, 4});
  EXPECT_THAT(message([&] { ops::compat_attention(tape, x, x, x, {}, mask, options_of(definitions[2], true)); }),
              HasSubstr("packed documents"));
  EXPECT_THROW(ops::compat_attention(tape, x, x, x, {}, {}, options_of(definitions[0], true)), ContractError);
  EXPECT_THROW(ops::compat_attention(tape, x, x, x, random({6, 4}, "directions"), {}, options_of(definitions[0], true)),
               ContractError);
  const Variable longer(random({1, 5, 3}, "query"));
  EXPECT_THROW(ops::compat_attention(tape, longer, x, x, {}, {}, options_of(definitions[2], true)), ContractError);
}

TEST(CompatAttentionErrors, RefuseGpus) {
  for (const DeviceType type : {DeviceType::cuda, DeviceType::simulated}) {
    Tape tape(Stream{Device{type, 0}});
    const Variable x(random({1, 4, 6}, "x"));
    try {
      ops::compat_attention(tape, x, x, x, Tensor{}, {}, options_of(definitions[2], true));
      ADD_FAILURE() << "computed on " << tape.device().text();
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(),
                  ::testing::HasSubstr("compat: fast_transformers cannot be had on " + tape.device().text()));
      EXPECT_THAT(error.what(), ::testing::HasSubstr("use device: cpu"));
    }
  }
}

}  // namespace
}  // namespace furlong
