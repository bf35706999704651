// The programs furlong bench comm and furlong train --trace.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/cli/job.h"
#include "tests/cli/program.h"
#include "tests/trainers/training.h"

namespace furlong {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

class CommCommands : public testing::WithProgram {
 protected:
  void expect_refusal(const std::vector<std::string>& arguments, const std::string& part) const {
    SCOPED_TRACE(::testing::PrintToString(arguments));
    testing::expect_user_error(furlong(arguments), {part});
  }
  const std::string config = (testing::source_directory() / "configs/copy_linear.yaml").string();
};

TEST_F(CommCommands, RejectsInvalidOptions) {
  expect_refusal({"bench", "comm"}, "world size 1");
  expect_refusal({"bench", "comm", "--bytes", "0"}, "--bytes 0: expected sizes from 1 byte");
  expect_refusal({"bench", "comm", "--bytes", "8,8"}, "--bytes");
  expect_refusal({"bench", "comm", "--steps", "3"}, "--config");
  expect_refusal({"train", config, "--trace", path("t.json"), "--trace-steps", "6-3"},
                 "--trace-steps 6-3: expected a range of steps");
  expect_refusal({"train", config, "--trace-steps", "3"}, "--trace");
  expect_refusal({"launch", "-n", "2", "bench", "attention"}, "furlong launch bench: ");
}

TEST_F(CommCommands, BenchCommReplacesNoInput) {
  const auto refused = [&](const std::string& output, const std::string& reason) {
    const std::string before = content(output);
    const testing::Finished result = furlong({"launch", "--processes", "2", "bench", "comm", "--bytes", "8",
                                              "--repeats", "1", "--config", path("copy.yaml"), "--json-file", output});
    EXPECT_EQ(result.status, 2);
    EXPECT_THAT(result.err, HasSubstr(output + ": is " + reason));
    EXPECT_EQ(content(output), before);
  };
  std::filesystem::copy_file(config, path("copy.yaml"));
  refused(path("copy.yaml"), "both input and output; choose another --json-file");
  const std::string store = testing::write_store(path("store.h5"), testing::synthetic_text(400));
  refused(store, "a tokenized dataset; this command does not replace it");
}

TEST_F(CommCommands, RanksOfBenchCommMayHaveDifferentThreads) {
  testing::JobOptions options;
  options.change = [](int rank, std::vector<std::string>& arguments) {
    if (rank == 1) arguments.insert(arguments.end(), {"--set", "threads=1"});
  };
  testing::Job job(2, path("output"),
                   {"bench", "comm", "--bytes", "8", "--repeats", "1", "--config", config, "--steps", "1", "--set",
                    "data.batch_size=2", "--set", "data.sequence_length=64"},
                   options);
  for (const testing::Finished& process : job.wait()) EXPECT_EQ(process.status, 0) << process.err;
}

TEST_F(CommCommands, BenchCommPrintsTableAndWritesJson) {
  const testing::Finished result =
      furlong({"launch", "--processes", "2", "bench", "comm", "--bytes", "4KiB,8", "--repeats", "2", "--config", config,
               "--steps", "2", "--set", "data.batch_size=2", "--set", "data.sequence_length=64", "--json-file",
               path("comm.json")});
  ASSERT_EQ(result.status, 0) << result.err;
  for (const char* part : {"2 ranks (gloo), medians of 2", "all_reduce", "reduce_scatter", "all_gather", "broadcast",
                           "exchange", "send_receive", "barrier", "training, 2 steps of", "overlaps with backward"})
    EXPECT_THAT(result.out, HasSubstr(part));
  std::ifstream file(path("comm.json"));
  const Json object = Json::parse(file);
  EXPECT_EQ(object["world_size"], 2);
  EXPECT_EQ(object["local_world_size"], 2);
  EXPECT_EQ(object["backend"], "gloo");
  EXPECT_EQ(object["repeats"], 2);
  EXPECT_TRUE(object["furlong"].contains("commit"));
  EXPECT_GE(object["machine"]["threads"], 1);
  ASSERT_EQ(object["operations"].size(), 6u * 2 + 1);
  std::set<std::string> names;
  for (const Json& figure : object["operations"]) {
    names.insert(figure["operation"]);
    EXPECT_GT(figure["median_seconds"], 0);
    EXPECT_EQ(figure["seconds"].size(), 2u);
    EXPECT_GE(figure["operations_at_once"], 1);
    const bool has_size = figure["operation"] != "barrier";
    EXPECT_EQ(figure["bytes"] > 0, has_size);
    EXPECT_EQ(figure["bus_bandwidth"] > 0, has_size);
    EXPECT_EQ(figure["algorithm_bandwidth"] > 0, has_size);
  }
  EXPECT_EQ(names.size(), 7u);
  EXPECT_EQ(object["operations"][0]["bytes"], 8) << "ascending";
  const Json& training = object["training"];
  for (const char* key : {"parameters", "buckets", "bytes", "median_seconds"}) EXPECT_GT(training[key], 0) << key;
  EXPECT_EQ(training["seconds"].size(), 2u);
  EXPECT_EQ(training["overlapped_buckets"].size(), 2u);
  EXPECT_EQ(training["ranks"].size(), 2u);
  for (const char* key : {"reduction_seconds", "waited_seconds", "overlapped_fraction"})
    EXPECT_TRUE(training["all"][key].is_number()) << key;
  EXPECT_FALSE(std::filesystem::exists(path("runs"))) << "nothing else is written";
}

TEST_F(CommCommands, TraceHoldsTwoRanks) {
  const testing::Finished result =
      furlong({"launch", "--processes", "2", "train", config, "--run-dir", path("run"), "--trace", path("trace.json"),
               "--trace-steps", "2-3", "--set", "trainer.max_steps=4", "--set", "schedule.warmup_steps=1", "--set",
               "data.batch_size=2", "--set", "data.sequence_length=64"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("2 steps traced: " + path("trace.json")));
  std::ifstream file(path("trace.json"));
  const Json object = Json::parse(file);
  std::set<int> ranks;
  int steps = 0;
  for (const Json& event : object["traceEvents"]) {
    ranks.insert(event["pid"].get<int>());
    steps += event["name"] == "step" ? 1 : 0;
  }
  EXPECT_EQ(ranks, (std::set<int>{0, 1}));
  EXPECT_EQ(steps, 4);
  EXPECT_THAT(object["otherData"]["spans"].get<std::string>(), HasSubstr("for a GPU"));
}

}  // namespace
}  // namespace furlong
