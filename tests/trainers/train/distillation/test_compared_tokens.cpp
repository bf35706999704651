// Which tokens the teacher's loss compares.
#include <gmock/gmock.h>

#include <algorithm>

#include "tests/trainers/train/distillation/teacher_testing.h"
#include "trainers/train/data_checks.h"
#include "trainers/train/distillation/teacher.h"
#include "trainers/train/step_input.h"

namespace furlong::teacher_testing {
namespace {

TEST_F(TeacherTest, ComparesAttentionOfTokensWithoutTargets) {
  for (const char* sampler : {"random", "sequential", "stream"}) {
    SCOPED_TRACE(sampler);
    const auto error = [&](const std::string& ignored) {
      return student(transfer({std::string("data.sampler=") + sampler, "data.ignore_tokens=" + ignored,
                               "data.batch_size=1"}))
          .validate()
          .loss;
    };
    EXPECT_DOUBLE_EQ(error("[a, b, c, d]"), error("[]"));
  }
}

TEST_F(TeacherTest, ComparesEveryTokenExceptPadding) {
  const Settings all = settings(distillation({"teacher.positions=all"})), attention = settings(transfer());
  Batch batch;
  batch.batch = 3;
  batch.n = 4;
  batch.inputs.assign(12, 1);
  batch.targets.assign(12, ignored_target);
  EXPECT_EQ(compared_tokens(all, batch), std::vector<std::int32_t>(12, 0)) << "no row has padding";
  batch.lengths = {4, 2, 0};
  EXPECT_EQ(compared_tokens(all, batch), (std::vector<std::int32_t>{0, 0, 0, 0, 0, 0, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(compared_tokens(attention, batch), (std::vector<std::int32_t>{1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0}));
  Batch more;
  more.batch = 1;
  more.n = 4;
  more.inputs.assign(4, 1);
  more.targets.assign(4, ignored_target);
  Batch joined = batch;
  append(joined, more);
  EXPECT_EQ(joined.lengths, (std::vector<std::int32_t>{4, 2, 0, 4}));
  append(more, batch);
  EXPECT_EQ(more.lengths, (std::vector<std::int32_t>{4, 4, 2, 0}));
  widen(joined, 5);
  EXPECT_EQ(joined.mask, (std::vector<std::int32_t>{1, 1, 1, 1, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 0}));
  batch.mask = {1, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
  EXPECT_EQ(compared_tokens(attention, batch), batch.mask);
}

TEST_F(TeacherTest, ComparesNoPaddingOfTheCopyTask) {
  const Settings copy = settings(transfer({"data.dataset=null", "data.task=copy", "data.task_min_symbols=1"}));
  const std::unique_ptr<Dataset> rows = open_data(copy.data);
  StepInput input(copy, model_vocabulary(copy, rows->vocabulary()), *rows, Device{});
  const StepInput::Step& step = input.next(WorkShare());
  ASSERT_EQ(step.compared.size(), 1u);
  EXPECT_EQ(step.compared[0], real_tokens(step.batches[0]));
  EXPECT_EQ(std::count(step.compared[0].begin(), step.compared[0].end(), 0) > 0, true) << "rows have padding";
}

TEST_F(TeacherTest, LayerWiseTransferRefusesEarlyStopping) {
  const auto check = [&](const Overrides& more) {
    check_against_data(
        small_settings(path("tokens.h5"),
                       transfer({"trainer.early_stopping_patience=3", "trainer.validate_every=5"}) + more),
        data);
  };
  EXPECT_NO_THROW(check({}));
  EXPECT_THAT(testing::message_of<UserError>([&] { check({"teacher.layers=layer_wise"}); }),
              ::testing::AllOf(::testing::HasSubstr("trainer.early_stopping_patience"),
                               ::testing::HasSubstr("teacher.layers: layer_wise")));
}

}  // namespace
}  // namespace furlong::teacher_testing
