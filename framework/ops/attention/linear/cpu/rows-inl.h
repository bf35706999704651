// Copies rows of tokens between a model's tensors and the tiles of linear attention. Per-target include guard; see
// framework/simd/simd-inl.h.
#if defined(FURLONG_LINEAR_ATTENTION_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FURLONG_LINEAR_ATTENTION_ROWS_INL_H_
#undef FURLONG_LINEAR_ATTENTION_ROWS_INL_H_
#else
#define FURLONG_LINEAR_ATTENTION_ROWS_INL_H_
#endif

#include <cstdint>

#include "framework/core/tensor.h"
#include "framework/primitives/dispatch.h"
#include "framework/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {
using namespace furlong::simd::HWY_NAMESPACE;

/// Tokens `first`, first + step, ... of one head of a [batch, n, heads, width] view. step is 1, or -1 to walk backward
/// in time.
struct HeadRows {
  const Tensor& tensor;
  std::int64_t batch, head, first, step;

  /// Calls body(address of the first row, elements from one row to the next) if the tensor's compute type is T.
  template <class T, class Body>
  void visit(const Body& body) const {
    with_float_type(tensor.dtype(), "linear_attention", [&]<class X>(std::type_identity<X>) {
      if constexpr (std::is_same_v<compute_t<X>, T>) {
        const auto& strides = tensor.strides();
        body(tensor.data<X>() + batch * strides[0] + first * strides[1] + head * strides[2], strides[1] * step);
      }
    });
  }
};

/// Gradients of one head in the compute type, with rows padded as in tiles: d_query [n_query, ld_d], d_key
/// [n_key, ld_d], d_value [n_key, ld_v]. The last two are null unless LinearAttentionSizes::sums_key_gradients.
template <class T>
struct HeadGradients {
  T *d_query, *d_key, *d_value;
};

/// Reads rows into a tile whose rows are `ld` apart.
template <class T>
void read_rows(const HeadRows& source, std::int64_t rows, T* tile, std::int64_t ld) {
  const std::int64_t width = source.tensor.extent(3);
  source.visit<T>([&]<class X>(X* first, std::int64_t step) {
    for (std::int64_t i = 0; i < rows; ++i) {
      for_lanes<X>(width, [&](std::int64_t j, std::int64_t n)
                              HWY_ATTR { store_n<T>(load_n(first + i * step + j, n), tile + i * ld + j, n); });
    }
  });
}

/// Rows that are read or written soon. The rows of one head are far apart, so that hardware does not foresee them, and
/// asking for all at once would wait for each: loops over a chunk's rows ask for one row at a time.
class UpcomingRows {
 public:
  void clear() { count_ = 0; }
  void add(const HeadRows& source, std::int64_t rows) {
    if (count_ == most || rows <= 0) return;
    const auto& strides = source.tensor.strides();
    const auto size = static_cast<std::int64_t>(size_of(source.tensor.dtype()));
    const auto* first = static_cast<const char*>(source.tensor.address()) +
                        (source.batch * strides[0] + source.first * strides[1] + source.head * strides[2]) * size;
    lists_[count_++] = {first, source.step * strides[1] * size, rows, source.tensor.extent(3) * size};
  }
  /// Always inline: GCC removes calls of a function that does nothing else.
  HWY_INLINE void prefetch(std::int64_t row) const {
    for (std::int64_t list = 0; list < count_; ++list) {
      const Rows& rows = lists_[list];
      if (row >= rows.count) continue;
      const char* const at = rows.first + row * rows.stride;
      for (std::int64_t byte = 0; byte < rows.bytes; byte += 64) __builtin_prefetch(at + byte, 0, 2);
    }
  }

 private:
  static constexpr std::int64_t most = 6;
  struct Rows {
    const char* first;
    std::int64_t stride, count, bytes;
  };
  Rows lists_[most];
  std::int64_t count_ = 0;
};

template <class T>
void write_rows(const HeadRows& target, bool accumulate, std::int64_t rows, std::int64_t width, const T* tile,
                std::int64_t ld) {
  target.visit<T>([&]<class X>(X* first, std::int64_t step) {
    constexpr std::int64_t ahead = 16;
    for (std::int64_t i = 0; i < rows; ++i) {
      X* line = first + i * step;
      for (std::int64_t j = 0; i + ahead < rows && j < width; j += 64 / static_cast<std::int64_t>(sizeof(X)))
        __builtin_prefetch(line + ahead * step + j, 1);
      for_lanes<X>(width, [&](std::int64_t j, std::int64_t n) HWY_ATTR {
        auto value = load_n(tile + i * ld + j, n);
        if (accumulate) value = hn::Add(value, load_n(line + j, n));
        store_n<X>(value, line + j, n);
      });
    }
  });
}

/// Adds row i of the source to row i · step of the target; rows of both are `ld` apart.
template <class T>
void add_rows(T* target, std::int64_t step, const T* source, std::int64_t rows, std::int64_t width, std::int64_t ld) {
  for (std::int64_t i = 0; i < rows; ++i) {
    T* const row = target + i * step * ld;
    for_lanes<T>(width, [&](std::int64_t j, std::int64_t n) HWY_ATTR {
      store_n(hn::Add(load_n(row + j, n), load_n(source + i * ld + j, n)), row + j, n);
    });
  }
}

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
