#include "framework/ops/attention/positions/document_positions.h"

#include "tests/framework/ops/op_testing.h"

namespace furlong {
namespace {

using namespace furlong::testing;

class DocumentPositions : public EngineTest {};
FURLONG_INSTANTIATE_ENGINES(DocumentPositions);

TEST_P(DocumentPositions, CountFromStartOfEachRun) {
  const Tensor documents = Tensor::from(std::vector<std::int32_t>{5, 5, 2, 2, 2, 5, 5, 0, 0, 0}, {2, 5}, device());
  EXPECT_EQ(ops::document_positions(stream(), documents).to_vector<std::int32_t>(),
            (std::vector<std::int32_t>{0, 1, 0, 1, 2, 0, 1, 0, 1, 2}));
  EXPECT_THROW(ops::document_positions(stream(), Tensor::zeros({2, 5}, DType::float32, device())), ContractError);
  for (const Shape& shape : {Shape{0, 5}, Shape{3, 0}}) {
    EXPECT_EQ(ops::document_positions(stream(), Tensor::empty(shape, DType::int32, device())).shape(), shape);
  }
}

TEST_P(DocumentPositions, MatchReferenceForAnyRowLength) {
  // Lengths around those that a thread, a warp and a block process at once; documents of one token, of several, and of
  // a whole row.
  for (const std::int64_t n : {1, 3, 4, 5, 127, 128, 129, 256, 257, 1025, 9001}) {
    for (const std::uint32_t mean_length : {1u, 3u, 400u, 1000000u}) {
      const std::int64_t batch = 3;
      std::vector<std::int32_t> documents, expected;
      std::int32_t document = 0;
      for (std::int64_t i = 0; i < batch * n; ++i) {
        const bool begins = random_word({3, 0, mean_length}, static_cast<std::uint64_t>(i)) % mean_length == 0;
        document += begins ? 1 : 0;
        documents.push_back(document % 3);  // numbers repeat
        const bool goes_on = i % n > 0 && documents.end()[-2] == documents.back();
        expected.push_back(goes_on ? expected.back() + 1 : 0);
      }
      EXPECT_EQ(
          ops::document_positions(stream(), Tensor::from(documents, {batch, n}, device())).to_vector<std::int32_t>(),
          expected)
          << n << ", documents of about " << mean_length;
    }
  }
}

TEST(DocumentPositionsShapes, ShapeOnlyDeviceGivesShape) {
  const Device nowhere{DeviceType::shape_only, 0};
  EXPECT_EQ(ops::document_positions(Stream{nowhere}, Tensor::empty({2, 5}, DType::int32, nowhere)).shape(),
            Shape({2, 5}));
}

}  // namespace
}  // namespace furlong
