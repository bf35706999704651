#include "framework/core/tensor.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using testing::message_of;

std::vector<float> numbers(std::int64_t n) {
  std::vector<float> values(static_cast<std::size_t>(n));
  std::iota(values.begin(), values.end(), 0.0f);
  return values;
}
Tensor counted(const Shape& shape) { return Tensor::from(numbers(shape.elements()), shape); }

TEST(Tensor, IsUndefinedByDefault) {
  const Tensor nothing;
  EXPECT_FALSE(nothing.defined());
  EXPECT_EQ(nothing.address(), nullptr);
  EXPECT_FALSE(nothing.shares_memory_with(nothing));
}

TEST(Tensor, HoldsItsInitialValues) {
  const Tensor tensor = counted({2, 3});
  EXPECT_TRUE(tensor.is_contiguous());
  EXPECT_EQ(tensor.dtype(), DType::float32);
  EXPECT_EQ(tensor.bytes(), 24);
  EXPECT_EQ(tensor.strides(), Shape({3, 1}));
  EXPECT_EQ(tensor.to_vector<float>(), numbers(6));
  EXPECT_EQ(Tensor::from<std::int32_t>({-1, 7}, {2}).to_vector<std::int32_t>(), (std::vector<std::int32_t>{-1, 7}));
  EXPECT_EQ(Tensor::from<std::uint8_t>({200}, {1}).dtype(), DType::uint8);
  EXPECT_EQ(Tensor::zeros({3}, DType::float64).to_vector<double>(), (std::vector<double>{0, 0, 0}));
  EXPECT_EQ(Tensor::from<double>({2.5}, {}).to_vector<double>(), (std::vector<double>{2.5}));
}

TEST(Tensor, SupportsEmptyTensors) {
  const Tensor none = Tensor::from<float>({}, {0, 4});
  EXPECT_TRUE(none.defined());
  EXPECT_TRUE(none.is_contiguous());
  EXPECT_TRUE(none.to_vector<float>().empty());
  EXPECT_TRUE(none.clone().defined());
  EXPECT_EQ(counted({3, 4}).narrow(0, 3, 0).elements(), 0);
}

TEST(Tensor, NarrowIsAViewOfARange) {
  const Tensor tensor = counted({3, 4});
  const Tensor rows = tensor.narrow(0, 1, 2), columns = tensor.narrow(-1, 1, 2);
  EXPECT_EQ(rows.to_vector<float>(), (std::vector<float>{4, 5, 6, 7, 8, 9, 10, 11}));
  EXPECT_TRUE(rows.is_contiguous());
  EXPECT_EQ(columns.to_vector<float>(), (std::vector<float>{1, 2, 5, 6, 9, 10}));
  EXPECT_FALSE(columns.is_contiguous());
  EXPECT_TRUE(columns.has_contiguous_rows());
  EXPECT_TRUE(columns.shares_memory_with(tensor));
  EXPECT_EQ(columns.narrow(0, 2, 1).narrow(1, 1, 1).to_vector<float>(), (std::vector<float>{10}));
  columns.data<float>()[0] = -1;
  EXPECT_EQ(tensor.to_vector<float>()[1], -1);
}

TEST(Tensor, PermuteReordersWithoutCopying) {
  const Tensor tensor = counted({2, 3, 2});
  const Tensor turned = tensor.permute({2, 0, 1});
  EXPECT_EQ(turned.shape(), Shape({2, 2, 3}));
  EXPECT_EQ(turned.to_vector<float>(), (std::vector<float>{0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11}));
  EXPECT_FALSE(turned.is_contiguous());
  EXPECT_FALSE(turned.has_contiguous_rows());
  EXPECT_TRUE(turned.permute({1, 2, 0}).is_contiguous());
  EXPECT_EQ(turned.permute({1, 2, 0}).to_vector<float>(), numbers(12));
}

TEST(Tensor, SplitLastSplitsColumnsIntoHeads) {
  const Tensor fused = counted({2, 6});
  EXPECT_EQ(fused.split_last(3).shape(), Shape({2, 2, 3}));
  EXPECT_EQ(fused.split_last(3).to_vector<float>(), numbers(12));
  // A column range keeps the strides of the whole tensor.
  const Tensor part = fused.narrow(1, 2, 4).split_last(2);
  EXPECT_EQ(part.shape(), Shape({2, 2, 2}));
  EXPECT_EQ(part.strides(), Shape({6, 2, 1}));
  EXPECT_EQ(part.to_vector<float>(), (std::vector<float>{2, 3, 4, 5, 8, 9, 10, 11}));
}

TEST(Tensor, ReshapeKeepsElementsAndMemory) {
  const Tensor tensor = counted({2, 6});
  const Tensor again = tensor.reshape({3, 2, 2});
  EXPECT_TRUE(again.shares_memory_with(tensor));
  EXPECT_EQ(again.to_vector<float>(), numbers(12));
  EXPECT_EQ(tensor.narrow(0, 1, 1).reshape({6}).to_vector<float>(), (std::vector<float>{6, 7, 8, 9, 10, 11}));
}

TEST(Tensor, AllowsAnyStrideForAnExtentOfOne) {
  // One row of a matrix's column range is contiguous although its stride is the matrix's width.
  const Tensor part = counted({3, 4}).narrow(0, 1, 1).narrow(1, 1, 3);
  EXPECT_EQ(part.strides(), Shape({4, 1}));
  EXPECT_TRUE(part.is_contiguous());
  EXPECT_EQ(part.reshape({3}).to_vector<float>(), (std::vector<float>{5, 6, 7}));
}

TEST(Tensor, SharesMemoryWithCopiesButNotWithClones) {
  const Tensor tensor = counted({4});
  EXPECT_TRUE(tensor.is_unique());
  const Tensor same = tensor, other = tensor.clone();
  EXPECT_FALSE(tensor.is_unique());
  EXPECT_TRUE(other.is_unique());
  EXPECT_FALSE(other.shares_memory_with(tensor));
  other.fill_zero();
  EXPECT_EQ(tensor.to_vector<float>(), numbers(4));
  EXPECT_EQ(other.to_vector<float>(), std::vector<float>(4));
  other.copy_from(same);
  EXPECT_EQ(other.to_vector<float>(), numbers(4));
}

TEST(Tensor, ErrorsNameTheShapes) {
  const Tensor tensor = counted({3, 4}), turned = tensor.permute({1, 0});
  const auto contains = [](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  contains(message_of<ContractError>([&] { tensor.reshape({5, 3}); }), "[3, 4] to [5, 3]");
  contains(message_of<ContractError>([&] { turned.reshape({12}); }), "[4, 3] to [12]");
  contains(message_of<ContractError>([&] { tensor.narrow(1, 2, 3); }), "[2, 5) is outside dimension 1 of [3, 4]");
  contains(message_of<ContractError>([&] { tensor.narrow(0, -1, 1); }), "[3, 4]");
  contains(message_of<ContractError>([&] { tensor.narrow(2, 0, 1); }), "[3, 4]");
  contains(message_of<ContractError>([&] { tensor.permute({0}); }), "[3, 4]");
  contains(message_of<ContractError>([&] { tensor.permute({0, 0}); }), "[3, 4]");
  contains(message_of<ContractError>([&] { tensor.permute({0, 2}); }), "[3, 4]");
  contains(message_of<ContractError>([&] { tensor.split_last(3); }), "[3, 4] by 3");
  contains(message_of<ContractError>([&] { tensor.split_last(0); }), "[3, 4] by 0");
  contains(message_of<ContractError>([&] { turned.fill_zero(); }), "[4, 3]");
  contains(message_of<ContractError>([&] { tensor.copy_from(turned); }), "float32 [4, 3] to float32 [3, 4]");
  contains(message_of<ContractError>([&] {
             tensor.copy_from(Tensor::zeros({3, 4}, DType::float64));
           }),
           "float64 [3, 4] to float32");
  contains(message_of<ContractError>([&] {
             Tensor::from<float>({1, 2, 3}, {2, 2});
           }),
           "3 values for a tensor of shape [2, 2]");
  contains(message_of<ContractError>([&] { tensor.data<double>(); }), "float32 was read as float64");
  contains(message_of<ContractError>([&] {
             Tensor::empty({2}, DType::float32, Device{DeviceType::shape_only, 0}).to_vector<float>();
           }),
           "shape_only");
}

TEST(Tensor, ShapeOnlyTensorsHaveNoMemory) {
  const Device shape_only{DeviceType::shape_only, 0};
  const Tensor tensor = Tensor::zeros({1 << 20, 1 << 15}, DType::bfloat16, shape_only);  // 64 GiB
  EXPECT_EQ(tensor.bytes(), std::int64_t{1} << 36);
  const Tensor copy = tensor.narrow(0, 5, 7).clone();
  copy.copy_from(copy);
  copy.fill_zero();
  EXPECT_EQ(copy.device(), shape_only);
  EXPECT_EQ(Tensor::from(numbers(4), {2, 2}, shape_only).shape(), Shape({2, 2}));
}

}  // namespace
}  // namespace furlong
