#include "framework/core/dtype.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "framework/core/device.h"
#include "framework/core/error.h"
#include "framework/core/machine.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using ::testing::AllOf, ::testing::EndsWith, ::testing::HasSubstr;

constexpr DType all_dtypes[] = {DType::float32, DType::bfloat16, DType::float64, DType::int32, DType::uint8};

bfloat16 from_bits(std::uint32_t bits) {
  bfloat16 value;
  value.bits = static_cast<std::uint16_t>(bits);
  return value;
}
std::uint16_t rounded(float value) { return bfloat16(value).bits; }
float float_from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }

TEST(DType, ConvertsBetweenNamesAndTypes) {
  for (DType dtype : all_dtypes) EXPECT_EQ(dtype_from_name(name_of(dtype)), dtype);
  EXPECT_EQ(size_of(dtype_of<float>::value), 4);
  EXPECT_EQ(size_of(dtype_of<double>::value), 8);
  EXPECT_EQ(size_of(dtype_of<bfloat16>::value), 2);
  EXPECT_EQ(size_of(dtype_of<std::int32_t>::value), 4);
  EXPECT_EQ(size_of(dtype_of<std::uint8_t>::value), 1);
  EXPECT_EQ(sizeof(bfloat16), 2u);
  EXPECT_EQ(accumulate_dtype(DType::bfloat16), DType::float32);
  EXPECT_EQ(accumulate_dtype(DType::float64), DType::float64);
}

TEST(DType, RejectsUnknownNames) {
  const std::string message = testing::message_of<UserError>([] { dtype_from_name("float16"); });
  EXPECT_THAT(message, HasSubstr("'float16'"));
  for (DType dtype : all_dtypes) EXPECT_THAT(message, HasSubstr(name_of(dtype)));
}

TEST(BFloat16, RoundTripsEveryBitPattern) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = static_cast<float>(from_bits(bits));
    const std::uint16_t again = rounded(value);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(static_cast<float>(from_bits(again)))) << bits;
      ASSERT_EQ(again & 0x8000u, bits & 0x8000u) << bits;
    } else {
      ASSERT_EQ(again, bits) << value;
    }
    if (!std::isnan(value)) {
      ASSERT_EQ(static_cast<double>(from_bits(bits)), static_cast<double>(value));
    }
  }
}

TEST(BFloat16, RoundsToNearestEven) {
  // For each finite positive pattern: just below the midpoint rounds down, just above rounds up, the midpoint rounds to
  // even.
  for (std::uint32_t bits = 0; bits < 0x7f80u; ++bits) {
    const std::uint32_t word = bits << 16;
    ASSERT_EQ(rounded(float_from_bits(word | 0x7fffu)), bits);
    ASSERT_EQ(rounded(float_from_bits(word | 0x8000u)), bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(rounded(float_from_bits(word | 0x8001u)), bits + 1);
    ASSERT_EQ(rounded(float_from_bits(word | 0x80008001u)), (bits + 1) | 0x8000u);
  }
  EXPECT_EQ(rounded(1.0f), 0x3f80u);
  EXPECT_EQ(rounded(-2.0f), 0xc000u);
}

TEST(BFloat16, RoundsOnlyOverflowToInfinity) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(static_cast<float>(bfloat16(std::numeric_limits<float>::max())), infinity);
  EXPECT_EQ(static_cast<float>(bfloat16(-infinity)), -infinity);
  EXPECT_EQ(static_cast<float>(from_bits(0x7f7f)), 0x1.fep127f);
  EXPECT_EQ(rounded(std::nextafter(0x1.ffp127f, 0.0f)), 0x7f7fu);  // just below the midpoint to 2^128
  EXPECT_EQ(rounded(0x1.ffp127f), 0x7f80u);
}

TEST(BFloat16, PreservesNaNForAnyPayload) {
  // A payload only in the lower half would be rounded to infinity; a payload of all ones would carry into the sign.
  for (std::uint32_t word : {0x7f800001u, 0x7f80ffffu, 0x7fffffffu, 0x7fc00000u, 0xff800001u, 0xffffffffu}) {
    const bfloat16 value(float_from_bits(word));
    EXPECT_TRUE(std::isnan(static_cast<float>(value))) << std::hex << word;
    EXPECT_EQ(value.bits >> 15, word >> 31) << std::hex << word;
  }
}

TEST(Device, ConvertsYamlNames) {
  EXPECT_EQ(device_from_name("cpu"), Device{});
  EXPECT_EQ(Device{}.text(), "cpu");
  EXPECT_EQ((Device{DeviceType::cuda, 3}).text(), "cuda:3");
  EXPECT_EQ((Device{DeviceType::shape_only, 0}).text(), "shape_only");
  EXPECT_THROW(device_from_name("gpu"), UserError);
  EXPECT_THROW(device_from_name(""), UserError);
}

TEST(Device, AutoWarnsAboutAnIdleGpu) {
  const GpuInformation idle{"NVIDIA H100", true}, without_driver{"PCI 0000:01:00.0", false};
  EXPECT_EQ(idle_gpu_warning({}, ""), "");
  EXPECT_EQ(idle_gpu_warning({without_driver}, ""), "");
  EXPECT_THAT(idle_gpu_warning({without_driver, idle}, ""),
              AllOf(HasSubstr("NVIDIA H100"), HasSubstr("FURLONG_CUDA=ON scripts/build.sh release")));
  EXPECT_THAT(idle_gpu_warning({idle}, "the driver is too old"), EndsWith("NVIDIA H100 idle: the driver is too old"));
}

}  // namespace
}  // namespace furlong
