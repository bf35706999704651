// Counts and measurements of furlong bench model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "evaluation/bench/bench_model.h"
#include "evaluation/plan/plan.h"
#include "tests/framework/engine_testing.h"
#include "tests/trainers/training.h"

namespace furlong {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using testing::small_settings;

/// The dataset does not exist.
Settings bench_settings(const std::vector<std::string>& overrides, std::int64_t n = 32,
                        const Vocabulary& vocabulary = Vocabulary::bytes(true)) {
  return bench_model_settings(small_settings("none.h5", overrides).settings, n, vocabulary, Device{});
}

BenchModelLength bench(const Settings& settings, const Vocabulary& vocabulary = Vocabulary::bytes(true)) {
  return bench_model(settings, vocabulary, {.repeat = 3, .max_tokens = 4, .device = {}});
}

void expect_runs(const BenchRuns& runs) {
  ASSERT_EQ(runs.seconds.size(), 3u);
  std::vector<double> sorted = runs.seconds;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_GT(sorted[0], 0);
  EXPECT_EQ(runs.median_seconds(), sorted[1]);
}

TEST(BenchModel, MeasuresDecodersAsPlanCountsThem) {
  for (const std::vector<std::string>& overrides : std::vector<std::vector<std::string>>{
           {"model.attention.mechanism=softmax", "trainer.gradient_accumulation=2"},
           {"model.attention.mechanism=linear", "trainer.activation_checkpointing=blocks", "model.dtype=bfloat16"},
           {"model.attention.mechanism=linear", "data.sampler=stream", "data.stateful=true"},
           {"data.sampler=documents", "model.lora_rank=2"},
           {"data.packing=documents", "optimizer.ema_decay=0.9"}}) {
    SCOPED_TRACE(overrides.front());
    const Settings settings = bench_settings(overrides);
    const BenchModelLength found = bench(settings);
    const PlanReport plan =
        make_plan(settings, Vocabulary::bytes(true), {}, plan_device("h100", settings.model.dtype, false));
    EXPECT_EQ(found.n, 32);
    EXPECT_EQ(found.parameters, plan.parameters);
    EXPECT_DOUBLE_EQ(found.step_flops, plan.flops);
    EXPECT_EQ(found.step_tokens, plan.tokens);
    EXPECT_EQ(found.forward_tokens, 64);
    EXPECT_GE(found.peak_bytes, 4 * found.parameters + 12 * plan.trained) << "values, gradients and two moments";
    expect_runs(found.step);
    expect_runs(found.forward);
    EXPECT_EQ(found.no_generation, "");
    ASSERT_EQ(found.generation.size(), 2u);
    for (const BenchGeneration& one : found.generation) {
      EXPECT_EQ(one.prompt_tokens, 28);
      EXPECT_EQ(one.tokens, 4);
      expect_runs(one.prompt);
      expect_runs(one.steps);
    }
    EXPECT_EQ(found.generation[0].batch, 1);
    EXPECT_EQ(found.generation[1].batch, 2);
  }
}

TEST(BenchModel, MeasuresEncodersOfEveryObjective) {
  const Vocabulary bytes = Vocabulary::bytes(true);
  for (const auto& [objective, vocabulary] : std::vector<std::pair<std::string, Vocabulary>>{
           {"masked_tokens", bytes},
           {"classification", bytes.with_labels({"a", "b", "c"})},
           {"pair_classification", bytes.with_labels({"a", "b"})},
           {"regression", bytes.with_labels({"a", "b"}, {{0, 1}, {5, 2}})},
           {"multi_label_classification", bytes.with_labels({"a", "b", "c"})},
           {"token_classification", bytes.with_labels({"a", "b", "c"})}}) {
    SCOPED_TRACE(objective);
    const Settings settings =
        bench_settings({"model.architecture=encoder", "objective.name=" + objective}, 32, vocabulary);
    const BenchModelLength found = bench(settings, vocabulary);
    expect_runs(found.step);
    expect_runs(found.forward);
    EXPECT_EQ(found.step_tokens, objective == "pair_classification" ? 128 : 64);
    EXPECT_TRUE(found.generation.empty());
    EXPECT_THAT(found.no_generation, HasSubstr("encoder (objective.name: " + objective));
    double expected = make_plan(settings, vocabulary, {}, plan_device("h100", DType::float32, false)).flops;
    if (objective == "masked_tokens") expected -= 0.85 * 64 * 6 * 16 * 259;  // 85% of 64 tokens, width 16, 259 logits
    EXPECT_DOUBLE_EQ(found.step_flops, expected);
  }
}

// Bytes that one token reads: every weight but the rows of tables, and the state.
TEST(BenchModel, CountsBytesOfGeneration) {
  const std::vector<std::string> base{"model.attention.mechanism=softmax", "model.position=learned"};
  const BenchModelLength tied = bench(bench_settings(base)),
                         untied = bench(bench_settings(testing::with(base, {"model.tied_embeddings=false"}))),
                         shared = bench(bench_settings(testing::with(base, {"model.shared_layers=true"}))),
                         half = bench(bench_settings(testing::with(base, {"model.dtype=bfloat16"})));
  constexpr std::int64_t positions = 32 * 16, table = 257 * 16;
  // layers · (k, v) · width · the mean of 29 to 32 tokens
  constexpr std::int64_t state = 2 * 2 * 16 * (29 + 30 + 31 + 32) / 4;
  EXPECT_EQ(tied.generation[0].weight_bytes, 4 * (tied.parameters - positions));
  EXPECT_EQ(untied.generation[0].weight_bytes, 4 * (untied.parameters - positions - table));
  EXPECT_EQ(untied.generation[0].weight_bytes, tied.generation[0].weight_bytes);
  EXPECT_EQ(shared.generation[0].weight_bytes, tied.generation[0].weight_bytes) << "read once in each layer";
  EXPECT_LT(shared.parameters, tied.parameters);
  EXPECT_EQ(half.generation[0].weight_bytes, tied.generation[0].weight_bytes / 2);
  EXPECT_EQ(tied.generation[0].state_bytes, 4 * state);
  EXPECT_EQ(tied.generation[1].state_bytes, 2 * 4 * state);
  EXPECT_EQ(half.generation[1].state_bytes, 2 * 2 * state);
  const BenchModelLength window = bench(bench_settings(testing::with(base, {"model.attention.window=8"})));
  EXPECT_EQ(window.generation[0].state_bytes, 4 * 2 * 2 * 16 * 8) << "layers, keys and values, width, window";
  const BenchGeneration& one = tied.generation[1];
  EXPECT_DOUBLE_EQ(one.bytes_per_second(),
                   static_cast<double>(one.weight_bytes + one.state_bytes) / one.steps.median_seconds());
}

TEST(BenchModel, GeneratesAtMostHalfOfTheLength) {
  const BenchModelLength found = bench(bench_settings({}, 6));
  EXPECT_EQ(found.generation[0].prompt_tokens, 3);
  EXPECT_EQ(found.generation[0].tokens, 3);
}

TEST(BenchModel, MeasuresOnAGpu) {
  const Device gpu{DeviceType::simulated, 0};
  if (const std::string reason = testing::engine_missing(gpu); !reason.empty()) GTEST_SKIP() << reason;
  const Settings settings = bench_settings({"model.attention.mechanism=linear"}, 16);
  const BenchModelLength found =
      bench_model(settings, Vocabulary::bytes(true), {.repeat = 1, .max_tokens = 2, .device = gpu});
  EXPECT_GT(found.step.median_seconds(), 0);
  EXPECT_EQ(found.generation.size(), 2u);
  EXPECT_GE(found.peak_bytes, 16 * found.parameters);
}

TEST(BenchModel, LengthBeyondThatOfTheConfigNeedsNoTable) {
  EXPECT_EQ(bench_settings({"model.position=rotary"}, 96).model.max_sequence_length, 96);
  EXPECT_EQ(bench_settings({"model.position=learned", "model.max_sequence_length=64"}, 48).model.max_sequence_length,
            64);
  EXPECT_THAT(message_of<UserError>([] { bench_settings({"model.position=learned"}, 33); }),
              HasSubstr("--lengths 33: the model has learned positions for 32 tokens"));
  EXPECT_THAT(
      message_of<UserError>([] {
        bench_settings(
            {"model.architecture=encoder", "objective.name=masked_tokens", "model.attention.mechanism=linformer"}, 33);
      }),
      HasSubstr("--lengths 33: the model has a linformer projection for 32 tokens"));
}

TEST(BenchModel, RejectsSettingsItCannotMeasure) {
  EXPECT_THAT(message_of<UserError>([] { bench_settings({}, 1); }), HasSubstr("expected at least 2 (--lengths)"));
  EXPECT_THAT(message_of<UserError>([] {
                bench_settings({"teacher.loss=distillation", "teacher.checkpoint=teacher.h5"});
              }),
              HasSubstr("add --set teacher.loss=none"));
  EXPECT_THAT(message_of<UserError>([] { bench_settings({"model.prediction_head=none"}); }),
              HasSubstr("no output layer"));
  EXPECT_THAT(message_of<UserError>([] { bench_settings({"data.batch_size=1000000"}, 1 << 20); }),
              HasSubstr("this configuration needs"));
}

}  // namespace
}  // namespace furlong
