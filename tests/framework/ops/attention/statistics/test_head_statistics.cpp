#include "framework/ops/attention/statistics/head_statistics.h"

#include "tests/framework/ops/op_testing.h"

namespace furlong::ops {
namespace {

using namespace furlong::testing;

class HeadStatistics : public EngineTest {};
FURLONG_INSTANTIATE_ENGINES(HeadStatistics);

/// Returns the expected statistics, computed by plain loops.
std::vector<double> expected_statistics(const std::vector<double>& query, const std::vector<double>& key,
                                        const std::vector<std::int32_t>& kept, std::int64_t heads,
                                        std::int64_t kv_heads, std::int64_t d) {
  std::vector<double> statistics(static_cast<std::size_t>(heads * head_statistics_width(d)));
  for (std::size_t token = 0; token < kept.size(); ++token) {
    if (kept[token] == 0) continue;
    for (std::int64_t head = 0; head < heads; ++head) {
      double* row = statistics.data() + head * head_statistics_width(d);
      row[0] += 1;
      for (std::int64_t i = 0; i < d; ++i) {
        const double q = query[token * static_cast<std::size_t>(heads * d) + static_cast<std::size_t>(head * d + i)];
        const double k = key[token * static_cast<std::size_t>(kv_heads * d) +
                             static_cast<std::size_t>(head / (heads / kv_heads) * d + i)];
        row[1 + i] += q;
        row[1 + d + i] += k;
        row[1 + 2 * d + i] += q * q;
        row[1 + 3 * d + i] += k * k;
      }
    }
  }
  return statistics;
}

/// Query and key as column ranges of one tensor, like those of a fused projection.
struct Fused {
  Tensor query, key;
  Fused(const std::vector<double>& q, const std::vector<double>& k, std::int64_t batch, std::int64_t n, DType dtype) {
    const std::int64_t tokens = batch * n, wide = static_cast<std::int64_t>(q.size()) / tokens,
                       narrow = static_cast<std::int64_t>(k.size()) / tokens;
    std::vector<double> both;
    for (std::int64_t t = 0; t < tokens; ++t) {
      both.insert(both.end(), q.begin() + t * wide, q.begin() + (t + 1) * wide);
      both.insert(both.end(), k.begin() + t * narrow, k.begin() + (t + 1) * narrow);
    }
    const Tensor fused = tensor_of(both, {batch, n, wide + narrow}, dtype);
    query = fused.narrow(2, 0, wide);
    key = fused.narrow(2, wide, narrow);
  }
};

TEST_P(HeadStatistics, MatchSumsOverKeptTokens) {
  for (DType dtype : float_dtypes) {
    for (const auto& [heads, kv_heads, d] :
         {std::tuple<std::int64_t, std::int64_t, std::int64_t>{1, 1, 1}, {4, 2, 5}, {3, 3, 16}, {2, 1, 37}}) {
      const std::int64_t batch = 2, n = on_gpu() ? 301 : 75;  // several runs of rows and a remainder
      const auto query = stored(normal_values(batch * n * heads * d, "q"), dtype),
                 key = stored(normal_values(batch * n * kv_heads * d, "k"), dtype);
      std::vector<std::int32_t> kept(static_cast<std::size_t>(batch * n), 1);
      for (std::size_t i = 0; i < kept.size(); i += 3) kept[i] = 0;
      const Fused inputs(query, key, batch, n, dtype);
      const Tensor statistics = Tensor::zeros({heads, head_statistics_width(d)}, accumulate_dtype(dtype), device());
      const std::vector<std::int32_t> all(kept.size(), 1);
      add_head_statistics(stream(), inputs.query, inputs.key, {}, heads, kv_heads, statistics);
      std::vector<double> expected = expected_statistics(query, key, all, heads, kv_heads, d);
      // Up to 64 numbers are summed in the compute type: a few roundings.
      const double tolerance = 32 * rounding_unit(accumulate_dtype(dtype));
      EXPECT_LE(relative_error(values_of(statistics), expected), tolerance) << name_of(dtype) << ", width " << d;
      add_head_statistics(stream(), inputs.query, inputs.key, Tensor::from(kept, {batch, n}, device()), heads, kv_heads,
                          statistics);
      const std::vector<double> more = expected_statistics(query, key, kept, heads, kv_heads, d);
      for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += more[i];
      EXPECT_LE(relative_error(values_of(statistics), expected), tolerance) << name_of(dtype) << ", width " << d;
    }
  }
}

TEST(HeadStatisticsOnTheCpu, AreIndependentOfThreadCount) {
  const std::int64_t heads = 4, d = 8, n = 500;
  const Fused inputs(normal_values(n * heads * d, "q"), normal_values(n * heads * d, "k"), 1, n, DType::float32);
  const auto with = [&](int threads) {
    const WithThreads guard(threads);
    const Tensor statistics = Tensor::zeros({heads, head_statistics_width(d)}, DType::float32);
    add_head_statistics(Stream{}, inputs.query, inputs.key, {}, heads, heads, statistics);
    return values_of(statistics);
  };
  EXPECT_EQ(with(1), with(5));
}

TEST_P(HeadStatistics, NonFiniteHeadIsLeftUnchanged) {
  const std::int64_t heads = 2, d = 3, n = 4;
  auto query = normal_values(n * heads * d, "q");
  query[static_cast<std::size_t>(d)] = std::numeric_limits<double>::quiet_NaN();  // head 1
  const Fused inputs(query, normal_values(n * heads * d, "k"), 1, n, DType::float32);
  const Tensor statistics = Tensor::zeros({heads, head_statistics_width(d)}, DType::float32, device());
  add_head_statistics(stream(), inputs.query, inputs.key, {}, heads, heads, statistics);
  const std::vector<double> found = values_of(statistics);
  EXPECT_EQ(found[0], 4);
  for (std::size_t i = static_cast<std::size_t>(head_statistics_width(d)); i < found.size(); ++i)
    EXPECT_EQ(found[i], 0);
}

TEST_P(HeadStatistics, RejectMismatchedShapes) {
  const Tensor query = Tensor::zeros({1, 4, 6}, DType::float32, device()),
               key = Tensor::zeros({1, 4, 3}, DType::float32, device());
  const Tensor statistics = Tensor::zeros({2, 13}, DType::float32, device());
  EXPECT_NO_THROW(add_head_statistics(stream(), query, key, {}, 2, 1, statistics));
  EXPECT_THROW(add_head_statistics(stream(), query, key, {}, 2, 2, statistics), ContractError);
  EXPECT_THROW(add_head_statistics(stream(), query, key.narrow(1, 0, 3), {}, 2, 1, statistics), ContractError);
  EXPECT_THROW(add_head_statistics(stream(), query, key, {}, 2, 1, Tensor::zeros({2, 12}, DType::float32, device())),
               ContractError);
}

}  // namespace
}  // namespace furlong::ops
