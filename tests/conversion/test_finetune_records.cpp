// Files written by furlong finetune: measurements, settings, and fingerprints of the sources.
#include <gmock/gmock.h>

#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>

#include "conversion/fingerprint.h"
#include "framework/io/atomic_file.h"
#include "tests/conversion/finetune_testing.h"
#include "tests/conversion/tiny_models.h"
#include "trainers/train/signals.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;
using testing::message_of;

class FinetuneRecords : public testing::FinetuneTest {
 protected:
  static std::vector<std::string> short_stages(const std::string& stages) {
    std::vector<std::string> keys{"finetune.stages=" + stages, "finetune.benchmark_lengths=[]"};
    for (const auto& [stage, steps] : {std::pair{"attention_transfer", 4}, {"distillation", 5}})
      if (stages.find(stage) != std::string::npos)
        keys.push_back(fmt::format("finetune.{}.max_steps={}", stage, steps));
    return keys;
  }
  Json recovery(const std::string& name = "recovery.json") const { return Json::parse(content(path("run/" + name))); }
  FinetuneResult looked(const std::string& attention, const std::vector<std::string>& overrides) const {
    FinetuneOptions look = options(config(attention), overrides);
    look.evaluate_only = true;
    return finetune(look);
  }
};

TEST_F(FinetuneRecords, RecoveryRecordsStageSettings) {
  const std::vector<std::string> overrides = short_stages("[attention_transfer, distillation]");
  const FinetuneResult result = finetune(options(config(testing::performer_attention), overrides));
  EXPECT_EQ(result.recovery_file, fs::path(path("run/recovery.json")));
  const Json json = recovery();
  EXPECT_EQ(json["overrides"], Json(overrides));
  ASSERT_EQ(json["models"].size(), 4U);
  for (const std::size_t i : {0, 1}) EXPECT_FALSE(json["models"][i].contains("settings"));
  const Json &transfer = json["models"][2]["settings"], &distillation = json["models"][3]["settings"];
  EXPECT_EQ(transfer["trainer"]["max_steps"], 4);
  EXPECT_EQ(transfer["optimizer"]["learning_rate"], 0.005);
  EXPECT_EQ(transfer["teacher"]["loss"], "attention_transfer");
  EXPECT_EQ(distillation["trainer"]["max_steps"], 5);
  EXPECT_EQ(distillation["optimizer"]["learning_rate"], 0.003);
  EXPECT_EQ(distillation["data"]["batch_size"], 2);
}

TEST_F(FinetuneRecords, LayerWiseTransferDoesNotStopEarly) {
  std::vector<std::string> overrides = short_stages("[attention_transfer, distillation]");
  overrides.insert(overrides.end(), {"teacher.layers=layer_wise", "trainer.early_stopping_patience=3"});
  const auto stages =
      plan_finetune(options(config(testing::performer_attention), overrides), checkpoint_of(path("teacher"))).stages;
  EXPECT_EQ(stages[0].settings.settings.trainer.early_stopping_patience, 0);
  EXPECT_EQ(stages[1].settings.settings.trainer.early_stopping_patience, 3);
}

TEST_F(FinetuneRecords, WritesFewerStagesToAnotherFile) {
  finetune(options(config(testing::performer_attention), short_stages("[attention_transfer, distillation]")));
  const std::string whole = content(path("run/recovery.json"));
  const FinetuneResult one = looked(testing::performer_attention, short_stages("[attention_transfer]"));
  EXPECT_EQ(one.recovery_file, fs::path(path("run/recovery_1_attention_transfer.json")));
  EXPECT_EQ(content(path("run/recovery.json")), whole);
  EXPECT_EQ(recovery("recovery_1_attention_transfer.json")["models"].size(), 3U);
  // The same stages are overwritten, and a stage whose folder was removed is ignored.
  EXPECT_EQ(looked(testing::performer_attention, short_stages("[attention_transfer, distillation]")).recovery_file,
            fs::path(path("run/recovery.json")));
  EXPECT_EQ(recovery()["models"], Json::parse(whole)["models"]);
  fs::remove_all(path("run/2_distillation"));
  EXPECT_EQ(looked(testing::performer_attention, short_stages("[attention_transfer]")).recovery_file,
            fs::path(path("run/recovery.json")));
  EXPECT_EQ(recovery()["models"].size(), 3U);
  // A file that is not a valid recovery.json is replaced.
  file("run/recovery.json", "[1, 2");
  EXPECT_EQ(looked(testing::performer_attention, short_stages("[attention_transfer]")).recovery_file,
            fs::path(path("run/recovery.json")));
}

// The teacher has learned b after a, but the data has a: the baseline, measured on the data, is far better.
TEST_F(FinetuneRecords, RecoveryIsEmptyForTeacherBelowBaseline) {
  std::string text;
  for (std::size_t i = 0; i < 4000; ++i) text.push_back(i % 10 == 9 ? 'b' : 'a');
  std::vector<std::string> overrides = short_stages("[attention_transfer]");
  overrides.push_back("data.dataset=" + testing::write_store(path("other.h5"), text));
  const FinetuneResult result = looked("{mechanism: windowed, softmax_window: 8, n_features: 16}", overrides);
  ASSERT_EQ(result.recovery->models.size(), 2U);
  EXPECT_LT(result.recovery->models[0].found.accuracy, result.recovery->baseline.accuracy);
  const MeasuredModel& student = result.recovery->models[1];
  ASSERT_TRUE(student.window_off);
  for (const Recovered& share : {student.recovered, student.window_off_recovered}) {
    EXPECT_FALSE(share.accuracy);
    EXPECT_FALSE(share.accuracy_error);
    EXPECT_FALSE(share.loss);
  }
  EXPECT_TRUE(recovery()["models"][1]["window_off"]["recovery"]["accuracy"].is_null());
}

TEST_F(FinetuneRecords, TableShowsLinearPartOfHybrids) {
  const FinetuneResult result =
      looked("{mechanism: windowed, softmax_window: 8, n_features: 16}", short_stages("[attention_transfer]"));
  const UnigramBaseline& baseline = result.recovery->baseline;
  const Evaluation &teacher = result.recovery->models[0].found, &off = *result.recovery->models[1].window_off;
  const Json found = recovery()["models"][1]["window_off"]["recovery"];
  EXPECT_DOUBLE_EQ(found["loss"].get<double>(), (off.loss - baseline.loss) / (teacher.loss - baseline.loss));
  EXPECT_DOUBLE_EQ(found["accuracy"].get<double>(),
                   (off.accuracy - baseline.accuracy) / (teacher.accuracy - baseline.accuracy));
  EXPECT_GT(found["accuracy_standard_error"].get<double>(), 0);
}

TEST_F(FinetuneRecords, RejectsStageWithoutPrecedingStage) {
  FinetuneOptions task = options(config(testing::performer_attention), {"finetune.source=" + path("nowhere")});
  task.only_stage = "task";
  EXPECT_THAT(message_of<UserError>([&] { finetune(task); }),
              AllOf(HasSubstr("--stage task"), HasSubstr("stage distillation, which has no checkpoint")));
  EXPECT_FALSE(fs::exists(path("run")));
}

// The student's constants were measured on the data.
TEST_F(FinetuneRecords, ComparesContentOfDataInsteadOfPaths) {
  const std::string measured = "{mechanism: linear, feature_map: favor_positive, n_features: 16, centering: true}";
  std::vector<std::string> overrides = short_stages("[attention_transfer]");
  finetune(options(config(measured), overrides));
  fs::copy_file(store, path("moved.h5"));
  overrides.push_back("data.dataset=" + path("moved.h5"));
  EXPECT_TRUE(finetune(options(config(measured), overrides)).recovery);
  overrides.back() = "data.dataset=" + testing::write_store(path("other.h5"), testing::easy_text(5000));
  EXPECT_THAT(message_of<UserError>([&] { finetune(options(config(measured), overrides)); }),
              AllOf(HasSubstr("student.h5: this run was started with different settings"),
                    HasSubstr("the content of data.dataset")));
}

TEST_F(FinetuneRecords, EarlyStoppedStageIsFinished) {
  std::vector<std::string> overrides = short_stages("[attention_transfer, distillation]");
  // The weights do not change, so the second validation is no better.
  for (const char* key : {"finetune.attention_transfer.learning_rate=1e-30", "trainer.validate_every=1",
                          "trainer.early_stopping_patience=1"})
    overrides.emplace_back(key);
  finetune(options(config(testing::performer_attention), overrides));
  ASSERT_EQ(recovery()["models"][2]["settings"]["trainer"]["max_steps"], 4);
  EXPECT_FALSE(fs::exists(path("run/1_attention_transfer/checkpoints/step_00000004.h5")));
  EXPECT_TRUE(finetune(options(config(testing::performer_attention), overrides)).recovery)
      << "the second stage may stay";
}

// The measurement after the stages has to be possible, which is known before them.
TEST_F(FinetuneRecords, StatefulStudentIsMeasuredWithoutItsTeacher) {
  const std::string documents = testing::write_texts(
      path("documents.h5"), {testing::easy_text(900), testing::easy_text(700), testing::easy_text(800)}, "0.6,0.2,0.2");
  std::vector<std::string> keys = short_stages("[task]");
  for (const std::string& key :
       {"data.dataset=" + documents, std::string("data.sampler=stream"), std::string("data.stateful=true"),
        std::string("finetune.task.max_steps=2"), std::string("finetune.task.sequence_length=16"),
        std::string("data.sequence_length=16")})
    keys.push_back(key);
  ASSERT_TRUE(finetune(options(config(testing::performer_attention), keys)).recovery);
  const Json json = recovery();
  EXPECT_THAT(json["recovery_undefined"].get<std::string>(), HasSubstr("data.stateful"));
  ASSERT_EQ(json["models"].size(), 2U);
  EXPECT_GT(json["models"][1]["loss"].get<double>(), 0);
  const std::string student = CheckpointReader::open(path("run/student.h5")).text("config");
  EXPECT_EQ(from_yaml_text(student, "student").settings.model.max_sequence_length, 32)
      << "shorter stages do not take positions from the teacher's";
  fs::remove_all(path("run"));
  keys.emplace_back("data.batch_size=400");
  EXPECT_THAT(message_of<UserError>([&] { finetune(options(config(testing::performer_attention), keys)); }),
              HasSubstr("too few for 400 rows"));
  EXPECT_FALSE(fs::exists(path("run"))) << "nothing was written";
}

TEST_F(FinetuneRecords, MeasuredSplitNeedsTargets) {
  const auto keys = [&](const std::string& shares, const std::string& stage) {
    std::vector<std::string> all = short_stages("[" + stage + "]");
    all.push_back("data.dataset=" +
                  testing::write_store(path("split.h5"), testing::easy_text(5000) + std::string(60, 'z'), shares));
    all.emplace_back("data.ignore_tokens=[z]");
    return all;
  };
  const std::string attention = config(testing::performer_attention);
  EXPECT_THAT(message_of<UserError>([&] { finetune(options(attention, keys("0.9,0.095,0.005", "distillation"))); }),
              HasSubstr("the test split, so there is no loss; data.ignore_tokens"));
  EXPECT_FALSE(fs::exists(path("run"))) << "nothing was written";
  FinetuneOptions one = options(attention, keys("1,0,0", "attention_transfer"));
  one.only_stage = "attention_transfer";
  EXPECT_FALSE(finetune(one).recovery) << "a stage alone is not measured";
  EXPECT_TRUE(fs::exists(path("run/1_attention_transfer/checkpoints")));
}

TEST_F(FinetuneRecords, SignalLeavesNoPartialStudent) {
  const StopRequests stop_requests;
  ASSERT_EQ(std::raise(SIGTERM), 0);
  const FinetuneResult result =
      finetune(options(config(testing::performer_attention), short_stages("[attention_transfer]")));
  EXPECT_TRUE(result.interrupted);
  EXPECT_EQ(result.stage, "");
  EXPECT_FALSE(fs::exists(path("run/student.h5")));
  EXPECT_TRUE(partial_files(path("run/student.h5")).empty());
}

class Fingerprint : public testing::WithTemporaryFolder {};

TEST_F(Fingerprint, CoversAllFilesOfTheModel) {
  const std::string source = testing::tiny_gpt2().write(folder_ / "source");
  std::string last = fingerprint_of_source(source);
  EXPECT_EQ(fingerprint_of_source(source), last);
  for (const char* name : {"special_tokens_map.json", "added_tokens.json", "model.safetensors.index.json"}) {
    for (const char* text : {"{}", "{ }"}) {
      file(std::string("source/") + name, text);
      const std::string now = fingerprint_of_source(source);
      EXPECT_NE(now, last) << name;
      last = now;
    }
  }
  for (const char* name : {"README.md", "pytorch_model.bin.index.json"}) {
    file(std::string("source/") + name, "x");
    EXPECT_EQ(fingerprint_of_source(source), last) << name;
  }
}

TEST_F(Fingerprint, AcceptsFingerprintsOfEarlierVersions) {
  const std::string source = testing::tiny_gpt2().write(folder_ / "source");
  FinetuneRecord record(folder_);
  record.source_fingerprint = fingerprint_of_source(source);
  file("source/special_tokens_map.json", "{}");
  EXPECT_NE(record.source_fingerprint, fingerprint_of_source(source));
  EXPECT_NO_THROW(check_source(record, source, fingerprint_of_source(source)));
  file("source/config.json", content(path("source/config.json")) + " ");
  EXPECT_THROW(check_source(record, source, fingerprint_of_source(source)), UserError);
}

TEST_F(Fingerprint, RecordAcceptsPathsThatAreNotUtf8) {
  FinetuneRecord record(folder_);
  record.source = "models/\xff";
  record.source_fingerprint = "0a";
  EXPECT_NO_THROW(record.write());
  EXPECT_EQ(FinetuneRecord(folder_).source_fingerprint, "0a");
}

}  // namespace
}  // namespace furlong
