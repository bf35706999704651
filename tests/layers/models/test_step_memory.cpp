// The memory that the shape-only device predicts for a step, compared with the CPU arena's in the same step.
#include <tuple>

#include "framework/core/arena.h"
#include "tests/layers/models/decoder_testing.h"

namespace furlong::layers {
namespace {

using namespace furlong::layers::testing;

struct Measured {
  std::int64_t model, peak;  // bytes: parameters and gradients; the same plus the step
};

/// A model and its first two steps on `device`, measured by the arena's counters.
Measured measure(const ModelConfig& config, DType dtype, const Device& device, std::int64_t batch, std::int64_t n,
                 ActivationCheckpointing recompute = ActivationCheckpointing::elementwise) {
  Arena& home = arena(device);
  const std::int64_t before = home.counters().bytes_in_use;
  TestModel model(config, dtype, device, 5, recompute);
  const std::int64_t with_model = home.counters().bytes_in_use;
  const auto on_device = [&](const Tensor& tensor) {
    return Tensor::from(tensor.to_vector<std::int32_t>(), tensor.shape(), device);
  };
  const Tensor tokens = on_device(random_tokens(batch, n, config)),
               targets = on_device(random_targets(batch, n, config));
  run_step(model, tokens, targets, {.training = true});  // the first step creates the position tables
  home.reset_peak();
  run_step(model, tokens, targets, {.training = true});
  return {with_model - before, home.counters().peak_bytes - before};
}

ModelConfig larger_config(const Attending& attending, Style style) {
  ModelConfig config = small_config(attending, Position::rotary, 4, style);
  config.vocabulary_size = 300;
  config.d_model = 64;
  config.d_feedforward = 160;
  config.attention.d_head = 16;
  config.attention.n_features = 0;
  config.attention.chunk_size = 64;
  config.dropout = 0.1;
  config.initializer_range = 0.1;
  return config;
}

class EveryStep : public ::testing::TestWithParam<Attending> {};
INSTANTIATE_TEST_SUITE_P(AllNames, EveryStep,
                         ::testing::Values(Attending{"softmax", ""}, Attending{"linear", "elu1"},
                                           Attending{"linear", "favor_positive"},
                                           Attending{"windowed", "favor_positive"}),
                         [](const auto& instance) { return instance.param.name(); });

TEST_P(EveryStep, ShapeOnlyPredictsCpuPeak) {
  for (Style style : {Style::gpt2, Style::llama}) {
    for (const ActivationCheckpointing recompute :
         {ActivationCheckpointing::elementwise, ActivationCheckpointing::blocks}) {
      for (DType dtype : {DType::float32, DType::bfloat16}) {
        for (const auto& [threads, batch, n] : {std::tuple<int, std::int64_t, std::int64_t>{1, 1, 700}, {3, 5, 128}}) {
          const ModelConfig config = larger_config(GetParam(), style);
          const auto [predicted, real] = furlong::reference::with_threads(threads, [&, batch = batch, n = n] {
            return std::pair(measure(config, dtype, Device{DeviceType::shape_only, 0}, batch, n, recompute),
                             measure(config, dtype, Device{}, batch, n, recompute));
          });
          EXPECT_EQ(predicted.model, real.model);
          EXPECT_GT(real.peak, real.model + real.model / 10);
          EXPECT_NEAR(static_cast<double>(predicted.peak), static_cast<double>(real.peak),
                      0.02 * static_cast<double>(real.peak))
              << (style == Style::gpt2 ? "GPT-2" : "Llama") << ", recompute " << name_of(recompute) << ", "
              << name_of(dtype) << ", " << threads << " threads, batch " << batch << " of " << n;
        }
      }
    }
  }
}

TEST_P(EveryStep, ElementwiseRecomputationSavesMemoryAndIsBitIdentical) {
  const OneThread one_thread;
  for (Style style : {Style::gpt2, Style::llama}) {
    ModelConfig config = larger_config(GetParam(), style);
    config.n_layers = 8;
    const Measured kept = measure(config, DType::float32, Device{}, 2, 512, ActivationCheckpointing::none);
    const Measured remade = measure(config, DType::float32, Device{}, 2, 512);
    EXPECT_LT(remade.peak - remade.model, (kept.peak - kept.model) * 4 / 5);
    const auto gradients = [&](ActivationCheckpointing recompute) {
      TestModel model(config, DType::float32, recompute);
      run_step(model, random_tokens(2, 40, config), random_targets(2, 40, config), {.training = true});
      return model.store.gradients().to_vector<float>();
    };
    EXPECT_EQ(gradients(ActivationCheckpointing::none), gradients(ActivationCheckpointing::elementwise));
  }
}

TEST_P(EveryStep, BlockRecomputationSavesMemory) {
  const OneThread one_thread;
  ModelConfig config = larger_config(GetParam(), Style::gpt2);
  config.n_layers = 8;
  const Measured kept = measure(config, DType::float32, Device{}, 2, 512, ActivationCheckpointing::none);
  const Measured recomputed = measure(config, DType::float32, Device{}, 2, 512, ActivationCheckpointing::blocks);
  // One block of eight, and the residual stream between them.
  EXPECT_LT(recomputed.peak - recomputed.model, (kept.peak - kept.model) / 3);
}

TEST_P(EveryStep, SteadyStepAllocatesNothing) {
  TestModel model(larger_config(GetParam(), Style::llama), DType::float32);
  const Tensor tokens = random_tokens(3, 200, model.decoder.config()),
               targets = random_targets(3, 200, model.decoder.config());
  Arena& cpu = arena(Device{});
  run_step(model, tokens, targets, {.training = true});
  const ArenaCounters before = cpu.counters();
  for (std::uint32_t step = 0; step < 5; ++step) run_step(model, tokens, targets, {.training = true, .step = step});
  const ArenaCounters after = cpu.counters();
  EXPECT_GT(after.allocations, before.allocations);
  EXPECT_EQ(after.system_requests, before.system_requests);
  EXPECT_EQ(after.system_bytes, before.system_bytes);
  EXPECT_EQ(after.bytes_in_use, before.bytes_in_use);
}

TEST(ShapeOnly, PredictsStepLargerThanAnyMachine) {
  // Llama 7B at 262,144 tokens with linear attention: memory is linear in the length.
  const Attending attending{"linear", "favor_positive"};
  const auto activations = [&](std::int64_t n) {
    ModelConfig config = small_config(attending, Position::rotary, 4, Style::llama);
    config.vocabulary_size = 32000;
    config.n_layers = 32;
    config.d_model = 4096;
    config.d_feedforward = 11008;
    config.attention.n_heads = config.attention.n_kv_heads = 32;
    config.attention.d_head = 128;
    config.attention.n_features = 256;
    const Measured measured = measure(config, DType::bfloat16, Device{DeviceType::shape_only, 0}, 1, n);
    EXPECT_GT(measured.model, std::int64_t{6738415616} * (4 + 4 + 2));  // masters, gradients and the 16-bit copy
    return static_cast<double>(measured.peak - measured.model);
  };
  const double once = activations(1 << 17), twice = activations(1 << 18);
  EXPECT_GT(twice, 1.5 * once);
  EXPECT_LT(twice, 2.0 * once);
}

}  // namespace
}  // namespace furlong::layers
