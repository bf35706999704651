#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/attention/softmax/softmax_attention_cpu.cpp"
#include "framework/simd/targets.h"

#include <hwy/foreach_target.h>

#include "framework/core/parallel.h"
#include "framework/ops/attention/softmax/softmax_attention_bfloat16_backward-inl.h"
#include "framework/ops/attention/softmax/softmax_attention_bfloat16_forward-inl.h"
#include "framework/ops/attention/softmax/softmax_attention_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {
/// Calls parallel_tasks if there is enough work to wake other threads.
template <class Body>
void run_tasks(const AttentionShape& shape, std::int64_t tasks, const Body& body) {
  constexpr std::int64_t grain = 1 << 19;  // multiply-adds: a few microseconds
  if (shape.batch * shape.n_heads * shape.n_query * shape.n_key * (shape.d_key + shape.d_value) < grain) {
    for (std::int64_t task = 0; task < tasks; ++task) body(task);
  } else {
    parallel_tasks(tasks, body);
  }
}

/// One block of queries of one head, over all keys visible to it.
template <class T>
class ForwardBlock : QueryBlock<T> {
  using Base = QueryBlock<T>;
  using Base::a_, Base::s_, Base::d_, Base::lanes_, Base::ld_k_, Base::ld_v_, Base::first_, Base::n_, Base::columns_,
      Base::position_, Base::first_visible_, Base::end_visible_, Base::kept_, Base::keys_, Base::values_;
  using typename Base::C, typename Base::D;

 public:
  explicit ForwardBlock(const SoftmaxAttentionArguments& arguments) : Base(arguments) {
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

  void run(std::int64_t batch, std::int64_t head, const SoftmaxAttentionBlock& block) {
    this->begin(batch, block);
    const std::int64_t kv_head = head / s_.heads_per_kv();
    load_rows(head_rows<T>(a_.query, batch, head), first_, n_, s_.d_key, a_.scale * log2_e, rows_, ld_k_);
    transpose_queries(n_, s_.d_key, rows_, ld_k_, query_t_);
    std::fill_n(output_t_, s_.d_value * query_block, C{0});
    // Finite, so that the difference of two is not NaN.
    std::fill_n(maximum_, query_block, std::numeric_limits<C>::lowest());
    std::fill_n(sum_, query_block, C{0});
    bool any = false;
    this->for_tiles(head_rows<T>(a_.key, batch, kv_head), head_rows<T>(a_.value, batch, kv_head),
                    [&](const KeyTile<C>& tile) {
                      add(tile);
                      any = true;
                    });
    finish(batch, head, any);
  }

 private:
  void add(const KeyTile<C>& tile) {
    small_gemm_nn<C>(tile.n, columns_, s_.d_key, tile.keys.data, tile.keys.stride, query_t_, query_block, weights_,
                     query_block, false);
    if (tile.whole) {
      for (std::int64_t strip = 0; strip < columns_; strip += lanes_) weigh(strip, 0, tile.n);
      small_gemm_tn<C>(s_.d_value, columns_, tile.n, tile.values.data, tile.values.stride, weights_, query_block,
                       output_t_, query_block, true);
      return;
    }
    const bool finite = are_finite(tile.values, tile.n);
    for (std::int64_t strip = 0; strip < columns_; strip += lanes_) {
      const std::int64_t begin = std::max<std::int64_t>(0, position_ + strip - a_.behind - tile.first),
                         end = std::min(tile.n, position_ + strip + lanes_ + a_.ahead - tile.first);
      if (begin >= end) continue;
      hide(strip, begin, end);
      weigh(strip, begin, end);
      if (finite) {
        small_gemm_tn<C>(s_.d_value, lanes_, end - begin, tile.values.data + begin * tile.values.stride,
                         tile.values.stride, weights_ + begin * query_block + strip, query_block, output_t_ + strip,
                         query_block, true);
      } else {
        add_visible(strip, begin, end, tile.values);
      }
    }
  }

  /// Sets scores of keys that are not visible to -infinity.
  HWY_INLINE void hide(std::int64_t strip, std::int64_t begin, std::int64_t end) {
    for (std::int64_t j = begin; j < end; ++j) {
      if (this->all_visible(strip, j)) continue;
      C* row = weights_ + j * query_block + strip;
      const auto unseen = hn::Set(d_, -std::numeric_limits<C>::infinity());
      hn::StoreU(hn::IfThenElse(this->visible_lanes(strip, j), hn::LoadU(d_, row), unseen), d_, row);
    }
  }

  /// Turns the scores of one strip of queries into weights under the strip's new maximum, and rescales the sums so far.
  HWY_INLINE void weigh(std::int64_t strip, std::int64_t begin, std::int64_t end) {
    C* column = weights_ + strip;
    const auto before = hn::LoadU(d_, maximum_ + strip);
    auto maximum = before;
    for (std::int64_t j = begin; j < end; ++j) maximum = hn::Max(maximum, hn::LoadU(d_, column + j * query_block));
    auto sum = hn::Zero(d_);
    for (std::int64_t j = begin; j < end; ++j) {
      const auto weight = exp2(d_, hn::Sub(hn::LoadU(d_, column + j * query_block), maximum));
      sum = hn::Add(sum, weight);
      hn::StoreU(weight, d_, column + j * query_block);
    }
    const auto shrink = exp2(d_, hn::Sub(before, maximum));
    hn::StoreU(maximum, d_, maximum_ + strip);
    hn::StoreU(hn::MulAdd(hn::LoadU(d_, sum_ + strip), shrink, sum), d_, sum_ + strip);
    if (hn::AllTrue(d_, hn::Eq(before, maximum))) return;  // all factors are 1
    for (std::int64_t f = 0; f < s_.d_value; ++f) {
      C* row = output_t_ + f * query_block + strip;
      hn::StoreU(hn::Mul(hn::LoadU(d_, row), shrink), d_, row);
    }
  }

  bool are_finite(const HeadRows<const C>& values, std::int64_t n) const {
    auto sum = hn::Zero(d_);  // stays zero, except for 0 × infinity and 0 × NaN
    for (std::int64_t j = 0; j < n; ++j) {
      for_lanes<C>(s_.d_value, [&](std::int64_t f, std::int64_t lanes) {
        sum = hn::MulAdd(load_n(values.data + j * values.stride + f, lanes), hn::Zero(d_), sum);
      });
    }
    return hn::AllFalse(d_, hn::IsNaN(sum));
  }

  /// Adds the product of the values and a strip's weights, skipping pairs with weight zero, because zero does not
  /// remove a value that is not finite. The order of the sum is the same.
  void add_visible(std::int64_t strip, std::int64_t begin, std::int64_t end, const HeadRows<const C>& values) {
    for (std::int64_t f = 0; f < s_.d_value; ++f) {
      auto sum = hn::Zero(d_);
      for (std::int64_t j = begin; j < end; ++j) {
        const auto value = hn::Set(d_, values.data[j * values.stride + f]);
        const auto added = hn::MulAdd(value, hn::LoadU(d_, weights_ + j * query_block + strip), sum);
        sum = hn::IfThenElse(this->visible_lanes(strip, j), added, sum);
      }
      C* row = output_t_ + f * query_block + strip;
      hn::StoreU(hn::Add(sum, hn::LoadU(d_, row)), d_, row);
    }
  }

  void finish(std::int64_t batch, std::int64_t head, bool any) {
    for (std::int64_t i = 0; i < n_; ++i) {
      if (sum_[i] != 0 || (any && !this->sees_nothing(i))) continue;
      sum_[i] = 1;  // divides an output of zero; its logarithm is 0
      maximum_[i] = -std::numeric_limits<C>::infinity();
    }
    for (std::int64_t strip = 0; strip < columns_; strip += lanes_) {
      const auto sum = hn::LoadU(d_, sum_ + strip);
      const auto inverse = hn::Div(hn::Set(d_, C{1}), sum);
      for (std::int64_t f = 0; f < s_.d_value; ++f) {
        C* row = output_t_ + f * query_block + strip;
        // Adding zero makes a zero positive: its sign could come from a value that is not visible.
        hn::StoreU(hn::Add(hn::Mul(hn::LoadU(d_, row), inverse), hn::Zero(d_)), d_, row);
      }
      hn::StoreU(hn::MulAdd(hn::LoadU(d_, maximum_ + strip), hn::Set(d_, static_cast<C>(ln_2)), hn::Log(d_, sum)), d_,
                 sum_ + strip);
    }
    transpose<C>(s_.d_value, n_, output_t_, query_block, rows_, ld_v_);
    store_rows<C>(a_.output, false, batch, head, first_, n_, 1.0, rows_, ld_v_);
    if (a_.log_sum_exp.defined())
      std::copy_n(sum_, n_, a_.log_sum_exp.template data<C>() + (batch * s_.n_heads + head) * s_.n_query + first_);
  }

  C *rows_, *query_t_, *output_t_, *weights_, *maximum_, *sum_;
};

#ifdef FURLONG_SOFTMAX_BFLOAT16
void forward_in_bfloat16(const SoftmaxAttentionArguments& arguments) {
  const AttentionShape& shape = arguments.shape;
  const std::int64_t width = arguments.group, blocks = Sizes::query_blocks(shape),
                     groups = (blocks + width - 1) / width;
  run_tasks(shape, shape.batch * shape.n_heads * groups, [&](std::int64_t task) {
    const std::int64_t row = task / groups, batch = row / shape.n_heads, first = (groups - 1 - task % groups) * width;
    BFloat16Forward forward(arguments);
    BFloat16Forward::for_groups(
        arguments, batch, first, std::min(first + width, blocks),
        [&](const std::vector<SoftmaxAttentionBlock>& group) { forward.run(batch, row % shape.n_heads, group); });
  });
}
#endif

void Forward(const SoftmaxAttentionArguments& arguments) {
  if (arguments.mask.documents.defined()) find_document_boundaries(arguments);
#ifdef FURLONG_SOFTMAX_BFLOAT16
  if (arguments.bfloat16) return forward_in_bfloat16(arguments);
#endif
  with_float_type(arguments.query.dtype(), "softmax_attention", [&]<class T>(std::type_identity<T>) {
    const AttentionShape& shape = arguments.shape;
    const std::int64_t blocks = Sizes::query_blocks(shape);
    run_tasks(shape, shape.batch * shape.n_heads * blocks, [&](std::int64_t task) {
      const std::int64_t row = task / blocks, batch = row / shape.n_heads;
      ForwardBlock<T> forward(arguments);
      // The last blocks of a causal head have the most keys: they start first, so that threads finish at similar times.
      for_query_blocks(arguments, batch, blocks - 1 - task % blocks,
                       [&](const SoftmaxAttentionBlock& block) { forward.run(batch, row % shape.n_heads, block); });
    });
  });
}

/// Gradients from one segment of the queries of all heads that share a key-value head:
///   dV = Pᵀ dO,  dS = P ∘ (dO Vᵀ - rowsum(dO ∘ O)),  dQ = scale dS K,  dK = scale dSᵀ Q.
template <class T>
class BackwardSegment : QueryBlock<T> {
  using Base = QueryBlock<T>;
  using Base::a_, Base::s_, Base::d_, Base::lanes_, Base::ld_k_, Base::ld_v_, Base::first_, Base::n_, Base::columns_,
      Base::keys_, Base::values_;
  using typename Base::C, typename Base::D;

 public:
  BackwardSegment(const SoftmaxAttentionArguments& arguments, const SoftmaxAttentionGradients& gradients, C* sums)
      : Base(arguments), g_(gradients), key_sums_(sums), value_sums_(sums ? sums + s_.n_key * ld_k_ : nullptr) {
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
      for (std::int64_t index = first_block; index < end_block; ++index) {
        for_query_blocks(a_, batch, index, [&](const SoftmaxAttentionBlock& block) {
          load(batch, head, block);
          this->for_tiles(keys, values, [&](const KeyTile<C>& tile) { add(tile); });
          if (!g_.d_query.wanted()) return;
          transpose<C>(s_.d_key, n_, d_query_t_, query_block, d_query_, ld_k_);
          store_rows<C>(g_.d_query.tensor, g_.d_query.accumulates(), batch, head, first_, n_, a_.scale, d_query_,
                        ld_k_);
        });
      }
    }
  }

 private:
  void load(std::int64_t batch, std::int64_t head, const SoftmaxAttentionBlock& block) {
    this->begin(batch, block);
    load_rows(head_rows<T>(a_.query, batch, head), first_, n_, s_.d_key, a_.scale * log2_e, query_, ld_k_);
    transpose_queries(n_, s_.d_key, query_, ld_k_, query_t_);
    load_rows(head_rows<T>(g_.d_output, batch, head), first_, n_, s_.d_value, 1.0, d_output_, ld_v_);
    transpose_queries(n_, s_.d_value, d_output_, ld_v_, d_output_t_);
    load_rows(head_rows<T>(a_.output, batch, head), first_, n_, s_.d_value, 1.0, output_, ld_v_);
    if (g_.d_query.wanted()) std::fill_n(d_query_t_, s_.d_key * query_block, C{0});
    const C* log_sum_exp = a_.log_sum_exp.template data<C>() + (batch * s_.n_heads + head) * s_.n_query + first_;
    for (std::int64_t i = 0; i < query_block; ++i) {
      // Queries beyond the end of a last block have weight 2^-inf = 0 for every key. A query without visible keys gets
      // zero weights from its tiles' masks.
      log_sum_exp_[i] = i < n_ ? log_sum_exp[i] * static_cast<C>(log2_e) : std::numeric_limits<C>::infinity();
      row_dots_[i] = i < n_ ? this->row_dot(d_output_ + i * ld_v_, output_ + i * ld_v_) : C{0};
    }
  }

  void add(const KeyTile<C>& tile) {
    const bool scores_wanted = g_.d_query.wanted() || g_.d_key.wanted();
    const auto [first_key, n_keys, keys, values, whole] = tile;
    small_gemm_nn<C>(n_keys, columns_, s_.d_key, keys.data, keys.stride, query_t_, query_block, weights_, query_block,
                     false);
    if (scores_wanted) {
      small_gemm_nn<C>(n_keys, columns_, s_.d_value, values.data, values.stride, d_output_t_, query_block, d_scores_,
                       query_block, false);
    }
    for (std::int64_t strip = 0; strip < columns_; strip += lanes_) {
      whole ? weigh<false>(strip, n_keys, scores_wanted) : weigh<true>(strip, n_keys, scores_wanted);
    }
    if (g_.d_value.wanted()) {
      small_gemm_nn<C>(n_keys, s_.d_value, n_, weights_, query_block, d_output_, ld_v_, value_sums_ + first_key * ld_v_,
                       ld_v_, true);
    }
    if (g_.d_key.wanted()) {
      small_gemm_nn<C>(n_keys, s_.d_key, n_, d_scores_, query_block, query_, ld_k_, key_sums_ + first_key * ld_k_,
                       ld_k_, true);
    }
    if (g_.d_query.wanted()) {
      small_gemm_tn<C>(s_.d_key, columns_, n_keys, keys.data, keys.stride, d_scores_, query_block, d_query_t_,
                       query_block, true);
    }
  }

  /// Turns scores into weights, and gradients of weights into gradients of scores, for one strip of queries.
  template <bool masked>
  HWY_INLINE void weigh(std::int64_t strip, std::int64_t n_keys, bool scores_wanted) {
    const auto log_sum_exp = hn::LoadU(d_, log_sum_exp_ + strip), row_dots = hn::LoadU(d_, row_dots_ + strip);
    for (std::int64_t j = 0; j < n_keys; ++j) {
      C* const weight_row = weights_ + j * query_block + strip;
      C* const score_row = d_scores_ + j * query_block + strip;
      auto weight = exp2(d_, hn::Sub(hn::LoadU(d_, weight_row), log_sum_exp));
      auto d_score = scores_wanted ? hn::Mul(weight, hn::Sub(hn::LoadU(d_, score_row), row_dots)) : weight;
      if constexpr (masked) {
        const auto is_visible = this->visible_lanes(strip, j);
        weight = hn::IfThenElseZero(is_visible, weight);
        d_score = hn::IfThenElseZero(is_visible, d_score);
      }
      hn::StoreU(weight, d_, weight_row);
      if (scores_wanted) hn::StoreU(d_score, d_, score_row);
    }
  }

  const SoftmaxAttentionGradients& g_;
  C *const key_sums_, *const value_sums_;
  C *query_, *query_t_, *d_query_t_, *d_query_, *d_output_, *d_output_t_, *output_, *weights_, *d_scores_,
      *log_sum_exp_, *row_dots_;
};

/// Returns the first block of a segment, such that segments cost about the same: a block costs one per visible tile.
std::int64_t segment_begin(const SoftmaxAttentionArguments& arguments, std::int64_t batch, std::int64_t segment,
                           std::int64_t segments) {
  const AttentionShape& shape = arguments.shape;
  const std::int64_t blocks = Sizes::query_blocks(shape);
  const auto cost = [&](std::int64_t block) {
    const std::int64_t first = block * query_block, position = arguments.first_query_position + first,
                       last = position + std::min(query_block, shape.n_query - first) - 1;
    std::int64_t begin = std::max<std::int64_t>(0, position - arguments.behind),
                 end = std::min(shape.n_key, last + arguments.ahead + 1);
    if (arguments.boundaries.defined()) {
      const std::int32_t* boundaries = arguments.boundaries.data<std::int32_t>() + (batch * blocks + block) * 2;
      begin = std::max<std::int64_t>(begin, boundaries[0]);
      end = std::min<std::int64_t>(end, boundaries[1]);
    }
    return static_cast<double>(std::max<std::int64_t>(end - begin, 0) +
                               1);  // a block without visible keys has a cost too
  };
  double total = 0, sum = 0;
  for (std::int64_t block = 0; block < blocks; ++block) total += cost(block);
  std::int64_t block = 0;
  while (block < blocks && sum + cost(block) / 2 < total * static_cast<double>(segment) / static_cast<double>(segments))
    sum += cost(block++);
  return segment == segments ? blocks : block;
}

/// Writes the gathered sums of keys [first, first + n). `key_factor` is what their products with the query lack.
template <class C>
void store_sums(const SoftmaxAttentionArguments& arguments, const SoftmaxAttentionGradients& gradients, const C* sums,
                double key_factor, std::int64_t batch, std::int64_t kv_head, std::int64_t first, std::int64_t n) {
  const AttentionShape& shape = arguments.shape;
  const std::int64_t ld_k = Sizes::padded(shape.d_key), ld_v = Sizes::padded(shape.d_value);
  const auto store = [&](const GradientTarget& target, double factor, const C* rows, std::int64_t ld) {
    if (target.wanted())
      store_rows<C>(target.tensor, target.accumulates(), batch, kv_head, first, n, factor, rows + first * ld, ld);
  };
  store(gradients.d_key, key_factor, sums, ld_k);
  store(gradients.d_value, 1.0, sums + shape.n_key * ld_k, ld_v);
}

template <class T>
void add_segments(const SoftmaxAttentionArguments& arguments, const SoftmaxAttentionGradients& gradients,
                  double key_factor) {
  using C = compute_t<T>;
  const AttentionShape& shape = arguments.shape;
  const std::int64_t ld_k = Sizes::padded(shape.d_key), ld_v = Sizes::padded(shape.d_value),
                     blocks = (shape.n_key + key_block - 1) / key_block;
  run_tasks(shape, shape.batch * shape.n_kv_heads * blocks, [&](std::int64_t task) {
    const std::int64_t pair = task / blocks, first = task % blocks * key_block,
                       n = std::min(key_block, shape.n_key - first);
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
    store_sums<C>(arguments, gradients, sums(0), key_factor, pair / shape.n_kv_heads, pair % shape.n_kv_heads, first,
                  n);
  });
}

/// Segment is BackwardSegment or its like.
template <class T, class Segment>
void add_gradients(const SoftmaxAttentionArguments& arguments, const SoftmaxAttentionGradients& gradients,
                   double key_factor) {
  using C = compute_t<T>;
  const AttentionShape& shape = arguments.shape;
  const std::int64_t segments = gradients.segments;
  run_tasks(shape, shape.batch * shape.n_kv_heads * segments, [&](std::int64_t task) {
    const std::int64_t batch = task / segments / shape.n_kv_heads, kv_head = task / segments % shape.n_kv_heads,
                       segment = task % segments;
    const std::int64_t slot = segments == 1 ? thread_index() : task;
    C* sums = gradients.sums.defined() ? gradients.sums.data<C>() + slot * gradients.sums.extent(1) : nullptr;
    Segment backward(arguments, gradients, sums);
    backward.run(batch, kv_head, segment_begin(arguments, batch, segment, segments),
                 segment_begin(arguments, batch, segment + 1, segments));
    if (sums && segments == 1) store_sums<C>(arguments, gradients, sums, key_factor, batch, kv_head, 0, shape.n_key);
  });
  if (gradients.sums.defined() && segments > 1) add_segments<T>(arguments, gradients, key_factor);
}

void Backward(const SoftmaxAttentionArguments& arguments, const SoftmaxAttentionGradients& gradients) {
  if (arguments.mask.documents.defined()) find_document_boundaries(arguments);
#ifdef FURLONG_SOFTMAX_BFLOAT16
  if (arguments.bfloat16) return add_gradients<bfloat16, BFloat16Backward>(arguments, gradients, arguments.scale);
#endif
  with_float_type(arguments.query.dtype(), "softmax_attention", [&]<class T>(std::type_identity<T>) {
    // The query was multiplied by scale × log2(e), so its products with d_scores lack the factor ln 2.
    add_gradients<T, BackwardSegment<T>>(arguments, gradients, ln_2);
  });
}

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace furlong::ops {
HWY_EXPORT(Forward);
HWY_EXPORT(Backward);

void softmax_attention_forward_cpu(const SoftmaxAttentionArguments& arguments) {
  HWY_DYNAMIC_DISPATCH(Forward)(arguments);
}
void softmax_attention_backward_cpu(const SoftmaxAttentionArguments& arguments,
                                    const SoftmaxAttentionGradients& gradients) {
  HWY_DYNAMIC_DISPATCH(Backward)(arguments, gradients);
}
}  // namespace furlong::ops
#endif
