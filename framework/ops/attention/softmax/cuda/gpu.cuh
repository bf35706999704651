#pragma once
// Shared by the kernels of softmax attention: addresses of rows, the block of tokens that a thread block works on, and
// which keys are visible to a query.
#include "framework/cuda/kernels/exp2_fast.h"
#include "framework/cuda/kernels/lane_value.h"
// After kernel.h, which must precede fmt.
#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "framework/ops/attention/softmax/softmax_attention_arguments.h"

// Unroll limits for loops whose further unrolling would not leave registers for their sums.
#ifdef __CUDACC__
#define FURLONG_UNROLL_ONCE _Pragma("unroll 1")
#define FURLONG_UNROLL_TWICE _Pragma("unroll 2")
#else
#define FURLONG_UNROLL_ONCE
#define FURLONG_UNROLL_TWICE
#endif

namespace furlong::ops {
namespace FURLONG_GPU {

inline constexpr double log2_e = 1.4426950408889634, ln_2 = 0.6931471805599453;

/// A tensor [batch, n, heads, width] of queries, keys, values or outputs. A row is one token's `width` elements of one
/// head, which are contiguous. Strides are in elements.
template <class T>
struct HeadView {
  T* data = nullptr;
  std::int64_t batch_stride = 0, row_stride = 0, head_stride = 0;
  bool vectors = false;  // every row starts at a 16-byte boundary and consists of whole 16-byte vectors
  bool pairs = false;    // likewise for pairs of elements

  __device__ T* head(int batch, int index) const { return data + batch * batch_stride + index * head_stride; }
};

/// Where a gradient [batch, n, heads, width] is written: a HeadView whose element type may differ from the inputs'. For
/// bfloat16 inputs it can be float32, and vice versa.
struct GradientView {
  void* data = nullptr;  // null: not needed
  std::int64_t batch_stride = 0, row_stride = 0, head_stride = 0;
  bool is_bfloat16 = false;  // element type
  bool pairs = false;        // as in HeadView
  bool accumulates = false;  // true: adds to the memory; false: overwrites it

  /// Returns the offset of a head's first row.
  __device__ std::int64_t head(int batch, int index) const { return batch * batch_stride + index * head_stride; }
};

/// Arguments of the kernels. The compute type C is double for T = double, else float.
template <class T>
struct SoftmaxProblem {
  using C = gpu_compute_t<T>;
  HeadView<const T> query, key, value, d_output;
  HeadView<T> output;
  C* log_sum_exp = nullptr;                 // [batch, n_heads, n_query]: log of the sum of exponentials of each row
  C* row_dots = nullptr;                    // [batch, n_heads, n_query]: Σ_f d_output output, for backward
  const std::int32_t* kept = nullptr;       // [batch, n_key], 0 masks a key; null: all keys are kept
  const std::int32_t* documents = nullptr;  // [2, batch, n]: start and end of each token's document; null: one document
  GradientView d_query, d_key, d_value;
  int batch = 0, n_query = 0, n_key = 0, n_heads = 0, n_kv_heads = 0;  // addresses are computed in 64 bits
  int d_key_width = 0, d_value_width = 0;                              // head widths
  int first_query_position = 0;                                        // position of query 0 among the keys
  int behind = 0, ahead = 0;  // a query at position i attends to keys i - behind to i + ahead
  C scale = 1;                // of the scores
  C exponent_scale = 1;       // |scale| log2(e): weights are powers of 2
  bool negative = false;      // scale < 0

  __device__ int heads_per_kv() const { return n_heads / n_kv_heads; }
  /// Returns the index of a query in log_sum_exp and row_dots.
  __device__ std::int64_t row(int sequence, int head, int query_index) const {
    return (static_cast<std::int64_t>(sequence) * n_heads + head) * n_query + query_index;
  }
  /// Returns a sequence's part of `kept`, or null.
  __device__ const std::int32_t* kept_keys(int sequence) const {
    return kept ? kept + static_cast<std::int64_t>(sequence) * n_key : nullptr;
  }
};

__device__ inline int lesser(int a, int b) { return a < b ? a : b; }
__device__ inline int greater(int a, int b) { return a < b ? b : a; }
/// Clamps x to [0, end].
__device__ inline int clamp_to(int x, int end) { return lesser(greater(x, 0), end); }

/// Iterates over the blocks of tokens that one thread block processes: those of at most `width` tokens whose first
/// token is in [index · width, (index + 1) · width). Without documents there is one. With documents, blocks restart at
/// each document's start, so that a document is split as if it were alone; then there may be none or many. Its state is
/// the same in all threads of the thread block.
template <int width>
struct TokenBlocks {
  int position, range_end;
  int first = 0, count = 0;  // the block's tokens
  int begin = 0, end = 0;    // keys (if the blocks are of queries, or vice versa) of the same document, or all

  __device__ TokenBlocks(int n, int index) : position(index * width), range_end(lesser(n, (index + 1) * width)) {}

  /// Finds the next block. Blocks are of the sequence's `n` queries and attend to `n_others` keys, or vice versa.
  /// Returns false if there is none.
  template <class T>
  __device__ bool next(const SoftmaxProblem<T>& p, int sequence, int n, int n_others) {
    while (position < range_end) {
      begin = 0;
      end = n;
      if (p.documents) {
        const std::int32_t* const bounds = p.documents + static_cast<std::int64_t>(sequence) * n + position;
        begin = bounds[0];
        end = bounds[static_cast<std::int64_t>(p.batch) * n];
      }
      first = begin + ceil_div(position - begin, width) * width;
      position = end;
      if (first < lesser(range_end, end)) {
        count = lesser(width, end - first);
        if (!p.documents) end = n_others;
        return true;
      }
    }
    return false;
  }
};

/// A tile of `width` keys (a power of 2): keys [first, min(first + width, end)), and a bit for each that the mask
/// keeps. first >= end if there is no tile. The same in all threads of a block. All lanes of a warp must call its
/// functions together.
template <int width>
struct KeyTile {
  static constexpr int words = (width + 31) / 32;
  static constexpr std::uint32_t full_word = width < 32 ? (1u << (width % 32)) - 1 : 0xffffffffu;
  int first = 0, end = 0;
  std::uint32_t kept[words] = {};

  /// Moves to the first tile with a kept key among those at from, from + width, ... < end_key. keys: the mask, or null.
  __device__ void find(const std::int32_t* keys, int from, int end_key) {
    end = end_key;
    for (first = from; first < end; first += width) {
      std::uint32_t any = 0;
      FURLONG_UNROLL
      for (int word = 0; word < words; ++word) any |= kept[word] = kept_word(keys, first + word * 32);
      if (any) return;
    }
  }
  __device__ bool exists() const { return first < end; }
  __device__ int count() const { return lesser(width, end - first); }
  __device__ bool is_full() const {
    bool full = true;
    FURLONG_UNROLL
    for (int word = 0; word < words; ++word) full = full && kept[word] == full_word;
    return full;
  }
  __device__ bool keeps(int j) const {
    std::uint32_t word = kept[0];
    if constexpr (words == 2) word = j < 32 ? kept[0] : kept[1];
    static_assert(words <= 2);
    return (word >> (j & 31)) & 1;
  }

 private:
  __device__ std::uint32_t kept_word(const std::int32_t* keys, int from) const {
    const int inside = clamp_to(end - from, width < 32 ? width : 32);
    const std::uint32_t word = inside == 32 ? 0xffffffffu : (1u << inside) - 1;
    if (!keys) return word;
    const int lane = lane_index();
    return __ballot_sync(full_warp, lane < inside && keys[from + lane] != 0);
  }
};

/// The range of keys visible to a query at `position` by causality and window, relative to a tile's first key.
struct VisibleRange {
  int begin = 0, end = 0;
  __device__ bool holds(int j) const { return begin <= j && j < end; }
};
template <class T>
__device__ VisibleRange visible_keys(const SoftmaxProblem<T>& p, int position, int first_key, int width) {
  return {clamp_to(position - p.behind - first_key, width), clamp_to(position + p.ahead + 1 - first_key, width)};
}
/// Returns whether all keys of a tile are visible to each of `count` queries from `position` on.
template <class T, int width>
__device__ bool is_whole(const SoftmaxProblem<T>& p, const KeyTile<width>& tile, int position, int count) {
  return tile.is_full() && tile.first >= position + count - 1 - p.behind &&
         tile.first + width <= position + p.ahead + 1;
}
/// Returns the range of queries to which key `key` is visible, relative to a tile whose first query is at `position`;
/// at most `count`.
template <class T>
__device__ VisibleRange queries_of_key(const SoftmaxProblem<T>& p, int key, int position, int count) {
  return {clamp_to(key - p.ahead - position, count), clamp_to(key + p.behind + 1 - position, count)};
}

/// The (sequence, head, block of tokens) of this thread block. Blocks of equal index are neighbors. With `last_first`
/// the highest index starts first: under a causal mask its block has the most keys, and started last it would run
/// alone.
struct BlockTask {
  int sequence, head, index;
};
__device__ inline BlockTask block_task(int batch, int heads, bool last_first) {
  const int pairs = batch * heads, block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x) / pairs,
            pair = block % pairs, index = block / pairs;
  return {pair / heads, pair % heads, last_first ? blocks - 1 - index : index};
}

/// The queries to which any key of a block is visible, of all heads that share a key-value head: head by head in tiles
/// of `width`.
struct QueryTiles {
  int begin = 0, end = 0;   // range of such queries in each head
  int head = 0, heads = 0;  // the current tile's head, and the end of the heads
  int first = 0;            // the tile's first query
  int width = 0;

  template <class T, class Block>
  __device__ QueryTiles(const SoftmaxProblem<T>& p, const Block& block, int kv_head, int tile_width, bool any)
      : begin(greater(block.begin, block.first - p.ahead - p.first_query_position)),
        end(lesser(block.end, block.first + block.count + p.behind - p.first_query_position)),
        head(kv_head * p.heads_per_kv()),
        heads(any && begin < end ? head + p.heads_per_kv() : head),
        first(begin),
        width(tile_width) {}

  __device__ bool exists() const { return head < heads; }
  __device__ int count() const { return lesser(width, end - first); }
  __device__ void advance() {
    first += width;
    if (first < end) return;
    first = begin;
    ++head;
  }
};

/// Returns whether any key of [first, first + count) is kept. Called by all threads of a block; the same in all of
/// them.
__device__ inline bool any_kept(const std::int32_t* kept, int first, int count) {
  if (!kept) return true;
  bool found = false;
  for (int j = static_cast<int>(threadIdx.x); j < count; j += static_cast<int>(blockDim.x))
    found = found || kept[first + j] != 0;
  return __syncthreads_or(found);
}

template <class T, int a, int b, int c>
__device__ __forceinline__ void set_zero(T (&sums)[a][b][c]) {
  FURLONG_UNROLL
  for (int i = 0; i < a; ++i) {
    FURLONG_UNROLL
    for (int j = 0; j < b; ++j) {
      FURLONG_UNROLL
      for (int k = 0; k < c; ++k) sums[i][j][k] = T{0};
    }
  }
}

/// Calls store(target): target points to the element at `offset`, in the gradient's element type.
template <class C, class Store>
__device__ __forceinline__ void with_gradient(const GradientView& view, std::int64_t offset, const Store& store) {
  if constexpr (std::is_same_v<C, double>) {
    store(static_cast<double*>(view.data) + offset);
  } else if (view.is_bfloat16) {
    store(static_cast<__nv_bfloat16*>(view.data) + offset);
  } else {
    store(static_cast<float*>(view.data) + offset);
  }
}
/// Overwrites or adds to two neighboring elements, as the view says; the second may be beyond the row.
template <class Element, class C>
__device__ __forceinline__ void store_pair(const GradientView& view, Element* target, C first, C second,
                                           bool has_second) {
  if (view.accumulates) {
    first += to_compute(target[0]);
    if (has_second) second += to_compute(target[1]);
  }
  if (view.pairs) {
    store_vector(target, Vector<Element, 2>{{from_compute<Element>(first), from_compute<Element>(second)}});
  } else {
    target[0] = from_compute<Element>(first);
    if (has_second) target[1] = from_compute<Element>(second);
  }
}

// ---- host code ----

/// Returns the smallest of `widths` that fits both head widths. softmax_attention.cpp rejects wider heads.
inline int padded_head_width(const AttentionShape& shape, std::initializer_list<int> widths) {
  const std::int64_t width = std::max(shape.d_key, shape.d_value);
  for (const int padded : widths) {
    if (width <= padded) return padded;
  }
  throw ContractError("softmax_attention: heads are {} wide, more than the CUDA kernels support", width);
}

template <class View>
void set_strides(View& view, const Tensor& tensor) {
  view.batch_stride = tensor.strides()[0];
  view.row_stride = tensor.strides()[1];
  view.head_stride = tensor.strides()[2];
}
/// Returns whether every row of a four-dimensional view starts at a multiple of `elements` elements and has a width
/// that is a multiple of them.
inline bool has_rows_of(const Tensor& tensor, std::int64_t elements) {
  bool all = is_aligned(tensor.address(), static_cast<std::size_t>(elements * size_of(tensor.dtype()))) &&
             tensor.extent(3) % elements == 0;
  for (int dimension = 0; dimension < 3; ++dimension)
    all = all && (tensor.extent(dimension) <= 1 || tensor.strides()[dimension] % elements == 0);
  return all;
}

template <class T>
HeadView<T> head_view(const Tensor& tensor) {
  HeadView<T> view;
  if (!tensor.defined()) return view;
  view.data = gpu_data<std::remove_const_t<T>>(tensor);
  set_strides(view, tensor);
  view.vectors = has_rows_of(tensor, 16 / size_of(tensor.dtype()));
  view.pairs = has_rows_of(tensor, 2);
  return view;
}

template <class C>
GradientView gradient_view(const GradientTarget& target) {
  GradientView view;
  if (!target.wanted()) return view;
  const DType dtype = target.tensor.dtype();
  require(std::is_same_v<C, double> ? dtype == DType::float64 : dtype == DType::float32 || dtype == DType::bfloat16,
          "softmax_attention: gradient is {}, expected the precision of the inputs", name_of(dtype));
  view.data = target.tensor.address();
  set_strides(view, target.tensor);
  view.is_bfloat16 = dtype == DType::bfloat16;
  view.pairs = has_rows_of(target.tensor, 2);
  view.accumulates = target.accumulates();
  return view;
}

/// Tokens, heads and sequences are counted in 32 bits; the sum of two positions plus one still fits.
inline constexpr std::int64_t beyond_all = (std::int64_t{1} << 30) - 1;
inline int as_int(std::int64_t count) {
  require(count <= beyond_all, "softmax_attention: {} tokens, heads or sequences, expected at most {}", count,
          beyond_all);
  return static_cast<int>(count);
}

template <class T>
SoftmaxProblem<T> problem_of(const SoftmaxAttentionArguments& arguments) {
  using C = gpu_compute_t<T>;
  const AttentionShape& shape = arguments.shape;
  SoftmaxProblem<T> p;
  p.query = head_view<const T>(arguments.query);
  p.key = head_view<const T>(arguments.key);
  p.value = head_view<const T>(arguments.value);
  p.output = head_view<T>(arguments.output);
  p.log_sum_exp = gpu_data<C>(arguments.log_sum_exp);
  p.kept = gpu_data<std::int32_t>(arguments.mask.keys);
  p.documents = gpu_data<std::int32_t>(arguments.boundaries);
  p.batch = as_int(shape.batch);
  p.n_query = as_int(shape.n_query);
  p.n_key = as_int(shape.n_key);
  p.n_heads = as_int(shape.n_heads);
  p.n_kv_heads = as_int(shape.n_kv_heads);
  p.d_key_width = as_int(shape.d_key);
  p.d_value_width = as_int(shape.d_value);
  p.first_query_position = as_int(arguments.first_query_position + shape.n_query) - p.n_query;
  p.behind = static_cast<int>(std::min(arguments.behind, beyond_all));
  p.ahead = static_cast<int>(std::min(arguments.ahead, beyond_all));
  p.scale = static_cast<C>(arguments.scale);
  // Not 0, because -infinity (the score of an invisible key) times it must stay -infinity.
  p.exponent_scale = std::max(static_cast<C>(std::abs(arguments.scale) * log2_e), std::numeric_limits<C>::min());
  p.negative = arguments.scale < 0;
  return p;
}

/// Writes arguments.boundaries. Launch before kernels that read it.
void find_document_bounds(const Stream& stream, const SoftmaxAttentionArguments& arguments);

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
