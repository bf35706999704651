// furlong prepare listops, pathfinder and images, and furlong bench lra, as their page shows them.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/cli/page_example.h"
#include "tests/cli/program.h"

namespace furlong {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;
using testing::expect_user_error;
using testing::Finished;

class LraProgramTest : public testing::WithProgram {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(path("tiny"));
    config("listops", 40);
    config("pathfinder", 1024);
    // Two images of 2 x 2 pixels, and their labels.
    const std::string images(
        "\0\0\x08\x03\0\0\0\x02\0\0\0\x02\0\0\0\x02"
        "abcdefgh",
        24);
    file("images.idx", images);
    file("labels.idx", std::string("\0\0\x08\x01\0\0\0\x02\x01\0", 10));
  }
  void config(const std::string& task, int length) const {
    file("tiny/" + task + "_tiny.yaml", fmt::format(R"(
data:
  dataset: {}
  sequence_length: {}
  batch_size: 8
model:
  architecture: encoder
  n_layers: 1
  d_model: 16
  n_heads: 2
objective:
  name: classification
schedule:
  warmup_steps: 2
trainer:
  max_steps: 4
  validate_every: 2
log:
  every: 1
  level: error
  progress: none
)",
                                                    path(task + ".h5"), length));
  }
  std::vector<std::string> bench(const std::vector<std::string>& more) const {
    std::vector<std::string> all{"bench", "lra", "--configs", path("tiny"), "--size", "tiny", "--output", path("runs")};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  void prepare_listops() const {
    testing::run_line(folder_,
                      "furlong prepare listops --samples 60,10,30 --min-length 5 --max-length 40 --output listops.h5");
  }
};

TEST_F(LraProgramTest, ExamplesOfThePageRun) {
  testing::run_example(folder_, "lra.md", 4);
  const std::string out = content(path("stdout"));
  for (const char* part : {"listops.h5:", "  train", "60 documents", "pathfinder", "95% interval", "77.05"})
    EXPECT_THAT(out, HasSubstr(part));
  const Json object = Json::parse(content(path("lra.json")));
  EXPECT_EQ(object["size"], "tiny");
  ASSERT_EQ(object["results"].size(), 4u);
  std::size_t pictures = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path("pictures"))) {
    EXPECT_THAT(content(entry.path().string()), ::testing::StartsWith("P5\n32 32\n255\n"));
    EXPECT_EQ(std::filesystem::file_size(entry), 13u + 1024);
    ++pictures;
  }
  EXPECT_EQ(pictures, 16u);
}

TEST_F(LraProgramTest, TrainsOnceAndMeasuresEveryTime) {
  prepare_listops();
  const std::string mechanisms = "softmax,local,linformer,windowed,elu1,favor_positive,favor_relu";
  const auto results = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all{"--tasks",     "listops",        "--mechanisms", mechanisms,
                                 "--json-file", path("lra.json"), "--bootstrap",  "100"};
    all.insert(all.end(), more.begin(), more.end());
    const Finished done = furlong(bench(all));
    EXPECT_EQ(done.status, 0) << done.err;
    return Json::parse(content(path("lra.json")))["results"];
  };
  const Json first = results({});
  ASSERT_EQ(first.size(), 7u);
  for (const Json& one : first) {
    EXPECT_EQ(one["task"], "listops");
    EXPECT_EQ(one["test_samples"], 30);
    EXPECT_EQ(one["steps"], 4);
    EXPECT_GT(one["tokens"], 4 * 8 * 5);
    EXPECT_GT(one["parameters"], 1000);
    EXPECT_GT(one["peak_bytes"], 1000);
    EXPECT_GT(one["seconds"], 0);
    EXPECT_GE(one["accuracy"]["value"], one["accuracy"]["low"]);
    EXPECT_LE(one["accuracy"]["value"], one["accuracy"]["high"]);
    EXPECT_LE(one["baseline_accuracy"], 1);
  }
  // Short expressions are not the paper's.
  EXPECT_TRUE(first[0]["published_accuracy"].is_null());
  EXPECT_EQ(first[0]["dataset"], path("listops.h5"));
  EXPECT_EQ(first[0]["dataset_options"]["max_length"], 40);
  EXPECT_EQ(first[0]["dataset_options"]["samples"]["test"], 30);
  EXPECT_EQ(first[0]["config"]["trainer"]["max_steps"], 4);
  // The same accuracy and the same seconds: nothing was trained again.
  EXPECT_EQ(results({}), first);
  // The accuracy is that of furlong evaluate on the same checkpoint.
  const Finished evaluated =
      furlong({"evaluate", first[0]["run_directory"].get<std::string>(), "--split", "test", "--json"});
  EXPECT_EQ(Json::parse(evaluated.out)["accuracy"], first[0]["accuracy"]["value"]);
}

TEST_F(LraProgramTest, RefusesRunsAndDatasetsOfAnotherCommand) {
  prepare_listops();
  const std::vector<std::string> run = bench({"--tasks", "listops", "--mechanisms", "elu1", "--json-file", path("a")});
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = run;
    all.insert(all.end(), more.begin(), more.end());
    return furlong(all);
  };
  EXPECT_EQ(with({}).status, 0);
  const std::string rows = content(path("a"));
  expect_user_error(with({"--set", "optimizer.learning_rate=0.5"}),
                    {"runs/listops_tiny_elu1/config.yaml", "optimizer.learning_rate is", "instead of 0.5;",
                     "another output directory"});
  expect_user_error(with({"--set", "trainer.max_steps=1"}), {"trainer.max_steps is 4 instead of 1"});
  expect_user_error(with({"--samples", "7,7,7"}), {"--samples", "listops.h5", "60", "7"});
  EXPECT_EQ(content(path("a")), rows);
  EXPECT_EQ(with({"--samples", "60,10,30", "--set", "log.every=2"}).status, 0);
}

TEST_F(LraProgramTest, WritesJsonAfterEachRow) {
  prepare_listops();
  // The config of the second task does not exist.
  const Finished done = furlong(bench({"--tasks", "listops,pathx", "--mechanisms", "elu1", "--json-file", path("a")}));
  EXPECT_EQ(done.status, 2);
  EXPECT_THAT(done.err, HasSubstr("pathx_tiny.yaml"));
  const Json results = Json::parse(content(path("a")))["results"];
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0]["task"], "listops");
}

TEST_F(LraProgramTest, WritesPicturesBeforeTheDataset) {
  file("occupied", "");
  std::vector<std::string> prepare{"prepare", "pathfinder", "-o", path("p.h5"), "--samples", "2,1,1"};
  prepare.insert(prepare.end(), {"--pictures", path("occupied"), "--n-pictures", "1"});
  expect_user_error(furlong(prepare), {"occupied"});
  EXPECT_FALSE(std::filesystem::exists(path("p.h5")));
  prepare[7] = path("pictures");
  EXPECT_EQ(furlong(prepare).status, 0);
  EXPECT_TRUE(std::filesystem::exists(path("p.h5")));
}

TEST_F(LraProgramTest, GeneratesAMissingDataset) {
  const std::vector<std::string> run = bench({"--tasks", "pathfinder", "--mechanisms", "linformer", "--samples",
                                              "24,8,12", "--test-samples", "5", "--json-file", path("lra.json")});
  const Finished done = furlong(run);
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("76.34"));
  EXPECT_EQ(Json::parse(content(path("lra.json")))["results"][0]["test_samples"], 8) << "a whole batch";
  const Finished evaluated = furlong({"evaluate", path("runs/pathfinder_tiny_linformer"), "--split", "test", "--json"});
  EXPECT_EQ(Json::parse(evaluated.out)["targets"], 12);
}

TEST_F(LraProgramTest, InvalidInputIsAUserError) {
  const auto refused = [&](const std::vector<std::string>& arguments, const std::vector<std::string>& parts) {
    expect_user_error(furlong(arguments), parts);
  };
  refused(bench({"--tasks", "retrieval"}), {"--tasks", "retrieval", "listops"});
  refused(bench({"--mechanisms", "performer"}), {"--mechanisms", "performer", "favor_positive"});
  refused(bench({"--mechanisms", "elu1,elu1"}), {"--mechanisms", "elu1"});
  refused(bench({"--tasks", "pathx"}), {"tiny/pathx_tiny.yaml", "--configs"});
  refused(bench({"--samples", "5,0,5"}), {"--samples", "found 0 for validation"});
  refused(bench({"--json-file", path("none/lra.json")}), {"none/lra.json"});
  const std::string out = path("out.h5");
  refused({"prepare", "listops"}, {"--output"});
  refused({"prepare", "listops", "-o", out, "--samples", "0,1,1"}, {"--samples", "found 0 for train"});
  refused({"prepare", "listops", "-o", out, "--samples", "10,1"}, {"--samples", "found 2 numbers"});
  refused({"prepare", "listops", "-o", out, "--samples", "4,1,1", "--min-length", "50", "--max-length", "51"},
          {"--max-length 51", "52"});
  refused({"prepare", "listops", "-o", out, "--max-arguments", "1"}, {"--max-arguments"});
  refused({"prepare", "pathfinder", "-o", out, "--size", "33"}, {"--size 33", "32, 64 or 128"});
  refused({"prepare", "pathfinder", "-o", out, "--n-pictures", "3"}, {"--n-pictures", "--pictures"});
  refused({"prepare", "images", file("cut.idx", content(path("images.idx")).substr(0, 20)), "-o", out},
          {"cut.idx", "truncated", "1 of 2 images"});
  refused({"prepare", "images", path("images.idx"), "--label-file", path("images.idx"), "-o", out},
          {"images.idx", "expected 1"});
  EXPECT_FALSE(std::filesystem::exists(out));
}

}  // namespace
}  // namespace furlong
