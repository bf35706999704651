#include "trainers/train/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "framework/core/arena.h"
#include "framework/core/parallel.h"
#include "tests/trainers/training.h"
#include "trainers/train/optimizer/learning_rate.h"
#include "trainers/train/run/step_forecast.h"

namespace furlong {
namespace {

using ::testing::AnyOf;
using testing::expect_equal_tensors;
using ::testing::HasSubstr;
using testing::message_of;
using testing::small_settings;

class TrainerTest : public testing::WithTemporaryFolder {
 protected:
  TrainerTest()
      : store(testing::write_store(path("tokens.h5"), testing::synthetic_text(4000))),
        data(TokenizedDataset::open(store)) {}
  Trainer trainer(const std::vector<std::string>& overrides, std::optional<DType> compute = std::nullopt) const {
    return Trainer(small_settings(store, overrides).settings, data, Device{}, compute);
  }

  std::string store;
  TokenizedDataset data;
};

// --- Resuming

struct ResumeCase {
  const char* name;
  std::vector<std::string> overrides;
};
void PrintTo(const ResumeCase& c, std::ostream* out) { *out << c.name; }

class Resuming : public TrainerTest, public ::testing::WithParamInterface<ResumeCase> {};

// Losses and gradient norms of the steps up to `last`, and a validation after every fifth.
std::vector<double> train_to(Trainer& trainer, std::int64_t last) {
  std::vector<double> seen;
  while (trainer.steps() < last) {
    const StepReport report = trainer.step();
    seen.insert(seen.end(), {report.loss, report.gradient_norm, report.learning_rate,
                             static_cast<double>(report.tokens), report.skipped ? 1.0 : 0.0});
    if (trainer.steps() % 5 != 0) continue;
    seen.push_back(trainer.validate().loss);
    trainer.note_validation(seen.back());
  }
  return seen;
}

TEST_P(Resuming, ContinuesBitwise) {
  constexpr std::int64_t last = 22;
  Trainer whole = trainer(GetParam().overrides);
  const std::vector<double> expected = train_to(whole, last);
  whole.save(path("whole.h5"));
  for (const std::int64_t stop : {1, 10, 19}) {
    Trainer before = trainer(GetParam().overrides);
    std::vector<double> found = train_to(before, stop);
    before.save(path("stop.h5"));
    Trainer after = trainer(GetParam().overrides);
    after.load(CheckpointReader::open(path("stop.h5")));
    EXPECT_EQ(after.steps(), stop);
    const std::vector<double> rest = train_to(after, last);
    found.insert(found.end(), rest.begin(), rest.end());
    EXPECT_EQ(found, expected) << "stopped after step " << stop;
    after.save(path("resumed.h5"));
    expect_equal_tensors(path("whole.h5"), path("resumed.h5"));
    // The same contents give the same file: counters, best validation and settings are equal too.
    EXPECT_EQ(content(path("whole.h5")), content(path("resumed.h5"))) << "stopped after step " << stop;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Trainers, Resuming,
    ::testing::Values(
        ResumeCase{"softmax", {"model.dropout=0.1"}},
        ResumeCase{"linear", {"model.attention.mechanism=linear", "model.dropout=0.1", "model.short_convolution=4"}},
        ResumeCase{"redraw", {"model.attention.mechanism=linear", "model.attention.redraw_every=3"}},
        ResumeCase{"average", {"optimizer.ema_decay=0.8", "model.attention.mechanism=linear"}},
        ResumeCase{"accumulation", {"trainer.gradient_accumulation=3", "model.dropout=0.2"}},
        ResumeCase{"bfloat16", {"model.dtype=bfloat16", "model.dropout=0.1", "optimizer.ema_decay=0.8"}},
        ResumeCase{"linear_bfloat16",
                   {"model.dtype=bfloat16", "model.attention.mechanism=linear", "model.attention.redraw_every=4"}},
        ResumeCase{"sequential_outliers", {"data.sampler=sequential", "trainer.skip_outlier_factor=1.05"}},
        ResumeCase{"recompute_all",
                   {"trainer.activation_checkpointing=blocks", "model.dropout=0.1", "model.attention.mechanism=linear",
                    "model.attention.redraw_every=7", "optimizer.ema_decay=0.9", "trainer.gradient_accumulation=2",
                    "model.norm=rmsnorm", "model.activation=swiglu", "model.n_key_value_heads=1"}}),
    [](const auto& info) { return std::string(info.param.name); });

// The cases above need states that differ between steps, and redraws and dropout that happen.
TEST_F(TrainerTest, StepDropoutAndRedrawChangeState) {
  const auto losses = [&](const std::vector<std::string>& overrides) {
    Trainer t = trainer(overrides);
    return train_to(t, 8);
  };
  EXPECT_NE(losses({}), losses({"model.dropout=0.1"}));
  EXPECT_NE(losses({"seed=1"}), losses({"seed=2"}));
  EXPECT_NE(losses({"model.attention.mechanism=linear"}),
            losses({"model.attention.mechanism=linear", "model.attention.redraw_every=3"}));
  EXPECT_EQ(losses({"model.dropout=0.1"}), losses({"model.dropout=0.1"}));
}

// Samples, dropout and all sums except oneDNN's are bitwise equal, and products in float64 are not oneDNN's. In float32
// oneDNN may share a sum among threads (with AVX2): six steps then stay within some roundings of 2^-24.
TEST_F(TrainerTest, ThreadCountChangesOnlyOneDnnSums) {
  const std::vector<std::string> overrides{"model.attention.mechanism=linear", "model.dropout=0.1",
                                           "data.batch_size=3"};
  for (const DType compute : {DType::float64, DType::float32}) {
    std::vector<std::vector<double>> found;
    for (const int threads : {1, 2, 5}) {
      set_thread_count(threads);
      Trainer t = trainer(overrides, compute);
      found.push_back(train_to(t, 6));
    }
    set_thread_count(0);
    ASSERT_EQ(found[0].size(), found[1].size());
    ASSERT_EQ(found[0].size(), found[2].size());
    const double tolerance = compute == DType::float64 ? 0 : 1e-5;
    for (std::size_t i = 0; i < found[0].size(); ++i) {
      EXPECT_NEAR(found[1][i], found[0][i], tolerance * std::abs(found[0][i])) << name_of(compute) << ", " << i;
      EXPECT_NEAR(found[2][i], found[0][i], tolerance * std::abs(found[0][i])) << name_of(compute) << ", " << i;
    }
  }
}

TEST_F(TrainerTest, RejectsCheckpointOfAnotherRun) {
  const std::string checkpoint = path("c.h5");
  {
    Trainer t = trainer({});
    train_to(t, 1);
    t.save(checkpoint);
  }
  const auto refusal = [&](const std::vector<std::string>& overrides) {
    return message_of<UserError>([&] { trainer(overrides).load(CheckpointReader::open(checkpoint)); });
  };
  EXPECT_THAT(refusal({"model.d_model=24"}), HasSubstr("model.d_model was 16 in the checkpoint and is 24 now"));
  EXPECT_THAT(refusal({"model.attention.mechanism=linear"}), HasSubstr("model.attention."));
  EXPECT_THAT(refusal({"seed=5"}), HasSubstr("seed was 1 in the checkpoint and is 5 now"));
  const TokenizedDataset dna = [&] {
    DatasetWriter writer(path("dna.h5"), Vocabulary::dna(), {});
    const std::vector<std::uint16_t> ids(2000, 2);
    writer.append(ids);
    writer.end_document();
    writer.finish("{}");
    return TokenizedDataset::open(path("dna.h5"));
  }();
  EXPECT_THAT(
      message_of<UserError>([&] {
        Trainer(small_settings(path("dna.h5")).settings, dna, Device{}).load(CheckpointReader::open(checkpoint));
      }),
      HasSubstr("vocabulary"));
  // Keys that determine no stored tensor may change.
  Trainer longer = trainer({"data.sequence_length=48", "model.dropout=0.2"});
  longer.load(CheckpointReader::open(checkpoint));
  EXPECT_TRUE(std::isfinite(longer.step().loss));
  for (const char* position : {"learned", "sinusoidal"}) {
    const std::string with = std::string("model.position=") + position;
    trainer({with, "model.attention.mechanism=linear"}).save(path("position.h5"));
    Trainer other =
        trainer({with, "model.attention.mechanism=linear", "data.sequence_length=48", "model.max_sequence_length=48",
                 "model.attention.chunk_size=32", "model.attention.redraw_every=10"});
    const auto load = [&] { other.load(CheckpointReader::open(path("position.h5"))); };
    if (std::string(position) == "learned") {
      EXPECT_THAT(message_of<UserError>(load),
                  HasSubstr("model.max_sequence_length was 32 in the checkpoint and is 48 now"));
    } else {
      EXPECT_NO_THROW(load());
    }
  }
  // Keys of the optimizer and the data may change.
  Trainer changed = trainer({"optimizer.learning_rate=1e-3", "data.batch_size=1", "optimizer.ema_decay=0.5"});
  changed.load(CheckpointReader::open(checkpoint));
  EXPECT_EQ(changed.steps(), 1);
  EXPECT_TRUE(std::isfinite(changed.step().loss));
}

// --- Gradient accumulation

std::vector<double> flat_gradients(Trainer& trainer) {
  const Tensor& gradients = trainer.model().store->gradients();
  if (gradients.dtype() == DType::float64) return gradients.to_vector<double>();
  const auto narrow = gradients.to_vector<float>();
  return {narrow.begin(), narrow.end()};
}

double relative_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference = std::max(difference, std::abs(a[i] - b[i]));
    largest = std::max(largest, std::abs(b[i]));
  }
  return difference / largest;
}

// Twice two windows give the same step as four, including dropout and the number of targets in each half (the letter e
// is excluded from the loss). Only the order of summation differs.
TEST_F(TrainerTest, AccumulatedBatchesEqualOneLargeBatch) {
  for (const char* mechanism : {"softmax", "linear"}) {
    for (const DType compute : {DType::float32, DType::float64}) {
      const std::vector<std::string> common{std::string("model.attention.mechanism=") + mechanism, "model.dropout=0.2",
                                            "data.ignore_tokens=[e]"};
      std::vector<std::string> twice = common, large = common;
      twice.insert(twice.end(), {"trainer.gradient_accumulation=2", "data.batch_size=2"});
      large.push_back("data.batch_size=4");
      Trainer a = trainer(twice, compute), b = trainer(large, compute);
      const double tolerance = compute == DType::float64 ? 1e-12 : 1e-6;
      const StepReport of_a = a.step(), of_b = b.step();
      EXPECT_EQ(of_a.tokens, of_b.tokens);
      EXPECT_NEAR(of_a.loss / of_b.loss, 1, tolerance);
      EXPECT_NEAR(of_a.gradient_norm / of_b.gradient_norm, 1, tolerance);
      EXPECT_LT(relative_difference(flat_gradients(a), flat_gradients(b)), tolerance)
          << mechanism << " " << name_of(compute);
    }
  }
}

// --- Memory

// With eight sequences larger than every other test's tensors, so that the arena has to grow even when all tests run in
// one process.
const std::vector<std::string> large_model{"data.sequence_length=256", "data.batch_size=2",
                                           "model.d_model=128",        "model.n_heads=4",
                                           "model.dropout=0.1",        "model.short_convolution=4"};

TEST_F(TrainerTest, SteadyStepsAllocateNoSystemMemory) {
  for (const char* mechanism : {"linear", "softmax"}) {
    std::vector<std::string> overrides = large_model;
    overrides.insert(overrides.end(), {std::string("model.attention.mechanism=") + mechanism, "optimizer.ema_decay=0.9",
                                       "trainer.gradient_accumulation=2", "data.batch_size=8"});
    if (std::string(mechanism) == "linear") overrides.push_back("model.attention.redraw_every=3");
    const std::int64_t at_start = arena(Device{}).counters().system_requests;
    Trainer t = trainer(overrides);
    t.step();
    t.step();
    const ArenaCounters steady = arena(Device{}).counters();
    if (std::string(mechanism) == "linear") {
      EXPECT_GT(steady.system_requests, at_start) << "no system request even at first: the test proves nothing";
    }
    for (int step = 2; step < 12; ++step) {
      t.step();
      if (step % 5 == 0) t.validate();
      const ArenaCounters now = arena(Device{}).counters();
      ASSERT_EQ(now.system_requests, steady.system_requests) << mechanism << ", step " << step;
      ASSERT_EQ(now.system_bytes, steady.system_bytes);
      ASSERT_EQ(now.bytes_in_use, steady.bytes_in_use) << "leaked memory";
    }
    EXPECT_GT(arena(Device{}).counters().allocations, steady.allocations);
  }
}

// The arena's peak in a step compared with the estimate of the shape-only device.
TEST_F(TrainerTest, PredictsPeakMemory) {
  for (const std::vector<std::string>& extra : std::vector<std::vector<std::string>>{
           {"model.attention.mechanism=softmax"},
           {"model.attention.mechanism=linear", "optimizer.ema_decay=0.9"},
           {"model.attention.mechanism=linear", "trainer.activation_checkpointing=blocks",
            "trainer.gradient_accumulation=2"},
       }) {
    std::vector<std::string> overrides = large_model;
    overrides.insert(overrides.end(), extra.begin(), extra.end());
    const Settings settings = small_settings(store, overrides).settings;
    const auto foretold = static_cast<double>(predicted_peak_bytes(settings, data.vocabulary()));
    Arena& memory = arena(Device{});
    const std::int64_t before = memory.counters().bytes_in_use;
    memory.reset_peak();
    Trainer t(settings, data, Device{});
    t.step();
    t.step();
    const auto measured = static_cast<double>(memory.counters().peak_bytes - before);
    // oneDNN also allocates scratch memory within a product, which only its compiled form knows: less than 1 MiB at
    // these sizes.
    EXPECT_LT(foretold, 1.02 * measured) << ::testing::PrintToString(extra);
    EXPECT_GT(foretold, 0.98 * measured - (1 << 20)) << ::testing::PrintToString(extra);
  }
}

TEST_F(TrainerTest, ActivationCheckpointingReducesMemory) {
  std::vector<std::string> plain = large_model, recomputed = large_model;
  for (auto* overrides : {&plain, &recomputed})
    overrides->insert(overrides->end(),
                      {"model.n_layers=4", "model.attention.mechanism=linear", "data.sequence_length=128"});
  recomputed.push_back("trainer.activation_checkpointing=blocks");
  EXPECT_LT(predicted_peak_bytes(small_settings(store, recomputed).settings, data.vocabulary()),
            predicted_peak_bytes(small_settings(store, plain).settings, data.vocabulary()));
  Trainer a = trainer(plain), b = trainer(recomputed);
  // Discarded values may be computed by fused products the first time: rounding, 2^-24 per value.
  EXPECT_NEAR(a.step().loss / b.step().loss, 1, 1e-6);
  EXPECT_LT(relative_difference(flat_gradients(a), flat_gradients(b)), 1e-6);
}

// --- Failures

TEST_F(TrainerTest, ReportsNanInParameter) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    Trainer t = trainer({std::string("model.dtype=") + dtype});
    t.step();
    ParameterStore& parameters = *t.model().store;
    const Parameter& broken = parameters.find("blocks.1.feedforward.output.weight");
    broken.master().data<float>()[5] = std::nanf("");
    parameters.refresh_compute_values(Stream{});
    const std::string message = message_of<NonFiniteError>([&] { t.step(); });
    EXPECT_THAT(message, HasSubstr("step 2: loss "));
    EXPECT_THAT(message, HasSubstr("1 of "));
    EXPECT_THAT(message, HasSubstr("blocks.1.feedforward.output.weight"));
    EXPECT_EQ(t.steps(), 1) << "the step was not taken";
  }
}

TEST_F(TrainerTest, ReportsFirstNonFiniteOp) {
  Trainer t = trainer({});
  // Finite itself, but not in a product.
  Tensor values = t.model().store->find("blocks.1.feedforward.input.weight").master();
  std::fill_n(values.data<float>(), values.elements(), 3e38f);
  const std::string message = message_of<NonFiniteError>([&] { t.step(); });
  EXPECT_THAT(message, HasSubstr("First op with a non-finite result: "));
  EXPECT_THAT(message, HasSubstr("blocks.1.feedforward"));
}

TEST_F(TrainerTest, HugeLearningRateReportsNonFiniteOp) {
  // Each step multiplies the weights by 1 - 90 * 0.9.
  Trainer t = trainer({"optimizer.learning_rate=90", "schedule.warmup_steps=0", "optimizer.weight_decay=0.9"});
  const std::string message = message_of<NonFiniteError>([&] {
    for (int step = 0; step < 20; ++step) t.step();
  });
  EXPECT_THAT(message, AnyOf(HasSubstr("First op with a non-finite result: "), HasSubstr("values of parameter ")));
}

TEST_F(TrainerTest, OutlierStepChangesNothing) {
  Trainer t = trainer({"trainer.skip_outlier_factor=4", "optimizer.learning_rate=1e-4", "trainer.max_steps=100"});
  for (int step = 0; step < 20; ++step) EXPECT_FALSE(t.step().skipped) << step;
  Tensor gain = t.model().store->find("final_norm.gain").master();
  const Tensor saved = gain.clone();
  std::fill_n(gain.data<float>(), gain.elements(), 1000.0f);
  const auto before = t.model().store->values().to_vector<float>();
  const StepReport report = t.step();
  EXPECT_TRUE(report.skipped);
  EXPECT_TRUE(std::isfinite(report.loss));
  EXPECT_EQ(t.model().store->values().to_vector<float>(), before);
  EXPECT_EQ(t.steps(), 21) << "it counts as a step";
  gain.copy_from(saved);
  t.save(path("c.h5"));
  EXPECT_EQ(CheckpointReader::open(path("c.h5")).integer("optimizer_steps"), 20);
  EXPECT_FALSE(t.step().skipped);
  EXPECT_NE(t.model().store->values().to_vector<float>(), before);
  // Without the option the same step is taken.
  Trainer plain = trainer({"optimizer.learning_rate=1e-4", "trainer.max_steps=100"});
  for (int step = 0; step < 20; ++step) plain.step();
  Tensor plain_gain = plain.model().store->find("final_norm.gain").master();
  std::fill_n(plain_gain.data<float>(), plain_gain.elements(), 1000.0f);
  EXPECT_FALSE(plain.step().skipped);
}

// Gradients of smaller batches have larger norms.
TEST_F(TrainerTest, NormsOfOtherBatchesMakeNoOutliers) {
  const std::vector<std::string> filter{"trainer.skip_outlier_factor=4", "optimizer.learning_rate=1e-4",
                                        "trainer.max_steps=100"};
  Trainer t = trainer(filter);
  for (int step = 0; step < 20; ++step) t.step();
  t.save(path("c.h5"));
  for (const char* change :
       {"trainer.max_steps=99", "data.batch_size=1", "data.sequence_length=8", "trainer.gradient_accumulation=3"}) {
    Trainer resumed = trainer(testing::with(filter, {change}));
    resumed.load(CheckpointReader::open(path("c.h5")));
    Tensor gain = resumed.model().store->find("final_norm.gain").master();
    std::fill_n(gain.data<float>(), gain.elements(), 1000.0f);
    EXPECT_EQ(resumed.step().skipped, change == std::string("trainer.max_steps=99")) << change;
  }
}

// Norms that rise permanently: the median follows within a window, and the run continues.
TEST_F(TrainerTest, PersistentOutliersAreAccepted) {
  Trainer t = trainer({"trainer.skip_outlier_factor=4", "optimizer.learning_rate=1e-4", "trainer.max_steps=100"});
  for (int step = 0; step < 20; ++step) t.step();
  Tensor gain = t.model().store->find("final_norm.gain").master();
  std::fill_n(gain.data<float>(), gain.elements(), 1000.0f);
  int skipped = 0;
  while (t.step().skipped) ASSERT_LT(++skipped, 30);
  EXPECT_EQ(skipped, 20) << "until half of the norms are of the new kind";
}

TEST_F(TrainerTest, ClippingScalesWholeGradient) {
  // AdamW is nearly invariant to a constant scale, so the first moment after one step is compared: 0.1 g without
  // clipping, 0.1 g · clip / norm with clipping.
  Trainer plain = trainer({"optimizer.gradient_clip=0"}), clipped = trainer({"optimizer.gradient_clip=0.5"});
  const double norm = plain.step().gradient_norm;
  EXPECT_EQ(clipped.step().gradient_norm, norm) << "reported before clipping";
  ASSERT_GT(norm, 0.5);
  plain.save(path("plain.h5"));
  clipped.save(path("clipped.h5"));
  double sum = 0;
  for (const float moment : testing::floats_of(path("clipped.h5"), "first_moments/"))
    sum += static_cast<double>(moment) * static_cast<double>(moment);
  EXPECT_NEAR(std::sqrt(sum) / 0.1, 0.5, 1e-5);
  sum = 0;
  for (const float moment : testing::floats_of(path("plain.h5"), "first_moments/"))
    sum += static_cast<double>(moment) * static_cast<double>(moment);
  EXPECT_NEAR(std::sqrt(sum) / 0.1, norm, 1e-5 * norm);
}

TEST_F(TrainerTest, ValidationIsRepeatable) {
  Trainer t = trainer({"optimizer.ema_decay=0.9", "model.dropout=0.3"});
  for (int step = 0; step < 5; ++step) t.step();
  const auto values = t.model().store->values().to_vector<float>();
  const Evaluation first = t.validate(), second = t.validate();
  EXPECT_EQ(first.loss, second.loss);
  EXPECT_EQ(first.tokens, 3 * 2 * 32);
  EXPECT_EQ(t.model().store->values().to_vector<float>(), values) << "values are restored after validation by the EMA";
  EXPECT_TRUE(t.note_validation(2.0));
  EXPECT_EQ(t.early_stopping().best_at(t.steps()), 2.0);
  EXPECT_FALSE(t.note_validation(2.5));
  EXPECT_FALSE(t.note_validation(std::nan("")));
  EXPECT_EQ(t.early_stopping().validations_without_improvement(), 2);
  EXPECT_EQ(t.early_stopping().best_at(t.steps()), std::nullopt);
  EXPECT_TRUE(t.note_validation(1.5));
  EXPECT_EQ(t.early_stopping().validations_without_improvement(), 0);
}

// The whole split, each token but the first a target once, in batches whose last is not full.
TEST_F(TrainerTest, EvaluationCoversSplit) {
  Trainer t = trainer({});
  for (const std::int64_t batch : {1, 3, 50}) {
    const Evaluation found = evaluate(t.model(), data, Split::test, 32, batch);
    EXPECT_EQ(found.tokens, static_cast<std::int64_t>(data.size(Split::test)) - 1);
    EXPECT_NEAR(found.loss, std::log(256), 0.1) << "a new model predicts uniformly";
    EXPECT_NEAR(found.perplexity(), std::exp(found.loss), 1e-9);
    EXPECT_NEAR(found.bits_per_token() * std::log(2.0), found.loss, 1e-12);
  }
  Trainer nothing_counts = trainer({"data.ignore_tokens=[a, b, c, d, e, f, g, h]"});
  EXPECT_THAT(
      message_of<UserError>([&] { evaluate(nothing_counts.model(), data, Split::test, 32, 2, 3); }),
      HasSubstr("no targets in the first 3 batches of the test split, so there is no loss; data.ignore_tokens: [a, "
                "b, c, d, e, f, g, h]"));
  EXPECT_TRUE(std::isnan(nothing_counts.step().loss)) << "not a perfect score";
}

// --- Learning

class Learning : public TrainerTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(Learning, MemorizesRepeatedText) {
  std::string text;
  while (text.size() < 3000) text += "In the beginning God created the heaven and the earth. ";
  const TokenizedDataset repeated = TokenizedDataset::open(testing::write_store(path("repeated.h5"), text));
  std::vector<std::string> overrides{
      "data.sequence_length=64",  "model.d_model=32",      "optimizer.learning_rate=0.01",
      "schedule.warmup_steps=10", "trainer.max_steps=200", "model.short_convolution=4",
      "data.batch_size=4"};
  overrides.push_back(std::string("model.") + GetParam());
  if (std::string(GetParam()) == "dtype=bfloat16") overrides.push_back("model.attention.mechanism=linear");
  Trainer t(small_settings(path("repeated.h5"), overrides).settings, repeated, Device{});
  const double first = t.step().loss;
  EXPECT_NEAR(first, std::log(256), 0.3);
  StepReport last;
  for (int step = 1; step < 200; ++step) last = t.step();
  EXPECT_LT(last.loss, 0.1);
  EXPECT_GT(t.validate().accuracy, 0.97);
}

INSTANTIATE_TEST_SUITE_P(Trainers, Learning,
                         ::testing::Values("attention.mechanism=softmax", "attention.mechanism=linear",
                                           "dtype=bfloat16"),
                         [](const auto& info) {
                           return std::string(info.param).substr(std::string(info.param).find('=') + 1);
                         });

}  // namespace
}  // namespace furlong
