// The recall suite against its definition: the most probable token of the model in float64.
#include "evaluation/recall_suite.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "framework/core/enum_names.h"
#include "tests/evaluation/sequence_testing.h"
#include "tests/framework/engine_testing.h"
#include "trainers/train/trainer.h"
#include "trainers/train/validation.h"

namespace furlong {
namespace {

using testing::defined_run;
using ::testing::HasSubstr;
using testing::message_of;
using testing::sequence_model;

const RecallResult& result_of(const std::vector<RecallResult>& all, Recall task, std::int64_t length,
                              std::int64_t pairs = 0) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const RecallResult& one) {
    return one.task == task && one.length == length && one.pairs == pairs;
  });
  EXPECT_NE(found, all.end()) << name_of(task) << " " << length << " " << pairs;
  return found == all.end() ? all.front() : *found;
}

TEST(RecallSuite, AccuracyAndLossMatchTheirDefinitionInFloat64) {
  // 0.3 makes the model certain enough that some answers are right.
  Model model = sequence_model(Vocabulary::bytes(true), {"model.attention.mechanism=softmax"});
  const auto found = recall_suite(model, {.lengths = {64, 256}, .samples = 6, .seed = 3});
  for (const RecallResult& one : found) {
    if (!one.obstacle.empty()) continue;
    const RecallOptions options{.task = one.task,
                                .sequence_length = one.length,
                                .pairs = one.pairs,
                                .seed = 3,
                                .start = model.vocabulary.document_id()};
    const Batch batch = make_recall_task(model.vocabulary, options)->single_pass_batch(0, 6);
    std::int64_t targets = 0, correct = 0, whole = 0;
    double loss = 0;
    for (std::int64_t row = 0; row < 6; ++row) {
      const auto inputs = batch.inputs.begin() + row * batch.n;
      const auto run = defined_run(model, {inputs, inputs + batch.n});
      const std::int64_t size = std::ssize(run.logits) / batch.n;
      bool all = true;
      for (std::int64_t i = 0; i < batch.n; ++i) {
        const std::int32_t target = batch.targets[static_cast<std::size_t>(row * batch.n + i)];
        if (target == ignored_target) continue;
        const auto logits = run.logits.begin() + i * size;
        const bool right = std::max_element(logits, logits + size) - logits == target;
        ++targets;
        correct += right;
        all = all && right;
        loss -= testing::defined_log_probability(model, run, static_cast<std::size_t>(i), target);
      }
      whole += all;
    }
    const bool passkey = one.task == Recall::passkey;
    EXPECT_EQ(one.answers, passkey ? 6 : targets) << name_of(one.task);
    EXPECT_DOUBLE_EQ(one.accuracy, passkey ? static_cast<double>(whole) / 6
                                           : static_cast<double>(correct) / static_cast<double>(targets));
    EXPECT_NEAR(one.loss, loss / static_cast<double>(targets), 1e-9) << name_of(one.task);
  }
}

TEST(RecallSuite, HasEveryTaskAtEveryLengthWithReasonsForThoseThatDoNotFit) {
  Model model = sequence_model(Vocabulary::bytes(true), {"data.sequence_length=100"});
  const auto found = recall_suite(model, {.samples = 1});
  std::set<std::int64_t> lengths;
  for (const RecallResult& one : found) lengths.insert(one.length);
  EXPECT_EQ(lengths, (std::set<std::int64_t>{16, 32, 64})) << "powers of two that fit the training's windows";
  EXPECT_THAT(result_of(found, Recall::passkey, 64).obstacle, HasSubstr("needs"));
  EXPECT_THAT(result_of(found, Recall::associative, 16, 4).obstacle, HasSubstr("17 tokens"));
  EXPECT_EQ(result_of(found, Recall::associative, 64, 4).answers, 4);
  EXPECT_DOUBLE_EQ(result_of(found, Recall::associative, 64, 4).baseline, 0.25 + 0.75 / 90)
      << "one of the values, or another equal to it among 94 - 4 symbols";
  EXPECT_DOUBLE_EQ(result_of(found, Recall::copy, 64).baseline, 1.0 / 94);
  Model dna = sequence_model(Vocabulary::dna(), {"data.sequence_length=64"});
  const auto letters = recall_suite(dna, {.lengths = {256}, .samples = 2});
  EXPECT_THAT(result_of(letters, Recall::passkey, 256).obstacle, HasSubstr("no text"));
  EXPECT_THAT(result_of(letters, Recall::associative, 256, 4).obstacle, HasSubstr("symbols"));
  EXPECT_EQ(result_of(letters, Recall::copy, 256).answers, 2 * 127);
  EXPECT_EQ(result_of(letters, Recall::induction, 256).answers, 2);
}

// What the model learned on the copy task is what the suite's copy task asks for.
TEST(RecallSuite, ModelOfTheCopyTaskCopies) {
  const Settings settings =
      from_yaml_text("data:\n  task: copy\n", "settings of the test",
                     {"data.task_symbols=4", "data.sequence_length=24", "data.batch_size=32", "model.n_layers=2",
                      "model.d_model=32", "model.n_heads=2", "model.d_feedforward=32", "model.initializer_range=0.1",
                      "model.short_convolution=2", "schedule.warmup_steps=10", "trainer.max_steps=200",
                      "trainer.validate_every=0", "optimizer.learning_rate=0.01", "optimizer.weight_decay=0.01",
                      "log.level=error", "log.progress=none", "device=cpu"})
          .settings;
  const auto data = open_data(settings.data);
  Trainer trainer(settings, *data, Device{});
  while (trainer.steps() < 200) trainer.step();
  const double accuracy = evaluate(trainer.model(), *data, Split::test, 24, 16).accuracy;
  EXPECT_GT(accuracy, 0.9);
  const auto found = recall_suite(trainer.model(), {.lengths = {24}, .samples = 64});
  EXPECT_NEAR(result_of(found, Recall::copy, 24).accuracy, accuracy, 0.05);
  EXPECT_GT(result_of(found, Recall::copy, 24).accuracy, 3 * result_of(found, Recall::copy, 24).baseline);
}

TEST(RecallSuite, RejectsModelsAndLengthsThatDoNotFit) {
  const auto refused = [](const Vocabulary& vocabulary, const std::vector<std::string>& overrides,
                          std::int64_t length) {
    Model model = sequence_model(vocabulary, overrides);
    return message_of<UserError>([&] { recall_suite(model, {.lengths = {length}, .samples = 1}); });
  };
  EXPECT_THAT(refused(Vocabulary::bytes(true), {"model.position=learned", "model.max_sequence_length=64"}, 128),
              HasSubstr("--lengths 128: the model has 64 positions"));
  EXPECT_THAT(refused(Vocabulary::bytes(true), {}, 63), HasSubstr("use 64"));
  EXPECT_THAT(refused(Vocabulary::bytes(true), {}, 2), HasSubstr("use 16"));
  EXPECT_THAT(refused(Vocabulary::protein().with_encoder_tokens(), testing::encoder, 64),
              HasSubstr("--suite recall: this model predicts masked tokens"));
}

class RecallSuiteEngines : public testing::EngineTest {};
FURLONG_INSTANTIATE_GPUS(RecallSuiteEngines);

TEST_P(RecallSuiteEngines, LossesEqualThoseOfTheCpu) {
  const Settings settings =
      testing::small_settings("none.h5", {"model.initializer_range=0.3", "data.sequence_length=32"}).settings;
  const Vocabulary vocabulary = Vocabulary::protein();
  Model cpu = make_model(settings, vocabulary, Device{}), gpu = make_model(settings, vocabulary, testing::device());
  const RecallSuiteOptions options{.lengths = {32}, .samples = 2};
  const auto expected = recall_suite(cpu, options), found = recall_suite(gpu, options);
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].answers, expected[i].answers);
    EXPECT_NEAR(found[i].loss, expected[i].loss, 1e-4);
  }
}

}  // namespace
}  // namespace furlong
