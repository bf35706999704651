// furlong finetune: from a teacher to the recovered student.
#include "conversion/finetune.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "conversion/convert.h"
#include "conversion/recovery.h"
#include "tests/conversion/finetune_testing.h"
#include "trainers/model/weights.h"
#include "trainers/train/run/run_directory.h"
#include "trainers/train/train.h"
#include "trainers/train/trainer.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;
using testing::message_of;
using FinetuneTest = testing::FinetuneTest;

TEST(RelativeRecovery, IsFractionOfTeacherAdvantage) {
  EXPECT_DOUBLE_EQ(*relative_recovery(0.5, 0.5, 0.1), 1);
  EXPECT_DOUBLE_EQ(*relative_recovery(0.1, 0.5, 0.1), 0);
  EXPECT_DOUBLE_EQ(*relative_recovery(0.3, 0.5, 0.1), 0.5);
  EXPECT_DOUBLE_EQ(*relative_recovery(2.5, 2, 3), 0.5);  // for losses, lower is better
  EXPECT_FALSE(relative_recovery(0.3, 0.1, 0.1));
}

TEST(RelativeRecovery, HasAReasonIfItIsUndefined) {
  const UnigramBaseline baseline{.accuracy = 0.2, .loss = 2};
  EXPECT_EQ(undefined_recovery({.loss = 1, .accuracy = 0.3}, baseline), "");
  EXPECT_EQ(undefined_recovery({.loss = 1, .accuracy = 0.2}, baseline),
            "the teacher's accuracy is not above the baseline");
  EXPECT_EQ(undefined_recovery({.loss = 3, .accuracy = 0.3}, baseline), "the teacher's loss is not below the baseline");
  EXPECT_EQ(undefined_recovery({.loss = 3, .accuracy = NAN}, baseline),
            "numbers have no accuracy, and the teacher's loss is not below the baseline");
}

TEST(FinetuneLauncher, RejectsSeveralProcesses) {
  const std::vector<std::pair<const char*, const char*>> variables{{"RANK", "1"},
                                                                   {"WORLD_SIZE", "2"},
                                                                   {"LOCAL_RANK", "1"},
                                                                   {"LOCAL_WORLD_SIZE", "2"},
                                                                   {"MASTER_ADDR", "127.0.0.1"},
                                                                   {"MASTER_PORT", "29500"}};
  for (const auto& [name, value] : variables) setenv(name, value, 1);
  FinetuneOptions options;
  options.config = "no such file";  // the launcher is checked before the config is read
  EXPECT_THAT(
      message_of<UserError>([&] { finetune(options); }),
      AllOf(HasSubstr("furlong finetune"), HasSubstr("the launcher (environment variables) started 2 processes")));
  for (const auto& [name, value] : variables) unsetenv(name);
  EXPECT_THAT(message_of<UserError>([&] { finetune(options); }), HasSubstr("no such file"));
}

constexpr const char* performer = testing::performer_attention;

TEST_F(FinetuneTest, RunsAllStagesAndMeasuresRecovery) {
  const std::string yaml = config(performer);
  const FinetuneResult result = finetune(options(yaml));
  EXPECT_FALSE(result.interrupted);
  const Json json = Json::parse(content(path("run/recovery.json")));
  ASSERT_EQ(json["models"].size(), 5u);
  EXPECT_TRUE(json["recovery_undefined"].is_null());
  const std::vector<std::string> names{"teacher", "before", "attention_transfer", "distillation", "task"};
  const double baseline = json["baseline"]["accuracy"], teacher = json["models"][0]["accuracy"];
  EXPECT_GT(teacher, baseline + 0.2);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const Json& model = json["models"][i];
    EXPECT_EQ(model["name"], names[i]);
    EXPECT_NEAR(model["perplexity"].get<double>(), std::exp(model["loss"].get<double>()), 1e-9);
    EXPECT_EQ(model["targets"], json["baseline"]["targets"]);
    if (i == 0) continue;
    const double accuracy = model["accuracy"];
    EXPECT_DOUBLE_EQ(model["recovery"]["accuracy"].get<double>(), (accuracy - baseline) / (teacher - baseline));
    EXPECT_EQ(model["squared_attention_error"].size(), 2u);
  }
  const auto of = [&](std::size_t model, const char* layer) {
    return json["models"][model]["squared_attention_error"][layer].get<double>();
  };
  EXPECT_LT(of(2, "0"), of(1, "0"));
  EXPECT_LT(of(2, "1"), of(1, "1"));
  EXPECT_LT(json["models"][3]["loss"].get<double>(), json["models"][1]["loss"].get<double>());
  // Tokens of each stage are steps × batch × length.
  EXPECT_EQ(json["models"][2]["tokens"], 30 * 4 * 32);
  EXPECT_EQ(json["models"][3]["tokens"], 30 * 2 * 32);
  EXPECT_EQ(json["models"][4]["tokens"], 10 * 4 * 64);
  EXPECT_GT(json["models"][4]["minutes"].get<double>(), 0);
  ASSERT_EQ(json["lengths"].size(), 2u);
  for (const Json& length : json["lengths"]) {
    for (const char* who : {"teacher", "student"}) {
      EXPECT_GT(length[who]["tokens_per_second"].get<double>(), 0);
      EXPECT_GT(length[who]["peak_bytes"].get<std::int64_t>(), 0);
    }
  }
  EXPECT_THAT(to_text(*result.recovery),
              AllOf(HasSubstr("teacher"), HasSubstr("distillation"), HasSubstr("baseline: loss")));
  EXPECT_THAT(to_text(*result.recovery), ::testing::Not(HasSubstr("undefined")));
  std::istringstream table(to_text(*result.recovery));
  std::vector<std::size_t> ends;  // of the header and of each model's row, all columns right-aligned
  for (std::string line; std::getline(table, line) && !line.starts_with("  recovery:");) {
    if (line.starts_with("  "))
      ends.push_back(
          static_cast<std::size_t>(std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xc0) != 0x80; })));
  }
  EXPECT_EQ(ends, std::vector<std::size_t>(names.size() + 1, ends.front()));

  for (std::size_t i = 1; i < names.size(); ++i) {
    const double accuracy = json["models"][i]["accuracy"], targets = json["models"][i]["targets"];
    EXPECT_NEAR(json["models"][i]["recovery"]["accuracy_standard_error"].get<double>(),
                std::sqrt(accuracy * (1 - accuracy) / targets) / (teacher - baseline), 1e-12);
  }

  // Before training, the student has the teacher's weights with the new attention.
  EXPECT_EQ(fs::path(json["models"][1]["checkpoint"].get<std::string>()), fs::path(path("run/student.h5")));
  const CheckpointReader before = CheckpointReader::open(path("run/student.h5"));
  const CheckpointReader teachers = CheckpointReader::open(checkpoint_of(path("teacher")));
  for (const TensorInfo& tensor : teachers.tensors("parameters/"))
    EXPECT_EQ(floats(before, tensor.name), floats(teachers, tensor.name));
  // Each stage is an ordinary run directory.
  const Settings last =
      from_yaml_text(CheckpointReader::open(checkpoint_of(path("run/3_task"))).text("config"), "task").settings;
  EXPECT_EQ(last.model.norm, ops::NormKind::rmsnorm);
  EXPECT_EQ(last.model.attention.n_features, 16);
  EXPECT_EQ(last.model.max_sequence_length, 64);
  EXPECT_EQ(last.teacher.loss, "none");
  EXPECT_EQ(last.data.sequence_length, 64);

  // A second call trains nothing.
  const auto written = fs::last_write_time(path("run/2_distillation/checkpoints"));
  FinetuneOptions again = options(yaml);
  again.evaluate_only = true;
  finetune(again);
  finetune(options(yaml));
  EXPECT_EQ(fs::last_write_time(path("run/2_distillation/checkpoints")), written);
  const Json repeated = Json::parse(content(path("run/recovery.json")));
  EXPECT_EQ(repeated["models"], json["models"]);
}

TEST_F(FinetuneTest, MeasuresLinearPartOfHybrids) {
  const std::string yaml = config("{mechanism: windowed, softmax_window: 8, n_features: 16}");
  const FinetuneResult result = finetune(options(yaml, {"finetune.stages=[attention_transfer]"}));
  ASSERT_TRUE(result.recovery);
  for (std::size_t i = 1; i < result.recovery->models.size(); ++i) {
    const MeasuredModel& model = result.recovery->models[i];
    ASSERT_TRUE(model.window_off);
    EXPECT_NE(model.window_off->loss, model.found.loss);
    EXPECT_EQ(model.window_off->targets, model.found.targets);
    // The same weights in a model that was linear from the start.
    const TokenizedDataset data = TokenizedDataset::open(store);
    const Settings linear = plan_finetune(options(config(performer), {"finetune.stages=[attention_transfer]"}),
                                          checkpoint_of(path("teacher")))
                                .student;
    Model without = make_model(linear, data.vocabulary(), Device{});
    initialize_from(CheckpointReader::open(model.candidate.checkpoint), without);
    EXPECT_DOUBLE_EQ(model.window_off->loss, evaluate(without, data, Split::test, 32, 4).loss);
  }
}

// The linear part of a run of heads keeps its own random projection next to linear heads.
TEST_F(FinetuneTest, MeasuresLinearPartOfMixedHeads) {
  const std::string yaml = config("{heads: [windowed, linear], softmax_window: 8, n_features: 16}");
  const std::vector<std::string> stages{"finetune.stages=[attention_transfer]"};
  const FinetuneResult result = finetune(options(yaml, stages));
  ASSERT_TRUE(result.recovery);
  const TokenizedDataset data = TokenizedDataset::open(store);
  Settings settings = plan_finetune(options(yaml, stages), checkpoint_of(path("teacher"))).student;
  settings.model.attention.drops_softmax_window = true;
  for (std::size_t i = 1; i < result.recovery->models.size(); ++i) {
    const MeasuredModel& model = result.recovery->models[i];
    Model without = make_model(settings, data.vocabulary(), Device{});
    const WeightsReport report = initialize_from(CheckpointReader::open(model.candidate.checkpoint), without);
    EXPECT_THAT(report.missing, ::testing::IsEmpty());
    EXPECT_THAT(report.unused, ::testing::IsEmpty());
    EXPECT_DOUBLE_EQ(model.window_off->loss, evaluate(without, data, Split::test, 32, 4).loss);
    EXPECT_NE(model.window_off->loss, model.found.loss);
  }
}

// The teacher is measured, and its output layer taken over, with the pooling that it was trained with.
TEST_F(FinetuneTest, StudentOfAClassifierPoolsAsItsTeacher) {
  Settings classifier = plan_finetune(options(config(performer)), checkpoint_of(path("teacher"))).student;
  classifier.finetune = {};
  classifier.model.attention = {};
  classifier.model.architecture = layers::Architecture::encoder;
  classifier.objective.name = Objective::classification;
  classifier.objective.pooling = ops::Pooling::first;
  const auto planned = [&](const std::vector<std::string>& overrides) {
    return plan_finetune(options(config(performer), testing::with({"finetune.stages=[task]"}, overrides)), classifier,
                         path("teacher"))
        .student.objective;
  };
  EXPECT_EQ(planned({}).name, Objective::classification);
  EXPECT_EQ(planned({}).pooling, ops::Pooling::first);
  EXPECT_THAT(
      message_of<UserError>([&] { planned({"objective.pooling=mean"}); }),
      AllOf(HasSubstr("objective.pooling: found mean; expected class_token as in"), HasSubstr("remove pooling")));
}

TEST_F(FinetuneTest, RejectsSecondProcessInRunDirectory) {
  fs::create_directories(path("run"));
  {
    const RunLock other(path("run"));
    EXPECT_THROW(finetune(options(config(performer))), RunDirectoryInUse);
    EXPECT_FALSE(fs::exists(path("run/finetune.json")));
    EXPECT_FALSE(fs::exists(path("run/student.h5")));
  }
  EXPECT_NO_THROW(finetune(options(config(performer), {"finetune.stages=[task]"})));
}

TEST_F(FinetuneTest, RunsStagesSeparately) {
  const std::string yaml = config(performer);
  FinetuneOptions second = options(yaml);
  second.only_stage = "distillation";
  EXPECT_THAT(message_of<UserError>([&] { finetune(second); }),
              AllOf(HasSubstr("--stage distillation"), HasSubstr("attention_transfer")));
  FinetuneOptions first = options(yaml);
  first.only_stage = "attention_transfer";
  EXPECT_FALSE(finetune(first).recovery);
  EXPECT_EQ(finetune(second).stage, "distillation");
  FinetuneOptions unknown = options(yaml);
  unknown.only_stage = "polishing";
  EXPECT_THAT(message_of<UserError>([&] { finetune(unknown); }), HasSubstr("found polishing"));
}

TEST_F(FinetuneTest, StagesDrawFurtherSamples) {
  finetune(options(config(performer), {"finetune.stages=[attention_transfer, distillation]"}));
  const auto drawn = [&](const std::filesystem::path& checkpoint) {
    return CheckpointReader::open(checkpoint).integer("sampler_counter");
  };
  const std::int64_t before = drawn(checkpoint_of(path("run/1_attention_transfer")));
  EXPECT_GT(before, 0);
  EXPECT_EQ(drawn(newest_checkpoint_of(path("run/2_distillation"))), before + 30 * 2);
}

TEST_F(FinetuneTest, ResumesInterruptedStageBitForBit) {
  const std::string yaml = config(performer);
  FinetuneOptions only = options(yaml);
  only.only_stage = "attention_transfer";
  finetune(only);
  const FinetunePlan plan = plan_finetune(options(yaml), checkpoint_of(path("teacher")));
  LoadedSettings part = plan.stages[0].settings;
  // Simulates a signal after step 13: the stage's settings, stopped there.
  part.settings.run_directory = path("stopped");
  const TokenizedDataset data = TokenizedDataset::open(store);
  Trainer stopped(part.settings, data, Device{});
  stopped.start_from(CheckpointReader::open(path("run/student.h5")));
  while (stopped.steps() < 13) stopped.step();
  fs::create_directories(path("stopped/checkpoints"));
  stopped.save(path("stopped/checkpoints/step_00000013.h5"));
  train(part, {});
  testing::expect_equal_tensors(newest_checkpoint_of(path("run/1_attention_transfer")),
                                newest_checkpoint_of(path("stopped")));
}

TEST_F(FinetuneTest, MeasuresConstantsBeforeFirstStep) {
  const std::string yaml =
      config("{mechanism: linear, feature_map: favor_positive, n_features: 16, centering: true, scaling: saderf}");
  FinetuneOptions first =
      options(yaml, {"finetune.attention_transfer.max_steps=1", "finetune.attention_transfer.warmup_steps=1"});
  first.only_stage = "attention_transfer";
  finetune(first);
  // The constants that furlong convert measures on the same tokens.
  ConvertOptions wanted;
  wanted.source = path("teacher");
  wanted.destination = path("converted.h5");
  wanted.attention = "favor_positive+centering+saderf";
  wanted.features = 16;
  wanted.data = ObservedBatches{store, Split::train, 32, 4, 128};
  wanted.max_sequence_length = 64;
  convert(wanted);
  const CheckpointReader student = CheckpointReader::open(path("run/student.h5")),
                         converted = CheckpointReader::open(path("converted.h5"));
  for (const char* constant : {"query_center", "key_center", "scaling"}) {
    const std::string name = std::string("parameters/blocks.1.attention.") + constant;
    const std::vector<float> found = floats(student, name);
    EXPECT_GT(*std::max_element(found.begin(), found.end()), *std::min_element(found.begin(), found.end())) << constant;
    EXPECT_EQ(found, floats(converted, name)) << constant;
  }
}

TEST_F(FinetuneTest, StartsFromConvertedStudent) {
  ConvertOptions wanted;
  wanted.source = path("teacher");
  wanted.destination = path("converted.h5");
  wanted.attention = "favor_positive+centering";
  wanted.features = 16;
  wanted.layers = "1";
  wanted.data = ObservedBatches{store, Split::train, 32, 4, 16};
  convert(wanted);
  const std::string student = "finetune.student=" + path("converted.h5");
  const std::string yaml = config("{}");
  FinetuneOptions only = options(yaml, {student, "finetune.stages=[attention_transfer]"});
  const FinetuneResult result = finetune(only);
  ASSERT_EQ(result.recovery->models.size(), 3u);
  EXPECT_EQ(result.recovery->models[1].candidate.checkpoint, fs::path(path("converted.h5")));
  EXPECT_EQ(result.recovery->models[1].layer_errors.size(), 1u);  // layer 0 still has softmax
  EXPECT_LT(result.recovery->models[2].layer_errors[0].second, result.recovery->models[1].layer_errors[0].second);
  EXPECT_FALSE(fs::exists(path("run/student.h5")));
  EXPECT_THAT(
      message_of<UserError>([&] { finetune(options(config("{mechanism: linear, feature_map: relu}"), {student})); }),
      AllOf(HasSubstr("model.attention"), HasSubstr("converted.h5")));
}

TEST_F(FinetuneTest, ReportsAttentionErrorsWithoutOutputLayer) {
  const Settings headless =
      testing::small_settings(store, {"model.architecture=encoder", "objective.name=masked_tokens",
                                      "model.prediction_head=none", "model.initializer_range=0.3"})
          .settings;
  const Model model = make_model(headless, TokenizedDataset::open(store).vocabulary(), Device{});
  write_model(model, std::nullopt, path("headless.h5"));
  const std::string source = "finetune.source=" + path("headless.h5");
  EXPECT_THAT(message_of<UserError>([&] { finetune(options(config(performer), {source})); }),
              HasSubstr("prediction_head: none"));
  const FinetuneResult result = finetune(options(config(performer), {source, "finetune.stages=[attention_transfer]"}));
  ASSERT_TRUE(result.recovery);
  ASSERT_EQ(result.recovery->models.size(), 2u);  // before and after; the teacher has no measurements
  for (const MeasuredModel& one : result.recovery->models) {
    EXPECT_TRUE(std::isnan(one.found.loss));
    EXPECT_FALSE(one.recovered.accuracy);
    ASSERT_EQ(one.layer_errors.size(), 2u);
  }
  EXPECT_LT(result.recovery->models[1].layer_errors[0].second, result.recovery->models[0].layer_errors[0].second);
  const Json json = Json::parse(content(path("run/recovery.json")));
  EXPECT_TRUE(json["baseline"]["loss"].is_null());
  EXPECT_EQ(json["recovery_undefined"], "the models have no output layer");
  EXPECT_THAT(to_text(*result.recovery), HasSubstr("  recovery undefined (-): the models have no output layer\n"));
}

// The teacher's adapters are part of what the student starts from; its own start anew.
TEST_F(FinetuneTest, StudentTakesMergedAdapters) {
  const std::vector<std::string> teacher{"model.norm=rmsnorm", "model.lora_rank=2", "model.lora_alpha=6"};
  train(testing::small_settings(
            store, testing::with(teacher, {"run_directory=" + path("adapted"), "model.weights=" + path("teacher")})),
        {});
  FinetuneOptions look = options(config(performer), {"finetune.source=" + path("adapted")});
  look.evaluate_only = true;
  finetune(look);
  const CheckpointReader adapted = CheckpointReader::open(checkpoint_of(path("adapted"))),
                         student = CheckpointReader::open(path("run/student.h5"));
  const std::string stem = "blocks.1.feedforward.input.", name = "parameters/" + stem;
  const std::vector<float> before = floats(adapted, name + "weight"), found = floats(student, name + "weight"),
                           a = floats(adapted, name + "lora_a.weight"), b = floats(adapted, name + "lora_b.weight");
  const std::size_t width = a.size() / 2;
  float largest = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const std::size_t row = i / width, column = i % width;
    const float change = 3 * (b[2 * row] * a[column] + b[2 * row + 1] * a[width + column]);
    ASSERT_NEAR(found[i], before[i] + change, 1e-5F) << i;
    largest = std::max(largest, std::abs(change));
  }
  EXPECT_GT(largest, 1e-3F);
  EXPECT_FALSE(student.has(name + "lora_a.weight"));

  const Settings settings = testing::small_settings(store, {"model.norm=rmsnorm", "model.lora_rank=3"}).settings;
  Model other = make_model(settings, TokenizedDataset::open(store).vocabulary(), Device{});
  EXPECT_THAT(initialize_from(adapted, other, false).restarted, ::testing::Contains(stem + "lora_b.weight"));
  EXPECT_EQ(other.store->find(stem + "weight").master().to_vector<float>(), before);
}

TEST_F(FinetuneTest, StudentKeepsWindow) {
  const Settings windowed = testing::small_settings(store, {"model.norm=rmsnorm", "model.attention.window=8"}).settings;
  write_model(make_model(windowed, TokenizedDataset::open(store).vocabulary(), Device{}), std::nullopt,
              path("windowed.h5"));
  const auto window = [&](const std::string& attention, const std::vector<std::string>& overrides) {
    return plan_finetune(options(config(attention), overrides), path("windowed.h5")).student.model.attention.window;
  };
  EXPECT_EQ(window(performer, {}), 8);
  EXPECT_EQ(window(performer, {"model.attention.window=0"}), 0);
  EXPECT_EQ(window("{mechanism: windowed, softmax_window: 4, n_features: 16}", {}), 0) << "it has one of its own";
}

TEST_F(FinetuneTest, RejectsRunMadeFromAnotherModel) {
  const std::string yaml = config(performer);
  finetune(options(yaml));
  EXPECT_THAT(message_of<UserError>([&] {
                finetune(options(config("{mechanism: linear, feature_map: favor_positive, n_features: 32}")));
              }),
              AllOf(HasSubstr("model.attention.n_features was 16"), HasSubstr("is 32 now"), HasSubstr("--run-dir")));
  FinetuneOptions look = options(config("{mechanism: linear, feature_map: elu1}"));
  look.evaluate_only = true;
  EXPECT_THAT(message_of<UserError>([&] { finetune(look); }), HasSubstr("model.attention.feature_map was"));

  EXPECT_THAT(message_of<UserError>([&] { finetune(options(yaml, {"seed=77"})); }), HasSubstr("seed (1 then, 77 now)"));

  // A longer first stage would invalidate the later ones.
  const std::vector<std::string> longer{"finetune.attention_transfer.max_steps=60"};
  FinetuneOptions first = options(config(performer), longer);
  first.only_stage = "attention_transfer";
  for (const FinetuneOptions& one : {first, options(yaml, longer)})
    EXPECT_THAT(message_of<UserError>([&] { finetune(one); }),
                AllOf(HasSubstr("stage attention_transfer is not finished, but distillation and task started from"),
                      HasSubstr("first remove " + path("run/2_distillation") + " and " + path("run/3_task"))));
  EXPECT_TRUE(finetune(options(yaml)).recovery) << "the run is unchanged";
  // As furlong train would do it.
  train(plan_finetune(first, checkpoint_of(path("teacher"))).stages[0].settings, {});
  EXPECT_THAT(message_of<UserError>([&] { finetune(options(yaml, longer)); }),
              AllOf(HasSubstr("2_distillation"), HasSubstr("did not start from"), HasSubstr("remove")));
  fs::remove_all(path("run/2_distillation"));
  fs::remove_all(path("run/3_task"));
  EXPECT_TRUE(finetune(options(yaml, longer)).recovery);

  // Without its record a run's source is unknown.
  const std::string record = content(path("run/finetune.json"));
  fs::remove(path("run/finetune.json"));
  EXPECT_THAT(message_of<UserError>([&] { finetune(options(yaml, longer)); }), HasSubstr("without a finetune.json"));
  std::ofstream(path("run/finetune.json")) << record;

  // Another teacher at the same path.
  fs::remove_all(path("teacher"));
  train(
      testing::small_settings(store, {"run_directory=" + path("teacher"), "trainer.max_steps=5", "model.norm=rmsnorm"}),
      {});
  EXPECT_THAT(message_of<UserError>([&] { finetune(options(yaml, longer)); }), HasSubstr("another model"));
}

TEST_F(FinetuneTest, RewritesUntrainedStudent) {
  const auto random_projection = [&](const std::vector<std::string>& overrides) {
    FinetuneOptions look = options(config(performer), overrides);
    look.evaluate_only = true;
    finetune(look);
    return floats(CheckpointReader::open(path("run/student.h5")), "parameters/blocks.0.attention.directions");
  };
  const std::vector<float> first = random_projection({});
  EXPECT_EQ(random_projection({}), first);
  const std::vector<float> another = random_projection({"seed=77"});
  EXPECT_EQ(another.size(), first.size());
  EXPECT_NE(another, first);
  EXPECT_EQ(random_projection({"model.attention.n_features=32"}).size(), 2 * first.size());
}

TEST_F(FinetuneTest, StageMessagesNameTheStagesKey) {
  const auto plan = [&](const std::vector<std::string>& overrides) {
    return plan_finetune(options(config(performer), overrides), checkpoint_of(path("teacher")));
  };
  const LoadedSettings task = plan({"finetune.task.max_steps=20", "schedule.warmup_steps=3"}).stages[2].settings;
  EXPECT_EQ(task.settings.schedule.warmup_steps, 1);
  EXPECT_TRUE(task.warnings.empty());
  const LoadedSettings shortened = plan({"finetune.distillation.max_steps=2"}).stages[1].settings;
  EXPECT_EQ(shortened.settings.schedule.warmup_steps, 0) << "3 in the file";
  ASSERT_EQ(shortened.warnings.size(), 1u);
  EXPECT_THAT(shortened.warnings[0],
              AllOf(HasSubstr("schedule.warmup_steps: 3"),
                    HasSubstr("trainer.max_steps: 2 (--set finetune.distillation.max_steps=2)")));
  EXPECT_THAT(message_of<UserError>([&] { plan({"finetune.task.warmup_steps=50"}); }),
              AllOf(HasSubstr("--set finetune.task.warmup_steps=50: "), HasSubstr("(stage task)")));
}

TEST_F(FinetuneTest, RejectsConfigsThatDoNotFitTheTeacher) {
  EXPECT_THAT(message_of<UserError>([&] { finetune(options(config(performer), {"model.n_layers=3"})); }),
              AllOf(HasSubstr("model.n_layers: found 3; expected 2"), HasSubstr("teacher")));
  EXPECT_THAT(message_of<UserError>([&] { finetune(options(config(performer), {"model.norm=layernorm"})); }),
              HasSubstr("model.norm: found layernorm; expected rmsnorm"));
  EXPECT_NO_THROW(plan_finetune(options(config(performer), {"model.norm=rmsnorm", "model.dropout=0.1"}),
                                checkpoint_of(path("teacher"))));
  EXPECT_THAT(
      message_of<UserError>([&] { finetune(options(config(performer), {"finetune.source=" + path("nowhere")})); }),
      AllOf(HasSubstr("finetune.source: "), HasSubstr("nowhere does not exist; expected a Hugging Face directory")));
  // Before the source is read.
  EXPECT_THAT(message_of<UserError>([&] {
                finetune(options(config(performer), {"finetune.stages=[attention_transfer, distil]",
                                                     "finetune.source=" + path("nowhere")}));
              }),
              HasSubstr("finetune.stages: found distil; expected each to be attention_transfer, distillation or task"));
  EXPECT_THAT(message_of<UserError>([&] { finetune(options(config(performer), {"finetune.stages=[task, task]"})); }),
              HasSubstr("twice"));
  EXPECT_THAT(
      message_of<UserError>([&] { finetune(options(config(performer), {"finetune.benchmark_lengths=[many]"})); }),
      HasSubstr("found many"));
  EXPECT_THAT(message_of<UserError>([&] { finetune(options(config("{mechanism: softmax}"))); }),
              HasSubstr("nothing to distill"));
  EXPECT_THAT(message_of<UserError>([&] { train(load_settings(config(performer)), {}); }),
              HasSubstr("furlong finetune"));
  EXPECT_FALSE(fs::exists(path("run/2_distillation")));
}

}  // namespace
}  // namespace furlong
