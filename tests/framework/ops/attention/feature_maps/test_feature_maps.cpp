#include <gtest/gtest.h>

#include "layers/attention/linear/random_projection.h"
#include "tests/framework/ops/attention/feature_maps/feature_map_testing.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using ops::FeatureMap;
using ops::FeatureMapOptions;
using reference::FeatureMapCase;
using reference::FeatureRow;
using testing::MapTile;
using testing::message_of;
using testing::text;

constexpr std::int64_t row_count = 5;

class FeatureMaps : public testing::EngineTest {};
FURLONG_INSTANTIATE_ENGINES(FeatureMaps);

/// Runs once with each instruction set of the CPU, or once on a GPU.
template <class Body>
void for_each_instruction_set(const Body& body) {
  testing::on_gpu() ? body() : testing::for_each_instruction_set(body);
}

std::vector<double> directions_of(std::int64_t n, std::int64_t d) {
  const std::vector<float> drawn = layers::draw_random_projection(layers::RandomProjectionKind::orthogonal, n, d,
                                                                  {5, 0, random_stream("feature map tests")});
  return {drawn.begin(), drawn.end()};
}

/// Returns every map at width d: random maps with several projection counts, polynomials of every order with at most
/// 9000 features.
std::vector<FeatureMapCase> cases_of(std::int64_t d) {
  std::vector<FeatureMapCase> cases;
  for (const ops::FeatureMapInfo& info : ops::feature_maps()) {
    if (info.needs_random_projection) {
      for (std::int64_t n : {1, 5, 37, 70}) {
        cases.push_back({info.map, {}, d, n, directions_of(n, d), info.needs_oprf_a ? -0.3 : 0});
        cases.back().options.kernel_epsilon = 0.01;
      }
    } else if (info.highest_order > 0) {
      for (std::int64_t order = 1; order <= info.highest_order; ++order) {
        FeatureMapCase c{info.map, {}, d, 0, {}, 0};
        c.options.order = order;
        c.options.max_features = 1LL << 40;
        if (ops::feature_count(c.map, c.options, d, 0) <= 9000) cases.push_back(c);
      }
    } else {
      cases.push_back({info.map, {}, d, 0, {}, 0});
    }
  }
  return cases;
}

/// Returns whether a map has kinks: values that are never negative are those of ReLU.
bool has_kinks(FeatureMap map) {
  return ops::feature_map_info(map).form == ops::FeatureForm::values && !ops::can_cancel(map);
}

/// Rows of different sizes: entries with standard deviation 0.3 to 3.
std::vector<double> rows_of_width(std::int64_t d, std::int64_t rows = row_count) {
  std::vector<double> x = testing::normal_values(rows * d, "rows");
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<double>(
        static_cast<float>(x[i] * std::array{1.0, 0.3, 3.0, 2.0, 0.5}[(i / static_cast<std::size_t>(d)) % 5]));
  return x;
}

/// Returns the largest term that a feature of this row is summed from; rounding is relative to it.
double size_of_terms(const FeatureMapCase& c, const double* x, const FeatureRow& expected) {
  double size = 1, longest = 0;
  for (double value : expected.features) size = std::max(size, std::abs(value));
  for (std::int64_t f = 0; f < c.n_projections; ++f)
    longest = std::max(
        longest, reference::inner(c.random_projection.data() + f * c.d, c.random_projection.data() + f * c.d, c.d));
  const double square = reference::inner(x, x, c.d) / std::sqrt(static_cast<double>(c.d));
  return std::max(size, std::sqrt(longest * square) + square / 2 - c.oprf_a * longest);
}

/// Returns the largest error of features and row logarithms, relative to the size of their terms.
template <class T>
double worst_error(const FeatureMapCase& c, const std::vector<double>& x, std::int64_t rows, bool is_key,
                   const std::vector<FeatureRow>& expected) {
  MapTile<T> tile(c, x, rows);
  const std::vector<double> found = tile.features(is_key), row_log = tile.row_log();
  double worst = 0;
  for (std::int64_t i = 0; i < rows; ++i) {
    const FeatureRow& row = expected[static_cast<std::size_t>(i)];
    EXPECT_EQ(static_cast<std::int64_t>(row.features.size()), tile.m());
    const double size = size_of_terms(c, x.data() + i * c.d, row);
    for (std::int64_t f = 0; f < tile.m(); ++f) {
      const double error =
          std::abs(found[static_cast<std::size_t>(i * tile.m() + f)] - row.features[static_cast<std::size_t>(f)]) /
          size;
      worst = std::isnan(error) ? HUGE_VAL : std::max(worst, error);
    }
    const double error =
        std::abs(row_log[static_cast<std::size_t>(i)] - row.row_log) / std::max(size, std::abs(row.row_log));
    worst = std::isnan(error) ? HUGE_VAL : std::max(worst, error);
  }
  return worst;
}

TEST_P(FeatureMaps, MatchDefinitions) {
  double worst32 = 0, worst64 = 0;
  for (std::int64_t d : {1, 3, 16, 64}) {
    const std::vector<double> x = rows_of_width(d);
    for (const FeatureMapCase& c : cases_of(d)) {
      for (bool is_key : {true, false}) {
        const ::testing::ScopedTrace trace(__FILE__, __LINE__, text(c) + (is_key ? " key" : " query"));
        std::vector<FeatureRow> expected;
        for (std::int64_t i = 0; i < row_count; ++i)
          expected.push_back(reference::feature_row(c, x.data() + i * d, is_key));
        for_each_instruction_set([&] {
          for (std::int64_t rows = 1; rows <= row_count; rows += 2) {
            const double error32 = worst_error<float>(c, x, rows, is_key, expected),
                         error64 = worst_error<double>(c, x, rows, is_key, expected);
            // A few roundings of a sum of up to 64 terms: 2^-24 = 6e-8 each, and 1.1e-16 in double.
            EXPECT_LE(error32, 4e-7);
            EXPECT_LE(error64, 1e-15);
            worst32 = std::max(worst32, error32);
            worst64 = std::max(worst64, error64);
          }
        });
      }
    }
  }
  RecordProperty("worst_float32", fmt::format("{:.2g}", worst32));
  RecordProperty("worst_float64", fmt::format("{:.2g}", worst64));
}

TEST_P(FeatureMaps, RowLogarithmsAreOptional) {
  for (const FeatureMapCase& c : cases_of(16)) {
    const std::vector<double> x = rows_of_width(16);
    for (bool is_key : {true, false}) {
      MapTile<float> with(c, x, row_count), without(c, x, row_count);
      EXPECT_EQ(with.features(is_key), without.features(is_key, false)) << text(c);
    }
  }
}

TEST_P(FeatureMaps, RowsAreIndependent) {
  for (const FeatureMapCase& c : cases_of(16)) {
    const std::vector<double> x = rows_of_width(16);
    MapTile<float> all(c, x, row_count), last(c, {x.end() - 16, x.end()}, 1);
    const std::vector<double> together = all.features(true), alone = last.features(true);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.end() - static_cast<std::ptrdiff_t>(alone.size())))
        << text(c);
    EXPECT_EQ(all.row_log().back(), last.row_log().back()) << text(c);
  }
}

TEST_P(FeatureMaps, PropagateNaN) {
  for (std::int64_t d : {3, 16, 64}) {
    for (const FeatureMapCase& c : cases_of(d)) {
      std::vector<double> x = rows_of_width(d, 2);
      x[static_cast<std::size_t>(d - 1)] = std::nan("");
      for_each_instruction_set([&] {
        MapTile<float> tile(c, x, 2);
        const std::vector<double> features = tile.features(true);
        const auto half = features.begin() + tile.m();
        EXPECT_TRUE(std::any_of(features.begin(), half, [](double value) { return std::isnan(value); })) << text(c);
        EXPECT_TRUE(std::none_of(half, features.end(), [](double value) { return std::isnan(value); })) << text(c);
      });
    }
  }
}

// ---- derivatives ----

/// Σ features · weights + Σ row_log · row_weights.
double projection(const FeatureMapCase& c, const std::vector<double>& x, bool is_key,
                  const std::vector<double>& weights, const std::vector<double>& row_weights) {
  MapTile<double> tile(c, x, 2);
  const std::vector<double> features = tile.features(is_key), row_log = tile.row_log();
  double sum = 0;
  for (std::size_t f = 0; f < features.size(); ++f) sum += features[f] * weights[f];
  for (std::size_t i = 0; i < row_weights.size(); ++i) sum += row_log[i] * row_weights[i];
  return sum;
}

TEST_P(FeatureMaps, GradientMatchesFiniteDifference) {
  double worst = 0;
  for (std::int64_t d : {1, 3, 16}) {
    const std::vector<double> x = rows_of_width(d, 2);
    for (const FeatureMapCase& c : cases_of(d)) {
      const std::vector<double> weights =
          testing::normal_values(2 * ops::feature_count(c.map, c.options, d, c.n_projections), "weights");
      for (const std::vector<double>& row_weights : {std::vector<double>{}, std::vector<double>{0.7, -1.3}}) {
        for (bool is_key : {true, false}) {
          std::vector<double> numeric(x.size());
          // Fourth order: the rounding error is about 1e-16 over the step, the truncation error its fourth power. Maps
          // with kinks are linear elsewhere, so their step only has to avoid the kinks.
          const double step = has_kinks(c.map) ? 1e-5 : 1e-3;
          for (std::size_t i = 0; i < x.size(); ++i) {
            const auto at = [&](double offset) {
              const testing::OnDevice cpu{Device{}};  // its features are checked by MatchDefinitions
              std::vector<double> moved = x;
              moved[i] += offset;
              return projection(c, moved, is_key, weights, row_weights);
            };
            numeric[i] = (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step);
          }
          for_each_instruction_set([&] {
            MapTile<double> tile(c, x, 2);
            tile.features(is_key);
            const double error = testing::relative_error(tile.backward(is_key, weights, row_weights), numeric);
            EXPECT_LE(error, 1e-9) << text(c) << (is_key ? " key" : " query");
            worst = std::max(worst, error);
          });
        }
      }
    }
  }
  RecordProperty("worst_relative_error", fmt::format("{:.2g}", worst));
}

TEST_P(FeatureMaps, Float32GradientMatchesFloat64) {
  double worst = 0;
  for (std::int64_t d : {3, 64}) {
    const std::vector<double> x = rows_of_width(d);
    const std::vector<double> row_weights = testing::normal_values(row_count, "row weights");
    for (const FeatureMapCase& c : cases_of(d)) {
      const std::int64_t m = ops::feature_count(c.map, c.options, d, c.n_projections);
      std::vector<double> weights = testing::normal_values(row_count * m, "weights");
      for (bool is_key : {true, false}) {
        MapTile<double> expected(c, x, row_count);
        expected.features(is_key);
        const std::vector<double> gradient = expected.backward(is_key, weights, row_weights);
        for_each_instruction_set([&] {
          MapTile<float> tile(c, x, row_count);
          tile.features(is_key);
          const double error = testing::relative_error(tile.backward(is_key, weights, row_weights), gradient);
          EXPECT_LE(error, 3e-6) << text(c);
          worst = std::max(worst, error);
        });
      }
    }
  }
  RecordProperty("worst_relative_error", fmt::format("{:.2g}", worst));
}

// ---- single maps ----

TEST_P(FeatureMaps, CosineHandlesTinyAndHugeRows) {
  const FeatureMapCase c{FeatureMap::cosine, {}, 4, 0, {}, 0};
  for (double size : {1e-37, 1e-30, 1.0, 1e30, 1e38}) {
    MapTile<float> tile(c, {size, -size, size, size}, 1);
    EXPECT_EQ(tile.features(true), (std::vector<double>{1, 0.5, -0.5, 0.5, 0.5})) << size;
  }
  MapTile<float> zero(c, {0, 0, 0, 0}, 1);
  EXPECT_EQ(zero.features(true), (std::vector<double>{1, 0, 0, 0, 0}));
  EXPECT_EQ(zero.backward(true, {1, 2, 3, 4, 5}, {}), (std::vector<double>{0, 0, 0, 0}));
}

TEST_P(FeatureMaps, TrigonometricFeaturesAreAccurateForLargeArguments) {
  // One direction along one axis gives u = x', exact in float32, so that only the errors of cos and sin remain.
  const std::int64_t rows = 2000;
  const FeatureMapCase c{FeatureMap::favor_trig, {}, 1, 1, {1}, 0};
  std::vector<double> x;
  for (std::int64_t i = 0; i < rows; ++i)
    x.push_back(static_cast<double>(static_cast<float>(
        (i % 2 ? -1 : 1) * std::pow(10.0, -2 + 6.0 * static_cast<double>(i) / static_cast<double>(rows)))));
  for_each_instruction_set([&] {
    MapTile<float> tile(c, x, rows);
    const std::vector<double> found = tile.features(true);
    double worst = 0;
    for (std::size_t i = 0; i < x.size(); ++i)
      worst = std::max({worst, std::abs(found[2 * i] - std::cos(x[i])), std::abs(found[2 * i + 1] - std::sin(x[i]))});
    EXPECT_LE(worst, 1.5e-7) << "|u| up to 1e4";  // 2.5 units of 2^-24
    RecordProperty("worst_absolute_error", fmt::format("{:.2g}", worst));
    for (double beyond : {1e5, 1e20}) {
      MapTile<float> far(c, {beyond}, 1);
      for (double value : far.features(true)) EXPECT_LE(std::abs(value), 1);
    }
  });
}

TEST_P(FeatureMaps, PolynomialAndCosineFeaturesMatchKernels) {
  double worst = 0;
  for (std::int64_t d : {1, 3, 16, 64, 128}) {
    for (FeatureMapCase c : cases_of(d)) {
      if (c.map != FeatureMap::taylor && c.map != FeatureMap::limit && c.map != FeatureMap::cosine) continue;
      const std::vector<double> q = testing::normal_values(d, "q"), k = testing::normal_values(d, "k");
      MapTile<double> query(c, q, 1), key(c, k, 1);
      const FeatureRow a{query.features(false), query.row_log()[0]}, b{key.features(true), key.row_log()[0]};
      const double expected = reference::closed_kernel(c, q.data(), k.data());
      const double size = reference::inner(a.features.data(), a.features.data(), query.m()) +
                          reference::inner(b.features.data(), b.features.data(), query.m());
      const double error = std::abs(reference::kernel_of_rows(c, a, b) - expected) / size;
      EXPECT_LE(error, 1e-14) << text(c);
      worst = std::max(worst, error);
    }
  }
  RecordProperty("worst_relative_error", fmt::format("{:.2g}", worst));
}

// ---- the table ----

TEST(FeatureMapTable, FeatureCountsMatchFormulas) {
  const auto count = [](const char* name, std::int64_t order, std::int64_t d, std::int64_t n_projections = 0) {
    FeatureMapOptions options;
    options.order = order;
    options.max_features = 1'000'000;
    return ops::feature_count(ops::feature_map_info(name).map, options, d, n_projections);
  };
  EXPECT_EQ(count("taylor", 1, 64), 65);
  EXPECT_EQ(count("taylor", 2, 64), 2145);
  EXPECT_EQ(count("taylor", 3, 64), 47905);
  EXPECT_EQ(count("taylor", 2, 128), 8385);
  EXPECT_EQ(count("limit", 4, 16), 4845);
  EXPECT_EQ(count("limit", 4, 1), 5);
  EXPECT_EQ(count("cosine", 2, 64), 65);
  EXPECT_EQ(count("hedgehog", 2, 64), 128);
  for (const char* name : {"elu1", "relu", "exp"}) EXPECT_EQ(count(name, 2, 64), 64);
  for (const char* name : {"favor_positive", "favor_relu", "oprf"}) EXPECT_EQ(count(name, 2, 64, 100), 100);
  for (const char* name : {"favor_hyperbolic", "favor_trig"}) EXPECT_EQ(count(name, 2, 64, 100), 200);
}

TEST(FeatureMapTable, ErrorsStateNumbersAndLimits) {
  FeatureMapOptions options;
  options.order = 3;
  EXPECT_EQ(message_of<UserError>([&] { ops::feature_count(FeatureMap::taylor, options, 64, 0); }),
            "feature map taylor of order 3 has 47905 features for heads of width 64, more than max_features = 4096; "
            "order 2 has 2145");
  options.order = 2;
  EXPECT_EQ(message_of<UserError>([&] { ops::feature_count(FeatureMap::limit, options, 100000, 0); }),
            "feature map limit of order 2 has 5000150001 features for heads of width 100000, more than max_features = "
            "4096; narrower heads have fewer");
  options.order = 5;
  EXPECT_EQ(message_of<UserError>([&] { ops::feature_count(FeatureMap::limit, options, 2, 0); }),
            "feature map limit has orders 1 to 4, found 5");
  options.order = 4;
  EXPECT_EQ(message_of<UserError>([&] { ops::feature_count(FeatureMap::taylor, options, 2, 0); }),
            "feature map taylor has orders 1 to 3, found 4");
  options.order = 0;
  EXPECT_EQ(message_of<UserError>([&] { ops::feature_count(FeatureMap::taylor, options, 2, 0); }),
            "feature map taylor has orders 1 to 3, found 0");
  EXPECT_EQ(message_of<UserError>([&] { ops::projection_count(FeatureMap::favor_trig, 7); }),
            "feature map favor_trig has 2 features per random projection: the number of features must be a positive "
            "multiple of it, found 7");
  const std::string unknown = message_of<UserError>([&] { ops::feature_map_info("favour"); });
  for (const ops::FeatureMapInfo& info : ops::feature_maps())
    EXPECT_NE(unknown.find(info.name), std::string::npos) << unknown;
}

TEST(FeatureMapTable, DirectionCountInvertsFeatureCount) {
  for (const ops::FeatureMapInfo& info : ops::feature_maps()) {
    EXPECT_EQ(&ops::feature_map_info(info.name), &info);
    EXPECT_EQ(&ops::feature_map_info(info.map), &info);
    EXPECT_EQ(info.needs_random_projection, info.features_per_projection > 0) << info.name;
    if (info.needs_random_projection) {
      EXPECT_EQ(ops::projection_count(info.map, ops::feature_count(info.map, {}, 64, 37)), 37) << info.name;
    }
  }
}

/// The smallest kernel value and feature of random rows determine the sign properties of a map.
TEST(FeatureMapTable, SignPropertiesMatchReference) {
  const std::int64_t d = 4, n = 40;
  const std::vector<double> x = testing::normal_values(n * d, "signs");
  for (const FeatureMapCase& c : cases_of(d)) {
    double least_feature = 0, least_kernel = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const FeatureRow key = reference::feature_row(c, x.data() + i * d, true);
      for (std::int64_t j = 0; j < n; ++j) {
        const FeatureRow query = reference::feature_row(c, x.data() + j * d, false);
        least_kernel = std::min(least_kernel, reference::kernel_of_rows(c, query, key));
      }
      if (ops::feature_map_info(c.map).form == ops::FeatureForm::values)
        least_feature = std::min(least_feature, *std::min_element(key.features.begin(), key.features.end()));
    }
    EXPECT_EQ(ops::can_be_negative(c.map, c.options), least_kernel < -1e-12) << text(c);
    EXPECT_EQ(ops::can_cancel(c.map), least_feature < 0) << text(c);
  }
}

}  // namespace
}  // namespace furlong
