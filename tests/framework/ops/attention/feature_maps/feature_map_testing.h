#pragma once
// Calls feature maps as attention does: on the CPU with padded tiles, whose padding reveals invalid reads; on GPUs with
// rows, through feature_map_gpu.h.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "framework/ops/attention/feature_maps/feature_map_cpu.h"
#include "framework/ops/attention/feature_maps/feature_map_gpu.h"
#include "tests/framework/ops/op_testing.h"
#include "tests/reference/feature_maps.h"

namespace furlong::testing {

using reference::FeatureMapCase;

inline std::string text(const FeatureMapCase& c) {
  return fmt::format("{} order {} d {} n_projections {}", ops::feature_map_info(c.map).name, c.options.order, c.d,
                     c.n_projections);
}

/// One head's tile of `rows` rows. x is padded with NaN, results start as NaN, and a margin after every array must keep
/// its value.
template <class T>
class MapTile {
 public:
  MapTile(const FeatureMapCase& c, const std::vector<double>& rows_of_x, std::int64_t rows)
      : case_(c), rows_(rows), functions_(ops::feature_map_functions_cpu<T>(c.map)) {
    tile_.d = c.d;
    tile_.n_projections = c.n_projections;
    tile_.m = ops::feature_count(c.map, c.options, c.d, c.n_projections);
    tile_.ld_x = padded(c.d);
    tile_.ld_m = padded(tile_.m);
    tile_.ld_directions = padded(c.n_projections);
    tile_.scale = static_cast<T>(std::pow(static_cast<double>(c.d), -0.25));
    tile_.oprf_a = static_cast<T>(c.oprf_a);
    tile_.kernel_epsilon = static_cast<T>(c.options.kernel_epsilon);
    tile_.order = c.options.order;
    set_directions(c);
    scratch_.assign(at(rows * (tile_.ld_m + tile_.ld_x)), T{0});
    tile_.scratch = scratch_.data();
    x_ = array(rows * tile_.ld_x);
    features_ = array(rows * tile_.ld_m);
    row_log_ = array(rows);
    d_x_ = array(rows * tile_.ld_x);
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < c.d; ++j) x_[at(i * tile_.ld_x + j)] = static_cast<T>(rows_of_x[at(i * c.d + j)]);
  }

  std::int64_t m() const { return tile_.m; }

  /// Returns features [rows, m]; with_row_log also computes the rows' logarithms.
  std::vector<double> features(bool is_key, bool with_row_log = true) {
    if (on_gpu()) return features_on_gpu(is_key, with_row_log);
    functions_.features(tile_, x_.data(), rows_, is_key, features_.data(), with_row_log ? row_log_.data() : nullptr);
    check_margins();
    return unpadded(features_, tile_.m, tile_.ld_m);
  }
  std::vector<double> row_log() const { return unpadded(row_log_, 1, 1); }

  /// Returns d_x [rows, d]. Call features() first. An empty d_row_log means none.
  std::vector<double> backward(bool is_key, const std::vector<double>& d_features,
                               const std::vector<double>& d_row_log) {
    if (on_gpu()) return backward_on_gpu(is_key, d_features, d_row_log);
    std::vector<T> d = array(rows_ * tile_.ld_m), d_log(d_row_log.begin(), d_row_log.end());
    for (std::int64_t i = 0; i < rows_; ++i)
      for (std::int64_t f = 0; f < tile_.m; ++f)
        d[at(i * tile_.ld_m + f)] = static_cast<T>(d_features[at(i * tile_.m + f)]);
    functions_.backward(tile_, x_.data(), rows_, is_key, features_.data(), d.data(),
                        d_log.empty() ? nullptr : d_log.data(), d_x_.data());
    check_margins();
    EXPECT_EQ(d.back(), margin_value) << "written beyond d_features";
    return unpadded(d_x_, tile_.d, tile_.ld_x);
  }

 private:
  static constexpr std::size_t margin = 64;
  static constexpr T margin_value = 77;
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
  static std::int64_t padded(std::int64_t n) { return (n + 15) / 16 * 16; }
  static std::vector<T> array(std::int64_t size) {
    std::vector<T> result(at(size), std::numeric_limits<T>::quiet_NaN());
    result.resize(at(size) + margin, margin_value);
    return result;
  }
  void set_directions(const FeatureMapCase& c) {
    random_projection_.assign(c.random_projection.begin(), c.random_projection.end());
    transposed_.assign(at(c.d * tile_.ld_directions), T{0});
    for (std::int64_t f = 0; f < c.n_projections; ++f) {
      for (std::int64_t j = 0; j < c.d; ++j)
        transposed_[at(j * tile_.ld_directions + f)] = random_projection_[at(f * c.d + j)];
      norms_.push_back(static_cast<T>(
          reference::inner(c.random_projection.data() + f * c.d, c.random_projection.data() + f * c.d, c.d)));
    }
    tile_.random_projection = random_projection_.data();
    tile_.directions_transposed = transposed_.data();
    tile_.direction_norms = norms_.data();
  }
  void check_margins() const {
    for (const std::vector<T>* array : {&x_, &features_, &row_log_, &d_x_}) {
      for (std::size_t i = array->size() - margin; i < array->size(); ++i)
        ASSERT_EQ((*array)[i], margin_value) << "written beyond an array";
    }
  }
  Tensor on_device(const std::vector<double>& values, const Shape& shape) const {
    return tensor_of(values, shape, dtype_of<T>::value);
  }
  ops::FeatureMapCall call(bool is_key) const {
    ops::FeatureMapCall call{case_.map, case_.options, {}, case_.oprf_a, is_key};
    if (!case_.random_projection.empty())
      call.random_projection = on_device(case_.random_projection, {case_.n_projections, case_.d});
    return call;
  }
  std::vector<double> features_on_gpu(bool is_key, bool with_row_log) {
    const Tensor features = on_device(std::vector<double>(at(rows_ * tile_.m), std::nan("")), {rows_, tile_.m});
    const Tensor row_log = with_row_log ? on_device(std::vector<double>(at(rows_), std::nan("")), {rows_}) : Tensor{};
    ops::feature_map_features_gpu(stream(), call(is_key),
                                  on_device(unpadded(x_, tile_.d, tile_.ld_x), {rows_, tile_.d}), features, row_log);
    if (with_row_log) row_log_ = row_log.to_vector<T>();
    features_on_gpu_ = features;
    return values_of(features);
  }
  std::vector<double> backward_on_gpu(bool is_key, const std::vector<double>& d_features,
                                      const std::vector<double>& d_row_log) {
    const Tensor d_x = on_device(std::vector<double>(at(rows_ * tile_.d), std::nan("")), {rows_, tile_.d});
    ops::feature_map_backward_gpu(
        stream(), call(is_key), on_device(unpadded(x_, tile_.d, tile_.ld_x), {rows_, tile_.d}), features_on_gpu_,
        on_device(d_features, {rows_, tile_.m}), d_row_log.empty() ? Tensor{} : on_device(d_row_log, {rows_}), d_x);
    return values_of(d_x);
  }
  std::vector<double> unpadded(const std::vector<T>& values, std::int64_t width, std::int64_t ld) const {
    std::vector<double> result;
    for (std::int64_t i = 0; i < rows_; ++i)
      for (std::int64_t j = 0; j < width; ++j) result.push_back(static_cast<double>(values[at(i * ld + j)]));
    return result;
  }

  FeatureMapCase case_;
  std::int64_t rows_;
  Tensor features_on_gpu_;
  ops::FeatureMapFunctions<T> functions_;
  ops::FeatureTile<T> tile_;
  std::vector<T> random_projection_, transposed_, norms_, scratch_, x_, features_, row_log_, d_x_;
};

}  // namespace furlong::testing
