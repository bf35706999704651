// Regression, multi-label classification and labels of tokens: training, evaluation, resuming, engines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "datasets/samplers/labeled_source.h"
#include "evaluation/measures/label_measures.h"
#include "evaluation/unigram_baseline.h"
#include "tests/framework/engine_testing.h"
#include "tests/trainers/training.h"
#include "trainers/train/data_checks.h"
#include "trainers/train/trainer.h"

namespace furlong {
namespace {

using testing::small_settings;

/// Sequences of the letters a to h. numbers: 50 + 10 times the share of a to d, in units, and its negative; sets: which
/// of the letters a and b occur; tokens: whether a letter is one of a to d, of every letter but h.
class LabelObjectives : public testing::WithTemporaryFolder, public ::testing::WithParamInterface<DeviceType> {
 protected:
  void SetUp() override { testing::device_under_test() = Device{GetParam(), 0}; }
  void TearDown() override { testing::device_under_test() = Device{}; }

  TokenizedDataset data(LabelKind kind, int n = 400, float unit = 1) const {
    DatasetWriterOptions options;
    options.split_by = DatasetWriterOptions::SplitBy::document;
    options.shares = {{0.7, 0.3, 0}};
    options.documents_per_label = 1;
    options.label_kind = kind;
    const std::string file = path(fmt::format("{}_{}.h5", name_of(kind), unit));
    DatasetWriter writer(file, Vocabulary::bytes(true), options);
    const RandomKey key{7, 0, random_stream("letters")};
    for (int i = 0; i < n; ++i) {
      std::vector<std::uint16_t> letters;
      for (int t = 0; t < 6 + i % 7; ++t)
        letters.push_back(
            static_cast<std::uint16_t>('a' + random_word(key, static_cast<std::uint64_t>(64 * i + t)) % 8));
      writer.append(letters);
      writer.end_document();
      put_label(writer, kind, letters, unit);
    }
    std::vector<std::string> names{"first", "second"};
    writer.finish("{}", names);
    return TokenizedDataset::open(file);
  }
  static void put_label(DatasetWriter& writer, LabelKind kind, const std::vector<std::uint16_t>& letters, float unit) {
    std::vector<std::int32_t> ids;
    float share = 0;
    for (const std::uint16_t letter : letters) {
      share += letter < 'e' ? 1.0F / static_cast<float>(letters.size()) : 0;
      if (kind == LabelKind::tokens) ids.push_back(letter == 'h' ? -1 : letter < 'e' ? 0 : 1);
    }
    for (const std::uint16_t letter : {std::uint16_t{'a'}, std::uint16_t{'b'}})
      if (kind == LabelKind::sets && std::find(letters.begin(), letters.end(), letter) != letters.end())
        ids.push_back(letter - 'a');
    const std::vector<float> numbers{(50 + 10 * share) / unit, -share};
    writer.label(DocumentLabel{ids, kind == LabelKind::numbers ? numbers : std::span<const float>{}});
  }

  static Settings settings(const TokenizedDataset& data, Objective objective,
                           const std::vector<std::string>& more = {}) {
    std::vector<std::string> all{"model.architecture=encoder", std::string("objective.name=") + name_of(objective),
                                 "data.batch_size=16",         "model.initializer_range=0.1",
                                 "trainer.max_steps=150",      "data.sequence_length=16"};
    all.insert(all.end(), more.begin(), more.end());
    const LoadedSettings loaded = small_settings(data.path(), all);
    check_against_data(loaded, data);
    return loaded.settings;
  }
  static nlohmann::ordered_json measured(Trainer& trainer, const TokenizedDataset& data, Evaluation& found) {
    LabelMeasures measures(trainer.model());
    found = evaluate(trainer.model(), data, Split::validation, 16, 16, 0, measures.loss());
    // The loss that training reports.
    EXPECT_NEAR(found.loss, evaluate(trainer.model(), data, Split::validation, 16, 16).loss, 1e-9);
    return measures.to_json();
  }
};
FURLONG_INSTANTIATE_ENGINES(LabelObjectives);

constexpr std::array objectives{std::pair{Objective::regression, LabelKind::numbers},
                                std::pair{Objective::multi_label_classification, LabelKind::sets},
                                std::pair{Objective::token_classification, LabelKind::tokens}};

TEST_P(LabelObjectives, StepsEqualCpuSteps) {
  for (const auto& [objective, kind] : objectives) {
    const TokenizedDataset store = data(kind, 80);
    const Settings chosen =
        settings(store, objective, {"model.dropout=0.1", "model.attention.mechanism=linear", "data.batch_size=4"});
    Trainer here(chosen, store, testing::device()), cpu(chosen, store, Device{});
    for (int step = 0; step < 3; ++step) {
      const StepReport found = here.step(), expected = cpu.step();
      EXPECT_NEAR(found.loss, expected.loss, (step == 0 ? 2e-6 : 2e-4) * expected.loss) << name_of(objective);
      EXPECT_NEAR(found.gradient_norm, expected.gradient_norm, (step == 0 ? 2e-5 : 2e-3) * expected.gradient_norm);
      EXPECT_EQ(found.targets, expected.targets);
    }
    EXPECT_NEAR(here.validate().loss, cpu.validate().loss, 1e-3);
  }
}

class LabelObjectivesOnCpu : public LabelObjectives {};
INSTANTIATE_TEST_SUITE_P(Cpu, LabelObjectivesOnCpu, ::testing::Values(DeviceType::cpu));

TEST_P(LabelObjectivesOnCpu, LearnsNumbersInTheUnitsOfTheData) {
  const TokenizedDataset store = data(LabelKind::numbers);
  const Settings chosen = settings(store, Objective::regression);
  Trainer trainer(chosen, store, Device{});
  while (trainer.steps() < 150) EXPECT_TRUE(std::isfinite(trainer.step().loss));
  Evaluation found;
  const auto measures = measured(trainer, store, found);
  EXPECT_TRUE(std::isnan(found.accuracy));
  EXPECT_GT(measures["pearson"], 0.95);
  EXPECT_GT(measures["spearman"], 0.9);
  const double deviation = store.vocabulary().label_scales()[0].scale;  // about 1.7 degrees
  EXPECT_LT(measures["labels"]["first"]["rmse"], 0.35 * deviation);
  EXPECT_LT(measures["labels"]["second"]["rmse"], 0.035 * deviation);
  // The loss is the mean square of the errors over the scales.
  double expected = 0;
  for (std::size_t k = 0; k < 2; ++k) {
    const double rmse = measures["labels"][k == 0 ? "first" : "second"]["rmse"];
    expected += 0.5 * std::pow(rmse / store.vocabulary().label_scales()[k].scale, 2);
  }
  EXPECT_NEAR(found.loss, expected, 1e-4 * expected);
  const UnigramBaseline baseline = chance(chosen, trainer.model().vocabulary, store, Split::validation, 16, 16);
  EXPECT_NEAR(baseline.loss, 1, 0.5) << "the mean explains no variance";
  EXPECT_EQ(baseline.targets, found.targets);
}

TEST_P(LabelObjectivesOnCpu, WeightsKeepTheirPredictionsInOtherUnits) {
  const TokenizedDataset store = data(LabelKind::numbers, 80), other = data(LabelKind::numbers, 70, 4);
  Trainer trainer(settings(store, Objective::regression), store, Device{});
  while (trainer.steps() < 30) trainer.step();
  trainer.save(path("trained.h5"));
  Trainer elsewhere(settings(other, Objective::regression), other, Device{});
  EXPECT_TRUE(elsewhere.start_from(CheckpointReader::open(path("trained.h5"))).restarted.empty());
  ASSERT_NE(elsewhere.model().vocabulary.label_scales()[0].mean, store.vocabulary().label_scales()[0].mean);
  Evaluation found, expected;
  const auto theirs = measured(trainer, store, expected), ours = measured(elsewhere, store, found);
  for (const char* label : {"first", "second"})
    EXPECT_NEAR(ours["labels"][label]["rmse"], theirs["labels"][label]["rmse"],
                1e-5 * theirs["labels"][label]["rmse"].get<double>());
}

TEST_P(LabelObjectivesOnCpu, ValidationOfAPartIsSpreadOverTheSplit) {
  // Sorted by label: the first documents are of the first class.
  DatasetWriterOptions options;
  options.split_by = DatasetWriterOptions::SplitBy::document;
  options.shares = {{0.3, 0.7, 0}};
  options.documents_per_label = 1;
  const std::string file = path("sorted.h5");
  DatasetWriter writer(file, Vocabulary::bytes(true), options);
  constexpr int n = 300;
  for (int i = 0; i < n; ++i) {
    writer.append(std::vector<std::uint16_t>{'a', 'b'});
    writer.end_document();
    const std::vector<std::int32_t> label{i < n / 2 ? 0 : 1};
    writer.label(DocumentLabel{label});
  }
  writer.finish("{}", {"first", "second"});
  const TokenizedDataset store = TokenizedDataset::open(file);
  const auto share_of_first = [&](const std::string& batches) {
    const Settings chosen = settings(store, Objective::classification, {"trainer.validation_batches=" + batches});
    const auto source = validation_source(chosen, model_vocabulary(chosen, store.vocabulary()), store);
    const Batch batch = source->single_pass_batch(0, 48);
    EXPECT_EQ(batch.n_targets, 48);
    const std::vector<std::uint64_t> documents = dynamic_cast<const LabeledSource&>(*source).documents();
    for (std::size_t i = 0; i < 48; ++i) EXPECT_EQ(batch.labels[i], documents[i] < n / 2 ? 0 : 1) << i;
    return static_cast<double>(std::count(batch.labels.begin(), batch.labels.end(), 0)) / 48;
  };
  EXPECT_NEAR(share_of_first("3"), 0.5, 0.25);
  EXPECT_EQ(share_of_first("0"), 1) << "a whole split keeps its order";
}

TEST_P(LabelObjectivesOnCpu, OutputLayerOverOtherwisePooledStatesStartsAnew) {
  const TokenizedDataset store = data(LabelKind::numbers, 80);
  Trainer(settings(store, Objective::regression), store, Device{}).save(path("mean.h5"));
  const auto restarted = [&](const std::string& pooling) {
    Trainer other(settings(store, Objective::regression, {"objective.pooling=" + pooling}), store, Device{});
    return other.start_from(CheckpointReader::open(path("mean.h5"))).restarted;
  };
  EXPECT_THAT(restarted("mean"), ::testing::IsEmpty());
  EXPECT_THAT(restarted("class_token"), ::testing::ElementsAre("classifier.weight", "classifier.bias"));
}

TEST_P(LabelObjectivesOnCpu, LearnsSetsOfLabels) {
  const TokenizedDataset store = data(LabelKind::sets);
  const Settings chosen = settings(store, Objective::multi_label_classification, {"trainer.max_steps=250"});
  Trainer trainer(chosen, store, Device{});
  while (trainer.steps() < 250) trainer.step();
  Evaluation found;
  const auto measures = measured(trainer, store, found);
  const UnigramBaseline baseline = chance(chosen, trainer.model().vocabulary, store, Split::validation, 16, 16);
  EXPECT_LT(found.loss, 0.6 * baseline.loss);
  EXPECT_GT(found.accuracy, baseline.accuracy + 0.2);
  EXPECT_GT(measures["f1_micro"], 0.85);
  EXPECT_GT(measures["auroc"], 0.93);
  EXPECT_TRUE(measures["labels"].contains("second"));
}

TEST_P(LabelObjectivesOnCpu, LearnsLabelsOfTokens) {
  const TokenizedDataset store = data(LabelKind::tokens);
  const Settings chosen = settings(store, Objective::token_classification);
  Trainer trainer(chosen, store, Device{});
  while (trainer.steps() < 150) trainer.step();
  Evaluation found;
  const auto measures = measured(trainer, store, found);
  EXPECT_GT(found.accuracy, 0.98);
  EXPECT_GT(measures["f1_macro"], 0.98);
  EXPECT_LT(found.targets, found.tokens - 120) << "<document> and h have no label";
  const UnigramBaseline baseline = chance(chosen, trainer.model().vocabulary, store, Split::validation, 16, 16);
  EXPECT_EQ(baseline.targets, found.targets);
  EXPECT_NEAR(baseline.accuracy, 4.0 / 7, 0.05);
}

TEST_P(LabelObjectivesOnCpu, ResumesBitwiseAndLoadsFromItsCheckpoint) {
  for (const auto& [objective, kind] : objectives) {
    const TokenizedDataset store = data(kind, 80);
    const Settings chosen = settings(store, objective, {"model.dropout=0.1", "trainer.gradient_accumulation=2"});
    Trainer whole(chosen, store, Device{}), before(chosen, store, Device{}), after(chosen, store, Device{});
    double expected = 0, resumed = 0;
    while (whole.steps() < 5) expected = whole.step().loss;
    while (before.steps() < 2) before.step();
    before.save(path("stop.h5"));
    after.load(CheckpointReader::open(path("stop.h5")));
    while (after.steps() < 5) resumed = after.step().loss;
    EXPECT_EQ(resumed, expected) << name_of(objective);
    whole.save(path("whole.h5"));
    Model loaded = load_model(CheckpointReader::open(path("whole.h5")), Device{}, Weights::raw);
    EXPECT_EQ(evaluate(loaded, store, Split::validation, 16, 4).loss,
              evaluate(whole.model(), store, Split::validation, 16, 4).loss);
    EXPECT_EQ(loaded.vocabulary.label_scales().size(), kind == LabelKind::numbers ? 2U : 0U);
    if (kind != LabelKind::numbers) continue;
    const TokenizedDataset other = data(kind, 60);  // with other means
    Trainer elsewhere(settings(other, objective, {"model.dropout=0.1"}), other, Device{});
    EXPECT_THAT(testing::message_of<UserError>([&] { elsewhere.load(CheckpointReader::open(path("stop.h5"))); }),
                ::testing::HasSubstr("have another mean or standard deviation"));
  }
}

}  // namespace
}  // namespace furlong
