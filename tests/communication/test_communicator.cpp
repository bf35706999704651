#include "communication/communicator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "communication/reduction.h"
#include "framework/core/error.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using testing::message_of;

const Stream stream;

TEST(SingleProcess, OperationsCopy) {
  const auto communicator = make_single_process();
  EXPECT_STREQ(communicator->engine(), "none");
  EXPECT_EQ(communicator->rank(), 0);
  EXPECT_EQ(communicator->size(), 1);
  const std::vector<float> values{1, -2, 3};
  const Tensor input = Tensor::from(values, {3}), output = Tensor::zeros({3}, DType::float32);
  communicator->all_reduce(stream, input).wait();
  EXPECT_EQ(input.to_vector<float>(), values);
  communicator->reduce_scatter(stream, input, output).wait();
  EXPECT_EQ(output.to_vector<float>(), values);
  output.fill_zero();
  communicator->all_gather(stream, input, output).wait();
  EXPECT_EQ(output.to_vector<float>(), values);
  communicator->all_gather(stream, output, output).wait();
  communicator->broadcast(stream, output, 0).wait();
  communicator->exchange(stream, {}).wait();
  EXPECT_TRUE(communicator->barrier(stream).done());
  EXPECT_EQ(output.to_vector<float>(), values);
}

TEST(SingleProcess, OperationsThrowAfterAbort) {
  const auto communicator = make_single_process();
  communicator->abort("the disk is full");
  communicator->abort("something else");
  const Work work = communicator->barrier(stream);
  EXPECT_TRUE(work.done());
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(message_of<MachineError>([&] { work.wait(); }), "barrier stopped: the disk is full");
}

TEST(SingleProcess, DefaultWorkIsDone) {
  EXPECT_TRUE(Work().done());
  EXPECT_NO_THROW(Work().wait());
}

TEST(CommunicatorArguments, RejectsInvalidArgumentsAtTheCall) {
  const auto communicator = make_single_process();
  const auto refused = [&](const std::function<void(Communicator&)>& action) {
    return message_of<ContractError>([&] { action(*communicator); });
  };
  const Tensor four = Tensor::zeros({4}, DType::float32), matrix = Tensor::zeros({2, 2}, DType::float32);
  EXPECT_EQ(refused([&](auto& c) { c.all_reduce(stream, Tensor()); }), "all_reduce: values is undefined");
  EXPECT_EQ(refused([&](auto& c) {
              c.all_reduce(stream, matrix.permute({1, 0}));
            }),
            "all_reduce: values [2, 2] is not contiguous");
  EXPECT_EQ(refused([&](auto& c) {
              c.all_reduce(Stream{Device{DeviceType::shape_only, 0}}, four);
            }),
            "all_reduce: values is on cpu, but the stream is on shape_only");
  EXPECT_EQ(refused([&](auto& c) { c.reduce_scatter(stream, four, Tensor::zeros({3}, DType::float32)); }),
            "reduce_scatter over 1 ranks: sizes or dtypes of float32 [4] and float32 [3] do not match");
  EXPECT_EQ(refused([&](auto& c) { c.all_gather(stream, Tensor::zeros({4}, DType::float64), four); }),
            "all_gather over 1 ranks: sizes or dtypes of float32 [4] and float64 [4] do not match");
  const Tensor long_one = Tensor::zeros({6}, DType::float32);
  EXPECT_EQ(refused([&](auto& c) { c.all_gather(stream, long_one.narrow(0, 0, 4), long_one.narrow(0, 2, 4)); }),
            "all_gather: the tensors overlap outside the part of rank 0");
  EXPECT_EQ(refused([&](auto& c) { c.broadcast(stream, four, 1); }),
            "broadcast: root rank 1 of 1, expected 0 <= root < size");
  EXPECT_EQ(refused([&](auto& c) { c.broadcast(stream, four, -1); }),
            "broadcast: root rank -1 of 1, expected 0 <= root < size");
  EXPECT_EQ(refused([&](auto& c) { c.send(stream, four, 0); }),
            "send on rank 0: peer 0 of 1 ranks, expected another rank");
  EXPECT_EQ(refused([&](auto& c) { c.receive(stream, four, 1); }),
            "receive on rank 0: peer 1 of 1 ranks, expected another rank");
}

template <class T>
std::vector<T> reduced(Reduction reduction, std::vector<T> a, const std::vector<T>& b) {
  const ReductionFunction function = reduction_function(dtype_of<T>::value, reduction);
  std::vector<T> apart(a.size()), into_b = b;
  function(apart.data(), a.data(), b.data(), a.size());
  function(into_b.data(), a.data(), into_b.data(), a.size());
  function(a.data(), a.data(), b.data(), a.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto of = [i](const std::vector<T>& values) { return static_cast<double>(values[i]); };
    EXPECT_TRUE(of(a) == of(apart) || (std::isnan(of(a)) && std::isnan(of(apart)))) << i;
    EXPECT_TRUE(of(a) == of(into_b) || (std::isnan(of(a)) && std::isnan(of(into_b)))) << i;
  }
  return a;
}

TEST(ReductionFunction, IntegersWrapAround) {
  EXPECT_EQ(reduced<std::uint8_t>(Reduction::sum, {250, 1}, {10, 2}), (std::vector<std::uint8_t>{4, 3}));
  constexpr std::int32_t most = std::numeric_limits<std::int32_t>::max(),
                         least = std::numeric_limits<std::int32_t>::min();
  EXPECT_EQ(reduced<std::int32_t>(Reduction::sum, {most, -5}, {1, 3}), (std::vector<std::int32_t>{least, -2}));
  EXPECT_EQ(reduced<std::int32_t>(Reduction::maximum, {-7, 2}, {-3, 1}), (std::vector<std::int32_t>{-3, 2}));
  EXPECT_EQ(reduced<std::int32_t>(Reduction::minimum, {-7, 2}, {-3, 1}), (std::vector<std::int32_t>{-7, 1}));
}

// 257 lies halfway between its bfloat16 neighbors 256 and 258 and rounds to even (256). 256 + 1.5 gives 258 only if
// the sum is computed in float32.
TEST(ReductionFunction, BFloat16IsSummedInFloat32AndRoundedOnce) {
  const auto sums = reduced<bfloat16>(Reduction::sum, {bfloat16(256.0f), bfloat16(256.0f), bfloat16(-3.0f)},
                                      {bfloat16(1.0f), bfloat16(1.5f), bfloat16(0.5f)});
  EXPECT_EQ(static_cast<float>(sums[0]), 256.0f);
  EXPECT_EQ(static_cast<float>(sums[1]), 258.0f);
  EXPECT_EQ(static_cast<float>(sums[2]), -2.5f);
}

TEST(ReductionFunction, PropagatesNaN) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  for (const Reduction reduction : {Reduction::sum, Reduction::maximum, Reduction::minimum}) {
    const auto out = reduced<double>(reduction, {nan, 1, nan, 1}, {1, nan, infinity, 2});
    for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(std::isnan(out[i])) << name_of(reduction) << " " << i;
    EXPECT_FALSE(std::isnan(out[3]));
  }
}

}  // namespace
}  // namespace furlong
