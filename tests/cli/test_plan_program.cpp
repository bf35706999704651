// The program furlong plan: output, errors and exit status.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/program.h"
#include "tests/trainers/training.h"

namespace furlong {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::ordered_json;
using testing::expect_user_error;
using testing::Finished;

class PlanProgram : public testing::WithProgram {
 protected:
  PlanProgram() {
    testing::write_store(path("text.h5"), testing::synthetic_text(2000));
    config("here.yaml", path("text.h5"));
    config("elsewhere.yaml", path("not_here.h5"));
  }
  void config(const char* name, const std::string& store) const {
    std::ofstream(path(name))
        << "model:\n  n_layers: 2\n  d_model: 64\n  n_heads: 2\n  dtype: bfloat16\ndata:\n  dataset: " << store
        << "\n  sequence_length: 64\n  batch_size: 16\n";
  }
  Finished plan(const std::string& config, const std::vector<std::string>& more) const {
    std::vector<std::string> all{"plan", path(config.c_str())};
    all.insert(all.end(), more.begin(), more.end());
    return furlong(all);
  }
};

TEST_F(PlanProgram, PrintsDataParallelNextToZero1) {
  const Finished found = plan("here.yaml", {"--devices", "2x4", "--device", "h100"});
  ASSERT_EQ(found.status, 0) << found.err;
  EXPECT_EQ(found.err, "");
  EXPECT_THAT(
      found.out,
      AllOf(HasSubstr("2 hosts with 4 h100 each"), HasSubstr("2 samples per device"), HasSubstr("data parallel"),
            HasSubstr("ZeRO-1"), HasSubstr("exposed communication / step"), HasSubstr("tokens per second"),
            HasSubstr("data sheet"), HasSubstr("estimated, not measured:"), HasSubstr("20 us (assumed)")));
}

TEST_F(PlanProgram, WritesJson) {
  const Finished found =
      plan("here.yaml", {"--devices", "2x4", "--device", "h100,network=25e9", "--utilization", "0.5", "--json"});
  ASSERT_EQ(found.status, 0) << found.err;
  const Json json = Json::parse(found.out);
  EXPECT_EQ(json["hosts"], 2);
  EXPECT_EQ(json["devices_per_host"], 4);
  EXPECT_EQ(json["device"]["numbers"]["network"], 25e9);
  EXPECT_EQ(json["device"]["numbers"]["utilization"], 0.5);
  EXPECT_EQ(json["device"]["numbers"]["flops"], 989.4e12) << "model.dtype is bfloat16";
  EXPECT_THAT(json["device"]["assumed"].get<std::vector<std::string>>(),
              ::testing::Not(::testing::Contains("utilization")));
  EXPECT_EQ(json["samples_per_device"], 2);
  EXPECT_EQ(json["tokens_per_step"], 16 * 64);
  for (const char* sharing : {"data_parallel", "zero_1"}) {
    const Json& one = json[sharing];
    EXPECT_TRUE(one["fits"]);
    const Json &seconds = one["seconds"], &bytes = one["memory_bytes"];
    EXPECT_NEAR(seconds["step"].get<double>(),
                seconds["forward"].get<double>() + seconds["backward"].get<double>() +
                    seconds["optimizer"].get<double>() + seconds["communication_waited"].get<double>(),
                1e-12);
    EXPECT_DOUBLE_EQ(one["communication_share"].get<double>(),
                     seconds["communication_waited"].get<double>() / seconds["step"].get<double>());
    EXPECT_DOUBLE_EQ(bytes["available"].get<double>(), 78e9);
    EXPECT_EQ(bytes["missing"], 0);
  }
  EXPECT_LT(json["zero_1"]["memory_bytes"]["optimizer"], json["data_parallel"]["memory_bytes"]["optimizer"]);
  EXPECT_FALSE(json["assumptions"].empty());
}

TEST_F(PlanProgram, NeedsNoDatasetWithVocabularySize) {
  const std::vector<std::string> where{"--devices", "4", "--device", "a100", "--json"};
  expect_user_error(plan("elsewhere.yaml", where), {"--set model.vocabulary_size=N"});
  std::vector<std::string> said = where;
  said.insert(said.end(), {"--set", "model.vocabulary_size=256"});
  const Finished there = plan("here.yaml", where), absent = plan("elsewhere.yaml", said);
  ASSERT_EQ(absent.status, 0) << absent.err;
  EXPECT_EQ(absent.out, there.out) << "bytes are 256 tokens";
  said.insert(said.end(), {"--set", "model.architecture=encoder", "--set", "objective.name=classification"});
  EXPECT_EQ(plan("elsewhere.yaml", said).status, 0) << "labels cost next to nothing: how many they are is not asked";
}

TEST_F(PlanProgram, ReportsMissingMemoryAndWhatWouldFit) {
  const Finished found = plan("here.yaml", {"--devices", "4", "--device", "h100,memory=1e6,reserve=0"});
  ASSERT_EQ(found.status, 0) << found.err;
  EXPECT_THAT(found.out, AllOf(HasSubstr("data parallel: does not fit by "), HasSubstr("What would fit: ")));
}

/// A CPU cluster given by numbers, which supports context parallelism.
const std::string processors = "flops=1e12,memory=64e9,bandwidth=1e11,link=1e10,network=1e9";

TEST_F(PlanProgram, PrintsContextParallelStates) {
  const std::vector<std::string> where{"--devices", "2x4",
                                       "--device",  processors,
                                       "--set",     "parallel.context_parallel_size=4",
                                       "--set",     "model.attention.mechanism=linear"};
  const Finished found = plan("here.yaml", where);
  ASSERT_EQ(found.status, 0) << found.err;
  EXPECT_THAT(found.out,
              AllOf(HasSubstr("8 samples per device"),
                    HasSubstr("4 ranks share each sequence, 16 tokens each; 4 times per step"),
                    HasSubstr("of which context-parallel states"), HasSubstr("in one ring through all ranks")));
  std::vector<std::string> as_json = where;
  as_json.emplace_back("--json");
  const Json json = Json::parse(plan("here.yaml", as_json).out), segments = json["segments"];
  EXPECT_EQ(segments["context_parallel_size"], 4);
  EXPECT_EQ(segments["tokens"], 16);
  EXPECT_EQ(segments["exchanges_per_step"], 4);
  EXPECT_EQ(segments["bytes_per_step"].get<double>(), 4 * segments["state_bytes"].get<double>());
  EXPECT_DOUBLE_EQ(json["zero_1"]["seconds"]["communication_states"].get<double>(),
                   segments["seconds_forward"].get<double>() + segments["seconds_backward"].get<double>());
  EXPECT_TRUE(Json::parse(plan("here.yaml", {"--device", "h100", "--json"}).out)["segments"].is_null());
}

TEST_F(PlanProgram, PrintsMemoryOfCheckpointCopy) {
  const std::vector<std::string> where{"--devices", "2x4", "--device", "h100"};
  EXPECT_THAT(plan("here.yaml", where).out, HasSubstr("of the host's memory per rank, "));
  std::vector<std::string> foreground = where;
  foreground.insert(foreground.end(), {"--set", "checkpoint.async=false"});
  EXPECT_THAT(plan("here.yaml", foreground).out, ::testing::Not(HasSubstr("checkpoint.async")));
  foreground.emplace_back("--json");
  EXPECT_TRUE(Json::parse(plan("here.yaml", foreground).out)["checkpoint_copy"].is_null());
  std::vector<std::string> as_json = where;
  as_json.emplace_back("--json");
  const Json copy = Json::parse(plan("here.yaml", as_json).out)["checkpoint_copy"];
  EXPECT_GT(copy["bytes"].get<double>(), 0);
  EXPECT_EQ(copy["bytes_of_host"].get<double>(), 4 * copy["bytes"].get<double>());
  EXPECT_TRUE(copy["fits_with_data_parallel"].is_null()) << "the host's memory is not known";
}

TEST_F(PlanProgram, MeasuresCpuOfThisMachine) {
  const auto on_cpu = [&](const std::string& device, const std::vector<std::string>& more) {
    std::vector<std::string> all{"--devices", "2", "--device", device, "--set", "threads=1"};
    all.insert(all.end(), more.begin(), more.end());
    const Finished found = plan("here.yaml", all);
    EXPECT_EQ(found.status, 0) << found.err;
    return found.out;
  };
  const Json json = Json::parse(on_cpu("cpu", {"--json"}));
  EXPECT_THAT(json["device"]["source"].get<std::string>(), HasSubstr("measured now"));
  EXPECT_EQ(json["data_parallel"]["seconds"]["communication_overlapped"], 0) << "the same cores do both";
  // A checkpoint's copy uses the memory that the step leaves free.
  EXPECT_TRUE(json["checkpoint_copy"]["fits_with_data_parallel"]);
  const double step = json["data_parallel"]["memory_bytes"]["total"], copy = json["checkpoint_copy"]["bytes"];
  EXPECT_THAT(on_cpu(fmt::format("cpu,memory={}", step + copy / 2), {}),
              HasSubstr("data parallel: the copy does not fit in addition to the step"));
}

TEST_F(PlanProgram, RejectsInvalidOptions) {
  expect_user_error(plan("here.yaml", {"--devices", "8x", "--device", "h100"}), {"--devices 8x: expected"});
  expect_user_error(plan("here.yaml", {"--devices", "32", "--device", "h100"}),
                    {"data.batch_size: 16: the plan is for 32 devices"});
  expect_user_error(
      plan("here.yaml", {"--devices", "2", "--device", "h100", "--set", "parallel.context_parallel_size=2", "--set",
                         "model.attention.mechanism=linear"}),
      {"supported on CPUs only; set it to 1, or plan for --device cpu"});
  expect_user_error(plan("here.yaml", {"--device", "h1000"}), {"did you mean h100?"});
  expect_user_error(plan("here.yaml", {"--device", "flops=1e15,memory=80e9"}),
                    {"bandwidth is missing", "add bandwidth=BYTES_PER_SECOND"});
  expect_user_error(plan("here.yaml", {"--devices", "2", "--device", "flops=1e15,memory=80e9,bandwidth=1e12"}),
                    {"link is missing"});
  expect_user_error(plan("here.yaml", {"--device", "h100,speed=3"}), {"unknown key 'speed'"});
  expect_user_error(plan("here.yaml", {"--device", ""}), {"--device"});
  expect_user_error(plan("here.yaml", {"--device", "h100", "--utilization", "2"}), {"--utilization"});
  expect_user_error(plan("nowhere.yaml", {"--device", "h100"}), {"nowhere.yaml"});
}

}  // namespace
}  // namespace furlong
