// Tiles are kept transposed: rows are keys or dimensions of a head, lanes are queries. Then a maximum or sum over keys is one vector
// operation per key for a whole vector of queries; keys and values are only ever broadcast, element by element, straight from where they
// lie, whatever their strides; and what is reused (queries, weights, sums) is a few kilobytes that stay in the first level of cache.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/softmax_attention_cpu.cpp"
#include "framework/cpu/targets.h"

#include <hwy/foreach_target.h>

#include <limits>

#include "framework/core/parallel.h"
#include "framework/cpu/simd-inl.h"
#include "framework/cpu/small_gemm-inl.h"
#include "framework/ops/dispatch.h"
#include "framework/ops/softmax_attention_arguments.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {
using namespace furlong::cpu::HWY_NAMESPACE;
using Sizes = SoftmaxAttentionSizes;
constexpr std::int64_t query_block = Sizes::query_block, key_block = Sizes::key_block;
constexpr double log2_e = 1.4426950408889634, ln_2 = 0.6931471805599453;

/// 2^x for x <= 1 or so; exactly 1 at 0. In float32 within 2 units in the last place, and 0 where the result would be subnormal; NaN stays
/// NaN. Scores carry the factor log2(e) in the query, so that this, half as long as an exponential, is all that a weight costs.
template <class D, class V>
HWY_INLINE V exp2(D d, V x) {
  if constexpr (sizeof(hn::TFromD<D>) == 8) {
    return hn::Exp(d, hn::Mul(x, hn::Set(d, ln_2)));
  } else {
    const hn::RebindToSigned<D> integers;
    const auto magic = hn::Set(d, 0x1.8p23f);  // adding it leaves round(x) in the low bits of the significand
    const auto shifted = hn::Add(x, magic);
    const auto r = hn::Sub(x, hn::Sub(shifted, magic));  // in [-1/2, 1/2]
    // (2^r - 1) / r through the Chebyshev nodes of that interval.
    auto polynomial = hn::Set(d, 1.545316294512069e-4f);
    polynomial = hn::MulAdd(polynomial, r, hn::Set(d, 1.3390863364671234e-3f));
    polynomial = hn::MulAdd(polynomial, r, hn::Set(d, 9.618082557277852e-3f));
    polynomial = hn::MulAdd(polynomial, r, hn::Set(d, 5.550357114219078e-2f));
    polynomial = hn::MulAdd(polynomial, r, hn::Set(d, 0.24022650760568126f));
    polynomial = hn::MulAdd(polynomial, r, hn::Set(d, 0.6931471880262288f));
    polynomial = hn::MulAdd(polynomial, r, hn::Set(d, 1.0f));
    const auto power = hn::BitCast(d, hn::Add(hn::BitCast(integers, polynomial), hn::ShiftLeft<23>(hn::BitCast(integers, shifted))));
    return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -126.0f)), power);
  }
}

/// Rows [first, first + n) of a head, times `factor`, into row-major scratch.
template <class T, class C = compute_t<T>>
void load_rows(const HeadRows<T>& rows, std::int64_t first, std::int64_t n, std::int64_t width, double factor, C* target, std::int64_t ld) {
  const typename Lanes<T>::D d;
  const auto scale = hn::Set(d, static_cast<C>(factor));
  for (std::int64_t i = 0; i < n; ++i) {
    const T* row = rows.data + (first + i) * rows.stride;
    for_lanes<C>(
        width, [&](std::int64_t j, std::int64_t lanes) { store_n<C>(hn::Mul(load_n(row + j, lanes), scale), target + i * ld + j, lanes); });
  }
}

/// Rows of keys or values in the compute type: where they lie when that is their type, else converted into `scratch`.
template <class T, class C = compute_t<T>>
HeadRows<const C> tile_rows(const HeadRows<T>& rows, std::int64_t first, std::int64_t n, std::int64_t width, C* scratch) {
  if constexpr (std::is_same_v<T, C>) {
    return {rows.data + first * rows.stride, rows.stride};
  } else {
    load_rows(rows, first, n, width, 1.0, scratch, Sizes::padded(width));
    return {scratch, Sizes::padded(width)};
  }
}

/// Writes or adds `factor` times row-major scratch to rows of a head of `tensor`, whatever its storage type.
template <class C>
void store_rows(const Tensor& tensor, bool accumulate, std::int64_t batch, std::int64_t head, std::int64_t first, std::int64_t n,
                double factor, const C* source, std::int64_t ld) {
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
      throw ContractError("softmax_attention: a gradient of {} for inputs of another precision", name_of(tensor.dtype()));
    }
  });
}

/// target[width, query_block] = rows[n, width]ᵀ with zeros for the queries that a last block lacks.
template <class C>
void transpose_queries(std::int64_t n, std::int64_t width, const C* rows, std::int64_t ld, C* target) {
  transpose<C>(n, width, rows, ld, target, query_block);
  if (n == query_block) return;
  for (std::int64_t j = 0; j < width; ++j) std::fill(target + j * query_block + n, target + (j + 1) * query_block, C{0});
}

/// parallel_tasks where there is enough to do for waking other threads.
template <class Body>
void run_tasks(const AttentionShape& shape, std::int64_t tasks, const Body& body) {
  constexpr std::int64_t grain = 1 << 19;  // multiply-adds: some microseconds
  if (shape.batch * shape.n_heads * shape.n_query * shape.n_key * (shape.d_key + shape.d_value) < grain) {
    for (std::int64_t task = 0; task < tasks; ++task) body(task);
  } else {
    parallel_tasks(tasks, body);
  }
}

/// Hands out consecutive pieces of one thread's scratch.
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

/// One block of queries of one head over all keys that it sees.
template <class T>
class ForwardBlock {
 public:
  using C = compute_t<T>;
  explicit ForwardBlock(const SoftmaxAttentionArguments& arguments)
      : a_(arguments), ld_k_(Sizes::padded(s_.d_key)), ld_v_(Sizes::padded(s_.d_value)) {
    Pieces<C> pieces(a_.scratch);
    rows_ = pieces.take(query_block * std::max(ld_k_, ld_v_));
    query_t_ = pieces.take(query_block * ld_k_);
    output_t_ = pieces.take(query_block * ld_v_);
    weights_ = pieces.take(query_block * key_block);
    maximum_ = pieces.take(query_block);
    sum_ = pieces.take(query_block);
    keys_ = pieces.take(key_block * ld_k_);
    values_ = pieces.take(key_block * ld_v_);
  }

  void run(std::int64_t batch, std::int64_t head, std::int64_t block) {
    first_ = block * query_block;
    n_ = std::min(query_block, s_.n_query - first_);
    columns_ = (n_ + lanes_ - 1) / lanes_ * lanes_;
    const std::int64_t kv_head = head / s_.heads_per_kv();
    load_rows(head_rows<T>(a_.query, batch, head), first_, n_, s_.d_key, a_.scale * log2_e, rows_, ld_k_);
    transpose_queries(n_, s_.d_key, rows_, ld_k_, query_t_);
    std::fill_n(output_t_, s_.d_value * query_block, C{0});
    // Finite, so that the difference of two such is not NaN.
    std::fill_n(maximum_, query_block, std::numeric_limits<C>::lowest());
    std::fill_n(sum_, query_block, C{0});
    const HeadRows<T> keys = head_rows<T>(a_.key, batch, kv_head), values = head_rows<T>(a_.value, batch, kv_head);
    const std::int64_t seen = a_.keys_seen(first_ + n_ - 1);
    for (std::int64_t first_key = 0; first_key < seen; first_key += key_block) {
      const std::int64_t n_keys = std::min(key_block, seen - first_key);
      tile(first_key, n_keys, tile_rows(keys, first_key, n_keys, s_.d_key, keys_),
           tile_rows(values, first_key, n_keys, s_.d_value, values_));
    }
    finish(batch, head);
  }

 private:
  using D = hn::ScalableTag<C>;

  void tile(std::int64_t first_key, std::int64_t n_keys, HeadRows<const C> keys, HeadRows<const C> values) {
    small_gemm_nn<C>(n_keys, columns_, s_.d_key, keys.data, keys.stride, query_t_, query_block, weights_, query_block, false);
    if (first_key + n_keys <= a_.keys_seen(first_)) {  // every query sees every key
      for (std::int64_t strip = 0; strip < columns_; strip += lanes_) weigh(strip, n_keys);
      small_gemm_tn<C>(s_.d_value, columns_, n_keys, values.data, values.stride, weights_, query_block, output_t_, query_block, true);
      return;
    }
    for (std::int64_t strip = 0; strip < columns_; strip += lanes_) {
      const std::int64_t full = std::clamp<std::int64_t>(a_.keys_seen(first_ + strip) - first_key, 0, n_keys);
      const std::int64_t some = std::clamp<std::int64_t>(a_.keys_seen(first_ + strip + lanes_ - 1) - first_key, 0, n_keys);
      if (some == 0) continue;
      for (std::int64_t j = full; j < some; ++j) {
        C* row = weights_ + j * query_block + strip;
        hn::StoreU(hn::IfThenElse(blind(strip, first_key + j), hn::Set(d_, -std::numeric_limits<C>::infinity()), hn::LoadU(d_, row)), d_,
                   row);
      }
      weigh(strip, some);
      small_gemm_tn<C>(s_.d_value, lanes_, full, values.data, values.stride, weights_ + strip, query_block, output_t_ + strip, query_block,
                       true);
      add_corner(strip, first_key, full, some, values);
    }
  }

  /// The lanes of a strip whose queries do not see a key.
  HWY_INLINE hn::Mask<D> blind(std::int64_t strip, std::int64_t key) const {
    return hn::FirstN(d_, static_cast<std::size_t>(std::clamp<std::int64_t>(key - a_.first_query_position - first_ - strip, 0, lanes_)));
  }

  /// Scores of one strip of queries to weights under the strip's new maximum; what was summed under the old one is scaled down to it.
  HWY_INLINE void weigh(std::int64_t strip, std::int64_t n_keys) {
    C* column = weights_ + strip;
    const auto before = hn::LoadU(d_, maximum_ + strip);
    auto maximum = before;
    for (std::int64_t j = 0; j < n_keys; ++j) maximum = hn::Max(maximum, hn::LoadU(d_, column + j * query_block));
    auto sum = hn::Zero(d_);
    for (std::int64_t j = 0; j < n_keys; ++j) {
      const auto weight = exp2(d_, hn::Sub(hn::LoadU(d_, column + j * query_block), maximum));
      sum = hn::Add(sum, weight);
      hn::StoreU(weight, d_, column + j * query_block);
    }
    const auto shrink = exp2(d_, hn::Sub(before, maximum));
    hn::StoreU(maximum, d_, maximum_ + strip);
    hn::StoreU(hn::MulAdd(hn::LoadU(d_, sum_ + strip), shrink, sum), d_, sum_ + strip);
    if (hn::AllTrue(d_, hn::Eq(before, maximum))) return;  // multiplying by 1 would change nothing
    for (std::int64_t f = 0; f < s_.d_value; ++f) {
      C* row = output_t_ + f * query_block + strip;
      hn::StoreU(hn::Mul(hn::LoadU(d_, row), shrink), d_, row);
    }
  }

  /// Keys that some lanes of a strip see and others do not: added by selection, since even a weight of zero times a later token's value
  /// could show (an infinity; a sum that is -0).
  HWY_INLINE void add_corner(std::int64_t strip, std::int64_t first_key, std::int64_t full, std::int64_t some, HeadRows<const C> values) {
    for (std::int64_t f = 0; f < s_.d_value; ++f) {
      auto sum = hn::LoadU(d_, output_t_ + f * query_block + strip);
      for (std::int64_t j = full; j < some; ++j) {
        const auto added =
            hn::MulAdd(hn::Set(d_, values.data[j * values.stride + f]), hn::LoadU(d_, weights_ + j * query_block + strip), sum);
        sum = hn::IfThenElse(blind(strip, first_key + j), sum, added);
      }
      hn::StoreU(sum, d_, output_t_ + f * query_block + strip);
    }
  }

  void finish(std::int64_t batch, std::int64_t head) {
    for (std::int64_t strip = 0; strip < columns_; strip += lanes_) {
      const auto sum = hn::LoadU(d_, sum_ + strip);
      const auto inverse = hn::Div(hn::Set(d_, C{1}), sum);
      for (std::int64_t f = 0; f < s_.d_value; ++f) {
        C* row = output_t_ + f * query_block + strip;
        hn::StoreU(hn::Mul(hn::LoadU(d_, row), inverse), d_, row);
      }
      hn::StoreU(hn::MulAdd(hn::LoadU(d_, maximum_ + strip), hn::Set(d_, static_cast<C>(ln_2)), hn::Log(d_, sum)), d_, sum_ + strip);
    }
    transpose<C>(s_.d_value, n_, output_t_, query_block, rows_, ld_v_);
    store_rows<C>(a_.output, false, batch, head, first_, n_, 1.0, rows_, ld_v_);
    if (a_.log_sum_exp.defined()) std::copy_n(sum_, n_, a_.log_sum_exp.data<C>() + (batch * s_.n_heads + head) * s_.n_query + first_);
  }

  const SoftmaxAttentionArguments& a_;
  const AttentionShape& s_ = a_.shape;
  const D d_;
  const std::int64_t lanes_ = static_cast<std::int64_t>(hn::Lanes(d_));
  const std::int64_t ld_k_, ld_v_;
  std::int64_t first_ = 0, n_ = 0, columns_ = 0;  // queries [first, first + n); n rounded up to whole vectors
  C *rows_, *query_t_, *output_t_, *weights_, *maximum_, *sum_, *keys_, *values_;
};

void Forward(const SoftmaxAttentionArguments& arguments) {
  with_float_type(arguments.query.dtype(), "softmax_attention", [&]<class T>(std::type_identity<T>) {
    const AttentionShape& shape = arguments.shape;
    const std::int64_t blocks = Sizes::query_blocks(shape);
    run_tasks(shape, shape.batch * shape.n_heads * blocks, [&](std::int64_t task) {
      const std::int64_t row = task / blocks;
      // The last blocks of a causal head see most: started first, they leave the threads evenly busy at the end.
      ForwardBlock<T>(arguments).run(row / shape.n_heads, row % shape.n_heads, blocks - 1 - task % blocks);
    });
  });
}

/// The gradients from one segment of the queries of all heads that share a key-value head:
///   dV = Pᵀ dO,  dS = P ∘ (dO Vᵀ - rowsum(dO ∘ O)),  dQ = scale dS K,  dK = scale dSᵀ Q.
template <class T>
class BackwardSegment {
 public:
  using C = compute_t<T>;
  BackwardSegment(const SoftmaxAttentionArguments& arguments, const SoftmaxAttentionGradients& gradients, C* sums)
      : a_(arguments),
        g_(gradients),
        ld_k_(Sizes::padded(s_.d_key)),
        ld_v_(Sizes::padded(s_.d_value)),
        key_sums_(sums),
        value_sums_(sums ? sums + s_.n_key * ld_k_ : nullptr) {
    Pieces<C> pieces(a_.scratch);
    query_ = pieces.take(query_block * ld_k_);
    query_t_ = pieces.take(query_block * ld_k_);
    d_query_t_ = pieces.take(query_block * ld_k_);
    d_query_ = pieces.take(query_block * ld_k_);
    d_output_ = pieces.take(query_block * ld_v_);
    d_output_t_ = pieces.take(query_block * ld_v_);
    output_ = pieces.take(query_block * ld_v_);
    weights_ = pieces.take(query_block * key_block);
    d_scores_ = pieces.take(query_block * key_block);
    log_sum_exp_ = pieces.take(query_block);
    row_dots_ = pieces.take(query_block);
    keys_ = pieces.take(key_block * ld_k_);
    values_ = pieces.take(key_block * ld_v_);
  }

  void run(std::int64_t batch, std::int64_t kv_head, std::int64_t first_block, std::int64_t end_block) {
    if (g_.sums.defined()) std::fill_n(key_sums_, Sizes::sums_elements(s_), C{0});
    const HeadRows<T> keys = head_rows<T>(a_.key, batch, kv_head), values = head_rows<T>(a_.value, batch, kv_head);
    for (std::int64_t head = kv_head * s_.heads_per_kv(); head < (kv_head + 1) * s_.heads_per_kv(); ++head) {
      for (std::int64_t block = first_block; block < end_block; ++block) {
        load(batch, head, block);
        const std::int64_t seen = a_.keys_seen(first_ + n_ - 1);
        for (std::int64_t first_key = 0; first_key < seen; first_key += key_block) {
          const std::int64_t n_keys = std::min(key_block, seen - first_key);
          tile(first_key, n_keys, tile_rows(keys, first_key, n_keys, s_.d_key, keys_),
               tile_rows(values, first_key, n_keys, s_.d_value, values_));
        }
        if (!g_.d_query.wanted()) continue;
        transpose<C>(s_.d_key, n_, d_query_t_, query_block, d_query_, ld_k_);
        store_rows<C>(g_.d_query.tensor, g_.d_query.accumulates(), batch, head, first_, n_, a_.scale, d_query_, ld_k_);
      }
    }
  }

  /// Writes the gathered sums of keys [first, first + n).
  void store_sums(std::int64_t batch, std::int64_t kv_head, std::int64_t first, std::int64_t n) const {
    // The query carried scale × log2(e), so its products with d_scores lack ln 2.
    if (g_.d_key.wanted())
      store_rows<C>(g_.d_key.tensor, g_.d_key.accumulates(), batch, kv_head, first, n, ln_2, key_sums_ + first * ld_k_, ld_k_);
    if (g_.d_value.wanted())
      store_rows<C>(g_.d_value.tensor, g_.d_value.accumulates(), batch, kv_head, first, n, 1.0, value_sums_ + first * ld_v_, ld_v_);
  }

 private:
  using D = hn::ScalableTag<C>;

  void load(std::int64_t batch, std::int64_t head, std::int64_t block) {
    first_ = block * query_block;
    n_ = std::min(query_block, s_.n_query - first_);
    columns_ = (n_ + lanes_ - 1) / lanes_ * lanes_;
    load_rows(head_rows<T>(a_.query, batch, head), first_, n_, s_.d_key, a_.scale * log2_e, query_, ld_k_);
    transpose_queries(n_, s_.d_key, query_, ld_k_, query_t_);
    load_rows(head_rows<T>(g_.d_output, batch, head), first_, n_, s_.d_value, 1.0, d_output_, ld_v_);
    transpose_queries(n_, s_.d_value, d_output_, ld_v_, d_output_t_);
    load_rows(head_rows<T>(a_.output, batch, head), first_, n_, s_.d_value, 1.0, output_, ld_v_);
    if (g_.d_query.wanted()) std::fill_n(d_query_t_, s_.d_key * query_block, C{0});
    const C* log_sum_exp = a_.log_sum_exp.data<C>() + (batch * s_.n_heads + head) * s_.n_query + first_;
    for (std::int64_t i = 0; i < query_block; ++i) {
      // A query that a last block lacks has weight 2^-inf = 0 for every key.
      log_sum_exp_[i] = i < n_ ? log_sum_exp[i] * static_cast<C>(log2_e) : std::numeric_limits<C>::infinity();
      row_dots_[i] = i < n_ ? dot(d_output_ + i * ld_v_, output_ + i * ld_v_) : C{0};
    }
  }

  C dot(const C* x, const C* y) const {
    auto sum = hn::Zero(d_);
    for_lanes<C>(s_.d_value,
                 [&](std::int64_t j, std::int64_t lanes) { sum = hn::MulAdd(load_n(x + j, lanes), load_n(y + j, lanes), sum); });
    return hn::GetLane(hn::SumOfLanes(d_, sum));
  }

  void tile(std::int64_t first_key, std::int64_t n_keys, HeadRows<const C> keys, HeadRows<const C> values) {
    const bool scores_wanted = g_.d_query.wanted() || g_.d_key.wanted();
    small_gemm_nn<C>(n_keys, columns_, s_.d_key, keys.data, keys.stride, query_t_, query_block, weights_, query_block, false);
    if (scores_wanted) {
      small_gemm_nn<C>(n_keys, columns_, s_.d_value, values.data, values.stride, d_output_t_, query_block, d_scores_, query_block, false);
    }
    const bool all_seen = first_key + n_keys <= a_.keys_seen(first_);
    for (std::int64_t strip = 0; strip < columns_; strip += lanes_) {
      all_seen ? weigh<false>(strip, first_key, n_keys, scores_wanted) : weigh<true>(strip, first_key, n_keys, scores_wanted);
    }
    if (g_.d_value.wanted()) {
      small_gemm_nn<C>(n_keys, s_.d_value, n_, weights_, query_block, d_output_, ld_v_, value_sums_ + first_key * ld_v_, ld_v_, true);
    }
    if (g_.d_key.wanted()) {
      small_gemm_nn<C>(n_keys, s_.d_key, n_, d_scores_, query_block, query_, ld_k_, key_sums_ + first_key * ld_k_, ld_k_, true);
    }
    if (g_.d_query.wanted()) {
      small_gemm_tn<C>(s_.d_key, columns_, n_keys, keys.data, keys.stride, d_scores_, query_block, d_query_t_, query_block, true);
    }
  }

  /// Scores to weights, and gradients of weights to gradients of scores, for one strip of queries.
  template <bool masked>
  HWY_INLINE void weigh(std::int64_t strip, std::int64_t first_key, std::int64_t n_keys, bool scores_wanted) {
    const auto log_sum_exp = hn::LoadU(d_, log_sum_exp_ + strip), row_dots = hn::LoadU(d_, row_dots_ + strip);
    const std::int64_t position = a_.first_query_position + first_ + strip;
    for (std::int64_t j = 0; j < n_keys; ++j) {
      C* const weight_row = weights_ + j * query_block + strip;
      C* const score_row = d_scores_ + j * query_block + strip;
      auto weight = exp2(d_, hn::Sub(hn::LoadU(d_, weight_row), log_sum_exp));
      auto d_score = scores_wanted ? hn::Mul(weight, hn::Sub(hn::LoadU(d_, score_row), row_dots)) : weight;
      if constexpr (masked) {
        const auto blind = hn::FirstN(d_, static_cast<std::size_t>(std::clamp<std::int64_t>(first_key + j - position, 0, lanes_)));
        weight = hn::IfThenZeroElse(blind, weight);
        d_score = hn::IfThenZeroElse(blind, d_score);
      }
      hn::StoreU(weight, d_, weight_row);
      if (scores_wanted) hn::StoreU(d_score, d_, score_row);
    }
  }

  const SoftmaxAttentionArguments& a_;
  const SoftmaxAttentionGradients& g_;
  const AttentionShape& s_ = a_.shape;
  const D d_;
  const std::int64_t lanes_ = static_cast<std::int64_t>(hn::Lanes(d_));
  const std::int64_t ld_k_, ld_v_;
  C *const key_sums_, *const value_sums_;
  std::int64_t first_ = 0, n_ = 0, columns_ = 0;
  C *query_, *query_t_, *d_query_t_, *d_query_, *d_output_, *d_output_t_, *output_, *weights_, *d_scores_, *log_sum_exp_, *row_dots_,
      *keys_, *values_;
};

/// First block of a segment, such that segments cost about the same: a block costs as many tiles as it sees.
std::int64_t segment_begin(const SoftmaxAttentionArguments& arguments, std::int64_t segment, std::int64_t segments) {
  const std::int64_t blocks = Sizes::query_blocks(arguments.shape);
  const auto cost = [&](std::int64_t block) {
    return static_cast<double>(arguments.keys_seen(std::min(arguments.shape.n_query, (block + 1) * query_block) - 1));
  };
  double total = 0, sum = 0;
  for (std::int64_t block = 0; block < blocks; ++block) total += cost(block);
  std::int64_t block = 0;
  while (block < blocks && sum + cost(block) / 2 < total * static_cast<double>(segment) / static_cast<double>(segments))
    sum += cost(block++);
  return segment == segments ? blocks : block;
}

template <class T>
void add_segments(const SoftmaxAttentionArguments& arguments, const SoftmaxAttentionGradients& gradients) {
  using C = compute_t<T>;
  const AttentionShape& shape = arguments.shape;
  const std::int64_t ld_k = Sizes::padded(shape.d_key), ld_v = Sizes::padded(shape.d_value),
                     blocks = (shape.n_key + key_block - 1) / key_block;
  run_tasks(shape, shape.batch * shape.n_kv_heads * blocks, [&](std::int64_t task) {
    const std::int64_t pair = task / blocks, first = task % blocks * key_block, n = std::min(key_block, shape.n_key - first);
    const auto sums = [&](std::int64_t segment) {
      return gradients.sums.data<C>() + (pair * gradients.segments + segment) * gradients.sums.extent(1);
    };
    const auto add = [&](std::int64_t offset, std::int64_t elements) {
      for (std::int64_t segment = 1; segment < gradients.segments; ++segment) {
        C* target = sums(0) + offset;
        const C* source = sums(segment) + offset;
        for_lanes<C>(elements, [&](std::int64_t i, std::int64_t lanes) {
          store_n(hn::Add(load_n(target + i, lanes), load_n(source + i, lanes)), target + i, lanes);
        });
      }
    };
    add(first * ld_k, n * ld_k);
    add(shape.n_key * ld_k + first * ld_v, n * ld_v);
    BackwardSegment<T>(arguments, gradients, sums(0)).store_sums(pair / shape.n_kv_heads, pair % shape.n_kv_heads, first, n);
  });
}

void Backward(const SoftmaxAttentionArguments& arguments, const SoftmaxAttentionGradients& gradients) {
  with_float_type(arguments.query.dtype(), "softmax_attention", [&]<class T>(std::type_identity<T>) {
    using C = compute_t<T>;
    const AttentionShape& shape = arguments.shape;
    const std::int64_t segments = gradients.segments;
    run_tasks(shape, shape.batch * shape.n_kv_heads * segments, [&](std::int64_t task) {
      const std::int64_t batch = task / segments / shape.n_kv_heads, kv_head = task / segments % shape.n_kv_heads,
                         segment = task % segments;
      const std::int64_t slot = segments == 1 ? thread_index() : task;
      C* sums = gradients.sums.defined() ? gradients.sums.data<C>() + slot * gradients.sums.extent(1) : nullptr;
      BackwardSegment<T> body(arguments, gradients, sums);
      body.run(batch, kv_head, segment_begin(arguments, segment, segments), segment_begin(arguments, segment + 1, segments));
      if (sums && segments == 1) body.store_sums(batch, kv_head, 0, shape.n_key);
    });
    if (gradients.sums.defined() && segments > 1) add_segments<T>(arguments, gradients);
  });
}

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace furlong::ops {
HWY_EXPORT(Forward);
HWY_EXPORT(Backward);

void softmax_attention_forward_cpu(const SoftmaxAttentionArguments& arguments) { HWY_DYNAMIC_DISPATCH(Forward)(arguments); }
void softmax_attention_backward_cpu(const SoftmaxAttentionArguments& arguments, const SoftmaxAttentionGradients& gradients) {
  HWY_DYNAMIC_DISPATCH(Backward)(arguments, gradients);
}
}  // namespace furlong::ops
#endif
