#include "framework/io/checkpoint_copy.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using testing::WithTemporaryFolder;

class CheckpointCopyTest : public WithTemporaryFolder {};

/// Writes an entry of every kind.
void put(CheckpointSink& file, const std::vector<float>& values, const std::vector<std::int64_t>& counts) {
  const std::vector<std::int64_t> matrix{2, 3}, row{2}, nothing{0, 4};
  file.text("config", "{}");
  file.tensor("parameters/a", "float32", matrix, values.data());
  file.integer("step", 7);
  file.tensor("recurrent_state/0/positions", "int64", row, counts.data());
  file.tensor("parameters/empty", "bfloat16", nothing, nullptr);
  file.tensor("parameters/scalar", "float32", {}, values.data() + 5);
  file.number("best", 0.1);
  file.text("empty", "");
}

TEST_F(CheckpointCopyTest, WritesTheCopiedValuesAfterTheOriginalsChange) {
  std::vector<float> values{1, 2, 3, 4, 5, 6};
  std::vector<std::int64_t> counts{8, 9};
  {
    CheckpointWriter file(path("straight.h5"));
    put(file, values, counts);
    file.finish();
  }
  CheckpointCopy copy;
  put(copy, values, counts);
  values.assign(6, -1);
  counts.assign(2, -1);
  for (const char* name : {"copied.h5", "again.h5"}) {
    CheckpointWriter file(path(name));
    copy.write(file);
    file.finish();
    EXPECT_EQ(content(path(name)), content(path("straight.h5"))) << name;
  }
  EXPECT_EQ(CheckpointReader::open(path("copied.h5")).integer("step"), 7);
}

}  // namespace
}  // namespace furlong
