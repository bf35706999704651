// Frozen parameters: the gradients of all others stay bit-identical.
#include <gtest/gtest.h>

#include "tests/layers/models/decoder_testing.h"

namespace furlong::layers::testing {
namespace {

using furlong::reference::doubles;

struct Outcome {
  double loss = 0;
  std::map<std::string, std::vector<double>> gradients;
};

/// Runs one training step with those parameters frozen for which `frozen` returns true.
Outcome step_with(const ModelConfig& config, ActivationCheckpointing recompute,
                  const std::function<bool(const Parameter&)>& frozen) {
  const Tensor tokens = random_tokens(2, 22, config), targets = random_targets(2, 22, config);
  ParameterStore store(DType::float64, Device{});
  Decoder decoder(store, config, recompute);
  store.freeze(frozen);
  store.allocate(5);
  decoder.redraw(5, 0);
  store.forget_gradients();
  Tape tape(Stream{});
  ForwardContext context = Pass{.training = true}.context(tape);
  const auto result = decoder.loss(context, tokens, targets);
  Outcome outcome{scalar(result.loss.value()), {}};
  if (store.trained_parameter_count() > 0) tape.backward(result.loss);
  EXPECT_EQ(tape.node_count(), 0u);
  store.complete_gradients(Stream{});
  for (const Parameter& parameter : store.parameters()) {
    if (store.is_trained(parameter)) outcome.gradients[parameter.name()] = doubles(parameter.gradient());
  }
  return outcome;
}

void compare(const ModelConfig& config, ActivationCheckpointing recompute, const std::string& what,
             const std::function<bool(const Parameter&)>& frozen) {
  SCOPED_TRACE(what);
  const Outcome whole = step_with(config, recompute, [](const Parameter&) { return false; }),
                part = step_with(config, recompute, frozen);
  EXPECT_EQ(part.loss, whole.loss);
  EXPECT_LT(part.gradients.size(), whole.gradients.size());
  for (const auto& [name, gradient] : part.gradients) {
    EXPECT_EQ(gradient, whole.gradients.at(name)) << name;
  }
}

TEST(FrozenParameters, DoNotChangeOtherGradients) {
  for (const Attending& attending : some_attending()) {
    for (const ActivationCheckpointing recompute :
         {ActivationCheckpointing::elementwise, ActivationCheckpointing::blocks}) {
      for_each_variant(attending, Position::rotary, [&](ModelConfig config) {
        config.dropout = 0.1;
        compare(config, recompute, "all but the first block",
                [](const Parameter& p) { return !p.name().starts_with("blocks.0."); });
        compare(config, recompute, "all but the last block",
                [](const Parameter& p) { return !p.name().starts_with("blocks.1."); });
        compare(config, recompute, "all but attention",
                [](const Parameter& p) { return p.name().find(".attention.") == std::string::npos; });
        compare(config, recompute, "all but the norms", [](const Parameter& p) { return p.decays(); });
        for (std::uint64_t parity : {0, 1})
          compare(config, recompute, "every other one",
                  [&](const Parameter& p) { return random_stream(p.name()) % 2 == parity; });
        compare(config, recompute, "all", [](const Parameter&) { return true; });
      });
    }
  }
}

}  // namespace
}  // namespace furlong::layers::testing
