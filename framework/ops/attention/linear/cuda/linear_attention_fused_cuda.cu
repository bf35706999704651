// Launches of the fused kernels of linear attention: supported shapes, partition of the work, order of kernels.
#include "framework/cuda/kernels/kernel.h"
// After kernel.h, which must precede fmt.
#include <algorithm>
#include <cmath>
#include <vector>

#include "framework/ops/attention/linear/cuda/fused.h"
#include "framework/ops/attention/linear/cuda/fused_backward.cuh"
#include "framework/ops/attention/linear/cuda/fused_forward.cuh"
#include "framework/ops/attention/linear/cuda/fused_plain_backward.cuh"
#include "framework/ops/attention/linear/cuda/fused_plain_forward.cuh"
#include "framework/ops/attention/linear/cuda/fused_plain_states.cuh"

namespace furlong::ops {
namespace FURLONG_GPU {
namespace {

using Arguments = LinearAttentionArguments;
constexpr std::int64_t max_features = 512;

/// Shared memory per block, in bytes, if two blocks share a multiprocessor and if a block is alone: 113 and 163 KiB on
/// sm_90 (limited to what sm_80 has, so that both support the same cases), 81 and 163 on sm_80, 49 and 99 on sm_86 and
/// sm_89.
class SharedLimits {
 public:
  explicit SharedLimits(const Stream& stream) : SharedLimits(gpu_shared_limit(stream)) {}
  const std::size_t* begin() const { return bytes_; }
  const std::size_t* end() const { return bytes_ + 2; }
  std::size_t most() const { return bytes_[1]; }
  std::size_t of_device() const { return of_device_; }

 private:
  // A block can use all but 1 KiB of a multiprocessor's memory, and each block reserves 1 KiB.
  explicit SharedLimits(std::size_t of_device)
      : bytes_{(of_device + 1024) / 2 - 1024, std::min<std::size_t>(of_device, 163 * 1024)}, of_device_(of_device) {}
  std::size_t bytes_[2], of_device_;
};

FusedRows rows_of(const Tensor& tensor) {
  FusedRows rows;
  const std::int64_t size = size_of(tensor.dtype());
  rows.data =
      tensor.dtype() == DType::bfloat16 ? static_cast<const void*>(gpu_data<Bf16>(tensor)) : gpu_data<float>(tensor);
  rows.batch_stride = tensor.strides()[0], rows.row_stride = tensor.strides()[1],
  rows.head_stride = tensor.strides()[2];
  rows.is_bfloat16 = tensor.dtype() == DType::bfloat16;
  rows.vectors = is_aligned(rows.data, 16);
  for (const std::int64_t stride : {rows.batch_stride, rows.row_stride, rows.head_stride})
    rows.vectors = rows.vectors && stride * size % 16 == 0;
  return rows;
}

bool is_projected(const Arguments& arguments) {
  return feature_map_info(arguments.options.feature_map).needs_random_projection;
}
bool is_exact(const Arguments& arguments) {
  return arguments.query.dtype() == DType::bfloat16 && !arguments.constants.query_center.defined() &&
         !arguments.constants.key_center.defined() && !arguments.constants.scaling.defined();
}

/// Calls body(exact, projected) with integral constants.
template <class Body>
void with_form(const Arguments& arguments, const Body& body) {
  const auto second = [&](auto exact) {
    is_projected(arguments) ? body(exact, std::true_type{}) : body(exact, std::false_type{});
  };
  is_exact(arguments) ? second(std::true_type{}) : second(std::false_type{});
}

/// Calls body(form, width) with integral constants if the call is a plain case (fused_plain.cuh).
template <class Body>
void with_plain_form(const Arguments& arguments, const Body& body) {
  using enum FusedForm;
  const std::int64_t d = arguments.sizes.d;
  bool plain = is_exact(arguments) && arguments.options.causal && !arguments.mask.keys.defined() &&
               !arguments.mask.documents.defined() && arguments.sizes.d_value == d;
  for (const Tensor* tensor : {&arguments.query, &arguments.key, &arguments.value})
    plain = plain && rows_of(*tensor).vectors;
  if (!plain) return;
  const auto with_width = [&](auto form) {
    if (d == 64) body(form, std::integral_constant<int, 64>{});
    if (d == 128) body(form, std::integral_constant<int, 128>{});
  };
  const FusedForm form = feature_map_info(arguments.options.feature_map).fused;
  if (form == projection && arguments.features % fused_tile == 0)
    with_width(std::integral_constant<FusedForm, projection>{});
  if (form == elu1) with_width(std::integral_constant<FusedForm, elu1>{});
  if (form == softmax) with_width(std::integral_constant<FusedForm, softmax>{});
}

std::int64_t padded_to(std::int64_t amount, std::int64_t step) { return ceil_div(amount, step) * step; }

// ---- partition of the work ----

struct OutputsPlan {
  int width = 0, stages = 0;
  std::size_t bytes = 0;
};
/// All columns of v per block, up to 64, if they fit, because each slice of columns recomputes the features. width 0:
/// nothing fits.
OutputsPlan outputs_plan(const SharedLimits& limits, const Arguments& arguments) {
  OutputsPlan plan;
  with_form(arguments, [&](auto exact, auto projected) {
    const int m_padded = static_cast<int>(padded_to(arguments.features, fused_tile)),
              d_padded = static_cast<int>(padded_to(arguments.sizes.d, 32));
    const int widest = static_cast<int>(std::min<std::int64_t>(64, arguments.sizes.d_value));
    for (int width = widest; width >= 16 && plan.width == 0; width = (width / 2 + 15) / 16 * 16) {
      for (const std::size_t limit : limits) {
        for (const int stages : {2, 1}) {
          const auto bytes =
              static_cast<std::size_t>(OutputsLayout<exact(), projected()>(m_padded, d_padded, width, stages).all);
          if (plan.width == 0 && bytes <= limit) plan = {width, stages, bytes};
        }
      }
      if (width == 16) break;
    }
  });
  return plan;
}

struct GradientsPlan {
  int tiles = 0, stages = 0;
  std::size_t bytes = 0;
};
/// The general kernel with a number of feature tiles per block. tiles 0: they do not fit.
template <bool Keys>
GradientsPlan gradients_plan_of(const Arguments& arguments, int tiles, std::size_t limit) {
  GradientsPlan plan;
  const int d_padded = static_cast<int>(padded_to(arguments.sizes.d, 32)),
            d_value = static_cast<int>(arguments.sizes.d_value);
  with_form(arguments, [&](auto exact, auto projected) {
    for (const int stages : {2, 1}) {
      const auto bytes =
          static_cast<std::size_t>(GradientsLayout<exact(), projected(), Keys>(tiles, stages, d_padded, d_value).all);
      if (plan.tiles == 0 && bytes <= limit) plan = {tiles, stages, bytes};
    }
  });
  return plan;
}
/// As many feature tiles per block as allow two blocks per multiprocessor: each block's sums over its tiles are parts
/// of the gradient, which have to be written and added up. tiles 0: nothing fits.
template <bool Keys>
GradientsPlan gradients_plan(const SharedLimits& limits, const Arguments& arguments) {
  const int all = static_cast<int>(ceil_div<std::int64_t>(arguments.features, fused_tile));
  GradientsPlan plan;
  for (const std::size_t limit : limits) {
    for (int tiles = all; tiles >= 1 && plan.tiles == 0; --tiles)
      plan = gradients_plan_of<Keys>(arguments, tiles, limit);
  }
  return plan;
}

/// The same for the plain kernels; tiles 0 if they do not support the call. The general kernel, which computes the rows
/// that they leave, has the same tiles.
template <bool Keys>
GradientsPlan plain_gradients_plan(const SharedLimits& limits, const Arguments& arguments, const FusedRows& d_output) {
  GradientsPlan plan;
  if (!d_output.vectors) return plan;
  with_plain_form(arguments, [&](auto form, auto width) {
    if (width() != 64) return;
    const int all = static_cast<int>(arguments.features / fused_tile);
    for (const std::size_t limit : limits) {
      for (int tiles = all; tiles >= 1; --tiles) {
        const auto bytes = static_cast<std::size_t>(PlainGradientsLayout<form()>(tiles).all);
        if (plan.tiles == 0 && bytes <= limit &&
            gradients_plan_of<Keys>(arguments, tiles, limits.of_device()).tiles > 0)
          plan = {tiles, 1, bytes};
      }
    }
  });
  return plan;
}

/// Splits a sequence of n tokens into segments of at least two chunks. `asked`: their number, or 0 for as many as fill
/// the device twice with `blocks` blocks per segment; not more, because each costs a pass over its keys. Depends only
/// on shapes and the device, never on values.
void cut(FusedProblem& problem, const Stream& stream, std::int64_t asked, int n, std::int64_t blocks) {
  const std::int64_t chunks = ceil_div(n, fused_chunk);
  const std::int64_t min_chunks = asked > 0 ? 1 : 2;
  const std::int64_t wanted =
      asked > 0 ? asked
                : std::max<std::int64_t>(1, 2 * gpu_multiprocessors(stream) / std::max<std::int64_t>(1, blocks));
  const std::int64_t length = ceil_div(chunks, std::min(wanted, std::max<std::int64_t>(1, chunks / min_chunks)));
  problem.segment_chunks = static_cast<int>(length), problem.segments = static_cast<int>(ceil_div(chunks, length));
}

// ---- one call ----

/// Arguments of the kernels, and their memory while they run.
class FusedCall {
 public:
  FusedCall(const Stream& stream, const Arguments& arguments)
      : stream_(stream), arguments_(arguments), device_(arguments.query.device()) {
    const LinearAttentionOptions& options = arguments.options;
    const FeatureMapInfo& info = feature_map_info(options.feature_map);
    problem.form = info.fused;
    problem.values = info.form == FeatureForm::values;
    problem.causal = options.causal;
    problem.batch = static_cast<int>(arguments.query.extent(0)), problem.n_heads = static_cast<int>(options.n_heads);
    problem.group = static_cast<int>(options.n_heads / options.n_kv_heads);
    problem.d = static_cast<int>(arguments.sizes.d),
    problem.d_padded = static_cast<int>(padded_to(arguments.sizes.d, 32));
    problem.d_value = static_cast<int>(arguments.sizes.d_value);
    problem.m = static_cast<int>(arguments.features),
    problem.m_padded = static_cast<int>(padded_to(arguments.features, fused_tile));
    problem.scale = static_cast<float>(std::pow(static_cast<double>(arguments.sizes.d), -0.25));
    problem.kernel_epsilon = static_cast<float>(options.map_options.kernel_epsilon);
    const LinearAttentionConstants& constants = arguments.constants;
    problem.oprf_a = gpu_data<float>(constants.oprf_a), problem.query_center = gpu_data<float>(constants.query_center);
    problem.key_center = gpu_data<float>(constants.key_center), problem.scaling = gpu_data<float>(constants.scaling);
    problem.kept = gpu_data<std::int32_t>(arguments.mask.keys);
    queries.rows = rows_of(arguments.query), queries.n = static_cast<int>(arguments.query.extent(1));
    keys.rows = rows_of(arguments.key), keys.vectors = rows_of(arguments.value),
    keys.n = static_cast<int>(arguments.key.extent(1));
    prepare_directions();
    prepare_documents();
  }

  FusedProblem problem;
  FusedSide queries, keys;

  int heads() const { return problem.batch * problem.n_heads; }
  dim3 grid(int x, int y) const {
    return dim3(static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(heads()));
  }
  int tiles() const { return problem.m_padded / fused_tile; }

  /// Returns a buffer that lives as long as the call.
  float* floats(std::int64_t elements) {
    memory_.push_back(Tensor::empty({elements}, DType::float32, device_));
    return gpu_data<float>(memory_.back());
  }

  /// Returns memory for the rows of `lines` lines of blocks that plain kernels leave to the general ones.
  FusedLostRows lost_rows(std::int64_t lines, int n) {
    const int chunks = ceil_div(n, fused_chunk);
    memory_.push_back(Tensor::empty({lines * chunks * fused_warps * 2}, DType::int32, device_));
    return {reinterpret_cast<std::uint32_t*>(gpu_data<std::int32_t>(memory_.back())), chunks};
  }

  /// Returns, for each segment, the sums of `side` before (after) it, starting from `carried` if there is one.
  template <bool Exact, bool Projected, bool Keys>
  FusedStates states_of(const FusedSide& side, const FusedProblem& cut_problem, const FusedCarried& carried) {
    const std::int64_t rows = std::int64_t{heads()} * cut_problem.segments * problem.m_padded;
    FusedStates states{floats(rows * problem.d_value), floats(rows), floats(rows), cut_problem.segments};
    const dim3 blocks = grid(cut_problem.segments, tiles() * ceil_div(problem.d_value, 64));
    bool plain = false;
    with_plain_form(arguments_, [&](auto form, auto width) {
      if (!side.vectors.vectors) return;
      launch(stream_, fused_plain_states<form(), width(), Keys>, blocks, dim3(fused_threads),
             PlainStatesLayout<form(), width()>::bytes, cut_problem, side, states);
      plain = true;
    });
    if (!plain) {
      launch(stream_, fused_local_states<Exact, Projected, Keys>, blocks, dim3(fused_threads),
             LocalStatesLayout<Exact, Projected>::bytes(problem.d_padded), cut_problem, side, states);
    }
    launch(stream_, fused_scan_states<Projected>, grid(problem.m_padded / fused_warps, 1), dim3(fused_threads), 0,
           cut_problem, Keys, side.n, states, carried);
    return states;
  }

 private:
  void prepare_directions() {
    const Tensor& random_projection = arguments_.constants.random_projection;
    if (!random_projection.defined()) return;
    problem.directions_per_head = random_projection.shape().rank() == 3;
    const std::int64_t sets = problem.directions_per_head ? random_projection.extent(0) : 1,
                       rows = sets * problem.m_padded;
    memory_.push_back(Tensor::empty({rows, problem.d_padded}, DType::bfloat16, device_));
    Bf16* target = gpu_data<Bf16>(memory_.back());
    float* squares = floats(rows);
    launch(stream_, fused_prepare_directions, dim3(grid_blocks(rows, 8)), dim3(256), 0,
           gpu_data<float>(random_projection), target, squares, sets, static_cast<int>(arguments_.n_projections),
           problem.d, problem.m_padded, problem.d_padded,
           feature_map_info(arguments_.options.feature_map).features_per_projection == 2);
    problem.random_projection = target, problem.squares = squares;
  }
  void prepare_documents() {
    const Tensor& documents = arguments_.mask.documents;
    if (!documents.defined()) return;
    memory_.push_back(Tensor::empty(documents.shape(), DType::int32, device_));
    auto* starts = gpu_data<std::int32_t>(memory_.back());
    launch(stream_, fused_run_starts, dim3(static_cast<unsigned>(problem.batch)), dim3(256), 0,
           gpu_data<std::int32_t>(documents), starts, documents.extent(1));
    problem.run_start = starts;
  }

  const Stream& stream_;
  const Arguments& arguments_;
  Device device_;
  std::vector<Tensor> memory_;
};

FusedCarried carried_of(const Arguments& arguments) {
  FusedCarried carried;
  carried.start_sum = gpu_data<float>(arguments.start_sum),
  carried.start_extra = gpu_data<float>(arguments.start_normalizer);
  carried.start_maximum = gpu_data<float>(arguments.start_maximum);
  if (arguments.state == nullptr) return carried;
  carried.final_sum = gpu_data<float>(arguments.state->sum),
  carried.final_extra = gpu_data<float>(arguments.state->normalizer);
  carried.final_maximum = gpu_data<float>(arguments.state->maximum),
  carried.final_magnitude = gpu_data<float>(arguments.state->magnitude);
  return carried;
}

FusedGradient gradient_of(const GradientTarget& target, int rows) {
  FusedGradient gradient;
  if (!target.wanted()) return gradient;
  const Tensor& tensor = target.tensor;
  const FusedRows view = rows_of(tensor);
  gradient.data = const_cast<void*>(view.data);
  gradient.batch_stride = view.batch_stride, gradient.row_stride = view.row_stride,
  gradient.head_stride = view.head_stride;
  gradient.is_bfloat16 = view.is_bfloat16, gradient.vectors = view.vectors, gradient.accumulates = target.accumulates();
  gradient.batch = static_cast<int>(tensor.extent(0)), gradient.heads = static_cast<int>(tensor.extent(2));
  gradient.n = rows, gradient.width = static_cast<int>(tensor.extent(3));
  return gradient;
}

void sum_parts(const Stream& stream, const FusedGradient& gradient, std::int64_t parts) {
  if (gradient.parts == nullptr) return;
  const std::int64_t vectors = std::int64_t{gradient.batch} * gradient.heads * gradient.n * gradient.width / 8;
  launch(stream, fused_sum_parts, dim3(grid_blocks(vectors, 256, 65535)), dim3(256), 0, gradient, parts);
}

template <bool Keys>
void launch_plain_gradients(const Stream& stream, const Arguments& arguments, const GradientsPlan& plan, dim3 grid,
                            const FusedProblem& cut_problem, const FusedSide& rows, const FusedSide& columns,
                            const FusedStates& states, bool has_start, const FusedGradient& d_inputs,
                            const FusedGradient& d_vectors) {
  with_plain_form(arguments, [&](auto form, auto) {
    launch(stream, fused_plain_gradients<form(), Keys>, grid, dim3(fused_threads), plan.bytes, cut_problem, rows,
           columns, states, has_start, PlainGradientsLayout<form()>(plan.tiles), d_inputs, d_vectors);
  });
}

/// One sweep: gradients of `rows` from the sums of earlier `columns` (later ones if rows are keys) and from their own
/// chunks.
template <bool Exact, bool Projected, bool Keys>
void sweep(const Stream& stream, const Arguments& arguments, FusedCall& call, const FusedSide& rows,
           const FusedSide& columns, FusedGradient d_inputs, FusedGradient d_vectors) {
  const SharedLimits limits(stream);
  const GradientsPlan plain = plain_gradients_plan<Keys>(limits, arguments, call.queries.vectors),
                      plan = plain.tiles > 0 ? gradients_plan_of<Keys>(arguments, plain.tiles, limits.of_device())
                                             : gradients_plan<Keys>(limits, arguments);
  const int splits = ceil_div(call.tiles(), plan.tiles), parts = splits * (Keys ? call.problem.group : 1);
  // If keys and values are one variable, they have one gradient: the key gradient may overwrite it, and the value
  // gradient is added afterwards.
  const bool one_gradient = d_inputs.data && d_inputs.data == d_vectors.data;
  for (FusedGradient* gradient : {&d_inputs, &d_vectors}) {
    if (gradient->data && (parts > 1 || (one_gradient && gradient == &d_vectors)))
      gradient->parts =
          call.floats(std::int64_t{parts} * gradient->batch * gradient->heads * gradient->n * gradient->width);
  }
  const std::int64_t asked = arguments.options.gpu.segments;
  FusedProblem row_cut = call.problem, column_cut = call.problem;
  cut(row_cut, stream, asked, rows.n, std::int64_t{call.heads()} * splits);
  cut(column_cut, stream, asked, columns.n, std::int64_t{call.heads()} * splits);
  FusedCarried carried = Keys ? FusedCarried{} : carried_of(arguments);
  carried.final_sum = nullptr;
  const bool has_start = !row_cut.causal || row_cut.segments > 1 || carried.start_sum;
  FusedStates states;
  if (has_start) states = call.states_of<Exact, Projected, !Keys>(columns, column_cut, carried);
  const dim3 grid = call.grid(row_cut.segments, splits);
  if (plain.tiles > 0) {
    d_inputs.lost = call.lost_rows(std::int64_t{call.heads()} * splits, rows.n);
    launch_plain_gradients<Keys>(stream, arguments, plain, grid, row_cut, rows, columns, states, has_start, d_inputs,
                                 d_vectors);
  }
  const GradientsLayout<Exact, Projected, Keys> layout(plan.tiles, plan.stages, call.problem.d_padded,
                                                       call.problem.d_value);
  launch(stream, fused_gradients<Exact, Projected, Keys>, grid, dim3(fused_threads), plan.bytes, row_cut, rows, columns,
         states, has_start, layout, d_inputs, d_vectors);
  sum_parts(stream, d_inputs, parts);
  sum_parts(stream, d_vectors, parts);
}

/// Launches the plain kernel if it supports the call; `outputs` then has the rows that it leaves.
void launch_plain_outputs(const Stream& stream, const Arguments& arguments, FusedCall& call,
                          const FusedProblem& query_cut, const FusedStates& states, bool has_start,
                          FusedOutputs& outputs) {
  with_plain_form(arguments, [&](auto form, auto width) {
    const std::size_t bytes = PlainOutputsLayout<form(), width()>::bytes(call.tiles());
    if (bytes > SharedLimits(stream).most()) return;
    outputs.lost = call.lost_rows(call.heads(), call.queries.n);
    launch(stream, fused_plain_outputs<form(), width()>, call.grid(query_cut.segments, width() / 64),
           dim3(fused_threads), bytes, query_cut, call.queries, call.keys, states, has_start, outputs);
  });
}

}  // namespace

bool linear_attention_fused_supports(const Stream& stream, const LinearAttentionArguments& arguments) {
  const LinearAttentionOptions& options = arguments.options;
  const DType dtype = arguments.query.dtype();
  if (dtype != DType::bfloat16 && dtype != DType::float32) return false;
  if (options.window != 0 || options.softmax_window != 0 || options.normalizer != Normalizer::sum ||
      options.rotate_numerator)
    return false;
  const FeatureMapInfo& info = feature_map_info(options.feature_map);
  if (info.fused == FusedForm::none) return false;
  const auto fits = [](std::int64_t width) { return width >= 16 && width <= 128 && width % 16 == 0; };
  if (!fits(arguments.sizes.d) || !fits(arguments.sizes.d_value) || arguments.features < 1 ||
      arguments.features > max_features)
    return false;
  const std::int64_t n_query = arguments.query.extent(1), n_key = arguments.key.extent(1),
                     batch = arguments.query.extent(0);
  if (batch < 1 || n_query < 1 || n_key < 1 || arguments.query_offset != 0 || (options.causal && n_query != n_key))
    return false;
  if (arguments.mask.documents.defined() && !options.causal) return false;
  const bool carries = arguments.state != nullptr || arguments.start_sum.defined();
  // A state's magnitude belongs to the form `values`, and a few tokens do not fill a chunk.
  if (carries && (info.form == FeatureForm::values || n_query < fused_chunk / 2)) return false;
  constexpr std::int64_t most = std::int64_t{1} << 30;
  if (std::max(n_query, n_key) >= most || batch * options.n_heads > 65535)
    return false;  // heads are the grid's third dimension
  const SharedLimits limits(stream);
  bool has_states = false;
  with_form(arguments, [&](auto exact, auto projected) {
    has_states = LocalStatesLayout<exact(), projected()>::bytes(static_cast<int>(padded_to(arguments.sizes.d, 32))) <=
                 limits.most();
  });
  return has_states && outputs_plan(limits, arguments).width > 0 &&
         gradients_plan<false>(limits, arguments).tiles > 0 && gradients_plan<true>(limits, arguments).tiles > 0;
}

void linear_attention_fused_forward(const Stream& stream, const LinearAttentionArguments& arguments) {
  FusedCall call(stream, arguments);
  const OutputsPlan plan = outputs_plan(SharedLimits(stream), arguments);
  const int slices = ceil_div(call.problem.d_value, plan.width);
  const std::int64_t asked = arguments.options.gpu.segments;
  FusedProblem query_cut = call.problem, key_cut = call.problem;
  cut(query_cut, stream, asked, call.queries.n, std::int64_t{call.heads()} * slices);
  cut(key_cut, stream, asked, call.keys.n, std::int64_t{call.heads()} * slices);
  FusedOutputs outputs;
  const FusedRows view = rows_of(arguments.output);
  outputs.output = const_cast<void*>(view.data);
  outputs.batch_stride = view.batch_stride, outputs.row_stride = view.row_stride,
  outputs.head_stride = view.head_stride;
  outputs.is_bfloat16 = view.is_bfloat16;
  outputs.top = gpu_data<float>(arguments.top), outputs.inverse = gpu_data<float>(arguments.inverse_denominator);
  if (arguments.denominators.defined() && outputs.inverse == nullptr)
    outputs.inverse = call.floats(std::int64_t{call.heads()} * call.queries.n);
  const FusedCarried carried = carried_of(arguments);
  const bool has_start = !query_cut.causal || query_cut.segments > 1 || carried.start_sum;
  with_form(arguments, [&](auto exact, auto projected) {
    FusedStates states;
    if (has_start || carried.final_sum)
      states = call.states_of<exact(), projected(), true>(call.keys, key_cut, carried);
    launch_plain_outputs(stream, arguments, call, query_cut, states, has_start, outputs);
    const OutputsLayout<exact(), projected()> layout(call.problem.m_padded, call.problem.d_padded, plan.width,
                                                     plan.stages);
    launch(stream, fused_outputs<exact(), projected()>, call.grid(query_cut.segments, slices), dim3(fused_threads),
           plan.bytes, query_cut, call.queries, call.keys, states, has_start, outputs, layout);
  });
  if (arguments.denominators.defined()) {
    launch(stream, fused_report, dim3(static_cast<unsigned>(call.heads())), dim3(256), 0, outputs.inverse,
           gpu_data<float>(arguments.denominators), call.queries.n);
  }
}

void linear_attention_fused_backward(const Stream& stream, const LinearAttentionArguments& arguments,
                                     const LinearAttentionGradients& gradients) {
  FusedCall call(stream, arguments);
  call.queries.vectors = rows_of(gradients.d_output);
  float* delta = call.floats(std::int64_t{call.heads()} * call.queries.n);
  launch(stream, fused_deltas, call.grid(ceil_div(call.queries.n, 32), 1), dim3(256), 0, call.queries.vectors,
         rows_of(arguments.output), delta, call.problem.n_heads, call.queries.n, call.problem.d_value);
  call.queries.top = gpu_data<float>(arguments.top),
  call.queries.inverse = gpu_data<float>(arguments.inverse_denominator);
  call.queries.delta = delta;
  const FusedGradient d_query = gradient_of(gradients.d_query, call.queries.n),
                      d_key = gradient_of(gradients.d_key, call.keys.n),
                      d_value = gradient_of(gradients.d_value, call.keys.n);
  with_form(arguments, [&](auto exact, auto projected) {
    if (d_query.data)
      sweep<exact(), projected(), false>(stream, arguments, call, call.queries, call.keys, d_query, FusedGradient{});
    if (d_key.data || d_value.data)
      sweep<exact(), projected(), true>(stream, arguments, call, call.keys, call.queries, d_key, d_value);
  });
}

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
