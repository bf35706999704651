#include "datasets/prepare/prepare_task.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "datasets/tasks/listops.h"
#include "datasets/tasks/pathfinder.h"
#include "datasets/tokenized_dataset.h"
#include "framework/core/error.h"
#include "framework/core/parallel.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using ::testing::HasSubstr;
using testing::message_of;

class PrepareTaskTest : public testing::WithTemporaryFolder {
 protected:
  PrepareTaskOptions options(const std::string& name, std::array<std::uint64_t, 3> samples) const {
    return {.output = path(name), .samples = samples};
  }
};

/// Expects every document and label of a split to be a sample of the task.
void expect_samples(const TokenizedDataset& data, const LabeledTask& task, Split split, std::uint64_t samples,
                    std::uint64_t& document) {
  const std::vector<std::int32_t> labels = data.labels();
  std::uint64_t position = 0;
  for (std::uint64_t i = 0; i < samples; ++i, ++document) {
    const LabeledSequence expected = task.sample(split, i);
    const auto [begin, end] = data.document(document);
    ASSERT_EQ(end - begin, expected.tokens.size());
    EXPECT_EQ(data.read(split, position, expected.tokens.size()), expected.tokens);
    EXPECT_EQ(labels[document], expected.label);
    position += end - begin;
  }
  EXPECT_EQ(data.size(split), position);
}

TEST_F(PrepareTaskTest, WritesTheSamplesOfEachSplit) {
  const ListOps task({.min_length = 0, .max_length = 50, .max_depth = 4, .max_arguments = 4, .seed = 9});
  const PrepareReport report = prepare_task(task, options("listops.h5", {1030, 7, 5}));
  EXPECT_EQ(report.store.n_documents, 1042u);
  EXPECT_EQ(report.store.split_documents, (std::array<std::uint64_t, 3>{1030, 7, 5}));
  EXPECT_EQ(report.tokenizer, "wordpiece");
  EXPECT_THAT(to_text(report), HasSubstr("generated in"));
  const TokenizedDataset data = TokenizedDataset::open(path("listops.h5"));
  EXPECT_EQ(data.vocabulary().labels(), task.labels());
  std::uint64_t document = 0;
  expect_samples(data, task, Split::train, 1030, document);
  expect_samples(data, task, Split::validation, 7, document);
  expect_samples(data, task, Split::test, 5, document);
  const auto provenance = nlohmann::json::parse(data.provenance());
  EXPECT_EQ(provenance["options"]["format"], "listops");
  EXPECT_EQ(provenance["options"]["max_depth"], 4);
  EXPECT_EQ(provenance["options"]["seed"], 9);
  EXPECT_EQ(provenance["options"]["samples"]["validation"], 7);
}

TEST_F(PrepareTaskTest, DoesNotDependOnThreads) {
  const Pathfinder task(32, 4);
  const int threads = thread_count();
  std::vector<std::vector<std::int32_t>> found;
  for (const int now : {1, 3}) {
    set_thread_count(now);
    prepare_task(task, options(fmt::format("{}.h5", now), {40, 2, 2}));
    const TokenizedDataset data = TokenizedDataset::open(path(fmt::format("{}.h5", now)));
    EXPECT_EQ(data.size(Split::train), 40u * 1024);
    found.push_back(data.read(Split::train, 0, 40 * 1024));
    const std::vector<std::int32_t> labels = data.labels();
    found.back().insert(found.back().end(), labels.begin(), labels.end());
  }
  set_thread_count(threads);
  EXPECT_EQ(found[0], found[1]);
}

TEST_F(PrepareTaskTest, RejectsEmptySplitsAndExistingOutputs) {
  const ListOps task({.min_length = 0, .max_length = 20});
  EXPECT_THAT(message_of<UserError>([&] {
                prepare_task(task, options("a.h5", {3, 0, 3}));
              }),
              HasSubstr("the validation split has 0 samples"));
  EXPECT_FALSE(std::filesystem::exists(path("a.h5")));
  prepare_task(task, options("a.h5", {3, 1, 1}));
  EXPECT_THAT(message_of<UserError>([&] {
                prepare_task(task, options("a.h5", {3, 1, 1}));
              }),
              HasSubstr("already exists; use --force"));
  PrepareTaskOptions again = options("a.h5", {2, 1, 1});
  again.force = true;
  EXPECT_EQ(prepare_task(task, again).store.n_documents, 4u);
}

}  // namespace
}  // namespace furlong
