#include "framework/ops/attention/linear/cpu/near_pairs.h"

#include <gtest/gtest.h>

namespace furlong {
namespace {

/// What any_features() promises, pair by pair.
bool any_feature_pair(const ops::NearPairs& pairs, std::int64_t rows) {
  bool any = false;
  for (std::int64_t i = 0; i < rows; ++i) any = any || pairs.row(i).soft > pairs.row(i).first;
  return any;
}

TEST(NearPairs, FeaturesAreNeededIfAnyPairHasThem) {
  std::int64_t with = 0, without = 0;
  for (const bool own_key : {true, false}) {
    for (const std::int64_t softmax_window : {0, 1, 3, 8}) {
      for (std::int64_t rows = 1; rows <= 5; ++rows) {
        for (std::int64_t columns = 1; columns <= 12; ++columns) {
          for (std::int64_t offset = 0; offset + rows <= columns; ++offset) {
            const ops::NearPairs pairs{offset, columns, true, 0, softmax_window, own_key};
            const bool any = any_feature_pair(pairs, rows);
            // Without a softmax window every pair has features; the op computes them for rows without pairs, too.
            EXPECT_EQ(pairs.any_features(rows), softmax_window == 0 || any);
            ++(any ? with : without);
          }
        }
      }
    }
  }
  EXPECT_GT(with, 100);
  EXPECT_GT(without, 100);
}

TEST(NearPairs, OneQueryBehindItsWindowNeedsNoFeatures) {
  EXPECT_FALSE((ops::NearPairs{255, 256, true, 0, 256}).any_features(1));
  EXPECT_TRUE((ops::NearPairs{255, 257, true, 0, 256}).any_features(2));
}

}  // namespace
}  // namespace furlong
