// Linear attention on GPUs: dispatch between the fused and the composed kernels, and the composition.
#include "framework/cuda/kernels/kernel.h"
//
#include "framework/ops/attention/linear/cuda/composed_chunks.cuh"
#include "framework/ops/attention/linear/cuda/composed_scratch.cuh"
#include "framework/ops/attention/linear/cuda/fused.h"

namespace furlong::ops {
namespace FURLONG_GPU {
namespace {

/// One call of the composed kernels. T is float or double.
template <class T>
class ComposedCall : ComposedScratch<T> {
 public:
  using ComposedScratch<T>::ComposedScratch;

  void forward() {
    if (heads() == 0) return;
    c_.top = gpu_data<T>(in_.top);
    c_.inverse_denominator = gpu_data<T>(in_.inverse_denominator);
    report(false);
    if (c_.total) {
      sum_total(true);
    } else if (c_.scans(false, 1)) {
      visit_borders(true, 1);
    }
    for (std::int64_t s = 0; s < spans(false); ++s) {
      enter(false, s);
      if (c_.paired) load(true);
      load(false);
      find_states(false, s);
      pair_products(c_.begin, c_.end);
      rows_kernel(linear_attention_weights_kernel<T, FeatureForm::logarithms>,
                  linear_attention_weights_kernel<T, FeatureForm::values>);
      if (c_.paired)
        product<ProductLayout::plain>(rows_of_chunk(), whole(c_.v_padded), band(false), pairs(c_.weights), pair_place(),
                                      c_.k.vectors, row_place(c_.v_padded), c_.q.near_vectors, row_place(c_.v_padded),
                                      c_.begin, c_.end);
      products_with_states(false);
      launch_rows(linear_attention_outputs_kernel<T>);
      report(true);
    }
    write_state();
  }

  void backward(const LinearAttentionGradients& gradients) {
    if (heads() == 0) return;
    c_.top = gpu_data<T>(in_.top);
    c_.inverse_denominator = gpu_data<T>(in_.inverse_denominator);
    c_.d_output = rows(gradients.d_output);
    const bool queries = gradients.d_query.wanted() || gradients.d_gate.defined(),
               keys = gradients.d_key.wanted() || gradients.d_value.wanted();
    const std::int64_t group = c_.n_heads / c_.n_kv_heads;
    Target query{gradients.d_query, 1, c_.d}, key{gradients.d_key, group, c_.d},
        value{gradients.d_value, group, c_.d_value};
    c_.d_query = open(query);
    c_.d_key = open(key);
    c_.d_value_rows = open(value);
    gate_gradient(gradients, false);
    if (c_.total) {
      sum_total(true);
      sum_total(false);
    } else if (c_.stated) {
      visit_borders(true, 0);
      if (!c_.causal) visit_borders(false, 0);
    }
    if (!c_.total) {
      for (std::int64_t s = spans(false) - 1; s >= 0; --s) {
        enter(false, s);
        load(true);
        load(false);
        find_states(false, s);
        find_states(true, s);
        pair_products(0, c_.chunks);
        pair_gradients(gradients);
        if (queries) query_gradients();
        if (keys) key_gradients();
      }
    } else {
      for (std::int64_t s = 0; queries && s < spans(false); ++s) {
        enter(false, s);
        load(false);
        find_states(false, s);
        pair_gradients(gradients);
        query_gradients();
      }
      for (std::int64_t s = 0; keys && s < spans(true); ++s) {
        enter(true, s);
        load(true);
        find_states(true, s);
        key_gradients();
      }
    }
    close(query);
    close(key);
    close(value);
  }

 private:
  using Base = ComposedScratch<T>;
  using Base::backward_;
  using Base::c_;
  using Base::directed_;
  using Base::enter;
  using Base::heads;
  using Base::in_;
  using Base::logarithms_;
  using Base::outer_;
  using Base::projected;
  using Base::rows;
  using Base::span;
  using Base::spans;
  using Base::stream_;
  using States = ComposedStates<T>;
  using Border = typename States::Border;

  // ---- launches ----

  template <class... Parameters, class... Arguments>
  void launch_rows(void (*kernel)(Parameters...), Arguments... arguments) {
    launch(stream_, kernel, grid_blocks(heads() * c_.rows, composed_rows), composed_threads, 0, c_, arguments...);
  }
  template <class Kernel, class... Arguments>
  void rows_kernel(Kernel of_logarithms, Kernel of_values, Arguments... arguments) {
    launch_rows(logarithms_ ? of_logarithms : of_values, arguments...);
  }
  template <ProductLayout layout>
  void product(ProductAxis m, ProductAxis n, ProductAxis k, const Parts<T>& a, const ProductPlace& a_place,
               const Parts<T>& b, const ProductPlace& b_place, T* target, const ProductPlace& target_place, int first,
               int end, const int* k_rows = nullptr) {
    launch_product<layout>(
        stream_,
        Product<T>{m, n, k, a, b, a_place, b_place, target_place, target, c_.chunk, c_.chunks, first, end, 0, k_rows},
        heads());
  }
  static ProductAxis whole(int size) { return {true, size, 0, 0}; }
  static ProductAxis rows_of_chunk() { return {false, 0, 0, 0}; }
  /// The keys near a chunk of queries, or the queries near a chunk of keys.
  ProductAxis band(bool of_keys) const {
    return {false, 0, of_keys ? c_.after : c_.before, of_keys ? c_.before : c_.after};
  }
  ProductPlace row_place(int width) const { return {std::int64_t{c_.rows} * width, width}; }
  ProductPlace pair_place() const { return {c_.band(), c_.near}; }
  Parts<T> pairs(Parts<T> parts) const {
    parts.data += c_.before * c_.chunk;
    return parts;
  }
  T* pairs(T* numbers) const { return numbers + c_.before * c_.chunk; }
  ProductPlace projection_place() const {
    return {c_.direction_sets > 1 ? std::int64_t{projected()} * c_.d_padded : 0, c_.d_padded, 0, c_.n_heads};
  }
  ProductPlace state_place(const States& states, int shift, int least, int most) const {
    const std::int64_t border = std::int64_t{c_.m_padded} * c_.v_padded;
    return {states.borders * border, c_.v_padded, border, 0, shift, least, most};
  }
  /// The states that each chunk of a side meets.
  ProductPlace met_place(bool of_keys, int direction) const {
    const States& states = of_keys ? c_.gathered[direction] : c_.states[direction];
    if (c_.total) return state_place(states, 0, 0, 0);
    const int back = of_keys ? c_.after : c_.before, ahead = of_keys ? c_.before : c_.after;
    return state_place(states, direction == 0 ? -back : ahead + 1, 0, c_.chunks);
  }

  // ---- steps of a span ----

  /// Loads one side, with its features; in backward also the gradients of the outputs.
  void load(bool of_keys) {
    const ComposedSide<T>& side = of_keys ? c_.k : c_.q;
    launch_rows(linear_attention_read_kernel<T>, side, of_keys ? c_.key : c_.query, of_keys);
    if (directed_)
      product<ProductLayout::b_transposed>(rows_of_chunk(), whole(projected()), whole(c_.d_padded), side.x_parts,
                                           row_place(c_.d_padded), c_.projection_parts, projection_place(),
                                           side.features, row_place(c_.m_padded), 0, c_.chunks);
    rows_kernel(linear_attention_features_kernel<T, FeatureForm::logarithms>,
                linear_attention_features_kernel<T, FeatureForm::values>, side, of_keys);
    if (backward_ && !of_keys) launch_rows(linear_attention_gradient_rows_kernel<T>);
  }
  Border border(const States& states, std::int64_t k) const { return states.border(k, c_.m, c_.m_padded, c_.v_padded); }
  void copy_border(const Border& source, const Border& target, const Parts<T>& parts = {}) {
    launch(stream_, linear_attention_border_kernel<T>, grid_blocks(heads() * c_.m_padded * c_.v_padded, 256, 65536),
           256, 0, c_, source, target, parts);
  }
  /// Copies the outer border `index` of a side's sums to border `k` of the span.
  void copy_outer(bool of_keys, int direction, std::int64_t index, const States& states, std::int64_t k) {
    Parts<T> parts = states.parts;
    parts.data += k * c_.m_padded * c_.v_padded;
    copy_border(border(outer_[of_keys][direction], index), border(states, k), parts);
  }
  /// Scans the chunks of span s, from its outer border to that of the next span in this direction. Only keys before
  /// `limit` count.
  void scan(bool of_keys, int direction, std::int64_t s,
            std::int64_t limit = std::numeric_limits<std::int64_t>::max()) {
    const States& states = of_keys ? c_.states[direction] : c_.gathered[direction];
    const ComposedSide<T>& side = of_keys ? c_.k : c_.q;
    const States& outer = outer_[of_keys][direction];
    const bool is_first = direction == 0 ? s == 0 : s + 1 == spans(of_keys);
    const std::int64_t here = c_.total ? 0 : s;
    if (is_first) {
      Border start{};
      if (of_keys && direction == 0 && c_.has_start)
        start = of_caller(in_.start_sum, in_.start_normalizer, in_.start_maximum, in_.start_magnitude);
      copy_border(start, border(outer, here));
    }
    copy_outer(of_keys, direction, here, states, direction == 0 ? 0 : c_.chunks);
    const auto sums = logarithms_ ? linear_attention_sums_kernel<T, FeatureForm::logarithms>
                                  : linear_attention_sums_kernel<T, FeatureForm::values>;
    launch(stream_, sums, static_cast<unsigned>(heads() * c_.chunks), composed_threads, 0, c_, side, states, of_keys,
           direction, limit);
    const Parts<T>& features = logarithms_ ? side.sums : c_.rotates ? side.rotated : side.near;
    product<ProductLayout::a_transposed>(
        whole(c_.m_padded), whole(c_.v_padded), rows_of_chunk(), features, row_place(c_.m_padded),
        logarithms_ ? side.vectors : side.weighted, row_place(c_.v_padded), states.sum,
        state_place(states, direction == 0 ? 1 : 0, 0, c_.chunks), 0, c_.chunks, states.rows);
    launch(stream_, linear_attention_scan_kernel<T>, grid_blocks(heads() * c_.m_padded * c_.v_padded / 8, 256, 65536),
           256, 0, c_, states, direction);
    const std::int64_t next = direction == 0 ? s + 1 : s - 1, origin = c_.first / c_.chunk;
    if (c_.total) {
      copy_border(border(states, c_.chunks), border(outer, 0));
    } else if (next >= 0 && next < spans(of_keys)) {
      const ComposedSpan other = span(of_keys, next);
      copy_border(border(states, (direction == 0 ? other.first : other.last) - origin), border(outer, next));
    }
  }
  /// Computes the total over all keys, or queries.
  void sum_total(bool of_keys) {
    if (spans(of_keys) == 0) copy_border({}, border(outer_[of_keys][0], 0));
    for (std::int64_t s = 0; s < spans(of_keys); ++s) {
      enter(of_keys, s);
      load(of_keys);
      scan(of_keys, 0, s);
    }
  }
  /// Computes the states at the outer borders of all spans, for directions in which the walk over spans does not go.
  void visit_borders(bool of_keys, int direction) {
    const std::int64_t count = spans(of_keys);
    for (std::int64_t k = 0; count > 1 && k < count; ++k) {
      const std::int64_t s = direction == 0 ? k : count - 1 - k;
      enter(of_keys, s);
      load(of_keys);
      scan(of_keys, direction, s);
    }
  }
  /// Computes the states that one side of the span meets.
  void find_states(bool of_keys, std::int64_t s) {
    for (int direction = 0; direction < 2; ++direction) {
      if (!c_.scans(of_keys, direction)) continue;
      if (c_.total)
        copy_outer(!of_keys, 0, 0, of_keys ? c_.gathered[0] : c_.states[0], 0);
      else
        scan(!of_keys, direction, s);
    }
  }
  void pair_products(int first, int end) {
    if (!c_.paired) return;
    const auto all = [&](const Parts<T>& a, const Parts<T>& b, int width, T* target) {
      product<ProductLayout::b_transposed>(rows_of_chunk(), band(false), whole(width), a, row_place(width), b,
                                           row_place(width), pairs(target), pair_place(), first, end);
    };
    all(c_.q.near, c_.k.near, c_.m_padded, c_.product);
    if (c_.rotates) all(c_.q.rotated, c_.k.rotated, c_.m_padded, c_.rotated_product);
    if (c_.softmax) all(c_.q.x_parts, c_.k.x_parts, c_.d_padded, c_.score);
    if (backward_) all(c_.q.vectors, c_.k.vectors, c_.v_padded, c_.g_v);
  }
  /// through = weights of the state · state
  void products_with_states(bool of_keys) {
    const ComposedSide<T>& side = of_keys ? c_.k : c_.q;
    for (int direction = 0; direction < 2; ++direction) {
      if (!c_.scans(of_keys, direction)) continue;
      const States& states = of_keys ? c_.gathered[direction] : c_.states[direction];
      product<ProductLayout::plain>(rows_of_chunk(), whole(c_.v_padded), whole(c_.m_padded),
                                    logarithms_  ? side.far[direction]
                                    : c_.rotates ? side.rotated
                                                 : side.near,
                                    row_place(c_.m_padded), states.parts, met_place(of_keys, direction),
                                    side.through[direction], row_place(c_.v_padded), c_.begin, c_.end);
    }
  }

  // ---- backward ----

  void pair_gradients(const LinearAttentionGradients& gradients) {
    rows_kernel(linear_attention_pair_gradients_kernel<T, FeatureForm::logarithms>,
                linear_attention_pair_gradients_kernel<T, FeatureForm::values>);
    gate_gradient(gradients, true);
  }
  /// Products of gradients with the other side: through states, and of pairs.
  void feature_gradient_products(bool of_keys) {
    const ComposedSide<T>&side = of_keys ? c_.k : c_.q, &other = of_keys ? c_.q : c_.k;
    for (int direction = 0; direction < 2; ++direction) {
      if (!c_.scans(of_keys, direction)) continue;
      const States& states = of_keys ? c_.gathered[direction] : c_.states[direction];
      product<ProductLayout::b_transposed>(rows_of_chunk(), whole(c_.m_padded), whole(c_.v_padded), side.vectors,
                                           row_place(c_.v_padded), states.parts, met_place(of_keys, direction),
                                           side.d_through[direction], row_place(c_.m_padded), c_.begin, c_.end);
    }
    if (!c_.paired) return;
    pair_sums(of_keys, c_.d_product, other.near, c_.m_padded, side.d_near);
    if (c_.rotates) pair_sums(of_keys, c_.d_rotated, other.rotated, c_.m_padded, side.d_near_rotated);
    if (c_.softmax) pair_sums(of_keys, c_.d_score, other.x_parts, c_.d_padded, side.d_exact);
    if (of_keys) pair_sums(of_keys, c_.weights, other.vectors, c_.v_padded, side.near_vectors);
  }
  /// target = matrix · rows of the keys, or matrixᵀ · rows of the queries
  void pair_sums(bool of_keys, const Parts<T>& matrix, const Parts<T>& rows, int width, T* target) {
    if (of_keys)
      product<ProductLayout::a_transposed>(rows_of_chunk(), whole(width), band(true), pairs(matrix), pair_place(), rows,
                                           row_place(width), target, row_place(width), c_.begin, c_.end);
    else
      product<ProductLayout::plain>(rows_of_chunk(), whole(width), band(false), pairs(matrix), pair_place(), rows,
                                    row_place(width), target, row_place(width), c_.begin, c_.end);
  }
  void write_gradients(bool of_keys) {
    const ComposedSide<T>& side = of_keys ? c_.k : c_.q;
    if (directed_)
      product<ProductLayout::plain>(rows_of_chunk(), whole(c_.d_padded), whole(projected()), side.d_projected,
                                    row_place(c_.m_padded), c_.projection_parts, projection_place(), side.d_x,
                                    row_place(c_.d_padded), c_.begin, c_.end);
    launch_rows(linear_attention_write_kernel<T>, side, of_keys ? c_.d_key : c_.d_query, of_keys);
  }
  void query_gradients() {
    feature_gradient_products(false);
    rows_kernel(linear_attention_query_gradients_kernel<T, FeatureForm::logarithms>,
                linear_attention_query_gradients_kernel<T, FeatureForm::values>);
    write_gradients(false);
  }
  void key_gradients() {
    feature_gradient_products(true);
    rows_kernel(linear_attention_key_gradients_kernel<T, FeatureForm::logarithms>,
                linear_attention_key_gradients_kernel<T, FeatureForm::values>);
    products_with_states(true);
    write_gradients(true);
  }

  // ---- results ----

  Border of_caller(const Tensor& sum, const Tensor& normalizer, const Tensor& maximum, const Tensor& magnitude) const {
    const std::int64_t m = c_.m, v = c_.d_value;
    return {gpu_data<T>(sum),
            gpu_data<T>(normalizer),
            gpu_data<T>(maximum),
            gpu_data<T>(magnitude),
            nullptr,
            m * v,
            v,
            m,
            1,
            0};
  }
  /// Writes the state of the keys that no later query meets pair by pair.
  void write_state() {
    if (in_.state == nullptr || !c_.stated || c_.n_key == 0) return;
    const std::int64_t reach = LinearAttentionArguments::recent_keys(in_.options);
    if (reach > 0) scan(true, 0, spans(true) - 1, c_.n_key - reach);
    copy_border(border(c_.states[0], c_.chunks),
                of_caller(in_.state->sum, in_.state->normalizer, in_.state->maximum, in_.state->magnitude));
  }
  void report(bool more) {
    if (!in_.denominators.defined()) return;
    launch(stream_, linear_attention_report_kernel<T>, grid_blocks(heads(), 8), 256, 0, c_,
           gpu_data<T>(in_.denominators), more);
  }
  void gate_gradient(const LinearAttentionGradients& gradients, bool more) {
    if (!gradients.d_gate.defined()) return;
    launch(stream_, linear_attention_gate_kernel<T>, grid_blocks(heads(), 8), 256, 0, c_, gpu_data<T>(gradients.d_gate),
           more);
  }

  /// Destination of one input's gradient: its target, or one part per query head in the compute type; parts are added
  /// up afterwards.
  struct Target {
    const GradientTarget& target;
    std::int64_t group;
    int width;
    Tensor parts{};
  };
  ComposedRows open(Target& part) const {
    if (!part.target.wanted()) return {};
    if (part.group == 1) return rows(part.target.tensor, part.target.accumulates());
    part.parts = Tensor::empty(Shape({c_.batch, part.target.tensor.extent(1), c_.n_heads, part.width}),
                               accumulate_dtype(in_.query.dtype()), stream_.device);
    return rows(part.parts);
  }
  void close(const Target& part) {
    if (!part.parts.defined() || part.parts.elements() == 0) return;
    const std::int64_t n = part.parts.extent(1);
    launch(stream_, linear_attention_group_kernel<T>, grid_blocks(part.parts.elements() / part.group, 256, 65536), 256,
           0, gpu_data<T>(part.parts), rows(part.target.tensor, part.target.accumulates()), c_.batch * n, n,
           c_.n_kv_heads, static_cast<int>(part.group), part.width);
  }
};

template <class Run>
void with_compute_type(const LinearAttentionArguments& arguments, const Run& run) {
  if (accumulate_dtype(arguments.query.dtype()) == DType::float64) {
    run(std::type_identity<double>{});
  } else {
    run(std::type_identity<float>{});
  }
}

void forward(const Stream& stream, const LinearAttentionArguments& arguments) {
  if (!arguments.options.gpu.composed_kernels && linear_attention_fused_supports(stream, arguments)) {
    linear_attention_fused_forward(stream, arguments);
    return;
  }
  with_compute_type(arguments,
                    [&]<class T>(std::type_identity<T>) { ComposedCall<T>(stream, arguments, false).forward(); });
}

void backward(const Stream& stream, const LinearAttentionArguments& arguments,
              const LinearAttentionGradients& gradients) {
  if (!arguments.options.gpu.composed_kernels && linear_attention_fused_supports(stream, arguments)) {
    linear_attention_fused_backward(stream, arguments, gradients);
    return;
  }
  with_compute_type(
      arguments, [&]<class T>(std::type_identity<T>) { ComposedCall<T>(stream, arguments, true).backward(gradients); });
}

const GpuKernelRegistration forward_registration{linear_attention_forward_gpu, &forward};
const GpuKernelRegistration backward_registration{linear_attention_backward_gpu, &backward};

}  // namespace
}  // namespace FURLONG_GPU
}  // namespace furlong::ops
