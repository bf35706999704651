#pragma once
// Shared by tests of ops: random tensors on the device under test, and comparison with values in double.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "framework/core/parallel.h"
#include "framework/core/random.h"
#include "framework/core/tensor.h"
#include "framework/primitives/dispatch.h"
#include "tests/framework/engine_testing.h"

namespace furlong::reference {

inline Tensor tensor_of(const std::vector<double>& values, const Shape& shape, DType dtype) {
  const Device& device = furlong::testing::device();
  if (values.empty()) return Tensor::empty(shape, dtype, device);
  if (dtype == DType::float64) return Tensor::from(values, shape, device);
  const std::vector<float> floats(values.begin(), values.end());
  if (dtype == DType::float32) return Tensor::from(floats, shape, device);
  std::vector<bfloat16> rounded;
  for (float value : floats) rounded.emplace_back(value);
  return Tensor::from(rounded, shape, device);
}

/// Returns the bits of `values`, as ops::element_loss() reads them.
inline std::vector<std::int32_t> value_bits(const std::vector<float>& values) {
  std::vector<std::int32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<std::int32_t>(value));
  return bits;
}

/// Independent normal values of standard deviation `scale`, rounded to `dtype`; equal names give equal values.
inline Tensor normal_tensor(const Shape& shape, DType dtype, const std::string& name, double scale = 1.0) {
  std::vector<double> values(static_cast<std::size_t>(shape.elements()));
  const RandomKey key{1, 0, random_stream(name)};
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = scale * random_normal(key, i);
  return tensor_of(values, shape, dtype);
}

/// Integers in [low, high).
inline Tensor integer_tensor(const Shape& shape, std::int64_t low, std::int64_t high, const std::string& name) {
  std::vector<std::int32_t> values(static_cast<std::size_t>(shape.elements()));
  const RandomKey key{2, 0, random_stream(name)};
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<std::int32_t>(low + random_word(key, i) % (high - low));
  return Tensor::from(values, shape, furlong::testing::device());
}

/// Returns the elements as double, for any floating dtype and strides.
inline std::vector<double> doubles(const Tensor& tensor) {
  if (tensor.dtype() == DType::float64) return tensor.to_vector<double>();
  std::vector<double> values;
  if (tensor.dtype() == DType::float32) {
    for (float value : tensor.to_vector<float>()) values.push_back(value);
  } else {
    for (bfloat16 value : tensor.to_vector<bfloat16>()) values.push_back(static_cast<double>(value));
  }
  return values;
}

/// Returns the largest |actual - expected| over the largest |expected|; infinite if the sizes differ or a value is NaN.
inline double relative_difference(const std::vector<double>& actual, const std::vector<double>& expected) {
  if (actual.size() != expected.size()) return HUGE_VAL;
  double difference = 0, largest = 1e-300;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double here = std::abs(actual[i] - expected[i]);
    if (!(here <= HUGE_VAL)) return HUGE_VAL;
    difference = std::max(difference, here);
    largest = std::max(largest, std::abs(expected[i]));
  }
  return difference / largest;
}
inline double relative_difference(const Tensor& actual, const std::vector<double>& expected) {
  return relative_difference(doubles(actual), expected);
}

/// Compares bits, for any strides and on any device.
inline bool same_bits(const Tensor& a, const Tensor& b) {
  if (!(a.shape() == b.shape()) || a.dtype() != b.dtype()) return false;
  bool are_same = false;
  const auto compare = [&]<class T>(std::type_identity<T>) {
    const std::vector<T> x = a.to_vector<T>(), y = b.to_vector<T>();
    are_same = x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(T)) == 0;
  };
  if (a.dtype() == DType::int32) {
    compare(std::type_identity<std::int32_t>{});
  } else {
    ops::with_float_type(a.dtype(), "same_bits", compare);
  }
  return are_same;
}

/// The relative error of one rounding to `dtype`.
inline double rounding_of(DType dtype) {
  if (dtype == DType::bfloat16) return 0x1p-8;
  return dtype == DType::float32 ? 0x1p-24 : 0x1p-53;
}

/// Runs `body` with the given number of threads, then restores the number.
template <class Body>
auto with_threads(int threads, const Body& body) {
  const struct Restore {
    int before = thread_count();
    ~Restore() { set_thread_count(before); }
  } restore;
  set_thread_count(threads);
  return body();
}

}  // namespace furlong::reference
