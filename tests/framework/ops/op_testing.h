#pragma once
// Shared by tests of element-wise and row-wise ops: tensors of any dtype from doubles and back, thread counts,
// instruction sets.
#include <gtest/gtest.h>

#include "framework/simd/targets.h"
// After targets.h, which selects the compiled targets.
#include <hwy/targets.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <source_location>
#include <string_view>
#include <vector>

#include "framework/autodiff/gradient_check.h"
#include "framework/core/parallel.h"
#include "framework/core/random.h"
#include "framework/primitives/dispatch.h"
#include "tests/framework/engine_testing.h"
#include "tests/reference/values.h"

namespace furlong::testing {

/// Kernels on the simulator under a sanitizer are slower by another factor of ten to a hundred.
inline bool on_sanitized_simulator() {
#ifdef FURLONG_SANITIZED
  return on_simulator();
#else
  return false;
#endif
}

inline constexpr DType float_dtypes[] = {DType::float32, DType::float64, DType::bfloat16};

inline std::vector<double> normal_values(std::int64_t n, std::string_view stream, double scale = 1) {
  std::vector<double> values(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = scale * random_normal({11, 0, random_stream(stream)}, i);
  return values;
}

using reference::tensor_of;

/// Fills memory that the next tensor of this size probably gets, so that a test notices if it is not written.
inline void fill_freed_memory(std::int64_t n, DType dtype) {
  tensor_of(std::vector<double>(static_cast<std::size_t>(n), 7.0), {n}, dtype);
}

inline std::vector<double> values_of(const Tensor& tensor) {
  std::vector<double> values;
  ops::with_float_type(tensor.dtype(), "values_of", [&]<class T>(std::type_identity<T>) {
    for (T value : tensor.to_vector<T>()) values.push_back(static_cast<double>(value));
  });
  return values;
}

/// Returns values as stored in `dtype`, so that a reference gets the same inputs as the op.
inline std::vector<double> stored(const std::vector<double>& values, DType dtype) {
  return values_of(tensor_of(values, {static_cast<std::int64_t>(values.size())}, dtype));
}

/// Prints an error that a test compares with a bound, if FURLONG_TEST_ERRORS is set (scripts/gpu_check.sh), so that a
/// violated bound can be judged by its neighbors.
inline double shown(double error, const std::source_location& site) {
  if (std::getenv("FURLONG_TEST_ERRORS") == nullptr) return error;
  const ::testing::TestInfo* test = ::testing::UnitTest::GetInstance()->current_test_info();
  fmt::print("error {:.3e} {}.{} line {}\n", error, test ? test->test_suite_name() : "", test ? test->name() : "",
             site.line());
  return error;
}

/// Returns the largest |found - expected| over the largest |expected|; infinite if a value is NaN or the sizes differ.
inline double relative_error(const std::vector<double>& found, const std::vector<double>& expected,
                             const std::source_location& site = std::source_location::current()) {
  if (found.size() != expected.size()) return std::numeric_limits<double>::infinity();
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double error = std::abs(found[i] - expected[i]);
    worst = std::max(worst, std::isnan(error) ? std::numeric_limits<double>::infinity() : error);
    largest = std::max(largest, std::abs(expected[i]));
  }
  return shown(worst == 0 ? 0 : worst / largest, site);
}

/// Half the distance between 1 and the next number: the largest relative rounding error of one store.
inline double rounding_unit(DType dtype) {
  return dtype == DType::float64 ? 0x1p-53 : dtype == DType::float32 ? 0x1p-24 : 0x1p-8;
}

using reference::same_bits;

/// Sets another number of threads during its lifetime.
class WithThreads {
 public:
  explicit WithThreads(int threads) : before_(thread_count()) { set_thread_count(threads); }
  ~WithThreads() { set_thread_count(before_); }
  WithThreads(const WithThreads&) = delete;
  WithThreads& operator=(const WithThreads&) = delete;

 private:
  int before_;
};

/// Calls body() once for each instruction set that both this CPU and the build support, including the baseline. On a
/// GPU calls it once.
template <class Body>
void for_each_instruction_set(const Body& body) {
  if (on_gpu()) return body();
  struct Restore {
    ~Restore() { hwy::GetChosenTarget().Update(hwy::SupportedTargets()); }
  } const restore;
  for (std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    const ::testing::ScopedTrace trace(__FILE__, __LINE__, hwy::TargetName(target));
    hwy::GetChosenTarget().Update(target);
    body();
  }
}

}  // namespace furlong::testing
