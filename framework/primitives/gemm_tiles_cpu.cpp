// bfloat16 products in float32, for CPUs whose bfloat16 instructions are slower than float32's or missing. Each thread
// converts tiles of a to float32 and multiplies them by converted columns of b, which all threads share.
//
// small_gemm sums up to `depth` terms of an element in one chain, and chains are added in order. So the bits of an
// element depend on its row of op(a) and its column of op(b) alone: not on threads, nor on other rows and columns.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/primitives/gemm_tiles_cpu.cpp"
#include "framework/simd/targets.h"

#include <hwy/foreach_target.h>

#include <algorithm>

#include "framework/core/parallel.h"
#include "framework/primitives/activation_kernels.h"
#include "framework/primitives/dispatch.h"
#include "framework/primitives/gemm_kernels.h"
#include "framework/simd/small_gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {
using namespace furlong::simd::HWY_NAMESPACE;

/// target [n] = source, or += source, in float32 lanes.
template <class From, class To>
HWY_INLINE void convert_span(const From* source, To* target, std::int64_t n, bool accumulate = false) {
  for_lanes<From>(n, [&](std::int64_t i, std::int64_t k) HWY_ATTR {
    auto value = load_n(source + i, k);
    if (accumulate) value = hn::Add(load_n(target + i, k), value);
    store_n(value, target + i, k);
  });
}

constexpr std::int64_t round_up(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }

struct Range {
  std::int64_t begin, size;
};
/// Returns part `index` of `range`, of `size` elements except at its end.
constexpr Range part_of(Range range, std::int64_t index, std::int64_t size) {
  return {range.begin + index * size, std::min(size, range.size - index * size)};
}
constexpr std::int64_t parts_of(Range range, std::int64_t size) { return (range.size + size - 1) / size; }

/// C is the type of c: float, then sums are formed there, or bfloat16.
template <class C>
class TiledProduct {
 public:
  TiledProduct(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c, bool accumulate,
               const GemmEpilogue& epilogue)
      : a_(a), b_(b), c_(c), t_a_(transpose_a), t_b_(transpose_b), accumulate_(accumulate), epilogue_(epilogue) {
    const std::int64_t threads = thread_count(), shares = threads * parts_of(rows_, threads * most_rows);
    tile_rows_ = round_up(parts_of(rows_, shares), 24);  // equal shares in full blocks of small_gemm: 4, 6 or 8 rows
    const Device device = c.device().has_host_memory() ? Device{} : c.device();
    const auto floats = [&](std::int64_t n, std::int64_t elements) {
      return Tensor::empty({n, elements}, DType::float32, device);
    };
    const std::int64_t columns = std::min(columns_.size, most_columns);
    right_ = floats(round_up(columns, panel), chunk_);
    left_ = floats(threads, std::max(tile_rows_, panel) * ld_left);
    if (!in_place) sums_ = floats(one_chunk() ? threads * tile_rows_ : rows_.size, columns);
  }

  void multiply() {
    const std::int64_t tiles = parts_of(rows_, tile_rows_);
    for (std::int64_t group = 0; group < parts_of(columns_, most_columns); ++group) {
      const Range columns = part_of(columns_, group, most_columns);
      const std::int64_t panels = parts_of(columns, panel);
      // With few rows, threads share the columns too.
      const std::int64_t width = tiles < thread_count() ? panel : most_columns, parts = parts_of(columns, width);
      for (std::int64_t chunk = 0; chunk < parts_of(inner_, chunk_); ++chunk) {
        const Range inner = part_of(inner_, chunk, chunk_);
        parallel_tasks(panels, [&](std::int64_t i) { convert_panel(inner, part_of(columns, i, panel), right(i)); });
        parallel_tasks(tiles * parts, [&](std::int64_t task) {
          const std::int64_t part = task % parts;
          multiply_tile(part_of(rows_, task / parts, tile_rows_), part_of(columns, part, width), inner, right(part));
        });
      }
    }
  }

 private:
  static constexpr bool in_place = std::is_same_v<C, float>;
  static constexpr std::int64_t depth = 256;           // terms of one chain
  static constexpr std::int64_t ld_left = depth + 16;  // see small_gemm on strides
  static constexpr std::int64_t panel = 64;            // columns of b that are stored together
  static constexpr std::int64_t most_rows = 192, most_columns = 256;
  // A chunk of b in the second level of cache. If sums are formed elsewhere, only to bound memory.
  static constexpr std::int64_t most_inner = (in_place ? 4 : 16) * depth;

  bool one_chunk() const { return chunk_ == inner_.size; }
  float* right(std::int64_t i) const { return right_.data<float>() + i * panel * chunk_; }
  float* left() const { return left_.data<float>() + thread_index() * left_.extent(1); }

  /// target [inner, panel] = op(b)[inner, columns].
  void convert_panel(Range inner, Range columns, float* target) const {
    const bfloat16* b = b_.data<bfloat16>();
    const std::int64_t stride = b_.strides()[0];
    for (std::int64_t i = 0; i < parts_of(inner, depth); ++i, target += depth * panel) {
      const Range terms = part_of(inner, i, depth);
      if (t_b_) {
        for (std::int64_t j = 0; j < columns.size; ++j)
          convert_span(b + (columns.begin + j) * stride + terms.begin, left() + j * ld_left, terms.size);
        transpose<float>(columns.size, terms.size, left(), ld_left, target, panel);
      } else {
        for (std::int64_t k = 0; k < terms.size; ++k)
          convert_span(b + (terms.begin + k) * stride + columns.begin, target + k * panel, columns.size);
      }
    }
  }

  /// left() = op(a)[rows, terms]: [rows, ld_left], or transposed [terms, tile_rows_] if a is.
  void convert_left(Range rows, Range terms) const {
    const std::int64_t stride = a_.strides()[0], ld = t_a_ ? tile_rows_ : ld_left;
    const Range lines = t_a_ ? terms : rows, elements = t_a_ ? rows : terms;
    const bfloat16* a = a_.data<bfloat16>() + lines.begin * stride + elements.begin;
    for (std::int64_t i = 0; i < lines.size; ++i) convert_span(a + i * stride, left() + i * ld, elements.size);
  }

  /// c[rows, columns] (+)= the terms `inner`. `right` are the panels of these columns. The last terms complete c.
  void multiply_tile(Range rows, Range columns, Range inner, const float* right) const {
    const Tensor sums = sums_of(rows, columns);
    float* sum = sums.data<float>();
    const std::int64_t ld = sums.strides()[0];
    bool adds = inner.begin > 0 || (in_place && accumulate_);
    if (epilogue_.bias && !adds) {
      for (std::int64_t i = 0; i < rows.size; ++i) write_bias(columns, sum + i * ld);
      adds = true;
    }
    const auto product = t_a_ ? small_gemm_tn<float> : small_gemm_nn<float>;
    for (std::int64_t i = 0; i < parts_of(inner, depth); ++i, right += depth * panel, adds = true) {
      const Range terms = part_of(inner, i, depth);
      convert_left(rows, terms);
      for (std::int64_t j = 0; j < columns.size; j += panel)
        product(rows.size, std::min(panel, columns.size - j), terms.size, left(), t_a_ ? tile_rows_ : ld_left,
                right + j * chunk_, panel, sum + j, ld, adds);
    }
    if (inner.begin + inner.size == inner_.size) complete(sums, rows, columns);
  }

  /// Where a tile's sums are formed: in c, for all rows if sums wait for more terms, or for the rows of this thread.
  Tensor sums_of(Range rows, Range columns) const {
    if (in_place) return c_.narrow(0, rows.begin, rows.size).narrow(1, columns.begin, columns.size);
    const std::int64_t row = one_chunk() ? thread_index() * tile_rows_ : rows.begin;
    return sums_.narrow(0, row, rows.size).narrow(1, one_chunk() ? 0 : columns.begin % most_columns, columns.size);
  }

  void write_bias(Range columns, float* target) const {
    if (epilogue_.bias->dtype() == DType::float32) {
      convert_span(epilogue_.bias->data<float>() + columns.begin, target, columns.size);
    } else {
      convert_span(epilogue_.bias->data<bfloat16>() + columns.begin, target, columns.size);
    }
  }

  /// Applies the activation to finished sums, and rounds them into c, or adds them to it.
  void complete(const Tensor& sums, Range rows, Range columns) const {
    for (const ActivationName& entry : activation_names) {
      if (epilogue_activation(entry.kind) == epilogue_.activation) activation_cpu(sums, sums, entry.kind);
    }
    if (in_place) return;
    for (std::int64_t i = 0; i < rows.size; ++i)
      convert_span(sums.data<float>() + i * sums.strides()[0],
                   c_.data<C>() + (rows.begin + i) * c_.strides()[0] + columns.begin, columns.size, accumulate_);
  }

  const Tensor &a_, &b_, &c_;
  bool t_a_, t_b_, accumulate_;
  const GemmEpilogue& epilogue_;
  Range rows_{0, c_.extent(0)}, columns_{0, c_.extent(1)}, inner_{0, a_.extent(t_a_ ? 0 : 1)};
  std::int64_t tile_rows_ = 0, chunk_ = std::min(inner_.size, most_inner);
  Tensor right_;  // a chunk of op(b) for up to most_columns columns, in panels [chunk_, panel]
  Tensor left_;   // a tile of op(a) for each thread
  Tensor sums_;   // see sums_of(); undefined if in_place
};

void Float32Tiles(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c,
                  bool accumulate, const GemmEpilogue& epilogue) {
  const auto run = [&]<class C>(std::type_identity<C>) {
    TiledProduct<C> product(a, transpose_a, b, transpose_b, c, accumulate, epilogue);
    if (!c.device().is_shape_only()) product.multiply();
  };
  c.dtype() == DType::float32 ? run(std::type_identity<float>{}) : run(std::type_identity<bfloat16>{});
}

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace furlong::ops {
HWY_EXPORT(Float32Tiles);

void gemm_in_float32_tiles(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c,
                           bool accumulate, const GemmEpilogue& epilogue) {
  HWY_DYNAMIC_DISPATCH(Float32Tiles)(a, transpose_a, b, transpose_b, c, accumulate, epilogue);
}
}  // namespace furlong::ops
#endif
