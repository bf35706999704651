// Low-rank adapters of frozen weights.
#include <set>

#include "tests/layers/models/decoder_testing.h"
#include "tests/reference/transformer.h"

namespace furlong::layers {
namespace {

using namespace furlong::layers::testing;
using furlong::reference::doubles;

/// Freezes all parameters except those trained with adapters, as the trainer does.
void freeze(ParameterStore& store) {
  store.freeze([](const Parameter& parameter) { return !is_trained_with_adapters(parameter.name()); });
}

struct AdaptedModel {
  ParameterStore store;
  Decoder decoder;
  AdaptedModel(const ModelConfig& config, DType dtype,
               ActivationCheckpointing recompute = ActivationCheckpointing::elementwise)
      : store(dtype, Device{}), decoder(store, config, recompute) {
    freeze(store);
    store.allocate(5);
    decoder.redraw(5, 0);
  }
};

TEST(Adapters, StartNeutralAndTrainAlone) {
  const OneThread one_thread;
  for (const Attending& attending : std::vector<Attending>{{"softmax", ""}, {"linear", "hedgehog"}}) {
    for (const Style style : {Style::gpt2, Style::llama}) {
      for (const ActivationCheckpointing recompute :
           {ActivationCheckpointing::elementwise, ActivationCheckpointing::blocks}) {
        ModelConfig config = small_config(attending, Position::rotary, 4, style);
        config.query_key_norm = QueryKeyNorm::rmsnorm;
        ParameterStore base_store(DType::float32, Device{});
        Decoder base(base_store, config, recompute);
        base_store.allocate(5);
        base.redraw(5, 0);
        config.adapter = {2, 8};
        AdaptedModel model(config, DType::float32, recompute);
        const Tensor tokens = random_tokens(2, 9, config), targets = random_targets(2, 9, config);
        const auto loss_of = [&](Decoder& decoder, bool recorded) {
          Tape tape(Stream{});
          ForwardContext context = Pass{.training = true}.context(tape);
          if (recorded) return scalar(decoder.loss(context, tokens, targets).loss.value());
          const Tape::NoGradient guard(tape);
          return scalar(decoder.loss(context, tokens, targets).loss.value());
        };
        EXPECT_EQ(loss_of(model.decoder, true), loss_of(base, true));
        // Without recording, the activation is not fused with a product that has an adapter.
        EXPECT_NEAR(loss_of(model.decoder, false), loss_of(base, false), 1e-5);

        model.store.forget_gradients();
        Tape tape(Stream{});
        ForwardContext context = Pass{.training = true}.context(tape);
        tape.backward(model.decoder.loss(context, tokens, targets).loss);
        model.store.complete_gradients(Stream{});
        std::set<std::string> trained;
        for (const Parameter& parameter : model.store.parameters()) {
          if (!model.store.is_trained(parameter)) {
            EXPECT_FALSE(parameter.gradient().defined()) << parameter.name();
            continue;
          }
          if (parameter.name().starts_with("blocks.0.")) trained.insert(parameter.name().substr(9));
          const auto gradient = doubles(parameter.gradient());
          const bool any = std::any_of(gradient.begin(), gradient.end(), [](double value) { return value != 0; });
          EXPECT_EQ(any, !parameter.name().ends_with(".lora_a.weight"))
              << parameter.name();  // its gradient passes through zeros
        }
        std::set<std::string> expected{"attention.short_convolution.weight", "attention.query_norm.gain",
                                       "attention.key_norm.gain"};
        for (const char* map :
             {"attention.query_key_value", "attention.output", "feedforward.input", "feedforward.output"})
          for (const char* factor : {".lora_a.weight", ".lora_b.weight"}) expected.insert(std::string(map) + factor);
        if (attending.feature_map == "hedgehog")
          expected.insert({"attention.query_features.weight", "attention.key_features.weight"});
        EXPECT_EQ(trained, expected);
      }
    }
  }
}

TEST(Adapters, TrainAttentionParametersAndNoOtherWeights) {
  for (const char* name : {"blocks.0.attention.gate", "blocks.11.attention.output_norm.weight",
                           "attention.sequence_projection.weight", "blocks.2.attention.heads_0_1.key_features.weight",
                           "blocks.0.feedforward.input.lora_b.weight", "blocks.0.attention.output.lora_a.weight"})
    EXPECT_TRUE(is_trained_with_adapters(name)) << name;
  for (const char* name :
       {"blocks.0.attention.output.weight", "blocks.0.attention.query_key_value.bias", "blocks.0.attention_norm.gain",
        "token_embedding.weight", "classifier.weight", "output_bias", "prediction.norm.gain", "final_norm.gain"})
    EXPECT_FALSE(is_trained_with_adapters(name)) << name;
}

}  // namespace
}  // namespace furlong::layers
