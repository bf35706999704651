// furlong prepare listops, pathfinder and images, and furlong bench lra, as their page shows them.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/cli/page_example.h"
#include "tests/cli/program.h"
#include "tests/unread_output.h"

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
  void config(const std::string& task, int length, const std::string& objective = "classification") const {
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
  name: {}
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
                                                    path(task + ".h5"), length, objective));
  }
  std::vector<std::string> bench(const std::vector<std::string>& more) const {
    std::vector<std::string> all{"bench", "lra", "--configs", path("tiny"), "--size", "tiny", "--output", path("runs")};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  /// A dataset with the labels of IMDB reviews.
  void prepare_reviews(int count) const {
    std::string table;
    for (int i = 0; i < count; ++i) table += i % 2 == 0 ? "awful\tneg\n" : "nice\tpos\n";
    file("reviews.tsv", table);
    testing::run_line(folder_, "furlong prepare labeled reviews.tsv --split 0.5,0.2,0.3 --output text.h5");
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
    const double accuracy = one["accuracy"]["value"];
    EXPECT_GE(accuracy, one["accuracy"]["low"].get<double>());
    EXPECT_LE(accuracy, one["accuracy"]["high"].get<double>());
    EXPECT_LE(one["baseline_accuracy"].get<double>(), 1);
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
  const Finished in_run = furlong(bench(
      {"--tasks", "listops", "--mechanisms", "elu1", "--json-file", path("runs/listops_tiny_elu1/metrics.jsonl")}));
  EXPECT_EQ(in_run.status, 2);
  EXPECT_THAT(in_run.err, HasSubstr("metrics.jsonl: training writes its own files there"));
  expect_user_error(with({"--samples", "7,7,7"}), {"--samples", "listops.h5", "60", "7"});
  EXPECT_EQ(content(path("a")), rows);
  EXPECT_EQ(with({"--samples", "60,10,30", "--set", "log.every=2"}).status, 0);
}

TEST_F(LraProgramTest, WritesJsonAfterEachRow) {
  prepare_listops();
  prepare_reviews(40);
  config("text", 1000);
  std::filesystem::create_directories(path("runs/text_tiny_elu1"));
  file("runs/text_tiny_elu1/checkpoints", "no folder");  // so training of the second task fails
  const Finished done = furlong(bench({"--tasks", "listops,text", "--mechanisms", "elu1", "--json-file", path("a")}));
  EXPECT_NE(done.status, 0);
  EXPECT_THAT(done.err, HasSubstr("checkpoints"));
  const Json results = Json::parse(content(path("a")))["results"];
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0]["task"], "listops");
}

TEST_F(LraProgramTest, ContinuesWithPausedReader) {
  prepare_listops();
  const testing::UnreadOutput output(testing::UnreadOutput::pipe);
  output.fill();
  const testing::Streams streams{.out = output.writer()};
  std::vector<std::string> arguments = bench({"--tasks", "listops", "--mechanisms", "elu1,softmax"});
  const Finished lost = testing::Program(folder_, arguments, streams).end_in_time();
  EXPECT_EQ(lost.status, 1);
  EXPECT_THAT(lost.err, HasSubstr("error: cannot write the table to standard output; all runs are saved"));
  arguments.insert(arguments.end(), {"--json-file", path("a")});
  const Finished kept = testing::Program(folder_, arguments, streams).end_in_time();
  EXPECT_EQ(kept.status, 0) << kept.err;
  EXPECT_EQ(Json::parse(content(path("a")))["results"].size(), 2u);
}

TEST_F(LraProgramTest, ConfigsAndDatasetsAreCheckedBeforeTraining) {
  prepare_listops();
  const auto refused = [&](const std::string& tasks, const std::vector<std::string>& parts) {
    expect_user_error(furlong(bench({"--tasks", tasks, "--mechanisms", "elu1,softmax"})), parts);
    EXPECT_FALSE(std::filesystem::exists(path("runs"))) << "nothing is trained";
  };
  refused("listops,image", {"tiny/image_tiny.yaml", "--configs"});
  config("image", 1024);
  refused("listops,image",
          {"image.h5: does not exist", "furlong prepare images cifar-10-batches-bin/data_batch_*.bin --format cifar10",
           "--output " + path("image.h5")});
  std::ofstream(path("tiny/image_tiny.yaml"), std::ios::app) << "# run.sh: prepare cifar10\n";
  refused("listops,image", {"image.h5: does not exist; prepare it: scripts/prepare_data.sh cifar10"});
  prepare_reviews(40);
  config("text", 1000, "regression");
  refused("listops,text", {"text_tiny.yaml", "objective.name", "text.h5"});
  file("tiny/pathx_published.yaml", "");
  refused("listops,pathx", {"tiny/pathx_tiny.yaml", "pathx has configs of --size published"});
  expect_user_error(furlong(bench({"--tasks", "image", "--samples", "5,5,5"})),
                    {"--samples", "image is not generated"});
}

TEST_F(LraProgramTest, WarnsOnceOfTheOptionsThatDiffer) {
  testing::run_line(folder_,
                    "furlong prepare listops --samples 60,10,30 --min-length 5 --max-length 40 --max-depth 4 "
                    "--output listops.h5");
  const Finished done = furlong(bench({"--tasks", "listops", "--mechanisms", "elu1,softmax", "--set",
                                       "log.level=warning", "--set", "data.sequence_length=60"}));
  EXPECT_EQ(done.status, 0) << done.err;
  const std::string warning =
      "listops.h5: min_length is 5 instead of 15, max_length is 40 instead of 60, max_depth is 4 instead of 10; its "
      "accuracies are not comparable with published ones";
  ASSERT_THAT(done.err, HasSubstr(warning));
  EXPECT_EQ(done.err.find(warning), done.err.rfind(warning));
}

TEST_F(LraProgramTest, StandInsAreNamedAndHaveNoPublishedAccuracy) {
  // Pictures of 2 x 2 pixels with labels, and reviews with the labels of the official ones, but too few.
  std::string images("\0\0\x08\x03\0\0\0\x20\0\0\0\x02\0\0\0\x02", 16), labels("\0\0\x08\x01\0\0\0\x20", 8);
  for (int i = 0; i < 32; ++i) {
    images += std::string(4, static_cast<char>(i % 2 == 0 ? 0 : 200));
    labels += static_cast<char>(i % 2);
  }
  file("many.idx", images);
  file("test.idx", images);
  file("many_labels.idx", labels);
  testing::run_line(folder_,
                    "furlong prepare images many.idx --test-inputs test.idx --label-file "
                    "many_labels.idx,many_labels.idx --split 0.7,0.3,0 --output image.h5");
  prepare_reviews(40);
  config("image", 4);
  config("text", 1000);
  const Finished done = furlong(bench({"--tasks", "text,image", "--mechanisms", "softmax,favor_positive", "--json-file",
                                       path("lra.json"), "--set", "log.level=warning"}));
  ASSERT_EQ(done.status, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("image (image)"));
  EXPECT_THAT(done.out, HasSubstr("In parentheses: other data"));
  EXPECT_THAT(done.err, HasSubstr("text.h5: a stand-in for IMDB reviews (the number of documents is 40 instead of "
                                  "50000); its accuracies"));
  EXPECT_THAT(done.err, HasSubstr("a stand-in for CIFAR-10 in gray (the number of labels is 2 instead of 10, the "
                                  "number of documents is 64 instead of 60000, the length of a document is 4 instead "
                                  "of 1024)"));
  const Json results = Json::parse(content(path("lra.json")))["results"];
  ASSERT_EQ(results.size(), 4u);
  for (const Json& one : results) {
    EXPECT_EQ(one["stand_in"], one["task"]);
    EXPECT_TRUE(one["published_accuracy"].is_null());
    EXPECT_EQ(one["steps"], 4);
  }
  EXPECT_EQ(results[2]["test_samples"], 32);
  EXPECT_EQ(results[2]["dataset_options"]["format"], "images");
}

TEST_F(LraProgramTest, DataThatCanBeOfficialHavePublishedAccuracies) {
  prepare_reviews(50000);
  config("text", 1000);
  // Pairs of texts, with the labels of the ACL Anthology Network.
  std::string table;
  for (int i = 0; i < 182613; ++i)
    table += fmt::format("{}.0\tid\tid\tone {}\ttwo {}\n", i % 2, i, i % 2 == 0 ? i + 1 : i);
  file("pairs.tsv", table);
  testing::run_line(folder_,
                    "furlong prepare labeled pairs.tsv --text-field 4 --second-text-field 5 --label-field 1 "
                    "--labels 0.0,1.0 --split 0.6,0.2,0.2 --output retrieval.h5");
  config("retrieval", 4000, "pair_classification");
  const Finished done =
      furlong(bench({"--tasks", "text,retrieval", "--mechanisms", "softmax,elu1", "--test-samples", "16", "--json-file",
                     path("lra.json"), "--set", "trainer.validation_batches=1"}));
  ASSERT_EQ(done.status, 0) << done.err;
  const Json results = Json::parse(content(path("lra.json")))["results"];
  const std::vector<double> published{0.6427, 0.6590, 0.5746, 0.5309};
  for (std::size_t i = 0; i < published.size(); ++i) {
    EXPECT_TRUE(results[i]["stand_in"].is_null());
    EXPECT_EQ(results[i]["published_accuracy"], published[i]);
  }
  EXPECT_THAT(done.out, ::testing::Not(HasSubstr("In parentheses")));
  // Another length is not the paper's.
  std::filesystem::remove_all(path("runs"));
  const Finished shorter =
      furlong(bench({"--tasks", "text", "--mechanisms", "softmax", "--test-samples", "16", "--json-file",
                     path("lra.json"), "--set", "data.sequence_length=10", "--set", "trainer.validation_batches=1"}));
  ASSERT_EQ(shorter.status, 0) << shorter.err;
  EXPECT_TRUE(Json::parse(content(path("lra.json")))["results"][0]["published_accuracy"].is_null());
}

TEST_F(LraProgramTest, WritesPicturesBeforeTheDataset) {
  file("occupied", "");
  std::vector<std::string> prepare{"prepare", "pathfinder", "-o", path("p.h5"), "--samples", "2,1,1"};
  prepare.insert(prepare.end(), {"--pictures", path("occupied"), "--n-pictures", "1"});
  expect_user_error(furlong(prepare), {"occupied"});
  EXPECT_FALSE(std::filesystem::exists(path("p.h5")));
  prepare[7] = path("new/pictures");
  EXPECT_EQ(furlong(prepare).status, 0);
  EXPECT_TRUE(std::filesystem::exists(path("p.h5")));
  prepare[3] = path("other.h5");
  expect_user_error(furlong(prepare), {"new/pictures/0000_", "already exists; use --force"});
  prepare[7] = path("without");
  prepare[5] = "0,1,1";
  expect_user_error(furlong(prepare), {"--samples"});
  EXPECT_FALSE(std::filesystem::exists(path("other.h5")));
  EXPECT_FALSE(std::filesystem::exists(path("without")));
}

TEST_F(LraProgramTest, GeneratesAMissingDataset) {
  const std::vector<std::string> run = bench({"--tasks", "pathfinder", "--mechanisms", "linformer", "--samples",
                                              "24,8,12", "--test-samples", "5", "--json-file", path("lra.json")});
  const Finished done = furlong(run);
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_THAT(done.err, HasSubstr("pathfinder.h5: 24 train samples instead of 160000; its accuracies are not"));
  EXPECT_THAT(done.out,
              HasSubstr("Published for pathfinder with other data, lengths or numbers of samples, so not comparable: "
                        "linformer 76.34."));
  EXPECT_TRUE(Json::parse(content(path("lra.json")))["results"][0]["published_accuracy"].is_null());
  EXPECT_EQ(Json::parse(content(path("lra.json")))["results"][0]["test_samples"], 8) << "a whole batch";
  const Finished evaluated = furlong({"evaluate", path("runs/pathfinder_tiny_linformer"), "--split", "test", "--json"});
  EXPECT_EQ(Json::parse(evaluated.out)["targets"], 12);
}

TEST_F(LraProgramTest, InvalidInputIsAUserError) {
  const auto refused = [&](const std::vector<std::string>& arguments, const std::vector<std::string>& parts) {
    expect_user_error(furlong(arguments), parts);
  };
  refused(bench({"--tasks", "wikipedia"}), {"--tasks", "wikipedia", "retrieval"});
  refused(bench({"--mechanisms", "performer"}), {"--mechanisms", "performer", "favor_positive"});
  refused(bench({"--mechanisms", "elu1,elu1"}), {"--mechanisms", "elu1"});
  refused(bench({"--tasks", "pathx"}), {"tiny/pathx_tiny.yaml", "--configs"});
  refused(bench({"--samples", "5,0,5"}), {"--samples", "found 0 for validation"});
  refused(bench({"--json-file", path("none/lra.json")}), {"none/lra.json"});
  refused(bench({"--json-file", path("tiny/listops_tiny.yaml")}), {"listops_tiny.yaml: is both input and output"});
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
  refused({"prepare", "images", file("cut.bin", std::string(3073, 'x')), "--format", "cifar10", "-o", out},
          {"cut.bin", "record 1 has the label 120, expected 0 to 9"});
  refused({"prepare", "images", "-", "-o", out}, {"standard input"});
  refused({"prepare", "labeled", path("tiny"), "-o", out}, {"tiny: is a folder", "--label-from folder"});
  refused({"prepare", "labeled", path("tiny"), "--label-from", "folder"}, {"--output is missing", "a folder"});
  refused({"prepare", "labeled", path("tiny"), "--label-from", "folder", "--format", "csv", "-o", out},
          {"--format has no effect with --label-from folder"});
  EXPECT_FALSE(std::filesystem::exists(out));
}

// Official files in miniature.
TEST_F(LraProgramTest, CommandsForOfficialFilesRun) {
  for (const char* name : {"aclImdb/train/neg", "aclImdb/train/pos", "aclImdb/test/neg", "aclImdb/test/pos"}) {
    std::filesystem::create_directories(path(name));
    for (int i = 0; i < 50; ++i) file(fmt::format("{}/{}_7.txt", name, i), fmt::format("Review <br /> {}", i));
  }
  for (const char* split : {"train", "eval", "test"})
    file(fmt::format("new_aan_pairs.{}.tsv", split),
         "0.0\tA\tB\tone \"text\" of A\tother of B\n1.0\tA\tC\tone \"text\" of A\tother of C\n");
  std::filesystem::create_directories(path("cifar-10-batches-bin"));
  for (const char* name :
       {"data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"}) {
    std::string records;
    for (int label = 0; label < 10; ++label)
      records += static_cast<char>(label) + std::string(3072, static_cast<char>(20 * label));
    file(fmt::format("cifar-10-batches-bin/{}.bin", name), records);
  }
  testing::run_example(folder_, "lra.md", 3, 1);
  const std::string out = content(path("stdout"));
  const std::string header = "          train   validation         test  label\n";
  for (const std::string& part :
       {std::string("imdb.h5: "), std::string("200 documents"), "in 100 documents\n" + header,
        std::string("           50  neg\n"), std::string("           50  pos\n"), std::string("aan.h5: "),
        std::string("12 documents"), std::string("              1            1            1  0.0\n"),
        std::string("cifar10.h5: 61,440 tokens"), std::string("60 documents"),
        "10,240 tokens in 10 documents\n" + header, std::string("            1  9\n")})
    EXPECT_THAT(out, HasSubstr(part));
}

// Whole files with the labels of their folders, and an official test split.
TEST_F(LraProgramTest, FoldersLabelTexts) {
  for (const char* name : {"train/neg", "train/pos", "test/neg", "test/pos"}) {
    std::filesystem::create_directories(path(std::string("aclImdb/") + name));
    for (int i = 0; i < 8; ++i) file(fmt::format("aclImdb/{}/{}.txt", name, i), fmt::format("review {}", i));
  }
  testing::run_line(folder_,
                    "furlong prepare labeled aclImdb/train/neg aclImdb/train/pos --label-from folder "
                    "--test-inputs aclImdb/test/neg,aclImdb/test/pos --split 0.8,0.2,0 --json --output text.h5");
  const Json report = Json::parse(content(path("stdout")));
  EXPECT_EQ(report["labels"], Json({{"neg", 16}, {"pos", 16}}));
  EXPECT_EQ(report["splits"]["test"]["documents"], 16);
  // The default fractions leave the test split to its files.
  const Finished done = furlong({"prepare", "labeled", path("aclImdb/train"), "--label-from", "folder", "--test-inputs",
                                 path("aclImdb/test/pos"), "--validation-inputs", path("aclImdb/test/neg"), "--json",
                                 "-o", path("other.h5")});
  ASSERT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(Json::parse(done.out)["splits"]["train"]["documents"], 16);
}

}  // namespace
}  // namespace furlong
