#pragma once
// A trained teacher and its students.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/trainers/training.h"
#include "trainers/train/trainer.h"

namespace furlong::teacher_testing {

using testing::small_settings;
using Overrides = std::vector<std::string>;

inline Overrides operator+(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline const Overrides wide{"model.initializer_range=0.3", "trainer.max_steps=60"};
inline const Overrides linear{"model.attention.mechanism=linear", "model.attention.feature_map=favor_positive"};

class TeacherTest : public testing::WithTemporaryFolder {
 protected:
  TeacherTest() : data(TokenizedDataset::open(testing::write_store(path("tokens.h5"), testing::synthetic_text(4000)))) {
    // Large initial weights make attention far from uniform; any feature map could imitate uniform attention.
    Trainer teacher = trainer(wide);
    while (teacher.steps() < 60) teacher.step();
    teacher.save(path("teacher.h5"));
  }
  Settings settings(const Overrides& overrides) const { return small_settings(path("tokens.h5"), overrides).settings; }
  Trainer trainer(const Overrides& overrides, const Device& device = {}) const {
    return Trainer(settings(overrides), data, device);
  }
  /// Starts from the teacher's weights, like a stage of furlong finetune.
  Trainer student(const Overrides& overrides, const Device& device = {}) const {
    Trainer one = trainer(overrides, device);
    one.start_from(CheckpointReader::open(path("teacher.h5")));
    return one;
  }
  Overrides transfer(const Overrides& more = {}) const {
    return linear +
           Overrides{"teacher.loss=attention_transfer", "teacher.checkpoint=" + path("teacher.h5"),
                     "optimizer.weight_decay=0"} +
           more;
  }
  Overrides distillation(const Overrides& more = {}) const {
    return linear + Overrides{"teacher.loss=distillation", "teacher.checkpoint=" + path("teacher.h5")} + more;
  }

  TokenizedDataset data;
};

}  // namespace furlong::teacher_testing
