// Training on a mixture of datasets.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/cli/job.h"
#include "tests/cli/program.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;
using testing::expect_user_error;
using testing::Finished;

class MixtureProgramTest : public testing::WithProgram {
 protected:
  void SetUp() override {
    prepare("a", "the cat sat on the mat. ");
    prepare("b", "0123456789 9876543210, ");
    config("c.yaml",
           fmt::format("[{{dataset: {}, weight: 3}}, {{dataset: {}, weight: 1}}]", path("a.h5"), path("b.h5")));
  }
  void prepare(const std::string& name, const std::string& text, const std::string& separator = "blank-line") const {
    std::string all;
    for (int i = 0; i < 60; ++i) all += text + std::to_string(i) + "\n\n";
    file(name + ".txt", all);
    const Finished done = furlong({"prepare", "text", path(name + ".txt"), "--output", path(name + ".h5"),
                                   "--document-separator", separator, "--split", "0.8,0.2,0"});
    ASSERT_EQ(done.status, 0) << done.err;
  }
  std::string config(const std::string& name, const std::string& sources, const std::string& more = "") const {
    return file(name, fmt::format(R"(
data: {{sources: {}, sequence_length: 16, batch_size: 4{}}}
model: {{n_layers: 1, d_model: 16, n_heads: 2}}
schedule: {{warmup_steps: 1}}
trainer: {{max_steps: 6, validate_every: 3, validation_batches: 1}}
checkpoint: {{every: 3, keep_last: 9}}
threads: 1
log: {{every: 1, progress: none}}
)",
                                  sources, more));
  }
  std::vector<Json> metrics(const std::string& run, const std::string& split = "train") const {
    std::vector<Json> found;
    std::istringstream lines(content(path(run + "/metrics.jsonl")));
    for (std::string line; std::getline(lines, line);) {
      Json object = Json::parse(line);
      if (object["split"] == split) found.push_back(std::move(object));
    }
    return found;
  }
  static std::vector<std::pair<double, double>> steps(const std::vector<Json>& lines) {
    std::vector<std::pair<double, double>> found;
    for (const Json& line : lines) found.emplace_back(line["loss"], line["gradient_norm"]);
    return found;
  }
};

TEST_F(MixtureProgramTest, ResumesBitForBit) {
  for (const std::string sampler : {"random", "documents"}) {
    SCOPED_TRACE(sampler);
    const std::vector<std::string> train{"train", path("c.yaml"), "--set", "data.sampler=" + sampler};
    const auto run = [&](const std::string& name, const std::vector<std::string>& more) {
      std::vector<std::string> all = train;
      all.insert(all.end(), {"--run-dir", path(name + sampler)});
      all.insert(all.end(), more.begin(), more.end());
      const Finished done = furlong(all);
      ASSERT_EQ(done.status, 0) << done.err;
    };
    run("whole", {});
    run("resumed", {"--resume", path("whole" + sampler + "/checkpoints/step_00000003.h5")});
    const auto whole = steps(metrics("whole" + sampler)), resumed = steps(metrics("resumed" + sampler));
    ASSERT_EQ(whole.size(), 6u);
    ASSERT_EQ(resumed, whole);
    EXPECT_EQ(metrics("resumed" + sampler, "validation").back()["loss"],
              metrics("whole" + sampler, "validation").back()["loss"]);
    // Of both datasets: training on one alone is another training.
    run("alone", {"--set", "data.sources=[]", "--set", "data.dataset=" + path("a.h5")});
    EXPECT_NE(steps(metrics("alone" + sampler)), whole);
  }
}

TEST_F(MixtureProgramTest, BatchesAreTheSameAtAnyWorldSize) {
  for (const std::string sampler : {"random", "documents"}) {
    SCOPED_TRACE(sampler);
    const std::vector<std::string> train{"train", path("c.yaml"), "--set", "data.sampler=" + sampler, "--run-dir"};
    std::vector<std::string> one = train, two = train;
    one.push_back(path("one" + sampler));
    two.push_back(path("two" + sampler));
    ASSERT_EQ(furlong(one).status, 0);
    const std::vector<Finished> ranks = testing::Job(2, folder_, two).wait();
    for (const Finished& rank : ranks) ASSERT_EQ(rank.status, 0) << rank.err;
    const auto alone = metrics("one" + sampler), together = metrics("two" + sampler);
    ASSERT_EQ(alone.size(), together.size());
    for (std::size_t i = 0; i < alone.size(); ++i) {
      EXPECT_NEAR(alone[i]["loss"].get<double>(), together[i]["loss"].get<double>(), 1e-5);
      EXPECT_EQ(alone[i]["tokens"], together[i]["tokens"]);
    }
  }
}

TEST_F(MixtureProgramTest, OtherCommandsReadItsConfig) {
  const Finished shown = furlong({"config", "show", path("c.yaml")});
  EXPECT_EQ(shown.status, 0) << shown.err;
  EXPECT_THAT(shown.out,
              HasSubstr(fmt::format("sources: [{{dataset: \"{}\", weight: 3}}, {{dataset: \"{}\", weight: 1}}]",
                                    path("a.h5"), path("b.h5"))));
  // What config show prints is a config.
  file("again.yaml", shown.out);
  EXPECT_EQ(furlong({"config", "show", path("again.yaml")}).out, shown.out);
  const Json json = Json::parse(furlong({"config", "show", path("c.yaml"), "--json"}).out);
  EXPECT_EQ(json["data"]["sources"][1], Json({{"dataset", path("b.h5")}, {"weight", 1.0}}));
  EXPECT_EQ(furlong({"config", "check", path("c.yaml")}).status, 0);
  EXPECT_EQ(furlong({"plan", path("c.yaml"), "--device", "h100"}).status, 0);

  ASSERT_EQ(furlong({"train", path("c.yaml"), "--run-dir", path("run")}).status, 0);
  const auto loss = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all{"evaluate", path("run"), "--split", "validation", "--json"};
    all.insert(all.end(), more.begin(), more.end());
    const Finished done = furlong(all);
    EXPECT_EQ(done.status, 0) << done.err;
    return Json::parse(done.out)["loss"].get<double>();
  };
  EXPECT_EQ(loss({}), loss({"--data", path("a.h5")})) << "the first dataset";
  EXPECT_NE(loss({}), loss({"--data", path("b.h5")}));
  EXPECT_EQ(furlong({"report", path("run"), "-o", path("page.html")}).status, 0);
  EXPECT_THAT(content(path("page.html")), HasSubstr("b.h5"));
  // Another mixture is other data.
  config("c.yaml", fmt::format("[{{dataset: {}, weight: 3}}]", path("a.h5")));
  expect_user_error(furlong({"train", path("c.yaml"), "--run-dir", path("run"), "--set", "trainer.max_steps=8"}),
                    {"was trained on other data"});
}

TEST_F(MixtureProgramTest, InvalidMixtureIsAUserError) {
  const std::string a = path("a.h5"), b = path("b.h5");
  const auto refused = [&](const std::string& sources, const std::vector<std::string>& parts,
                           const std::string& more = "") {
    SCOPED_TRACE(sources);
    config("bad.yaml", sources, more);
    expect_user_error(furlong({"train", path("bad.yaml"), "--run-dir", path("bad")}), parts);
  };
  const auto weights = [&](const std::string& one, const std::string& two) {
    return fmt::format("[{{dataset: {}, weight: {}}}, {{dataset: {}, weight: {}}}]", a, one, b, two);
  };
  refused(weights("0", "0"), {"bad.yaml:2:17: data.sources: no weight is above 0"});
  for (const std::string weight : {"010", "-1", ".nan", ".inf", "nan", "inf", "1e999", "many", "0x10"})
    refused(weights("1", weight), {"bad.yaml:2:17: data.sources: found the weight " + weight, "finite number"});
  refused(weights("1.5e308", "1.5e308"), {"the sum of the weights is not finite"});
  refused("[]", {"bad.yaml:2:17: data.sources is empty; expected items, or data.dataset"});
  refused("a.h5", {"bad.yaml:2:17: data.sources: found a.h5; expected a list of maps with dataset and weight"});
  refused("[a.h5, b.h5]", {"bad.yaml:2:18: data.sources: found a.h5; expected a map with dataset and weight"});
  refused("[{dataset: a.h5}]", {"bad.yaml:2:18: data.sources: weight is missing"});
  refused("[{dataset: a.h5, weight: 1, share: 2}]", {"data.sources: unknown field share; expected dataset and weight"});
  refused("[{dataset: [a.h5], weight: 1}]", {"data.sources: found a list for dataset"});
  refused("[{dataset: a.h5, weight: 1, weight: 2}]", {"data.sources: weight is set twice"});
  refused(weights("1", "1"), {"data.sources cannot be combined with", "data.dataset"}, ", dataset: " + a);
  refused(weights("1", "1"), {"data.sources", "data.sampler: sequential"}, ", sampler: sequential");
  refused(fmt::format("[{{dataset: {}, weight: 1}}, {{dataset: {}/none.h5, weight: 1}}]", a, path("")),
          {"none.h5", "does not exist"});
  // Names both datasets and their vocabularies.
  prepare("one", "the cat", "file");  // without the token between documents
  refused(fmt::format("[{{dataset: {}, weight: 1}}, {{dataset: {}, weight: 1}}]", a, path("one.h5")),
          {"data.sources: ", path("one.h5"), path("a.h5"), "--document-separator"});
  EXPECT_FALSE(fs::exists(path("bad/checkpoints")));
  // The command line is checked like the file.
  for (const std::string sampler : {"sequential", "stream"})
    expect_user_error(furlong({"train", path("c.yaml"), "--set", "data.sampler=" + sampler, "--run-dir", path("bad2")}),
                      {"data.sources cannot be combined with data.sampler: " + sampler});
  EXPECT_FALSE(fs::exists(path("bad2")));
  EXPECT_THAT(furlong({"config", "check", path("bad.yaml")}).err, HasSubstr("bad.yaml:2:17: data.sources: "));
}

/// Labeled datasets. In one, the label follows from the first word; in the other, from the first digit.
class LabeledMixtureTest : public testing::WithProgram {
 protected:
  void SetUp() override {
    prepare("words", "good,liked it,bad,hated it", {});
    prepare("digits", "good,111,bad,222", {});
  }
  /// `rows`: label,text of the even and of the odd rows.
  void prepare(const std::string& name, const std::string& rows, const std::vector<std::string>& more) const {
    std::string table = "label,text\n";
    const std::size_t second = rows.find(',', rows.find(',') + 1) + 1;
    for (int i = 0; i < 120; ++i)
      table += fmt::format("{} {}\n", i % 2 == 0 ? rows.substr(0, second - 1) : rows.substr(second), i / 2);
    std::vector<std::string> all{
        "prepare", "labeled",  file(name + ".csv", table), "--text-field", "text",       "--label-field",
        "label",   "--output", path(name + ".h5"),         "--split",      "0.6,0.2,0.2"};
    all.insert(all.end(), more.begin(), more.end());
    const Finished done = furlong(all);
    ASSERT_EQ(done.status, 0) << done.err;
  }
  std::string config(const std::string& objective, const std::string& first, const std::string& second) const {
    return file("labels.yaml", fmt::format(R"(
data: {{sources: [{{dataset: {}, weight: 1}}, {{dataset: {}, weight: 1}}], sequence_length: 12, batch_size: 8}}
model: {{architecture: encoder, n_layers: 1, d_model: 16, n_heads: 2}}
objective: {{name: {}}}
optimizer: {{learning_rate: 0.01}}
schedule: {{warmup_steps: 2}}
trainer: {{max_steps: 60, validate_every: 30}}
checkpoint: {{every: 30, keep_last: 9}}
threads: 1
log: {{every: 30, progress: none}}
)",
                                           path(first + ".h5"), path(second + ".h5"), objective));
  }
  double measured(const std::string& run, const std::string& data, const std::string& metric) const {
    const Finished done = furlong({"evaluate", path(run), "--data", path(data + ".h5"), "--split", "test", "--json"});
    EXPECT_EQ(done.status, 0) << done.err;
    return Json::parse(done.out)[metric].get<double>();
  }
};

TEST_F(LabeledMixtureTest, LearnsTheLabelsOfBothDatasets) {
  const std::string both = config("classification", "words", "digits");
  const Finished trained = furlong({"train", both, "--run-dir", path("both")});
  ASSERT_EQ(trained.status, 0) << trained.err;
  EXPECT_EQ(measured("both", "words", "accuracy"), 1.0);
  EXPECT_EQ(measured("both", "digits", "accuracy"), 1.0);
  const Finished alone = furlong({"train", both, "--run-dir", path("alone"), "--set", "data.sources=[]", "--set",
                                  "data.dataset=" + path("words.h5")});
  ASSERT_EQ(alone.status, 0) << alone.err;
  EXPECT_EQ(measured("alone", "words", "accuracy"), 1.0);
  EXPECT_LT(measured("alone", "digits", "accuracy"), 1.0);

  const Finished resumed =
      furlong({"train", both, "--run-dir", path("resumed"), "--resume", path("both/checkpoints/step_00000030.h5")});
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  for (const std::string data : {"words", "digits"})
    EXPECT_EQ(measured("resumed", data, "loss"), measured("both", data, "loss")) << data;
}

TEST_F(LabeledMixtureTest, OtherLabelsAreAUserError) {
  prepare("other", "yes,111,no,222", {});
  prepare("reordered", "good,111,bad,222", {"--labels", "bad,good"});
  for (const std::string second : {"other", "reordered"}) {
    SCOPED_TRACE(second);
    expect_user_error(furlong({"train", config("classification", "words", second), "--run-dir", path("bad")}),
                      {"data.sources: the labels of " + path(second + ".h5") + " differ from those of"});
  }
}

}  // namespace
}  // namespace furlong
