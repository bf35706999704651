#if __has_include(<cuda_bf16.h>)  // the simulator uses CUDA's types from the toolkit's headers
// Rows that the plain kernels of linear attention leave to the general ones: how much the general kernels compute for
// them. test_linear_attention_plain.cpp tests the results.
#include <gtest/gtest.h>

#include "framework/ops/attention/linear/cuda/fused_rows.cuh"
#include "tests/framework/ops/attention/linear/linear_attention_testing.h"

namespace furlong::testing {
namespace {

const Device simulated{DeviceType::simulated, 0};
using LostRows = ops::FURLONG_GPU::FusedLostRows;

__global__ void count_chunks(LostRows rows, int line, int begin, int end, bool backward, int* counts) {
  counts[threadIdx.x] = rows.chunks_to_compute(line, begin, end, backward);
}

TEST(LinearAttentionLostRows, ChunksEndWithLastLostRow) {
  if (const std::string reason = engine_missing(simulated); !reason.empty()) GTEST_SKIP() << reason;
  // Two lines of blocks with five chunks of 8 words; the last chunk is partial.
  const int chunks = 5, n = 300;
  const auto count = [&](const std::vector<std::pair<int, int>>& lost, int line, int begin, int end, bool backward) {
    std::vector<std::int32_t> words(2 * chunks * 8);
    for (const auto& [of_line, row] : lost)
      words[static_cast<std::size_t>(of_line * chunks * 8 + row / 8)] |= 0xf << 4 * (row % 8);
    const Tensor on_device = Tensor::from(words, {2 * chunks * 8}, simulated);
    const Tensor counts = Tensor::empty({128}, DType::int32, simulated);
    launch(Stream{simulated}, count_chunks, dim3(1), dim3(128), 0,
           LostRows{reinterpret_cast<std::uint32_t*>(gpu_data<std::int32_t>(on_device)), chunks}, line, begin, end,
           backward, gpu_data<std::int32_t>(counts));
    const auto all = counts.to_vector<std::int32_t>();
    EXPECT_EQ(all, std::vector<std::int32_t>(128, all[0])) << "threads agree";
    return all[0];
  };
  EXPECT_EQ(count({}, 0, 0, n, false), 0);
  EXPECT_EQ(count({}, 0, 0, n, true), 0);
  EXPECT_EQ(count({{0, 0}}, 0, 0, n, false), 1);
  EXPECT_EQ(count({{0, 63}}, 0, 0, n, false), 1);
  EXPECT_EQ(count({{0, 64}}, 0, 0, n, false), 2);
  EXPECT_EQ(count({{0, 10}, {0, 130}}, 0, 0, n, false), 3);
  EXPECT_EQ(count({{0, 299}}, 0, 0, n, false), 5);
  EXPECT_EQ(count({{0, 0}}, 0, 0, n, true), 5);
  EXPECT_EQ(count({{0, 299}}, 0, 0, n, true), 1);
  EXPECT_EQ(count({{0, 130}, {0, 255}}, 0, 0, n, true), 3);
  EXPECT_EQ(count({{0, 0}, {1, 200}}, 1, 0, n, false), 4) << "the other line's rows do not count";
  EXPECT_EQ(count({{0, 127}, {0, 256}}, 0, 128, 256, false), 0) << "rows of other segments do not count";
  EXPECT_EQ(count({{0, 127}, {0, 130}, {0, 256}}, 0, 128, 256, true), 2);
}

enum class Pass : std::uint8_t { forward, query_gradient, key_gradient };

/// Returns the simulator's context switches in one pass: each barrier and warp operation of a thread is one.
double work_of(const AttentionProblem& p, Pass pass) {
  const OnDevice on_simulated{simulated};
  gpu_settings().segments = 1;
  ops::LinearAttentionInputs inputs = inputs_of(p, DType::bfloat16, false);
  if (pass == Pass::query_gradient) inputs.query = Variable::leaf(inputs.query.value());
  if (pass == Pass::key_gradient) inputs.key = Variable::leaf(inputs.key.value());
  Tape tape{stream()};
  std::uint64_t before = simulator::statistics().switches;
  const Variable output = attend(tape, inputs, p.options);
  if (pass != Pass::forward) {
    const Tensor d_output = tensor_of(normal_values(output.shape().elements(), 5), output.shape(), DType::bfloat16);
    before = simulator::statistics().switches;
    tape.backward({output}, {d_output});
  }
  gpu_settings() = {};
  return static_cast<double>(simulator::statistics().switches - before);
}

/// One head of `n` tokens with 64 projections, and a direction.
struct Directed {
  AttentionProblem p;
  std::vector<double> direction;

  explicit Directed(std::int64_t n)
      : p(attention_problem(FeatureMap::favor_positive, true, {1, 1, 1, n, 64, 64, 64, 64})),
        direction(normal_values(64, 31)) {
    for (std::int64_t i = 0; i < n; ++i) set(p.key, i, 1), set(p.query, i, 1);
  }
  /// Makes token i's row a multiple of the direction, of this norm.
  void set(std::vector<double>& values, std::int64_t i, double norm) {
    double square = 0;
    for (const double x : direction) square += x * x;
    std::vector<double> row;
    for (const double x : direction) row.push_back(x * norm / std::sqrt(square));
    row = stored(row, DType::bfloat16);
    std::copy(row.begin(), row.end(), values.begin() + i * 64);
  }
};

TEST(LinearAttentionLostRows, GeneralKernelsStopAfterLastLostRow) {
  if (const std::string reason = engine_missing(simulated); !reason.empty()) GTEST_SKIP() << reason;
  Directed none(384);
  for (std::int64_t i = 0; i < 384; ++i) none.set(none.p.key, i, -60);
  for (std::int64_t i = 0; i < 384; ++i) none.set(none.p.query, i, -1);
  for (const Pass pass : {Pass::forward, Pass::query_gradient}) {
    const auto extra = [&](std::int64_t token) {
      Directed one = none;
      one.set(one.p.query, token, 200);
      return work_of(one.p, pass) - work_of(none.p, pass);
    };
    const double early = extra(70), late = extra(380);
    EXPECT_GT(early, 0);
    EXPECT_GT(late, 2 * early) << "of six chunks the general kernel computes two or six";
  }
}

TEST(LinearAttentionLostRows, GeneralKernelsRecomputeOnlyLostRows) {
  if (const std::string reason = engine_missing(simulated); !reason.empty()) GTEST_SKIP() << reason;
  // Keys of the first chunk, which are larger, have less weight than the others.
  Directed aligned(192);
  for (std::int64_t i = 0; i < 192; ++i) {
    aligned.set(aligned.p.key, i, i < 64 ? -100 : -60);
    aligned.set(aligned.p.query, i, -60);
  }
  // Queries of the second chunk are opposite to its keys: all its pairs underflow. The plain kernels compute these
  // rows.
  Directed none = aligned;
  for (std::int64_t i = 64; i < 128; ++i) none.set(none.p.query, i, 60);
  // A mask of ones selects the general kernels for all rows.
  aligned.p.mask.assign(192, 1);
  for (const Pass pass : {Pass::forward, Pass::query_gradient, Pass::key_gradient}) {
    Directed one = none;
    if (pass == Pass::key_gradient) {
      one.set(one.p.key, 5, -60);
    } else {
      one.set(one.p.query, 130, 200);
    }
    const double extra = work_of(one.p, pass) - work_of(none.p, pass);
    EXPECT_GT(extra, 0);
    EXPECT_LT(extra, 1.1 * work_of(aligned.p, pass)) << "pairs of other rows in pass " << static_cast<int>(pass);
  }
}

}  // namespace
}  // namespace furlong::testing
#endif
