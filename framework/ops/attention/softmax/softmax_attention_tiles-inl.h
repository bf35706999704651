// Shared by forward and backward of softmax attention: a block of queries, and a tile of keys. Included once for each
// instruction set (see framework/simd/simd-inl.h).
//
// Tiles are stored transposed: rows are keys or dimensions of a head, lanes are queries. A maximum or sum over keys is
// then one vector operation per key for a whole vector of queries. Keys and values are only broadcast, element by
// element, directly from their tensors, whatever the strides. Reused data (queries, weights, sums) is a few kilobytes,
// which stay in the L1 cache.
#if defined(FURLONG_OPS_SOFTMAX_ATTENTION_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FURLONG_OPS_SOFTMAX_ATTENTION_TILES_INL_H_
#undef FURLONG_OPS_SOFTMAX_ATTENTION_TILES_INL_H_
#else
#define FURLONG_OPS_SOFTMAX_ATTENTION_TILES_INL_H_
#endif

#include <array>
#include <limits>

#include "framework/ops/attention/softmax/softmax_attention_blocks.h"
#include "framework/primitives/dispatch.h"
#include "framework/simd/simd-inl.h"
#include "framework/simd/small_gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {
using namespace furlong::simd::HWY_NAMESPACE;
using Sizes = SoftmaxAttentionSizes;
constexpr std::int64_t query_block = Sizes::query_block, key_block = Sizes::key_block;
constexpr double log2_e = 1.4426950408889634, ln_2 = 0.6931471805599453;

/// Returns 2^x for x up to about 1; exactly 1 at 0. float32: within 2 units in the last place, and 0 if the result
/// would be subnormal. Propagates NaN. The query includes the factor log2(e), so a weight costs only this function,
/// which is half as long as an exponential.
template <class D, class V>
HWY_INLINE V exp2(D d, V x) {
  if constexpr (sizeof(hn::TFromD<D>) == 8) {
    return hn::Exp(d, hn::Mul(x, hn::Set(d, ln_2)));
  } else {
    const hn::RebindToSigned<D> integers;
    const auto magic = hn::Set(d, 0x1.8p23f);  // adding it puts round(x) into the low bits of the significand
    const auto shifted = hn::Add(x, magic);
    const auto r = hn::Sub(x, hn::Sub(shifted, magic));  // in [-1/2, 1/2]
    // (2^r - 1) / r, interpolated at the Chebyshev nodes of that interval.
    auto polynomial = hn::Set(d, 1.545316294512069e-4f);
    polynomial = hn::MulAdd(polynomial, r, hn::Set(d, 1.3390863364671234e-3f));
    polynomial = hn::MulAdd(polynomial, r, hn::Set(d, 9.618082557277852e-3f));
    polynomial = hn::MulAdd(polynomial, r, hn::Set(d, 5.550357114219078e-2f));
    polynomial = hn::MulAdd(polynomial, r, hn::Set(d, 0.24022650760568126f));
    polynomial = hn::MulAdd(polynomial, r, hn::Set(d, 0.6931471880262288f));
    polynomial = hn::MulAdd(polynomial, r, hn::Set(d, 1.0f));
    const auto power =
        hn::BitCast(d, hn::Add(hn::BitCast(integers, polynomial), hn::ShiftLeft<23>(hn::BitCast(integers, shifted))));
    return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -126.0f)), power);
  }
}

/// Overwrites target [n, width], row stride `ld`, with rows [first, first + n) of a head times `factor`, in the compute
/// type.
template <class T, class C = compute_t<T>>
void load_rows(const HeadRows<T>& rows, std::int64_t first, std::int64_t n, std::int64_t width, double factor,
               C* target, std::int64_t ld) {
  const typename Lanes<T>::D d;
  const auto scale = hn::Set(d, static_cast<C>(factor));
  for (std::int64_t i = 0; i < n; ++i) {
    const T* row = rows.data + (first + i) * rows.stride;
    for_lanes<C>(width, [&](std::int64_t j, std::int64_t lanes) {
      store_n<C>(hn::Mul(load_n(row + j, lanes), scale), target + i * ld + j, lanes);
    });
  }
}

/// Returns rows [first, first + n) of a head's keys or values, n x width, in the compute type. Rows i with keep[i] = 0
/// are zeros (keep null: no row is masked). The result is the tensor's own memory if nothing has to change, otherwise a
/// copy in `scratch`.
template <class T, class C = compute_t<T>>
HeadRows<const C> tile_rows(const HeadRows<T>& rows, std::int64_t first, std::int64_t n, std::int64_t width,
                            const std::int32_t* keep, C* scratch) {
  if constexpr (std::is_same_v<T, C>) {
    if (!keep) return {rows.data + first * rows.stride, rows.stride};
  }
  const std::int64_t ld = Sizes::padded(width);
  load_rows(rows, first, n, width, 1.0, scratch, ld);
  for (std::int64_t i = 0; keep && i < n; ++i) {
    if (keep[i] == 0) std::fill_n(scratch + i * ld, width, C{0});
  }
  return {scratch, ld};
}

/// Overwrites rows [first, first + n) of a head of `tensor` [batch, n, heads, width] with `factor` times source
/// [n, width], row stride `ld`, or adds to them if `accumulate`. The tensor may have any floating dtype whose compute
/// type is C; throws ContractError for others.
template <class C>
void store_rows(const Tensor& tensor, bool accumulate, std::int64_t batch, std::int64_t head, std::int64_t first,
                std::int64_t n, double factor, const C* source, std::int64_t ld) {
  with_float_type(tensor.dtype(), "softmax_attention", [&]<class T>(std::type_identity<T>) {
    if constexpr (std::is_same_v<compute_t<T>, C>) {
      const typename Lanes<T>::D d;
      const auto scale = hn::Set(d, static_cast<C>(factor));
      const HeadRows<T> rows = head_rows<T>(tensor, batch, head);
      for (std::int64_t i = 0; i < n; ++i) {
        T* row = rows.data + (first + i) * rows.stride;
        for_lanes<T>(tensor.extent(3), [&](std::int64_t j, std::int64_t lanes) {
          auto value = hn::Mul(load_n(source + i * ld + j, lanes), scale);
          if (accumulate) value = hn::Add(value, load_n(row + j, lanes));
          store_n(value, row + j, lanes);
        });
      }
    } else {
      throw ContractError("softmax_attention: gradient is {}, expected the precision of the inputs",
                          name_of(tensor.dtype()));
    }
  });
}

/// Overwrites target [width, query_block] with the transpose of rows [n, width], row stride `ld`. If n < query_block,
/// in a last block, the remaining columns are zeros.
template <class C>
void transpose_queries(std::int64_t n, std::int64_t width, const C* rows, std::int64_t ld, C* target) {
  transpose<C>(n, width, rows, ld, target, query_block);
  if (n == query_block) return;
  for (std::int64_t j = 0; j < width; ++j)
    std::fill(target + j * query_block + n, target + (j + 1) * query_block, C{0});
}

/// Hands out consecutive pieces of the calling thread's row of scratch [threads, elements].
template <class C>
class Pieces {
 public:
  explicit Pieces(const Tensor& scratch) : next_(scratch.data<C>() + thread_index() * scratch.extent(1)) {}
  C* take(std::int64_t elements) {
    C* piece = next_;
    next_ += elements;
    return piece;
  }

 private:
  C* next_;
};

/// Keys [first, first + n) of a sequence, n <= key_block, for a block of queries.
template <class C>
struct KeyTile {
  std::int64_t first = 0, n = 0;
  HeadRows<const C> keys, values;  // rows of the n keys and values
  bool whole = true;               // every key is visible to every query of the block
};

/// A block of queries of one head, and the keys visible to it.
template <class T>
class QueryBlock {
 protected:
  using C = compute_t<T>;
  using D = hn::ScalableTag<C>;

  explicit QueryBlock(const SoftmaxAttentionArguments& arguments)
      : a_(arguments), ld_k_(Sizes::padded(s_.d_key)), ld_v_(Sizes::padded(s_.d_value)) {}

  /// Starts a block of queries of sequence `batch`.
  void begin(std::int64_t batch, const SoftmaxAttentionBlock& block) {
    first_ = block.first;
    n_ = block.n;
    columns_ = (n_ + lanes_ - 1) / lanes_ * lanes_;
    position_ = a_.first_query_position + first_;
    first_visible_ = std::max(block.first_key, position_ - a_.behind);
    end_visible_ = std::min(block.end_key, position_ + n_ + a_.ahead);
    kept_ = a_.kept_keys(batch);
  }

  /// Calls body(tile) for the keys visible to any query of the block. The grid of tiles starts at the first of them,
  /// which does not depend on later tokens. Tiles without kept keys are skipped. In other tiles masked rows are zeros,
  /// so that their values have no effect.
  template <class Body>
  void for_tiles(const HeadRows<T>& keys, const HeadRows<T>& values, const Body& body) {
    for (std::int64_t first = first_visible_; first < end_visible_; first += key_block) {
      KeyTile<C> tile{first, std::min(key_block, end_visible_ - first), {}, {}, true};
      std::int64_t kept = tile.n;
      if (kept_)
        kept = std::count_if(kept_ + first, kept_ + first + tile.n, [](std::int32_t keep) { return keep != 0; });
      if (kept == 0) continue;
      const std::int32_t* keep = kept < tile.n ? kept_ + first : nullptr;
      tile.keys = tile_rows(keys, first, tile.n, s_.d_key, keep, keys_);
      tile.values = tile_rows(values, first, tile.n, s_.d_value, keep, values_);
      tile.whole = !keep && first >= position_ + n_ - 1 - a_.behind && first + tile.n <= position_ + a_.ahead + 1;
      if (!tile.whole) find_visibility(first, tile.n, keep);
      body(tile);
    }
  }

  /// Sets first_visible_row_ and end_visible_row_ for a tile of keys [first, first + n): key j of the tile is visible
  /// to the block's queries from the one to before the other.
  void find_visibility(std::int64_t first, std::int64_t n, const std::int32_t* keep) {
    for (std::int64_t j = 0; j < key_block; ++j) {
      const std::int64_t distance = first + j - position_;
      const bool visible = j < n && (!keep || keep[j] != 0);
      first_visible_row_[j] = visible ? std::clamp<std::int64_t>(distance - a_.ahead, 0, query_block) : 0;
      end_visible_row_[j] = visible ? std::clamp<std::int64_t>(distance + a_.behind + 1, 0, query_block) : 0;
    }
  }
  /// Returns whether query `row` of the block sees no key.
  bool sees_nothing(std::int64_t row) const {
    const std::int64_t begin = std::max(first_visible_, position_ + row - a_.behind),
                       end = std::min(end_visible_, position_ + row + a_.ahead + 1);
    if (begin >= end) return true;
    return kept_ && std::all_of(kept_ + begin, kept_ + end, [](std::int32_t keep) { return keep == 0; });
  }
  /// Returns whether key j is visible to all queries of the strip: the vector of queries that starts at query `strip`.
  bool all_visible(std::int64_t strip, std::int64_t j) const {
    return first_visible_row_[j] <= strip && strip + lanes_ <= end_visible_row_[j];
  }
  /// Returns the lanes of the strip whose queries attend to key j of the tile.
  HWY_INLINE hn::Mask<D> visible_lanes(std::int64_t strip, std::int64_t j) const {
    const auto first = static_cast<std::size_t>(std::clamp<std::int64_t>(first_visible_row_[j] - strip, 0, lanes_)),
               end = static_cast<std::size_t>(std::clamp<std::int64_t>(end_visible_row_[j] - strip, 0, lanes_));
    return hn::AndNot(hn::FirstN(d_, first), hn::FirstN(d_, end));
  }

  /// The dot product of two rows of d_value elements: an element of rowsum(dO ∘ O).
  C row_dot(const C* x, const C* y) const {
    auto sum = hn::Zero(d_);
    for_lanes<C>(s_.d_value, [&](std::int64_t j, std::int64_t lanes) {
      sum = hn::MulAdd(load_n(x + j, lanes), load_n(y + j, lanes), sum);
    });
    return hn::GetLane(hn::SumOfLanes(d_, sum));
  }

  const SoftmaxAttentionArguments& a_;
  const AttentionShape& s_ = a_.shape;
  const D d_{};
  const std::int64_t lanes_ = static_cast<std::int64_t>(hn::Lanes(d_));
  const std::int64_t ld_k_, ld_v_;
  std::int64_t first_ = 0, n_ = 0, columns_ = 0;  // queries [first_, first_ + n_); columns_: n_ rounded up to vectors
  std::int64_t position_ = 0, first_visible_ = 0, end_visible_ = 0;
  const std::int32_t* kept_ = nullptr;  // key mask of the sequence; null: keep all
  std::array<std::int64_t, key_block> first_visible_row_{}, end_visible_row_{};
  C *keys_ = nullptr, *values_ = nullptr;  // scratch for a tile that cannot be used in place
};

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // per-target include guard
