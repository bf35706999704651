#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/dense/embedding_cpu.cpp"
#include "framework/simd/targets.h"

#include <hwy/foreach_target.h>

#include "framework/core/tensor.h"
#include "framework/ops/dense/embedding_kernels.h"
#include "framework/primitives/dispatch.h"
#include "framework/simd/rows.h"
#include "framework/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {
using namespace furlong::simd::HWY_NAMESPACE;
constexpr std::int64_t grain = 1 << 15;  // with fewer elements a second thread costs more than it saves

template <class T>
HWY_INLINE void add_rows(const T* a, const T* b, T* sum, std::int64_t n) {
  const std::int64_t step = Lanes<T>::count();
  for (std::int64_t i = 0; i < n; i += step) {
    const std::int64_t k = std::min(step, n - i);
    store_n(hn::Add(load_n(a + i, k), load_n(b + i, k)), sum + i, k);
  }
}

/// sum += row, in the compute type.
template <class T>
HWY_INLINE void add_row(const T* row, compute_t<T>* sum, std::int64_t n) {
  const std::int64_t step = Lanes<T>::count();
  for (std::int64_t i = 0; i < n; i += step) {
    const std::int64_t k = std::min(step, n - i);
    store_n(hn::Add(load_n(sum + i, k), load_n(row + i, k)), sum + i, k);
  }
}

template <class T>
void gather(const Tensor& tokens, const Tensor& token_table, const Tensor& places, const Tensor& positions,
            const Tensor& output) {
  const std::int64_t n = tokens.extent(1), d = token_table.extent(1), vocabulary = token_table.extent(0);
  const auto* ids = tokens.data<std::int32_t>();
  const T* table = token_table.data<T>();
  const T* place = places.defined() ? places.data<T>() : nullptr;
  const auto* own = positions.defined() ? positions.data<std::int32_t>() : nullptr;
  T* y = output.data<T>();
  parallel_ranges(tokens.elements(), std::max<std::int64_t>(1, grain / d), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t id = ids[simd::row_offset(tokens, row / n) + row % n];
      if (id < 0 || id >= vocabulary) {
        throw ContractError("embedding: token id {} at [{}, {}] is outside the vocabulary of {}", id, row / n, row % n,
                            vocabulary);
      }
      if (place) {
        const std::int64_t at = own ? own[row] : row % n;
        require(at >= 0 && at < places.extent(0), "embedding: position {} is outside the position table of {} rows", at,
                places.extent(0));
        add_rows(table + id * d, place + at * d, y + row * d, d);
      } else {
        std::copy_n(table + id * d, d, y + row * d);
      }
    }
  });
}

/// Threads divide the columns into blocks of at least a cache line, so that one thread sums each table row in token
/// order.
template <class T>
void scatter_rows(const Tensor& ids, const Tensor& d_output, const Tensor& d_table) {
  constexpr std::int64_t block = 16;
  const std::int64_t n = ids.extent(1), rows = ids.elements(), d = d_table.extent(1);
  const auto* id_of = ids.data<std::int32_t>();
  const T* dy = d_output.data<T>();
  auto* sums = d_table.data<compute_t<T>>();
  parallel_ranges((d + block - 1) / block, std::max<std::int64_t>(1, grain / (rows * block + 1)),
                  [&](std::int64_t begin, std::int64_t end) {
                    const std::int64_t first = begin * block, columns = std::min(d, end * block) - first;
                    for (std::int64_t row = 0; row < rows; ++row) {
                      const std::int64_t id = id_of[simd::row_offset(ids, row / n) + row % n];
                      add_row(dy + row * d + first, sums + id * d + first, columns);
                    }
                  });
}

template <class T>
void sum_positions(const Tensor& d_output, const Tensor& d_positions) {
  const std::int64_t batch = d_output.extent(0), n = d_output.extent(1), d = d_output.extent(2);
  const T* dy = d_output.data<T>();
  auto* sums = d_positions.data<compute_t<T>>();
  parallel_ranges(n, std::max<std::int64_t>(1, grain / (batch * d + 1)), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      for (std::int64_t b = 0; b < batch; ++b) add_row(dy + (b * n + t) * d, sums + t * d, d);
    }
  });
}

void Gather(const Tensor& tokens, const Tensor& token_table, const Tensor& places, const Tensor& positions,
            const Tensor& output) {
  with_float_type(output.dtype(), "embedding",
                  [&]<class T>(std::type_identity<T>) { gather<T>(tokens, token_table, places, positions, output); });
}
void ScatterRows(const Tensor& ids, const Tensor& d_output, const Tensor& d_table) {
  with_float_type(d_output.dtype(), "embedding",
                  [&]<class T>(std::type_identity<T>) { scatter_rows<T>(ids, d_output, d_table); });
}
void SumPositions(const Tensor& d_output, const Tensor& d_positions) {
  with_float_type(d_output.dtype(), "embedding",
                  [&]<class T>(std::type_identity<T>) { sum_positions<T>(d_output, d_positions); });
}

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace furlong::ops {
HWY_EXPORT(Gather);
HWY_EXPORT(ScatterRows);
HWY_EXPORT(SumPositions);

void embedding_cpu(const Tensor& tokens, const Tensor& token_table, const Tensor& places, const Tensor& positions,
                   const Tensor& output) {
  HWY_DYNAMIC_DISPATCH(Gather)(tokens, token_table, places, positions, output);
}
void embedding_d_rows_cpu(const Tensor& ids, const Tensor& d_output, const Tensor& d_table) {
  HWY_DYNAMIC_DISPATCH(ScatterRows)(ids, d_output, d_table);
}
void embedding_d_positions_cpu(const Tensor& d_output, const Tensor& d_positions) {
  HWY_DYNAMIC_DISPATCH(SumPositions)(d_output, d_positions);
}

void sinusoidal_positions_cpu(const Tensor& table) {
  const std::int64_t d = table.extent(1);
  with_float_type(table.dtype(), "sinusoidal_positions", [&]<class T>(std::type_identity<T>) {
    T* values = table.data<T>();
    parallel_ranges(table.extent(0), std::max<std::int64_t>(1, 4096 / d), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t position = begin; position < end; ++position) {
        for (std::int64_t column = 0; column < d; ++column) {
          const double exponent = static_cast<double>(column - column % 2) / static_cast<double>(d);
          const double angle = static_cast<double>(position) * std::pow(10000.0, -exponent);
          const double value = column % 2 == 0 ? std::sin(angle) : std::cos(angle);
          values[position * d + column] = static_cast<T>(static_cast<compute_t<T>>(value));
        }
      }
    });
  });
}
}  // namespace furlong::ops
#endif
