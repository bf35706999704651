// One head of one sequence of linear attention: chunk after chunk, forward and backward. Per-target include guard; see
// framework/simd/simd-inl.h.
#if defined(FURLONG_LINEAR_ATTENTION_HEAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FURLONG_LINEAR_ATTENTION_HEAD_INL_H_
#undef FURLONG_LINEAR_ATTENTION_HEAD_INL_H_
#else
#define FURLONG_LINEAR_ATTENTION_HEAD_INL_H_
#endif

#include <vector>

#include "framework/ops/attention/feature_maps/feature_map_cpu.h"
#include "framework/ops/attention/linear/cpu/rows-inl.h"
#include "framework/ops/attention/linear/cpu/tile-inl.h"
#include "framework/ops/attention/linear/linear_attention_ranges.h"
#include "framework/primitives/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {

template <class T, class Tile>
class LinearAttentionHead {
  using V = typename Lanes<T>::V;
  static constexpr typename Lanes<T>::D d{};

 public:
  LinearAttentionHead(const LinearAttentionArguments& arguments, const FeatureMapFunctions<T>& functions, Tile& tile,
                      std::int64_t b, std::int64_t head)
      : a_(arguments), options_(arguments.options), functions_(functions), tile_(tile), s_(tile.s), b_(b), head_(head) {
    kv_head_ = head / (options_.n_heads / options_.n_kv_heads);
    n_query_ = a_.query.extent(1);
    n_key_ = a_.key.extent(1);
    pure_ = options_.causal && options_.window == 0 && options_.softmax_window == 0;
    mask_ = a_.mask.keys.defined() ? a_.mask.keys.template data<std::int32_t>() + b * n_key_ : nullptr;
    const std::int64_t width = s_.d;
    query_center_ = constant(a_.constants.query_center, width);
    key_center_ = constant(a_.constants.key_center, width);
    scaling_ = constant(a_.constants.scaling, width);
    weighted_ = mask_ || query_center_;
    describe_features();
    tile.rms = options_.normalizer == Normalizer::rms;
    tile.guarded = a_.guarded;
    tile.guard = static_cast<T>(options_.denominator_guard);
    tile.score_scale = features_.scale * features_.scale;
    tile.gate = gate();
  }

  /// `swept` stores the rows of the first of two sweeps.
  void forward(const SweptRows<T>& swept) {
    for_sweeps([&] {
      for (const Range& range : documents()) forward(range, swept);
    });
  }

  /// Writes d_query to its target. Adds d_key and d_value to `sums`, or writes them if it has no memory for them.
  void backward(const LinearAttentionGradients& gradients, const HeadGradients<T>& sums) {
    tile_.d_gate = 0;
    for_sweeps([&] {
      for (const Range& range : documents()) {
        enter(range);
        sweep_queries(gradients, range, sums);
        sweep_keys(gradients, range, sums);
      }
    });
    write(gradients.d_query, head_, 0, n_query_, sums.d_query, s_.d, s_.ld_d);
    if (gradients.d_gate.defined())
      gradients.d_gate.data<T>()[b_ * options_.n_heads + head_] = static_cast<T>(tile_.d_gate);
  }
  /// Gathers the sums over this segment's keys that later segments need.
  void gather_keys() {
    gather(true, [&](const Range& range) { absorb(range.first_key, range.end_key); });
  }
  /// Gathers the sums over this segment's queries that earlier segments need, as sweep_keys would over all queries.
  void gather_queries(const LinearAttentionGradients& gradients) {
    gather(false, [&](const Range& range) {
      for (std::int64_t chunk = query_chunks(range) - 1; chunk >= 0; --chunk) {
        load_query_chunk(gradients, range, chunk);
        tile_.gather_queries(query_rows(range, chunk));
      }
    });
  }
  /// Writes the gradients of keys [start, start + rows).
  void write_key_gradients(const LinearAttentionGradients& gradients, std::int64_t start, std::int64_t rows,
                           const T* d_key, const T* d_value) const {
    start -= a_.query_offset;  // earlier keys, from the state, have no gradient
    write(gradients.d_key, kv_head_, start, rows, d_key, s_.d, s_.ld_d);
    write(gradients.d_value, kv_head_, start, rows, d_value, s_.d_value, s_.ld_v);
  }

 private:
  /// Writes the sums of the last or the first document to a_.gathered; without causality first those of the first, then
  /// those of the last.
  template <class Sum>
  void gather(bool last, const Sum& sum) {
    const std::vector<Range> ranges = documents();
    const bool both = !options_.causal && a_.mask.documents.defined();
    for (std::int64_t end = 0; end < (both ? 2 : 1); ++end) {
      const Range& range = (both ? end == 1 : last) ? ranges.back() : ranges.front();
      if (end == 0 || ranges.size() > 1) {
        enter(range);
        tile_.clear_state();
        sum(range);
      }
      store_state(*a_.gathered, end);
    }
  }

  // Given the stabilizer and the denominator over all visible keys, each key's part of the gradients is independent of
  // other keys. So forward and backward use the same two sweeps. The second is the causal walk over the tokens in
  // reverse order, in which a query does not attend to its own key.
  template <class Walk>
  void for_sweeps(const Walk& walk) {
    if (!s_.two_sweeps) return walk();
    tile_.sweep = Sweep::first;
    walk();
    tile_.sweep = Sweep::second;
    tile_.step = -1;
    walk();
    tile_.sweep = Sweep::only;
    tile_.step = 1;
  }
  bool reversed() const { return tile_.sweep == Sweep::second; }
  bool causal() const { return options_.causal || s_.two_sweeps; }
  /// Returns the memory position of the token that the sweep numbers `token`.
  std::int64_t place(std::int64_t token) const { return reversed() ? n_key_ - 1 - token : token; }

  using Range = LinearAttentionRange;
  std::vector<Range> documents() const { return linear_attention_ranges(a_, b_, reversed()); }
  /// Starts a document: positions restart at 0. The first document of a segment may start in an earlier segment.
  void enter(const Range& range) {
    const bool open = range.first_key == 0 && !a_.open_document_tokens.empty();
    document_start_ = open ? -a_.open_document_tokens[static_cast<std::size_t>(b_)] : range.first_key;
  }

  const T* constant(const Tensor& tensor, std::int64_t width) const {
    return tensor.defined() ? tensor.data<T>() + head_ * width : nullptr;
  }
  T gate() const {
    T value = 0;
    if (!a_.gate.defined()) return value;
    with_float_type(a_.gate.dtype(), "linear_attention", [&]<class X>(std::type_identity<X>) {
      value = static_cast<T>(static_cast<compute_t<X>>(a_.gate.data<X>()[head_]));
    });
    return value;
  }
  void describe_features() {
    features_.d = s_.d;
    features_.m = s_.m;
    features_.n_projections = a_.n_projections;
    features_.ld_x = s_.ld_d;
    features_.ld_m = s_.ld_m;
    features_.scale = static_cast<T>(std::pow(static_cast<double>(s_.d), -0.25));
    features_.kernel_epsilon = static_cast<T>(options_.map_options.kernel_epsilon);
    features_.order = options_.map_options.order;
    features_.scratch = tile_.map_scratch;
    if (a_.constants.oprf_a.defined()) features_.oprf_a = a_.constants.oprf_a.template data<T>()[head_];
    if (!a_.constants.random_projection.defined()) return;
    const std::int64_t set = a_.constants.random_projection.shape().rank() == 3 ? head_ : 0;
    features_.ld_directions = a_.directions_transposed.extent(-1);
    features_.random_projection = a_.constants.random_projection.template data<T>() + set * a_.n_projections * s_.d;
    features_.directions_transposed =
        a_.directions_transposed.template data<T>() + set * s_.d * features_.ld_directions;
    features_.direction_norms = a_.direction_norms.template data<T>() + set * a_.n_projections;
    if (!a_.packed_directions.defined()) return;
    features_.bfloat16 = s_.bfloat16;
    features_.packed_directions = packed_matrix(a_.packed_directions, set);
    if (query_center_ || key_center_ || scaling_) return;  // rows with more than bfloat16's digits
    features_.packed_directions_transposed = packed_matrix(a_.packed_directions_transposed, set);
  }

  // ---- rows in and out ----
  void read(const Tensor& tensor, std::int64_t head, std::int64_t start, std::int64_t rows, T* tile,
            std::int64_t ld) const {
    read_rows<T>({tensor, b_, head, place(start), tile_.step}, rows, tile, ld);
    const std::int64_t next = start + ahead_ * s_.chunk;
    if (next >= 0 && next + rows <= tensor.extent(1))
      tile_.upcoming.add({tensor, b_, head, place(next), tile_.step}, rows);
  }
  /// Writes rows [start, start + rows) of a gradient; those before row 0 are left out.
  void write(const GradientTarget& target, std::int64_t head, std::int64_t start, std::int64_t rows, const T* values,
             std::int64_t width, std::int64_t ld) const {
    const std::int64_t skip = std::max<std::int64_t>(0, -start);
    if (!target.wanted() || skip >= rows) return;
    write_rows<T>({target.tensor, b_, head, place(start + skip), tile_.step}, target.accumulates(), rows - skip, width,
                  values + skip * ld, ld);
  }
  T* per_query(const Tensor& tensor, std::int64_t start) const {
    return tensor.defined() ? tensor.data<T>() + (b_ * options_.n_heads + head_) * n_query_ + place(start) : nullptr;
  }
  bool is_masked(std::int64_t key) const { return mask_ && mask_[place(key)] == 0; }

  /// Loads keys [start, start + rows), features unless only softmax reads them. A masked key: zeros, with weight zero.
  void load_keys(std::int64_t start, std::int64_t rows, bool with_features = true) {
    read(a_.key, kv_head_, start, rows, tile_.k, s_.ld_d);
    read(a_.value, kv_head_, start, rows, tile_.v, s_.ld_v);
    if (weighted_) std::fill_n(tile_.key_weight, s_.padded(rows), T{0});
    for (std::int64_t j = 0; mask_ && j < rows; ++j) {
      if (!is_masked(start + j)) continue;
      std::fill_n(tile_.k + j * s_.ld_d, s_.d, T{0});
      std::fill_n(tile_.v + j * s_.ld_v, s_.d_value, T{0});
    }
    for (std::int64_t j = 0; j < rows; ++j) {
      T* row = tile_.k + j * s_.ld_d;
      if (key_center_) transform(row, key_center_, [](V x, V center) HWY_ATTR { return hn::Sub(x, center); });
      if (query_center_) tile_.key_weight[j] = Tile::product_of(query_center_, row, s_.d) * tile_.score_scale;
      if (scaling_) transform(row, scaling_, [](V x, V by) HWY_ATTR { return hn::Div(x, by); });
      if (is_masked(start + j)) tile_.key_weight[j] = Tile::nothing;
    }
    if (!weighted_ && s_.softmax_pairs) std::fill_n(tile_.key_weight, s_.padded(rows), T{0});
    if (!with_features) return;
    functions_.features(features_, tile_.k, rows, true, tile_.feature_k,
                        Tile::form == FeatureForm::values ? tile_.row_k : nullptr);
    tile_.weigh_keys(rows, weighted_);
    if (s_.rotates) tile_.rotations_k.set(RotationPowers(a_.rotation), start - document_start_, rows);
  }
  void load_queries(std::int64_t start, std::int64_t rows) {
    read(a_.query, head_, start, rows, tile_.q, s_.ld_d);
    for (std::int64_t i = 0; i < rows && (query_center_ || scaling_); ++i) {
      T* row = tile_.q + i * s_.ld_d;
      if (query_center_) transform(row, query_center_, [](V x, V center) HWY_ATTR { return hn::Sub(x, center); });
      if (scaling_) transform(row, scaling_, [](V x, V by) HWY_ATTR { return hn::Mul(x, by); });
    }
    functions_.features(features_, tile_.q, rows, false, tile_.feature_q, s_.softmax_pairs ? tile_.log_q : nullptr);
    tile_.measure_queries(rows);
    if (s_.rotates) tile_.rotations_q.set(RotationPowers(a_.rotation), start + a_.query_offset - document_start_, rows);
  }
  /// row [d] = function(row, other).
  template <class Function>
  void transform(T* row, const T* other, const Function& function) const {
    for_lanes<T>(s_.d, [&](std::int64_t f, std::int64_t n)
                           HWY_ATTR { store_n(function(load_n(row + f, n), load_n(other + f, n)), row + f, n); });
  }
  /// Loads g = d_output of a chunk of queries, and the stored results of forward for them.
  void load_gradients(const LinearAttentionGradients& gradients, std::int64_t start, std::int64_t rows) {
    read(gradients.d_output, head_, start, rows, tile_.g, s_.ld_v);
    read(a_.output, head_, start, rows, tile_.out, s_.ld_v);
    tile_.gradient_rows(rows, per_query(a_.top, start), per_query(a_.inverse_denominator, start));
  }

  // ---- forward ----

  bool has_state_keys() const { return options_.window == 0; }
  bool has_near_keys() const { return causal() || options_.window > 0; }
  /// first_near, end_near: range of near keys for a chunk of queries at key positions [at, end).
  std::int64_t first_near(const Range& range, std::int64_t at) const {
    const std::int64_t reach = std::max<std::int64_t>({options_.window, options_.softmax_window, 1}) - 1;
    return std::max(range.first_key, at - reach);
  }
  std::int64_t end_near(const Range& range, std::int64_t end) const {
    return causal() ? end : std::min(range.end_key, end - 1 + options_.window);
  }
  NearPairs near_pairs(std::int64_t offset, std::int64_t columns) const {
    return {offset, columns, causal(), options_.window, options_.softmax_window, !reversed()};
  }

  /// Adds keys [absorbed, end) to the state; returns end.
  std::int64_t absorb(std::int64_t absorbed, std::int64_t end) {
    for (; absorbed < end; absorbed += std::min(s_.chunk, end - absorbed)) {
      const std::int64_t rows = std::min(s_.chunk, end - absorbed);
      load_keys(absorbed, rows);
      tile_.advance_state(rows);
    }
    return std::max(absorbed, end);
  }

  void forward(const Range& range, const SweptRows<T>& swept) {
    enter(range);
    start_state(range);
    std::int64_t absorbed = range.first_key;
    if (!has_near_keys()) absorbed = absorb(absorbed, range.end_key);
    for (std::int64_t start = range.first_query; start < range.end_query; start += s_.chunk) {
      const std::int64_t rows = std::min(s_.chunk, range.end_query - start), at = start + a_.query_offset;
      NearPairs pairs{.features = false};
      tile_.upcoming.clear();
      if (has_near_keys()) {
        const std::int64_t first = first_near(range, at), end = end_near(range, at + rows);
        if (has_state_keys()) absorbed = absorb(absorbed, first);
        pairs = near_pairs(at - first, end - first);
        pairs.features = pairs.any_features(rows);
        load_keys(first, end - first, pairs.features);
      }
      load_queries(start, rows);
      if (pairs.columns > 0) tile_.pair_products(rows, pairs);
      if (s_.two_sweeps) tile_.swept = swept.from(place(start), s_.ld_v);
      tile_.upcoming.add({a_.output, b_, head_, place(start), tile_.step}, rows);
      tile_.attend(rows, pairs, per_query(a_.top, start), per_query(a_.inverse_denominator, start));
      if (tile_.sweep != Sweep::first)
        write_rows<T>({a_.output, b_, head_, place(start), tile_.step}, false, rows, s_.d_value, tile_.out, s_.ld_v);
      if (pure_ && (a_.state || start + rows < range.end_query)) {  // the near keys are the chunk's own, already loaded
        tile_.advance_state(rows);
        absorbed = at + rows;
      }
    }
    if (!a_.state) return;
    if (has_state_keys())
      absorb(absorbed, std::max(absorbed, range.end_key - LinearAttentionArguments::recent_keys(options_)));
    store_state(*a_.state, 0);
  }

  void start_state(const Range& range) {
    load_state(range, false, a_.start_sum, a_.start_normalizer, a_.start_maximum, a_.start_magnitude);
  }
  void end_state(const Range& range) {
    load_state(range, true, a_.end_sum, a_.end_normalizer, a_.end_maximum, a_.end_magnitude);
  }
  /// Loads the state of earlier or (`later`) later segments; if not causal, of both. It applies to the first or last
  /// document of this segment; other documents, and undefined tensors, start from an empty state.
  void load_state(const Range& range, bool later, const Tensor& sum, const Tensor& normalizer, const Tensor& maximum,
                  const Tensor& magnitude) {
    tile_.clear_state();
    const bool first = range.first_key == 0, last = range.end_key == n_key_;
    const bool open = options_.causal ? (later ? last : first) : first || last;
    if (!sum.defined() || !open) return;
    const std::int64_t at = state_row(!options_.causal && !first ? 1 : 0), m = s_.m;
    tile_.load_state(sum.template data<T>() + at * m * s_.d_value, normalizer.template data<T>() + at * m,
                     maximum.template data<T>() + at * m, magnitude.template data<T>() + at);
  }
  /// Returns this head's row in a state that covers the documents at one end or at both ends.
  std::int64_t state_row(std::int64_t end) const { return (end * a_.query.extent(0) + b_) * options_.n_heads + head_; }
  void store_state(const LinearAttentionState& state, std::int64_t end) const {
    const std::int64_t at = state_row(end), m = s_.m;
    tile_.store_state(state.sum.template data<T>() + at * m * s_.d_value, state.normalizer.template data<T>() + at * m,
                      state.maximum.template data<T>() + at * m, state.magnitude.template data<T>() + at);
  }

  // ---- backward ----
  // Here keys are visited in chunks of the range. A pair of chunks is computed pair by pair if forward could have
  // computed any of its pairs so. Both ways give the same feature weights, except for rounding.

  std::int64_t chunks(std::int64_t tokens) const { return (tokens + s_.chunk - 1) / s_.chunk; }
  std::int64_t key_chunks(const Range& range) const { return chunks(range.n_key()); }
  std::int64_t query_chunks(const Range& range) const { return chunks(range.n_query()); }
  /// Returns the key position of the chunk's first query in the range. Queries before `query_offset` do not exist.
  std::int64_t query_position(const Range& range, std::int64_t chunk) const {
    return range.first_query + chunk * s_.chunk + a_.query_offset - range.first_key;
  }
  std::int64_t query_rows(const Range& range, std::int64_t chunk) const {
    return std::min(s_.chunk, range.n_query() - chunk * s_.chunk);
  }
  std::int64_t key_rows(const Range& range, std::int64_t chunk) const {
    return std::min(s_.chunk, range.n_key() - chunk * s_.chunk);
  }
  /// Returns the first chunk of keys that a chunk of queries meets pair by pair, or key_chunks() if there is none.
  std::int64_t first_near_chunk(const Range& range, std::int64_t chunk) const {
    if (!has_near_keys()) return key_chunks(range);
    return (first_near(range, query_position(range, chunk) + range.first_key) - range.first_key) / s_.chunk;
  }
  std::int64_t end_near_chunk(const Range& range, std::int64_t chunk) const {
    if (!has_near_keys()) return key_chunks(range);
    const std::int64_t end =
        end_near(range, query_position(range, chunk) + query_rows(range, chunk) + range.first_key) - range.first_key;
    return (end + s_.chunk - 1) / s_.chunk;
  }

  /// Returns a lower bound on the chunks of queries that meet this chunk of keys pair by pair.
  std::int64_t earliest_near(std::int64_t chunk) const {
    const std::int64_t ahead = causal() ? a_.query_offset : options_.window;
    return std::max<std::int64_t>(0, chunk - (ahead + s_.chunk - 1) / s_.chunk - 1);
  }

  void load_key_chunk(const Range& range, std::int64_t chunk) {
    load_keys(range.first_key + chunk * s_.chunk, key_rows(range, chunk));
  }
  void load_query_chunk(const LinearAttentionGradients& gradients, const Range& range, std::int64_t chunk) {
    const std::int64_t start = range.first_query + chunk * s_.chunk, rows = query_rows(range, chunk);
    load_queries(start, rows);
    load_gradients(gradients, start, rows);
  }

  /// Computes d_x of the tile's queries from the gradients of their features, and writes it to target (adds it if
  /// `add`). `exact` includes the gradients of softmax pairs.
  void finish_queries(std::int64_t rows, bool exact, bool add, T* target) {
    functions_.backward(features_, tile_.q, rows, false, tile_.feature_q, tile_.d_feature_q,
                        exact ? tile_.d_log_q : nullptr, tile_.d_x);
    if (exact) add_rows(tile_.d_x, 1, tile_.d_x_q, rows, s_.d, s_.ld_d);
    for (std::int64_t i = 0; scaling_ && i < rows; ++i)
      transform(tile_.d_x + i * s_.ld_d, scaling_, [](V x, V by) HWY_ATTR { return hn::Mul(x, by); });
    if (add) {
      add_rows(target, tile_.step, tile_.d_x, rows, s_.d, s_.ld_d);
    } else {
      std::copy_n(tile_.d_x, rows * s_.ld_d, target);
    }
  }
  void finish_keys(const LinearAttentionGradients& gradients, const Range& range, std::int64_t chunk, bool exact,
                   const HeadGradients<T>& sums) {
    const std::int64_t start = range.first_key + chunk * s_.chunk, rows = key_rows(range, chunk);
    const T* d_logs = tile_.d_key_logs(rows, weighted_);
    functions_.backward(features_, tile_.k, rows, true, tile_.feature_k, tile_.d_feature_k, d_logs, tile_.d_x);
    if (exact) add_rows(tile_.d_x, 1, tile_.d_x_k, rows, s_.d, s_.ld_d);
    for (std::int64_t j = 0; j < rows; ++j) {
      T* row = tile_.d_x + j * s_.ld_d;
      if (scaling_) transform(row, scaling_, [](V x, V by) HWY_ATTR { return hn::Div(x, by); });
      if (query_center_) {
        const auto by = hn::Set(d, tile_.d_key_weight[j] * tile_.score_scale);
        transform(row, query_center_, [&](V x, V center) HWY_ATTR { return hn::MulAdd(by, center, x); });
      }
      if (is_masked(start + j)) {
        std::fill_n(row, s_.d, T{0});
        std::fill_n(tile_.d_v + j * s_.ld_v, s_.d_value, T{0});
      }
    }
    if (!sums.d_key) return write_key_gradients(gradients, start, rows, tile_.d_x, tile_.d_v);
    add_rows(sums.d_key + place(start) * s_.ld_d, tile_.step, tile_.d_x, rows, s_.d, s_.ld_d);
    add_rows(sums.d_value + place(start) * s_.ld_v, tile_.step, tile_.d_v, rows, s_.d_value, s_.ld_v);
  }

  /// Returns the row of the chunk's first query.
  T* d_query_of(const HeadGradients<T>& sums, const Range& range, std::int64_t chunk) const {
    return sums.d_query + place(range.first_query + chunk * s_.chunk) * s_.ld_d;
  }

  /// First sweep, forward over the range: the part of d_query that comes from the state.
  void sweep_queries(const LinearAttentionGradients& gradients, const Range& range, const HeadGradients<T>& sums) {
    start_state(range);
    if (tile_.has_state) tile_.transpose_state();
    std::int64_t absorbed = 0;
    for (std::int64_t chunk = 0; chunk < query_chunks(range); ++chunk) {
      const std::int64_t rows = query_rows(range, chunk);
      const std::int64_t end = has_state_keys() ? first_near_chunk(range, chunk) : 0;
      tile_.upcoming.clear();
      for (; absorbed < end; ++absorbed) {
        load_key_chunk(range, absorbed);
        tile_.advance_transposed_state(key_rows(range, absorbed));
      }
      T* target = d_query_of(sums, range, chunk);
      if (tile_.has_state) {
        load_query_chunk(gradients, range, chunk);
        tile_.d_query_from_state(rows);
        finish_queries(rows, false, reversed(), target);
      } else if (!reversed()) {
        std::fill(target, target + rows * s_.ld_d, T{0});
      }
    }
  }

  /// Second sweep, backward over the range: d_key and d_value from the gathered gradients of later queries, and all
  /// near pairs.
  void sweep_keys(const LinearAttentionGradients& gradients, const Range& range, const HeadGradients<T>& sums) {
    end_state(range);
    ahead_ = -1;
    const bool exact = options_.softmax_window > 0;
    std::int64_t gathered = query_chunks(range);  // chunks from here on are in the state
    std::int64_t loaded = -1;                     // the chunk of queries in the tile
    for (std::int64_t chunk = key_chunks(range) - 1; chunk >= 0; --chunk) {
      tile_.upcoming.clear();
      while (has_state_keys() && gathered > 0 && first_near_chunk(range, gathered - 1) > chunk) {
        if (loaded != --gathered) load_query_chunk(gradients, range, gathered);
        loaded = gathered;
        tile_.gather_queries(query_rows(range, gathered));
      }
      load_key_chunk(range, chunk);
      const std::int64_t columns = key_rows(range, chunk);
      tile_.d_key_from_later(columns);
      std::fill_n(tile_.d_key_weight, s_.padded(s_.chunk), T{0});
      if (exact) std::fill_n(tile_.d_x_k, s_.chunk * s_.ld_d, T{0});
      // In order, so that the last near chunk of queries is in the tile when it is gathered next.
      for (std::int64_t other = earliest_near(chunk); has_near_keys() && other < gathered; ++other) {
        if (end_near_chunk(range, other) <= chunk) continue;
        if (first_near_chunk(range, other) > chunk) break;
        if (loaded != other) load_query_chunk(gradients, range, other);
        loaded = other;
        pair(range, other, chunk, columns, exact, sums);
      }
      finish_keys(gradients, range, chunk, exact, sums);
    }
    ahead_ = 1;
  }

  void pair(const Range& range, std::int64_t queries, std::int64_t keys, std::int64_t columns, bool exact,
            const HeadGradients<T>& sums) {
    const std::int64_t rows = query_rows(range, queries);
    const NearPairs pairs = near_pairs(query_position(range, queries) - keys * s_.chunk, columns);
    tile_.pair_products(rows, pairs);
    tile_.pair_gradients(rows, pairs);
    finish_queries(rows, exact, true, d_query_of(sums, range, queries));
  }

  const LinearAttentionArguments& a_;
  const LinearAttentionOptions& options_;
  const FeatureMapFunctions<T>& functions_;
  Tile& tile_;
  const LinearAttentionSizes& s_;
  const std::int64_t b_, head_;
  std::int64_t kv_head_ = 0, n_query_ = 0, n_key_ = 0;
  std::int64_t document_start_ = 0;  // token with position 0
  std::int64_t ahead_ = 1;           // the order in which chunks are read: forward in the walk (1) or backward (-1)
  bool pure_ = false, weighted_ = false;
  const std::int32_t* mask_ = nullptr;
  const T *query_center_ = nullptr, *key_center_ = nullptr, *scaling_ = nullptr;
  FeatureTile<T> features_;
};

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
