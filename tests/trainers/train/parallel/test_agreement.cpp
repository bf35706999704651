// Checks that all ranks have the same program and settings.
#include "trainers/train/parallel/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/trainers/parallel_testing.h"
#include "tests/trainers/training.h"
#include "trainers/train/run/run_setup.h"

namespace furlong {
namespace {

using parallel_testing::Report;
using parallel_testing::World;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class Agreement : public testing::WithTemporaryFolder {
 protected:
  /// Runs `check` on two ranks. Returns the error of rank 1; rank 0 has none.
  static std::string error_of(const std::function<void(const ProcessGroup& group)>& check) {
    World world(2, [&](ProcessGroup& group, const Report& report) {
      try {
        check(group);
      } catch (const UserError& error) {
        report.say(error.what());
      }
    });
    EXPECT_EQ(world.wait(), (std::vector<int>{0, 0})) << world.errors();
    EXPECT_EQ(world[0].words(), "");
    return world[1].words();
  }
};

TEST_F(Agreement, RejectsMissingAndSurplusValues) {
  const auto with = [](int rank, const char* more) {
    return error_of([=](const ProcessGroup& group) {
      nlohmann::ordered_json values{{"--steps", 10}};
      if (group.rank() == rank) values[more] = 5;
      check_same(group, values);
    });
  };
  EXPECT_THAT(with(0, "--bytes"), StartsWith("--bytes: \"nothing\" on this rank and 5 on rank 0; expected equal"));
  EXPECT_THAT(with(1, "--bytes"), StartsWith("--bytes: 5 on this rank and \"nothing\" on rank 0; expected equal"));
  EXPECT_EQ(with(2, ""), "");
}

TEST_F(Agreement, RejectsRanksWithFewerSettings) {
  const std::string store = testing::write_store(path("tokens.h5"), testing::synthetic_text(2000));
  const auto error = error_of([&](const ProcessGroup& group) {
    Settings settings = testing::small_settings(store).settings;
    settings.data.dataset.clear();
    settings.data.sources = {{{"dataset", "a.h5"}, {"weight", "1"}}, {{"dataset", "b.h5"}, {"weight", "1"}}};
    if (!group.is_first()) settings.data.sources.pop_back();
    check_agreement(group, settings, TokenizedDataset::open(store));
  });
  EXPECT_THAT(error, StartsWith("data.sources.1."));
  EXPECT_THAT(error, HasSubstr(": \"nothing\" on this rank and "));
}

TEST_F(Agreement, RejectsAnotherProgram) {
  const auto with = [](const std::string& first, const std::string& second) {
    return error_of([=](const ProcessGroup& group) { check_same_program(group, group.is_first() ? first : second); });
  };
  EXPECT_EQ(with("0.1.0 (abc)", "0.1.0 (abc)"), "");
  EXPECT_EQ(with("0.1.0 (abc)", "0.1.0 (def)"),
            "this rank runs furlong 0.1.0 (def) and rank 0 furlong 0.1.0 (abc); expected the same program: install it "
            "on all hosts");
}

// Rank 1 also has an error that it would meet next. Rank 0 meanwhile waits in the first collective.
TEST_F(Agreement, RunsCheckTheProgramFirst) {
  const std::string store = testing::write_store(path("tokens.h5"), testing::synthetic_text(2000));
  World world(2, [&](ProcessGroup& group, const Report&) {
    const LoadedSettings loaded = testing::small_settings(group.is_first() ? store : path("missing.h5"));
    set_up_run(loaded, TrainOptions{}, group, group.is_first() ? "0.1.0 (abc)" : "0.1.0 (def)");
  });
  EXPECT_EQ(world.wait(), (std::vector<int>{2, 2})) << world.errors();
  EXPECT_THAT(world.errors(), HasSubstr("this rank runs furlong 0.1.0 (def) and rank 0 furlong 0.1.0 (abc)"));
}

}  // namespace
}  // namespace furlong
