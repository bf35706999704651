// Stateful training: consecutive segments of one long sequence pass their state on.
#include <algorithm>

#include "tests/layers/models/decoder_testing.h"
#include "tests/temporary_folder.h"

namespace furlong::layers {
namespace {

using namespace furlong::layers::testing;
using furlong::reference::doubles;
using furlong::reference::relative_difference;

/// Kinds of attention with a recurrent state.
std::vector<Case> recurrent_cases() {
  std::vector<Case> cases;
  for (const Case& named : all_cases()) {
    if (named.attending.is_recurrent()) cases.push_back(named);
  }
  return cases;
}

class EveryRecurrentModel : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(AllNames, EveryRecurrentModel, ::testing::ValuesIn(recurrent_cases()), case_name);

/// Returns the hidden states over segments of these lengths, joined as [batch, n, d]; recorded, as in training.
std::vector<double> in_segments(TestModel& model, const Tensor& tokens, const std::vector<std::int64_t>& lengths) {
  const std::int64_t batch = tokens.extent(0), n = tokens.extent(1), d = model.decoder.config().d_model;
  std::vector<double> joined(static_cast<std::size_t>(batch * n * d));
  GenerationState state = model.decoder.new_state(batch, n);
  std::int64_t start = 0;
  for (const std::int64_t length : lengths) {
    Tape tape(Stream{});
    ForwardContext context = Pass{}.context(tape);
    const std::vector<double> values =
        doubles(model.decoder.hidden(context, tokens.narrow(1, start, length), &state).value());
    for (std::int64_t b = 0; b < batch; ++b)
      std::copy_n(values.begin() + b * length * d, length * d, joined.begin() + (b * n + start) * d);
    start += length;
    EXPECT_EQ(state.position, start);
    tape.clear();
  }
  return joined;
}

TEST_P(EveryRecurrentModel, SegmentsMatchWholeSequence) {
  for_each_variant(GetParam().attending, GetParam().position, [](const ModelConfig& config) {
    const Tensor tokens = random_tokens(2, 22, config);
    TestModel in_double(config, DType::float64);
    EXPECT_LE(relative_difference(in_segments(in_double, tokens, {7, 1, 9, 5}), doubles(hidden_of(in_double, tokens))),
              1e-11);
    TestModel single(config, DType::float32);
    // Signed sums near zero lose more precision.
    const double tolerance = config.attention.feature_map == "favor_trig" ? 1e-3 : 2e-5;
    EXPECT_LE(relative_difference(in_segments(single, tokens, {7, 1, 9, 5}), doubles(hidden_of(single, tokens))),
              tolerance);
  });
}

/// Losses and gradients of two consecutive segments.
struct TwoSteps {
  std::vector<double> losses, gradients;
  GenerationState state;
};
TwoSteps two_steps(TestModel& model, const Tensor& tokens, const Tensor& targets) {
  TwoSteps result{{}, {}, model.decoder.new_state(tokens.extent(0), tokens.extent(1))};
  for (const std::int64_t start : {0, 9}) {
    model.store.forget_gradients();
    Tape tape(Stream{});
    ForwardContext context = Pass{.training = true}.context(tape);
    const auto loss =
        model.decoder.loss(context, tokens.narrow(1, start, 9), targets.narrow(1, start, 9), {}, &result.state);
    result.losses.push_back(scalar(loss.loss.value()));
    tape.backward(loss.loss);
    model.store.complete_gradients(Stream{});
    const std::vector<double> gradients = doubles(model.store.gradients());
    result.gradients.insert(result.gradients.end(), gradients.begin(), gradients.end());
  }
  return result;
}

TEST_P(EveryRecurrentModel, RecomputationStartsFromSameState) {
  const OneThread one_thread;
  ModelConfig config = small_config(GetParam().attending, GetParam().position, 4, Style::llama);
  config.dropout = 0.1;
  const Tensor tokens = random_tokens(2, 18, config), targets = random_targets(2, 18, config);
  TestModel kept(config, DType::float64);
  TestModel recomputed(config, DType::float64, ActivationCheckpointing::blocks);
  const TwoSteps one = two_steps(kept, tokens, targets), other = two_steps(recomputed, tokens, targets);
  EXPECT_EQ(one.losses, other.losses);
  EXPECT_EQ(one.gradients, other.gradients);
}

TEST_P(EveryRecurrentModel, GradientsMatchFiniteDifferencesWithConstantPast) {
  const OneThread one_thread;
  const ModelConfig config = small_config(GetParam().attending, GetParam().position, 4, Style::gpt2);
  const Tensor tokens = random_tokens(1, 12, config), targets = random_targets(1, 12, config);
  TestModel model(config, DType::float64);
  GenerationState past = model.decoder.new_state(1, 12);
  const auto loss_after = [&](bool backward) {
    // Every evaluation starts from a copy of the same past, made with the original weights.
    GenerationState state = model.decoder.new_state(1, 12);
    std::vector<Tensor> tensors;
    past.visit([&](const std::string&, Tensor& tensor) { tensors.push_back(tensor.clone()); });
    std::size_t next = 0;
    // An empty state has no window yet: run a segment of the same length first, then set the tensors.
    {
      Tape tape(Stream{});
      const Tape::NoGradient guard(tape);
      ForwardContext context = Pass{}.context(tape);
      model.decoder.hidden(context, tokens.narrow(1, 0, 7), &state);
    }
    state.visit([&](const std::string&, Tensor& tensor) { tensor = tensors[next++]; });
    Tape tape(Stream{});
    ForwardContext context = Pass{}.context(tape);
    const auto loss = model.decoder.loss(context, tokens.narrow(1, 7, 5), targets.narrow(1, 7, 5), {}, &state);
    if (backward) {
      model.store.forget_gradients();
      tape.backward(loss.loss);
      model.store.complete_gradients(Stream{});
    } else {
      tape.clear();
    }
    return scalar(loss.loss.value());
  };
  {
    Tape tape(Stream{});
    const Tape::NoGradient guard(tape);
    ForwardContext context = Pass{}.context(tape);
    model.decoder.hidden(context, tokens.narrow(1, 0, 7), &past);
  }
  loss_after(true);
  for (const char* name : {"blocks.0.attention.query_key_value.weight", "blocks.1.attention.query_key_value.weight"}) {
    const Parameter& parameter = model.store.find(name);
    const std::vector<double> gradient = doubles(parameter.gradient());
    double largest = 0;
    for (const double value : gradient) largest = std::max(largest, std::abs(value));
    const double step = GetParam().attending.is_smooth() ? 1e-3 : 1e-5;
    for (const std::uint64_t trial : {0u, 1u}) {
      const std::size_t element = random_word({6, 0, random_stream(name)}, trial) % gradient.size();
      double& value = parameter.master().data<double>()[element];
      const double before = value;
      const auto at = [&](double offset) {
        value = before + offset;
        return loss_after(false);
      };
      const double near = at(step) - at(-step), far = at(2 * step) - at(-2 * step);
      value = before;
      EXPECT_NEAR(gradient[element], (8 * near - far) / (12 * step), 1e-6 * largest) << name << ", element " << element;
    }
  }
}

TEST(StatefulTraining, RejectsGrowingStates) {
  for (const Attending& attending : {Attending{"softmax", ""}, Attending{"linear", "favor_positive", "heads"},
                                     Attending{"linear", "favor_positive", "layers"}}) {
    for (const ActivationCheckpointing recompute :
         {ActivationCheckpointing::elementwise, ActivationCheckpointing::blocks}) {
      const ModelConfig config = small_config(attending, Position::rotary, 4, Style::gpt2);
      TestModel model(config, DType::float32, recompute);
      GenerationState state = model.decoder.new_state(2, 30);
      Tape tape(Stream{});
      ForwardContext context = Pass{}.context(tape);
      EXPECT_THAT(furlong::testing::message_of<UserError>(
                      [&] { model.decoder.hidden(context, random_tokens(2, 5, config), &state); }),
                  ::testing::HasSubstr("expected mechanism linear"))
          << attending.name();
      tape.clear();
    }
  }
}

TEST(StatefulTraining, TokenCountsBeyond32BitsAreSavedWhole) {
  TestModel model(small_config({"linear", "elu1"}, Position::rotary, 0, Style::llama), DType::float32);
  GenerationState state = model.decoder.new_state(1, 18);
  int counts = 0;
  for (const bool sets : {true, false}) {
    state.visit([&](const std::string& name, Tensor& tensor) {
      if (!name.ends_with(".tokens")) return;
      const Tensor wanted = Tensor::from(std::vector<std::int32_t>{5 + counts % 2, 3}, {2});
      if (sets) tensor = wanted;
      EXPECT_EQ(tensor.to_vector<std::int32_t>(), wanted.to_vector<std::int32_t>()) << name;
      ++counts;
    });
  }
  EXPECT_EQ(counts, 4);  // of two layers, twice
}

TEST(StatefulTraining, AlternatingSequencesHaveSeparateStates) {
  // Two sequences whose segments alternate give the same results as separate runs.
  const ModelConfig config = small_config({"linear", "favor_positive"}, Position::rotary, 4, Style::llama);
  TestModel model(config, DType::float32);
  const Tensor one = random_tokens(1, 18, config, "one"), other = random_tokens(1, 18, config, "other");
  GenerationState first = model.decoder.new_state(1, 18), second = model.decoder.new_state(1, 18);
  std::vector<double> found;
  Tape tape(Stream{});
  const Tape::NoGradient guard(tape);
  ForwardContext context = Pass{}.context(tape);
  for (const std::int64_t start : {0, 6, 12}) {
    const std::vector<double> values = doubles(model.decoder.hidden(context, one.narrow(1, start, 6), &first).value());
    found.insert(found.end(), values.begin(), values.end());
    model.decoder.hidden(context, other.narrow(1, start, 6), &second);
  }
  EXPECT_EQ(found, in_segments(model, one, {6, 6, 6}));
}

}  // namespace
}  // namespace furlong::layers
