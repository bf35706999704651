#include "framework/ops/loss/counted_rows.h"

#include <gtest/gtest.h>

namespace furlong {
namespace {

Tensor one_in(std::int32_t every, std::int64_t rows) {
  std::vector<std::int32_t> targets;
  for (std::int32_t row = 0; row < rows; ++row) targets.push_back(row % every == 0 ? row : -1);
  return Tensor::from(targets, {2, rows / 2});
}

TEST(CountedRowsOnCpu, AreCopiedThereAndBack) {
  const ops::CountedRows rows(one_in(5, 20), 3, 100);
  EXPECT_FALSE(rows.all());
  EXPECT_EQ(rows.count(), 4);
  EXPECT_EQ(rows.targets(one_in(5, 20)).to_vector<std::int32_t>(), (std::vector<std::int32_t>{0, 5, 10, 15}));
  std::vector<float> numbers(60);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i);
  const Tensor chunk = rows.gather(Tensor::from(numbers, {20, 3}), 1, 2);
  EXPECT_EQ(chunk.to_vector<float>(), (std::vector<float>{15, 16, 17, 30, 31, 32}));
  const Tensor back = Tensor::zeros({20, 3}, DType::float32);
  rows.scatter(chunk, back, 1);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (i / 3 != 5 && i / 3 != 10) numbers[i] = 0;
  }
  EXPECT_EQ(back.to_vector<float>(), numbers);
}

TEST(CountedRowsOnCpu, AreAllIfCopiesCostMoreThanLogits) {
  EXPECT_TRUE(ops::CountedRows(one_in(1, 20), 3, 100).all());
  EXPECT_FALSE(ops::CountedRows(one_in(2, 20), 3, 7).all());  // 10 rows of 7 logits saved, 10 rows of 3 copied twice
  EXPECT_TRUE(ops::CountedRows(one_in(2, 20), 3, 6).all());
  const Tensor none = Tensor::from(std::vector<std::int32_t>(4, -1), {4});
  EXPECT_TRUE(ops::CountedRows(none, 3, 100).all());
  EXPECT_EQ(ops::CountedRows(none, 3, 100).count(), 4);
}

}  // namespace
}  // namespace furlong
