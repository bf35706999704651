// Counts and measurements of furlong bench attention.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "evaluation/bench/bench_attention.h"
#include "framework/primitives/gemm.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using ::testing::HasSubstr;
using testing::message_of;

BenchAttentionOptions options_of(const std::string& mechanism, bool causal, bool train) {
  BenchAttentionOptions options;
  options.config.mechanism = mechanism;
  options.config.causal = causal;
  options.config.chunk_size = 8;
  options.config.n_heads = 3;
  options.config.d_head = 8;
  options.config.n_features = 16;
  options.config.projected_length = 4;
  options.train = train;
  options.lengths = {32, 64};
  options.repeat = 3;
  return options;
}

// Products of the definitions, pair by pair and row by row, for one head with d = 8.
double counted_pairs(bool causal, std::int64_t n, std::int64_t window) {
  double pairs = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < n; ++j)
      pairs += (!causal || j <= i) && (window == 0 || std::abs(i - j) < window) ? 1 : 0;
  }
  return pairs;
}

TEST(BenchAttention, SoftmaxCountsVisiblePairs) {
  for (const bool causal : {false, true}) {
    for (const std::int64_t window : {0, 1, 5, 32, 100}) {
      BenchAttentionOptions options = options_of("softmax", causal, false);
      options.config.window = window;
      // q·k and p·v forward; q·k again, dp, dv, dq and dk backward.
      const double pairs = counted_pairs(causal, 32, window);
      EXPECT_EQ(attention_flops(options, 32), 3 * pairs * 2 * (8 + 8)) << causal << " " << window;
      options.train = true;
      EXPECT_EQ(attention_flops(options, 32), 3 * pairs * 2 * 7 * 8) << causal << " " << window;
    }
  }
}

TEST(BenchAttention, LinearCountsFeaturesStatesAndPairsOfAChunk) {
  // Chunks of 8: one block of queries meets every key of the chunk.
  const double n = 32, d = 8, m = 16, features = 2 * n * m * d, state = 2 * n * m * d, pairs = 4 * 8 * 8;
  const auto count = [](bool causal, bool train) {
    return attention_flops(options_of("linear", causal, train), 32) / 3;
  };
  const double bidirectional = 2 * features + 2 * state;  // of q and of k; built and read
  EXPECT_EQ(count(false, false), bidirectional);
  EXPECT_EQ(count(true, false), bidirectional + pairs * 2 * (m + d));
  // Sweep of queries: features of keys, the state, features of queries, down from the state and through ω to x. Sweep
  // of keys: features of both, the state of gradients, down from it to features and to v, through ω to x; causal also
  // to the queries' x, and pairs: weights again, to both features, dp, dv.
  EXPECT_EQ(count(false, true), bidirectional + (3 + 3) * features + (2 + 3) * state);
  EXPECT_EQ(count(true, true),
            bidirectional + pairs * 2 * (m + d) + (3 + 4) * features + 5 * state + pairs * 2 * (3 * m + 2 * d));
  // A chunk of 64 in four blocks of 16 queries over 16, 32, 48 and 64 keys; one of 24 in blocks of 16 and 8.
  for (const auto& [chunk, blocks] :
       std::vector<std::pair<std::int64_t, double>>{{64, 16 * (16 + 32 + 48 + 64)}, {24, 16 * 16 + 8 * 24}}) {
    BenchAttentionOptions longer = options_of("linear", true, false);
    longer.config.chunk_size = chunk;
    EXPECT_EQ(attention_flops(longer, 192) / 3,
              6 * bidirectional + 192 / static_cast<double>(chunk) * blocks * 2 * (m + d))
        << chunk;
  }

  BenchAttentionOptions window = options_of("linear", true, false);
  window.config.window = 5;
  EXPECT_EQ(attention_flops(window, 32) / 3, 2 * features + counted_pairs(true, 32, 5) * 2 * (m + d));
  window.config.mechanism = "windowed";
  window.config.softmax_window = 5;
  EXPECT_EQ(attention_flops(window, 32) / 3, count(true, false) + counted_pairs(true, 32, 5) * 4 * d);
  window.config.causal = false;
  EXPECT_EQ(attention_flops(window, 32) / 3, 2 * count(true, false) + counted_pairs(false, 32, 5) * 4 * d);
  BenchAttentionOptions hyperbolic = options_of("linear", false, false);
  hyperbolic.config.feature_map = "favor_hyperbolic";
  EXPECT_EQ(attention_flops(hyperbolic, 32) / 3, features + 2 * state) << "half as many directions";
  hyperbolic.config.feature_map = "elu1";
  EXPECT_EQ(attention_flops(hyperbolic, 32) / 3, 4 * n * d * d) << "no directions, m = d";
}

TEST(BenchAttention, LinformerCountsProjectionAndRows) {
  BenchAttentionOptions options = options_of("linformer", false, false);
  const double projection = 2 * 2 * 32 * 4 * 8, rows = 32 * 4 * 2 * (8 + 8);
  EXPECT_EQ(attention_flops(options, 32), 3 * (projection + rows));
  options.train = true;
  EXPECT_EQ(attention_flops(options, 32), 3 * (3 * projection + 3.5 * rows));
  options.config.projection = ops::SequenceProjection::mean;
  EXPECT_EQ(attention_flops(options, 32), 3 * 3.5 * rows);
  // Shorter than the projection: as many rows as tokens.
  options.train = false;
  EXPECT_EQ(attention_flops(options, 2), 3 * 2 * 2 * 2 * (8 + 8));
  options.config.projection = ops::SequenceProjection::linear;
  EXPECT_EQ(attention_flops(options, 2), 3 * (2 * 2 * 2 * 2 * 8 + 2 * 2 * 2 * (8 + 8)));
}

TEST(BenchAttention, PeakIsBestMeasurement) {
  PeakRate peak(DType::float32, Device{});
  EXPECT_EQ(peak.flops_per_second(), 0);
  peak.measure();
  const double first = peak.flops_per_second();
  EXPECT_GT(first, 1e8);
  peak.measure();
  EXPECT_GE(peak.flops_per_second(), first);
}

TEST(BenchAttention, ExponentOfPowers) {
  EXPECT_NEAR(
      fitted_exponent({{4, 3 * std::pow(4, 1.25)}, {64, 3 * std::pow(64, 1.25)}, {1000, 3 * std::pow(1000, 1.25)}}),
      1.25, 1e-14);
  // Least squares over log2 x = 1, 2, 3 with log2 y = 0, 0, 3: covariance 3, variance 2.
  EXPECT_NEAR(fitted_exponent({{2, 1}, {4, 1}, {8, 8}}), 1.5, 1e-14);
}

TEST(BenchAttention, MeasuresEveryMechanism) {
  for (const layers::MechanismInfo& mechanism : layers::attention_mechanisms()) {
    for (const bool train : {false, true}) {
      SCOPED_TRACE(mechanism.name);
      BenchAttentionOptions options = options_of(mechanism.name, mechanism.can_be_causal, train);
      if (mechanism.is_hybrid) options.config.*mechanism.window = 4;
      const BenchAttentionResult result = bench_attention(options);
      ASSERT_EQ(result.lengths.size(), 2u);
      EXPECT_EQ(result.features, mechanism.has_features ? 16 : 0);
      EXPECT_TRUE(result.exponent.has_value());
      for (const BenchAttentionLength& length : result.lengths) {
        ASSERT_EQ(length.seconds.size(), 3u);
        std::vector<double> sorted = length.seconds;
        std::sort(sorted.begin(), sorted.end());
        EXPECT_EQ(length.median_seconds, sorted[1]);
        EXPECT_GT(sorted[0], 0);
        EXPECT_EQ(length.flops, attention_flops(options, length.n));
        EXPECT_GE(length.peak_bytes, 4 * length.n * 3 * 8 * (train ? 4 : 1))
            << "the output, and three gradients with it";
      }
    }
  }
}

// Features exist only for one tile at a time: memory that grows with length is O(n·d), independent of m.
TEST(BenchAttention, MemoryDoesNotDependOnFeatures) {
  for (const std::string mechanism : {"linear", "windowed"}) {
    for (const bool causal : {true, false}) {
      SCOPED_TRACE(fmt::format("{}, {}", mechanism, causal ? "causal" : "bidirectional"));
      const auto growth = [&](std::int64_t features, std::int64_t n) {
        BenchAttentionOptions options = options_of(mechanism, causal, true);
        options.config.chunk_size = 64;
        if (mechanism == "windowed") options.config.softmax_window = 32;
        options.config.n_features = features;
        options.lengths = {n, 2 * n};
        options.repeat = 1;
        const BenchAttentionResult result = bench_attention(options);
        return result.lengths[1].peak_bytes - result.lengths[0].peak_bytes;
      };
      EXPECT_EQ(growth(128, 512), growth(16, 512));
      EXPECT_GE(growth(16, 512), 4 * 4 * 512 * 3 * 8) << "the output and three gradients";
      EXPECT_EQ(growth(16, 1024), 2 * growth(16, 512));
    }
  }
}

TEST(BenchAttention, EveryStorageType) {
  for (const DType dtype : {DType::bfloat16, DType::float64}) {
    BenchAttentionOptions options = options_of("linear", true, true);
    options.dtype = dtype;
    options.config.feature_map = "oprf";
    EXPECT_GT(bench_attention(options).lengths[0].median_seconds, 0);
  }
}

TEST(BenchAttention, RejectsIncompatibleOptions) {
  BenchAttentionOptions options = options_of("linformer", true, false);
  EXPECT_THAT(message_of<UserError>([&] { bench_attention(options); }), HasSubstr("cannot be --causal"));
  options = options_of("windowed", true, false);
  EXPECT_THAT(message_of<UserError>([&] { bench_attention(options); }), HasSubstr("add --window W"));
}

TEST(Roofline, KeepsTheBestRates) {
  Roofline best{.float32_flops = 2e9, .bfloat16_flops = 9e9, .bfloat16_packed_flops = {}, .memory_bytes = 5e9};
  EXPECT_EQ(best.text(),
            "roofline: float32 2.0 GFLOP/s; bfloat16 9.0 (products do not pack weights here); memory 5.0 GB/s");
  EXPECT_TRUE(best.to_json()["bfloat16_packed_flops_per_second"].is_null());
  best.improve({.float32_flops = 3e9, .bfloat16_flops = 8e9, .bfloat16_packed_flops = 12e9, .memory_bytes = 4e9});
  EXPECT_EQ(best.text(), "roofline: float32 3.0 GFLOP/s; bfloat16 9.0 plain, 12.0 packed; memory 5.0 GB/s");
  EXPECT_EQ(best.to_json()["bfloat16_packed_flops_per_second"], 12e9);
  EXPECT_EQ(best.flops(DType::float32), 3e9);
  EXPECT_EQ(best.flops(DType::bfloat16), 12e9);
}

TEST(Roofline, MeasuresPackedProductsWhereGemmPacks) {
  const Roofline found = measure_roofline(Device{}, std::uint64_t{1} << 28);
  EXPECT_EQ(found.bfloat16_packed_flops.has_value(), ops::gemm_packs_from(Device{}) > 0);
  for (const double rate : {found.float32_flops, found.bfloat16_flops, found.memory_bytes}) EXPECT_GT(rate, 1e6);
}

}  // namespace
}  // namespace furlong
