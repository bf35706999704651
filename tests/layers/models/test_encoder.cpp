#include "layers/models/encoder.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "framework/autodiff/gradient_check.h"
#include "tests/layers/models/decoder_testing.h"
#include "tests/reference/values.h"

namespace furlong::layers {
namespace {

using namespace furlong::layers::testing;
using reference::doubles;
using reference::relative_difference;

enum class Head { masked_tokens, classification, matching, numbers, sets, tokens };

ModelConfig encoder_config(const Attending& attending, Position position = Position::rotary) {
  ModelConfig config = small_config(attending, position, 0, Style::llama);
  config.architecture = Architecture::encoder;
  if (attending.mechanism == "linformer") config.attention.projected_length = 5;
  return config;
}

struct TestEncoder {
  ParameterStore store;
  Head head;
  Encoder encoder;
  TestEncoder(const ModelConfig& config, Head which, ops::Pooling pooling = ops::Pooling::mean)
      : store(DType::float64, Device{}), head(which), encoder(store, config, head_of(which, pooling)) {
    store.allocate(5);
    encoder.redraw(5, 0);
  }
  static std::optional<LabelHeadConfig> head_of(Head head, ops::Pooling pooling) {
    if (head == Head::masked_tokens) return std::nullopt;
    const LabelKind kind = head == Head::numbers  ? LabelKind::numbers
                           : head == Head::sets   ? LabelKind::sets
                           : head == Head::tokens ? LabelKind::tokens
                                                  : LabelKind::classes;
    return LabelHeadConfig{3, head == Head::matching, pooling, kind};
  }
};

/// Returns the labels `goal`, with three values for each sample: 0.5 and -2 (numbers), or 1 and 0 (sets).
LabelTargets targets_of(Head head, const Tensor& goal) {
  if (head != Head::numbers && head != Head::sets) return {goal, {}};
  std::vector<float> values;
  for (std::int64_t i = 0; i < 3 * goal.elements(); ++i)
    values.push_back(i % 2 == 0 ? (head == Head::sets ? 1.0F : 0.5F) : (head == Head::sets ? 0.0F : -2.0F));
  return {goal, Tensor::from(reference::value_bits(values), {goal.elements(), 3})};
}

/// Returns rows of `tokens` with `extra` positions appended, filled with `filler`.
Tensor padded(const Tensor& tokens, std::int64_t extra, std::int32_t filler) {
  const std::int64_t rows = tokens.extent(0), n = tokens.extent(1);
  const auto values = tokens.to_vector<std::int32_t>();
  std::vector<std::int32_t> longer(static_cast<std::size_t>(rows * (n + extra)), filler);
  for (std::int64_t row = 0; row < rows; ++row)
    std::copy_n(values.begin() + row * n, n, longer.begin() + row * (n + extra));
  return Tensor::from(longer, {rows, n + extra});
}

Tensor mask_of(std::int64_t rows, std::int64_t n, std::int64_t kept) {
  std::vector<std::int32_t> values(static_cast<std::size_t>(rows * n));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int64_t>(i) % n < kept ? 1 : 0;
  return Tensor::from(values, {rows, n});
}

Tensor ones(std::int64_t rows, std::int64_t n) { return mask_of(rows, n, n); }

/// Returns the loss under a mask (undefined: no mask), without recording.
double loss_under(TestEncoder& model, const Tensor& tokens, const Tensor& goal, const Tensor& mask) {
  Tape tape(Stream{});
  const Tape::NoGradient guard(tape);
  ForwardContext context{tape};
  context.attention_mask.keys = mask;
  const bool labels = model.head != Head::masked_tokens;
  return scalar((labels ? model.encoder.label_loss(context, tokens, targets_of(model.head, goal))
                        : model.encoder.masked_token_loss(context, tokens, goal))
                    .loss.value());
}

std::vector<double> hidden_under(TestEncoder& model, const Tensor& tokens, const Tensor& mask) {
  Tape tape(Stream{});
  const Tape::NoGradient guard(tape);
  ForwardContext context{tape};
  context.attention_mask.keys = mask;
  return doubles(model.encoder.hidden(context, tokens).value());
}

std::vector<Attending> all_encoders() {
  std::vector<Attending> all = all_attending();
  all.push_back({"linformer", ""});
  return all;
}

class EveryEncoder : public ::testing::TestWithParam<Attending> {};
INSTANTIATE_TEST_SUITE_P(AllNames, EveryEncoder, ::testing::ValuesIn(all_encoders()),
                         [](const auto& instance) { return instance.param.name(); });

TEST_P(EveryEncoder, AttendsInBothDirections) {
  TestEncoder model(encoder_config(GetParam()), Head::masked_tokens);
  const Tensor tokens = random_tokens(1, 9, model.encoder.config());
  auto values = tokens.to_vector<std::int32_t>();
  const std::vector<double> before = hidden_under(model, tokens, {});
  values.back() = (values.back() + 1) % 11;
  const std::vector<double> after = hidden_under(model, Tensor::from(values, {1, 9}), {});
  double first = 0;
  for (std::size_t i = 0; i < 10; ++i) first = std::max(first, std::abs(before[i] - after[i]));
  EXPECT_GT(first, 1e-6);  // the first token attends to the last
}

TEST_P(EveryEncoder, PaddingChangesNothing) {
  for (const Position position : {Position::rotary, Position::learned}) {
    for (const auto& [head, pooling] :
         {std::pair{Head::masked_tokens, ops::Pooling::mean}, std::pair{Head::classification, ops::Pooling::mean},
          std::pair{Head::classification, ops::Pooling::first}, std::pair{Head::matching, ops::Pooling::mean},
          std::pair{Head::numbers, ops::Pooling::mean}, std::pair{Head::sets, ops::Pooling::first},
          std::pair{Head::tokens, ops::Pooling::mean}}) {
      TestEncoder model(encoder_config(GetParam(), position), head, pooling);
      const Tensor tokens = random_tokens(4, 7, model.encoder.config());
      const bool matching = head == Head::matching;
      const Tensor labels = head == Head::numbers || head == Head::sets
                                ? Tensor::from(std::vector<std::int32_t>{0, -1, 0, 0}, {4})
                                : reference::integer_tensor({matching ? 2 : 4}, 0, 3, "labels");
      const Tensor targets = head == Head::tokens ? reference::integer_tensor({4, 7}, -1, 3, "targets")
                                                  : random_targets(4, 7, model.encoder.config());
      const bool of_tokens = head == Head::masked_tokens || head == Head::tokens;
      const Tensor goal = of_tokens ? targets : labels;
      const Tensor padded_goal = of_tokens ? padded(targets, 4, -1) : labels;
      const double expected = loss_under(model, tokens, goal, {});
      EXPECT_NEAR(loss_under(model, tokens, goal, ones(4, 7)), expected, 1e-12);
      // The result does not depend on the tokens in the padding.
      for (const std::int32_t filler : {0, 10})
        EXPECT_NEAR(loss_under(model, padded(tokens, 4, filler), padded_goal, mask_of(4, 11, 7)), expected, 1e-12)
            << name_of(position);
      EXPECT_GT(std::abs(loss_under(model, padded(tokens, 4, 0), padded_goal, {}) - expected), 1e-8);
    }
  }
}

// As docs/config.md says of optimizer.weight_decay.
TEST_P(EveryEncoder, WeightDecayAppliesToMatricesAlone) {
  ModelConfig config = encoder_config(GetParam());
  config.bias = true;
  config.short_convolution = 3;
  config.adapter.rank = 2;
  const TestEncoder model(config, Head::classification);
  std::set<std::string> without;
  for (const Parameter& parameter : model.store.parameters()) {
    if (!parameter.decays() && !model.store.is_buffer(parameter))
      without.insert(parameter.name().substr(parameter.name().find_last_of('.', parameter.name().rfind('.') - 1) + 1));
  }
  std::set<std::string> expected{"attention_norm.gain",      "attention_norm.bias", "feedforward_norm.gain",
                                 "feedforward_norm.bias",    "final_norm.gain",     "final_norm.bias",
                                 "query_key_value.bias",     "output.bias",         "input.bias",
                                 "short_convolution.weight", "classifier.bias"};
  const auto of_map = mechanisms_of(config.attention);
  const bool has_window = std::any_of(of_map.begin(), of_map.end(), [](const MechanismInfo* info) {
    return std::string_view(info->name) == "windowed";
  });
  if (has_window) expected.insert(GetParam().option == "recurrent_heads" ? "heads_0_1.gate" : "attention.gate");
  if (GetParam().feature_map == "hedgehog") expected.insert({"query_features.weight", "key_features.weight"});
  if (GetParam().option == "unnormalized") expected.insert("output_norm.weight");
  EXPECT_EQ(without, expected);
}

TEST_P(EveryEncoder, PaddingDoesNotAffectGradients) {
  TestEncoder model(encoder_config(GetParam()), Head::classification);
  const Tensor tokens = random_tokens(3, 6, model.encoder.config()),
               labels = reference::integer_tensor({3}, 0, 3, "labels");
  const auto gradients = [&](const Tensor& rows, const Tensor& mask) {
    model.store.forget_gradients();
    Tape tape(Stream{});
    ForwardContext context{tape};
    context.attention_mask.keys = mask;
    tape.backward(model.encoder.label_loss(context, rows, {labels, {}}).loss);
    model.store.complete_gradients(tape.stream());
    return doubles(model.store.gradients());
  };
  const std::vector<double> expected = gradients(tokens, {});
  EXPECT_LE(relative_difference(gradients(padded(tokens, 5, 3), mask_of(3, 11, 6)), expected), 1e-11);
}

// Compares the gradients with finite differences of the loss along one random direction through all parameters.
TEST_P(EveryEncoder, GradientsOfEveryHeadMatchFiniteDifferences) {
  for (const Head head :
       {Head::masked_tokens, Head::classification, Head::matching, Head::numbers, Head::sets, Head::tokens}) {
    ModelConfig config = encoder_config(GetParam());
    config.initializer_range =
        0.2;  // keeps denominators of signed feature maps away from zero, where finite differences fail
    TestEncoder model(config, head);
    const Tensor tokens = random_tokens(4, 8, model.encoder.config());
    const Tensor goal = head == Head::masked_tokens ? random_targets(4, 8, model.encoder.config())
                        : head == Head::tokens      ? reference::integer_tensor({4, 8}, -1, 3, "goal")
                        : head == Head::numbers || head == Head::sets
                            ? Tensor::from(std::vector<std::int32_t>{0, -1, 0, 0}, {4})
                            : reference::integer_tensor({head == Head::matching ? 2 : 4}, -1, 3, "goal");
    const Tensor mask = mask_of(4, 8, 6);
    model.store.forget_gradients();
    {
      Tape tape(Stream{});
      ForwardContext context{tape};
      context.attention_mask.keys = mask;
      tape.backward((head == Head::masked_tokens
                         ? model.encoder.masked_token_loss(context, tokens, goal)
                         : model.encoder.label_loss(context, tokens, targets_of(model.head, goal)))
                        .loss);
    }
    model.store.complete_gradients(Stream{});
    const Tensor& values = model.store.values();
    const std::vector<double> at = doubles(values), gradient = doubles(model.store.gradients());
    const RandomKey key{8, 0, random_stream("direction")};
    double slope = 0;
    std::vector<double> direction(at.size());
    for (std::size_t i = 0; i < at.size(); ++i) {
      direction[i] = random_normal(key, i);
      slope += direction[i] * gradient[i];
    }
    const auto loss_at = [&](double h) {
      for (std::size_t i = 0; i < at.size(); ++i) values.data<double>()[i] = at[i] + h * direction[i];
      model.store.refresh_compute_values(Stream{});
      return loss_under(model, tokens, goal, mask);
    };
    constexpr double h = 1e-6;  // small, so that hardly any feature of the relu maps crosses its kink
    const double numeric = (8 * (loss_at(h) - loss_at(-h)) - (loss_at(2 * h) - loss_at(-2 * h))) / (12 * h);
    // Rounding of the loss, about 1e-15, divided by h.
    EXPECT_NEAR(slope, numeric, 1e-7 * std::max(1.0, std::abs(numeric)));
  }
}

TEST(Encoder, PairsAreTwoRows) {
  TestEncoder model(encoder_config({"softmax", ""}), Head::matching);
  const Tensor tokens = random_tokens(4, 7, model.encoder.config());
  Tape tape(Stream{});
  const Tape::NoGradient guard(tape);
  ForwardContext context{tape};
  const auto logits = [&](const Tensor& rows) { return doubles(model.encoder.label_logits(context, rows)); };
  const std::vector<double> both = logits(tokens);
  ASSERT_EQ(both.size(), 6u);
  const auto first = logits(tokens.narrow(0, 0, 2).clone()), second = logits(tokens.narrow(0, 2, 2).clone());
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(both[i], first[i], 1e-13);
    EXPECT_NEAR(both[3 + i], second[i], 1e-13);
  }
  // The order within a pair matters: u - v.
  auto swapped = tokens.to_vector<std::int32_t>();
  std::swap_ranges(swapped.begin(), swapped.begin() + 7, swapped.begin() + 7);
  EXPECT_GT(std::abs(logits(Tensor::from(swapped, {4, 7}))[0] - both[0]), 1e-6);
}

TEST(Encoder, LogitsMatchLoss) {
  for (const Head head : {Head::classification, Head::matching}) {
    TestEncoder model(encoder_config({"softmax", ""}), head);
    const Tensor tokens = random_tokens(6, 5, model.encoder.config());
    const std::int64_t samples = head == Head::matching ? 3 : 6;
    const Tensor labels = reference::integer_tensor({samples}, 0, 3, "labels");
    Tape tape(Stream{});
    const Tape::NoGradient guard(tape);
    ForwardContext context{tape};
    const auto logits = doubles(model.encoder.label_logits(context, tokens));
    const auto expected = labels.to_vector<std::int32_t>();
    double loss = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      double sum = 0;
      for (std::size_t c = 0; c < 3; ++c) sum += std::exp(logits[i * 3 + c]);
      loss += std::log(sum) - logits[i * 3 + static_cast<std::size_t>(expected[i])];
    }
    EXPECT_NEAR(loss_under(model, tokens, labels, {}), loss / static_cast<double>(samples), 1e-13);
  }
}

// Dropout is keyed by the number of the sample, in any batch.
TEST(Encoder, DropoutDoesNotDependOnBatchSplit) {
  for (const Head head : {Head::classification, Head::matching}) {
    ModelConfig config = encoder_config({"softmax", ""});
    config.dropout = 0.3;
    TestEncoder model(config, head);
    const std::int64_t rows = 8, samples = head == Head::matching ? 4 : 8;
    const Tensor tokens = random_tokens(rows, 5, config), labels = reference::integer_tensor({samples}, 0, 3, "labels");
    const auto sum_of = [&](std::int64_t first, std::int64_t count) {  // over samples
      const std::int64_t each = rows / samples;
      Tape tape(Stream{});
      const Tape::NoGradient guard(tape);
      ForwardContext context{tape, true, 3, 2, static_cast<std::uint64_t>(first * each)};
      ops::CrossEntropyOptions options;
      options.normalizer = 1;
      return scalar(model.encoder
                        .label_loss(context, tokens.narrow(0, first * each, count * each).clone(),
                                    {labels.narrow(0, first, count).clone(), {}}, options)
                        .loss.value());
    };
    EXPECT_NEAR(sum_of(0, samples), sum_of(0, samples / 2) + sum_of(samples / 2, samples / 2), 1e-12);
  }
}

}  // namespace
}  // namespace furlong::layers
