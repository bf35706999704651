#pragma once
// The composed kernels of linear attention on GPUs: the arguments of one call, its constants, and its scratch. On the
// host; for the launches.
#include <vector>

#include "framework/ops/attention/linear/cuda/composed_features.cuh"
#include "framework/ops/attention/linear/cuda/composed_states.cuh"

namespace furlong::ops {
namespace FURLONG_GPU {

/// Allocates arrays one after another. Without memory it only counts bytes.
struct Arena {
  char* memory = nullptr;
  std::int64_t bytes = 0;

  template <class T>
  void operator()(T*& array, std::int64_t elements) {
    array = memory ? reinterpret_cast<T*>(memory + bytes) : nullptr;
    bytes += ceil_div(elements * std::int64_t{sizeof(T)}, 256) * 256;
  }
  template <class T>
  void operator()(Parts<T>& parts, std::int64_t elements, int count) {
    parts.plane = ceil_div(elements, 8) * 8;
    parts.count = sizeof(T) == 4 ? count : 1;
    (*this)(parts.data, parts.plane * parts.count);
  }
};

/// Chunks of a span: its own, and those that it reads.
struct ComposedSpan {
  std::int64_t begin, end, first, last;
};

/// Arguments and memory of one call. T is float or double.
template <class T>
class ComposedScratch {
 public:
  ComposedScratch(const Stream& stream, const LinearAttentionArguments& arguments, bool backward)
      : stream_(stream), in_(arguments), backward_(backward) {
    describe();
    prepare_constants();
    allocate();
  }

 protected:
  const Stream& stream_;
  const LinearAttentionArguments& in_;
  const bool backward_;
  bool logarithms_ = false, directed_ = false;
  Composed<T> c_{};
  std::vector<Tensor> memory_;
  std::int64_t span_chunks_ = 1;
  /// States at the outer borders of the spans, by side and direction; total: at index 0.
  ComposedStates<T> outer_[2][2]{};

  std::int64_t heads() const { return c_.heads(); }
  static ComposedRows rows(const Tensor& tensor, bool accumulates = false) {
    return {tensor.address(),
            tensor.strides()[0],
            tensor.strides()[1],
            tensor.strides()[2],
            tensor.dtype() == DType::bfloat16,
            accumulates};
  }
  template <class X>
  X* array(std::int64_t elements, DType dtype) {
    memory_.push_back(Tensor::empty(Shape({std::max<std::int64_t>(elements, 1)}), dtype, stream_.device));
    return gpu_data<X>(memory_.back());
  }

  // ---- the call ----

  void describe() {
    const LinearAttentionOptions& options = in_.options;
    const auto narrow = [](std::int64_t extent) {
      require(extent < (std::int64_t{1} << 30), "linear_attention: {} rows or columns, expected fewer than 2^30",
              extent);
      return static_cast<int>(extent);
    };
    const auto padded = [&](std::int64_t extent) { return narrow(ceil_div(extent, 16) * 16); };
    const FeatureMapInfo& info = feature_map_info(options.feature_map);
    logarithms_ = info.form == FeatureForm::logarithms;
    c_.map = options.feature_map;
    c_.mean_over = features_in_mean(info, in_.features, in_.n_projections);
    c_.map_options = options.map_options;
    c_.d = narrow(in_.sizes.d);
    c_.d_value = narrow(in_.sizes.d_value);
    c_.m = narrow(in_.features);
    c_.d_padded = padded(c_.d);
    c_.v_padded = padded(c_.d_value);
    c_.m_padded = padded(c_.m);
    c_.parts = in_.query.dtype() == DType::float32 ? 3 : 2;
    c_.chunk = gpu_min(padded(in_.sizes.chunk), 128);
    c_.causal = options.causal;
    c_.softmax = in_.sizes.softmax_pairs;
    c_.compensated = in_.sizes.compensated;
    c_.rotates = in_.sizes.rotates && c_.m > 1;  // a single feature is not rotated
    c_.stated = options.window == 0;
    c_.paired = c_.causal || c_.softmax || options.window > 0 || in_.mask.documents.defined();
    c_.total = !c_.paired;
    if (c_.paired) c_.before = narrow(ceil_div(LinearAttentionArguments::recent_keys(options), c_.chunk));
    c_.batch = narrow(in_.query.extent(0));
    c_.n_query = in_.query.extent(1);
    c_.n_key = in_.key.extent(1);
    c_.before = narrow(gpu_min(std::int64_t{c_.before}, ceil_div(gpu_max(c_.n_key, std::int64_t{1}), c_.chunk)));
    c_.after = c_.causal ? 0 : c_.before;
    c_.near = (c_.before + c_.after + 1) * c_.chunk;
    c_.rms = options.normalizer == Normalizer::rms;
    c_.guarded = in_.guarded;
    c_.weighted = in_.mask.keys.defined() || in_.constants.query_center.defined();
    c_.n_heads = narrow(options.n_heads);
    c_.n_kv_heads = narrow(options.n_kv_heads);
    c_.window = options.window;
    c_.softmax_window = options.softmax_window;
    c_.query_offset = in_.query_offset;
    c_.guard = static_cast<T>(options.denominator_guard);
    const T scale = static_cast<T>(1 / std::sqrt(std::sqrt(static_cast<double>(c_.d))));
    c_.score_scale = scale * scale;
    c_.query = rows(in_.query);
    c_.key = rows(in_.key);
    c_.value = rows(in_.value);
    c_.output = rows(in_.output);
    c_.gate = in_.gate.defined() ? in_.gate.address() : nullptr;
    c_.gate_dtype = in_.gate.defined() ? in_.gate.dtype() : DType::float32;
    c_.query_center = gpu_data<T>(in_.constants.query_center);
    c_.key_center = gpu_data<T>(in_.constants.key_center);
    c_.scaling = gpu_data<T>(in_.constants.scaling);
    c_.oprf_a = info.needs_oprf_a ? gpu_data<T>(in_.constants.oprf_a) : nullptr;
    c_.mask = gpu_data<std::int32_t>(in_.mask.keys);
    c_.has_start = in_.start_sum.defined();
  }

  void prepare_constants() {
    const Tensor& projection = in_.constants.random_projection;
    c_.n_projections = static_cast<int>(in_.n_projections);
    directed_ = projection.defined();
    if (directed_) {
      c_.random_projection = gpu_data<T>(projection);
      c_.direction_sets = projection.shape().rank() == 3 ? static_cast<int>(projection.extent(0)) : 1;
      const std::int64_t padded = std::int64_t{c_.direction_sets} * projected();
      T* norms = nullptr;
      if (feature_map_info(c_.map).needs_oprf_a)
        norms = array<T>(std::int64_t{c_.direction_sets} * c_.n_projections, projection.dtype());
      c_.direction_norms = norms;
      Arena arena;
      arena(c_.projection_parts, padded * c_.d_padded, c_.parts);
      arena = {reinterpret_cast<char*>(array<std::uint8_t>(arena.bytes, DType::uint8)), 0};
      arena(c_.projection_parts, padded * c_.d_padded, c_.parts);
      if (padded > 0)
        launch(stream_, linear_attention_projection_kernel<T>, grid_blocks(padded, 8, 4096), 256, 0,
               c_.random_projection, std::int64_t{c_.direction_sets}, c_.n_projections, projected(), c_.d, c_.d_padded,
               c_.projection_parts, norms);
    }
    if (c_.rotates) {
      const std::int64_t last = gpu_max(c_.query_offset + c_.n_query, c_.n_key) - 1;
      std::int64_t powers = 0;
      for (std::int64_t rest = gpu_max(last, std::int64_t{0}); rest > 0; rest >>= 1) ++powers;
      double* table = array<double>((1 + powers) * 2 * c_.half(), DType::float64);
      launch(stream_, linear_attention_powers_kernel<double>, grid_blocks((1 + powers) * c_.half(), 256), 256, 0,
             std::log(in_.options.rotary_base), c_.m, in_.first_position, powers, table);
      c_.rotation = table;
    }
    if (in_.mask.documents.defined() && c_.batch > 0) {
      auto *first = array<std::int32_t>(c_.batch * c_.n_key, DType::int32),
           *end = array<std::int32_t>(c_.batch * c_.n_key, DType::int32);
      launch(stream_, linear_attention_documents_kernel<std::int32_t>, static_cast<unsigned>(c_.batch),
             c_.n_key > 512 ? 256 : 32, 0, gpu_data<std::int32_t>(in_.mask.documents), c_.n_key, first, end);
      c_.document_first = first;
      c_.document_end = end;
    }
  }
  int projected() const { return ceil_div(c_.n_projections, 16) * 16; }

  // ---- scratch and spans ----

  std::int64_t chunks_of(bool of_keys) const {
    return ceil_div(of_keys || c_.paired ? c_.n_key : c_.n_query, c_.chunk);
  }
  std::int64_t spans(bool of_keys) const { return ceil_div(chunks_of(of_keys), span_chunks_); }

  void place_states(Arena& arena, ComposedStates<T>& states, std::int64_t borders, bool of_span) {
    const std::int64_t all = heads() * borders, sums = all * c_.m_padded * c_.v_padded;
    states.borders = borders;
    arena(states.sum, sums);
    arena(states.normalizer, all * c_.m);
    arena(states.maximum, all * c_.m);
    arena(states.scalars, all * 3);
    arena(states.not_finite, all * c_.v_padded);
    if (!of_span) return;
    arena(states.parts, sums, c_.parts);
    arena(states.own, all * c_.m);
    arena(states.rows, all * 2);
  }
  void place_side(Arena& arena, bool of_keys, std::int64_t count) {
    ComposedSide<T>& side = of_keys ? c_.k : c_.q;
    const std::int64_t d = count * c_.d_padded, m = count * c_.m_padded, v = count * c_.v_padded;
    arena(side.x, d);
    arena(side.features, m);
    for (T** numbers : {&side.size, &side.log, &side.weight, &side.factor[0], &side.factor[1]}) arena(*numbers, count);
    arena(side.not_finite, count);
    if (directed_ || c_.softmax) arena(side.x_parts, d, c_.parts);
    if (c_.paired || !logarithms_) arena(side.near, m, c_.parts);
    if (c_.rotates && (c_.paired || !logarithms_)) arena(side.rotated, m, c_.parts);
    arena(side.vectors, v, c_.parts);
    if (logarithms_)
      arena(side.sums, m, c_.parts);
    else
      arena(side.weighted, v, c_.parts);
    arena(side.near_vectors, v);
    for (int direction = 0; direction < 2; ++direction) {
      if (!c_.scans(of_keys, direction)) continue;
      if (logarithms_) arena(side.far[direction], m, c_.parts);
      arena(side.through[direction], v);
      if (backward_) arena(side.d_through[direction], m);
    }
    if (!backward_) return;
    for (T** rows : {&side.d_features, &side.d_near, &side.d_near_rotated}) {
      if (rows == &side.d_features || (c_.paired && (rows == &side.d_near || c_.rotates))) arena(*rows, m);
    }
    if (directed_) arena(side.d_projected, m, c_.parts);
    arena(side.half_gradient, count);
    arena(side.d_weight, count);
    arena(side.d_x, d);
    if (c_.softmax) arena(side.d_exact, d);
  }
  /// Places the arrays of a span of `chunks`.
  void place(Arena& arena, std::int64_t chunks) {
    c_.rows = static_cast<int>(chunks) * c_.chunk;
    const std::int64_t count = heads() * c_.rows;
    place_side(arena, false, count);
    place_side(arena, true, count);
    for (int direction = 0; direction < 2; ++direction) {
      if (c_.scans(false, direction)) place_states(arena, c_.states[direction], chunks + 1, true);
      if (backward_ && c_.scans(true, direction)) place_states(arena, c_.gathered[direction], chunks + 1, true);
    }
    if (c_.rotates) arena(c_.rotations, std::int64_t{c_.batch} * c_.rows * 2 * c_.half());
    for (T** numbers : {&c_.stabilizer, &c_.inverse, &c_.relative, &c_.delta, &c_.d_log}) arena(*numbers, count);
    if (backward_) arena(c_.g, count * c_.v_padded);
    if (!c_.paired) return;
    const std::int64_t pairs = heads() * c_.band();
    arena(c_.product, pairs);
    if (c_.rotates) arena(c_.rotated_product, pairs);
    if (c_.softmax) arena(c_.score, pairs);
    arena(c_.weights, pairs, c_.parts);
    if (!backward_) return;
    arena(c_.g_v, pairs);
    arena(c_.d_product, pairs, c_.parts);
    if (c_.rotates) arena(c_.d_rotated, pairs, c_.parts);
    if (c_.softmax) arena(c_.d_score, pairs, c_.parts);
  }
  /// Chunks before and after a span's own that it reads.
  std::int64_t margin_before() const { return c_.before; }
  std::int64_t margin_after() const { return backward_ ? c_.before : c_.after; }

  /// Chooses spans as long as the limit of the scratch allows, and allocates it. The choice depends on shapes alone.
  void allocate() {
    const std::int64_t all = std::max({chunks_of(false), chunks_of(true), std::int64_t{1}});
    Arena counted;
    place(counted, 1);
    const std::int64_t asked = in_.options.gpu.segments;
    span_chunks_ = asked > 0 ? ceil_div(all, asked) : all;
    const std::int64_t fitting =
        in_.options.gpu.scratch_bytes / std::max(counted.bytes, std::int64_t{1}) - margin_before() - margin_after();
    constexpr std::int64_t most_chunks = 16384;  // with margins a dimension of a grid
    span_chunks_ = std::clamp<std::int64_t>(fitting, 1, std::min(span_chunks_, most_chunks));
    const std::int64_t most = std::min(all, span_chunks_ + margin_before() + margin_after());
    const auto place_all = [&](Arena arena) {
      place(arena, most);
      for (int direction = 0; direction < 2; ++direction) {
        const std::int64_t borders = spans(true) + 1;
        if (c_.scans(false, direction)) place_states(arena, outer_[1][direction], borders, false);
        if (backward_ && c_.scans(true, direction)) place_states(arena, outer_[0][direction], borders, false);
      }
      return arena.bytes;
    };
    const std::int64_t bytes = place_all({});
    place_all({reinterpret_cast<char*>(array<std::uint8_t>(bytes, DType::uint8)), 0});
  }

  ComposedSpan span(bool of_keys, std::int64_t s) const {
    const std::int64_t all = chunks_of(of_keys), begin = s * span_chunks_, end = std::min(all, begin + span_chunks_);
    return {begin, end, std::max<std::int64_t>(0, begin - margin_before()), std::min(all, end + margin_after())};
  }
  void enter(bool of_keys, std::int64_t s) {
    const ComposedSpan range = span(of_keys, s);
    c_.first = range.first * c_.chunk;
    c_.chunks = static_cast<int>(range.last - range.first);
    c_.rows = c_.chunks * c_.chunk;
    c_.begin = static_cast<int>(range.begin - range.first);
    c_.end = static_cast<int>(range.end - range.first);
    if (c_.rotates)
      launch(stream_, linear_attention_rotations_kernel<T>, grid_blocks(std::int64_t{c_.batch} * c_.rows, 8, 65536),
             256, 0, c_);
  }
};

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
