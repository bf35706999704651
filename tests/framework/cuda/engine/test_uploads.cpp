// Asynchronous copies from the host. On the simulator they arrive as late as allowed, so that a missing wait is
// detected.
#include <cstring>
#include <numeric>

#include "framework/core/error.h"
#include "framework/core/tensor.h"
#include "tests/framework/engine_testing.h"

namespace furlong {
namespace {

using namespace furlong::testing;

class Uploads : public EngineTest {
 protected:
  std::unique_ptr<GpuUpload> upload() { return require_gpu_engine(device().type).make_upload(device().index); }
};
FURLONG_INSTANTIATE_GPUS(Uploads);

std::vector<std::int32_t> numbers_from(std::int32_t first, std::int64_t count) {
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

void begin(GpuUpload& upload, const std::vector<std::int32_t>& numbers, const Tensor& target) {
  const auto bytes = static_cast<std::int64_t>(numbers.size() * sizeof(std::int32_t));
  std::memcpy(upload.host(bytes), numbers.data(), static_cast<std::size_t>(bytes));
  upload.begin(target.address(), bytes);
}

TEST_P(Uploads, WorkAfterTheWaitSeesTheCompleteCopy) {
  const auto way = upload();
  for (const std::int64_t n : {5, 1, 100000, 33, 300001}) {  // host memory grows and is kept
    const Tensor target = Tensor::zeros({n}, DType::int32, device()), copy = Tensor::zeros({n}, DType::int32, device());
    synchronize(stream());  // the copy does not wait for the zeros
    for (std::int32_t round = 0; round < 5; ++round) {
      begin(*way, numbers_from(round, n), target);
      way->wait(stream());
      copy.copy_from(target);
      way->used(stream());
      begin(*way, numbers_from(-round, n), target);  // must run after the line above
      EXPECT_EQ(copy.to_vector<std::int32_t>(), numbers_from(round, n));
      way->wait(stream());
      way->used(stream());
      EXPECT_EQ(target.to_vector<std::int32_t>(), numbers_from(-round, n));
    }
  }
}

TEST_P(Uploads, DoesNotCopyImmediately) {
  const auto way = upload();
  way->wait(stream());  // without any copy
  way->used(stream());
  way->host(0);
  way->begin(nullptr, 0);
  way->wait(stream());
  way->used(stream());
  way->host(4);
  const Tensor target = Tensor::zeros({2}, DType::int32, device());
  EXPECT_THROW(way->begin(target.address(), 8), ContractError) << "more than the buffer holds";
}

TEST_P(Uploads, RejectsWaitDuringRecording) {
  const auto way = upload();
  GpuEngine& engine = require_gpu_engine(device().type);
  engine.begin_capture(stream());
  EXPECT_THROW(way->wait(stream()), CaptureError);
  EXPECT_THROW(way->used(stream()), CaptureError);
  engine.abandon_capture(stream());
}

// Planted faults that the simulator must detect.
class SimulatedUploads : public EngineTest {
 protected:
  void SetUp() override {
    EngineTest::SetUp();
    way_ = require_gpu_engine(DeviceType::simulated).make_upload(0);
  }
  std::unique_ptr<GpuUpload> way_;
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SimulatedUploads);
INSTANTIATE_TEST_SUITE_P(Engines, SimulatedUploads, ::testing::ValuesIn(available({DeviceType::simulated})),
                         engine_name);

TEST_P(SimulatedUploads, MissingWaitReadsGarbage) {
  const Tensor target = Tensor::from(numbers_from(7, 9), {9}, device()),
               copy = Tensor::zeros({9}, DType::int32, device());
  begin(*way_, numbers_from(7, 9), target);  // even if the numbers equal the previous contents
  copy.copy_from(target);
  EXPECT_EQ(copy.to_vector<std::int32_t>(), std::vector<std::int32_t>(9, static_cast<std::int32_t>(0xcdcdcdcd)));
  way_->wait(stream());
  copy.copy_from(target);
  EXPECT_EQ(copy.to_vector<std::int32_t>(), numbers_from(7, 9));
}

TEST_P(SimulatedUploads, RejectsCopyThatDoesNotWaitForReaders) {
  const Tensor target = Tensor::zeros({9}, DType::int32, device());
  begin(*way_, numbers_from(0, 9), target);
  way_->wait(stream());
  EXPECT_THROW(begin(*way_, numbers_from(1, 9), target), ContractError);
  way_->used(stream());
  begin(*way_, numbers_from(2, 9), target);
  way_->wait(stream());
  EXPECT_EQ(target.to_vector<std::int32_t>(), numbers_from(2, 9));
}

TEST_P(SimulatedUploads, EarlyWriteToHostMemoryIsCopied) {
  const Tensor target = Tensor::zeros({4}, DType::int32, device());
  auto* host = static_cast<std::int32_t*>(way_->host(16));
  std::fill_n(host, 4, 1);
  way_->begin(target.address(), 16);
  host[2] = 5;  // without host(), which would have waited
  way_->wait(stream());
  EXPECT_EQ(target.to_vector<std::int32_t>(), (std::vector<std::int32_t>{1, 1, 5, 1}));
  way_->used(stream());
  way_->begin(target.address(), 16);
  static_cast<std::int32_t*>(way_->host(16))[2] = 6;
  way_->wait(stream());
  EXPECT_EQ(target.to_vector<std::int32_t>(), (std::vector<std::int32_t>{1, 1, 5, 1}));
}

}  // namespace
}  // namespace furlong
