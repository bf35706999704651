#include "framework/core/shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "framework/core/error.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

TEST(Shape, IndexesExtentsFromBothEnds) {
  const Shape shape{2, 3, 5};
  EXPECT_EQ(shape.rank(), 3);
  EXPECT_EQ(shape[0], 2);
  EXPECT_EQ(shape[-1], 5);
  EXPECT_EQ(shape[-3], 2);
  EXPECT_EQ(shape.elements(), 30);
  EXPECT_EQ(shape.rows(), 6);
  EXPECT_EQ(shape.text(), "[2, 3, 5]");
}

TEST(Shape, CountsOneElementForAScalarAndNoneForAnEmptyExtent) {
  EXPECT_EQ(Shape{}.rank(), 0);
  EXPECT_EQ(Shape{}.elements(), 1);
  EXPECT_EQ(Shape{}.rows(), 1);
  EXPECT_EQ(Shape{}.text(), "[]");
  EXPECT_EQ(Shape({4, 0, 3}).elements(), 0);
  EXPECT_EQ(Shape({4, 0, 3}).rows(), 0);
}

TEST(Shape, ComparesRankAndExtents) {
  EXPECT_EQ(Shape({2, 3}), Shape({2, 3}));
  EXPECT_FALSE(Shape({2, 3}) == Shape({3, 2}));
  EXPECT_FALSE(Shape({2, 3}) == Shape({2, 3, 1}));
  EXPECT_FALSE(Shape({}) == Shape({1}));
}

TEST(Shape, Counts64BitSizes) {
  // Attention weights of 16 heads at n = 64k far exceed 2^31 elements.
  const Shape weights{16, 65536, 65536};
  EXPECT_EQ(weights.elements(), std::int64_t{1} << 36);
  EXPECT_EQ(contiguous_strides(weights), Shape({std::int64_t{1} << 32, 65536, 1}));
}

TEST(Shape, RejectsElementCountsBeyond64Bits) {
  const std::int64_t large = std::int64_t{1} << 32;
  EXPECT_EQ(Shape({large, large / 4}).elements(), std::int64_t{1} << 62);
  EXPECT_THAT(testing::message_of<ContractError>([&] {
                Shape({large, large}).elements();
              }),
              ::testing::HasSubstr("[4294967296, 4294967296]"));
}

TEST(Shape, HasAtMostSixDimensions) {
  Shape shape{1, 2, 3, 4, 5, 6};
  EXPECT_EQ(shape.rank(), Shape::max_rank);
  EXPECT_THROW(shape.push_back(7), ContractError);
  EXPECT_THROW((Shape{1, 2, 3, 4, 5, 6, 7}), ContractError);
  EXPECT_EQ(shape, Shape({1, 2, 3, 4, 5, 6}));
}

TEST(Shape, ContiguousStridesAreRowMajor) {
  EXPECT_EQ(contiguous_strides({2, 3, 5}), Shape({15, 5, 1}));
  EXPECT_EQ(contiguous_strides({7}), Shape({1}));
  EXPECT_EQ(contiguous_strides({}), Shape({}));
}

}  // namespace
}  // namespace furlong
