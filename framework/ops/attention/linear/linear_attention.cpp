#include "framework/ops/attention/linear/linear_attention.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "framework/core/parallel.h"
#include "framework/ops/attention/attention_shape.h"
#include "framework/ops/attention/linear/linear_attention_arguments.h"
#include "framework/primitives/arithmetic.h"
#include "framework/primitives/cpu_isa.h"
#include "framework/primitives/dispatch.h"

namespace furlong::ops {
namespace {

constexpr const char* linear_op = "linear_attention";
using Arguments = LinearAttentionArguments;

void check_options(const LinearAttentionOptions& options) {
  require(options.n_heads > 0 && options.n_kv_heads > 0 && options.n_heads % options.n_kv_heads == 0,
          "{}: n_heads is {}, expected a positive multiple of n_kv_heads, which is {}", linear_op, options.n_heads,
          options.n_kv_heads);
  require(options.chunk_size >= 1, "{}: chunk_size is {}, expected at least 1", linear_op, options.chunk_size);
  require(options.window >= 0 && options.softmax_window >= 0,
          "{}: window is {} and softmax_window is {}, expected at least 0", linear_op, options.window,
          options.softmax_window);
  require(options.softmax_window == 0 || options.window == 0, "{}: softmax_window {} cannot be combined with window {}",
          linear_op, options.softmax_window, options.window);
  require(!options.rotate_numerator || options.softmax_window == 0,
          "{}: rotate_numerator cannot be combined with softmax_window", linear_op);
  require(!options.rotate_numerator || options.rotary_base > 0, "{}: rotary_base is {}, expected a positive number",
          linear_op, options.rotary_base);
}

/// Checks that a defined tensor is [n_heads, d] (or [n_heads] for d = 0) in the compute dtype.
void check_constant(const Tensor& tensor, const char* name, std::int64_t n_heads, std::int64_t d, DType dtype) {
  if (!tensor.defined()) return;
  const Shape expected = d > 0 ? Shape({n_heads, d}) : Shape({n_heads});
  require(tensor.shape() == expected && tensor.is_contiguous() && tensor.dtype() == dtype,
          "{}: {} is {} {}, expected {} {}", linear_op, name, name_of(tensor.dtype()), tensor.shape().text(),
          name_of(dtype), expected.text());
}

void check_constants(Arguments& arguments, DType dtype) {
  const LinearAttentionOptions& options = arguments.options;
  const LinearAttentionConstants& constants = arguments.constants;
  const FeatureMapInfo& info = feature_map_info(options.feature_map);
  const std::int64_t d = arguments.query.extent(3);
  const Tensor& random_projection = constants.random_projection;
  if (info.needs_random_projection) {
    require(random_projection.defined() && random_projection.is_contiguous() &&
                (random_projection.shape().rank() == 2 || random_projection.shape().rank() == 3) &&
                random_projection.extent(-1) == d &&
                (random_projection.shape().rank() == 2 || random_projection.extent(0) == options.n_heads) &&
                random_projection.dtype() == dtype,
            "{}: directions are {}, expected a contiguous {} tensor [n, {}] or [{}, n, {}]", linear_op,
            random_projection.defined() ? random_projection.shape().text() : "undefined", name_of(dtype), d,
            options.n_heads, d);
    arguments.n_projections = random_projection.extent(-2);
  } else {
    require(!random_projection.defined(), "{}: feature map {} takes no directions", linear_op, info.name);
  }
  arguments.features = feature_count(options.feature_map, options.map_options, d, arguments.n_projections);
  require(info.estimates_softmax ||
              !(constants.query_center.defined() || constants.key_center.defined() || constants.scaling.defined()),
          "{}: query_center, key_center and scaling are for maps that estimate softmax, not for {}", linear_op,
          info.name);
  check_constant(constants.query_center, "query_center", options.n_heads, d, dtype);
  check_constant(constants.key_center, "key_center", options.n_heads, d, dtype);
  check_constant(constants.scaling, "scaling", options.n_heads, d, dtype);
  check_constant(constants.oprf_a, "oprf_a", options.n_heads, 0, dtype);
}

/// Returns whether the kernels may round operands to bfloat16: where all weights are positive, so that the rounding of
/// a sum is relative to the sum, and chunks have enough tokens to pay for packing.
bool multiplies_in_bfloat16(const Arguments& arguments) {
  const LinearAttentionOptions& options = arguments.options;
  return arguments.query.dtype() == DType::bfloat16 && !arguments.query.device().is_gpu() && !arguments.guarded &&
         options.normalizer == Normalizer::sum && !options.rotate_numerator && options.chunk_size >= 16;
}

/// Checks the inputs; query, key and value are [batch, n, heads·d]. `earlier`: number of keys before the first query.
Arguments check(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& gate,
                const LinearAttentionConstants& constants, const AttentionMask& mask,
                const LinearAttentionOptions& options, std::int64_t earlier) {
  check_options(options);
  Arguments arguments;
  arguments.options = options;
  arguments.query = split_heads(query, options.n_heads, linear_op, "query");
  arguments.key = split_heads(key, options.n_kv_heads, linear_op, "key");
  arguments.value = split_heads(value, options.n_kv_heads, linear_op, "value");
  const AttentionShape shape = AttentionShape::of(arguments.query, arguments.key, arguments.value, linear_op);
  require(!options.causal || shape.n_key == shape.n_query + earlier,
          "{}: {} queries and {} keys, but causal attention needs as many keys as queries", linear_op, shape.n_query,
          shape.n_key);
  require((options.window == 0 && options.softmax_window == 0) || shape.n_key == shape.n_query + earlier,
          "{}: {} queries and {} keys, but a window needs as many keys as queries", linear_op, shape.n_query,
          shape.n_key);
  arguments.query_offset = options.causal ? earlier : 0;
  const DType dtype = accumulate_dtype(query.dtype());
  arguments.constants = constants;
  check_constants(arguments, dtype);
  mask.check(shape.batch, shape.n_query, shape.n_key, linear_op);
  arguments.mask = mask;
  require(!gate.defined() ||
              (options.softmax_window > 0 && gate.shape() == Shape({options.n_heads}) && gate.is_contiguous()),
          "{}: gate is {}, expected [{}] with a softmax_window, which is {}", linear_op,
          gate.defined() ? gate.shape().text() : "", options.n_heads, options.softmax_window);
  arguments.gate = gate;
  arguments.guarded = can_cancel(options.feature_map);

  LinearAttentionSizes& sizes = arguments.sizes;
  sizes.d = shape.d_key;
  sizes.d_value = shape.d_value;
  sizes.m = arguments.features;
  sizes.chunk = std::min(options.chunk_size, std::max({std::int64_t{1}, shape.n_query, shape.n_key}));
  sizes.softmax_pairs = options.softmax_window > 0;
  sizes.two_sweeps = sizes.softmax_pairs && !options.causal;
  const std::int64_t sides = options.causal || sizes.two_sweeps ? 1 : 2;  // of a chunk that have near keys
  sizes.near = std::min(sizes.chunk + Arguments::recent_keys(options) * sides, std::max(sizes.chunk, shape.n_key));
  // Without causality every output is a sum over all keys, and has the rounding error of the longest sum. With
  // causality the error of an output grows with its own number of keys only.
  sizes.compensated = !options.causal && options.window == 0 && dtype == DType::float32;
  sizes.rotates = options.rotate_numerator;
  if (multiplies_in_bfloat16(arguments)) sizes.bfloat16 = bfloat16_products();
  sizes.finish();
  return arguments;
}

/// Allocates what the CPU kernel writes: `elements` of scratch per thread, indexed by thread_index(), the transposed
/// random projection, and the rotation table. Packs the projection.
void allocate_scratch(Arguments& arguments, std::int64_t elements) {
  const DType dtype = accumulate_dtype(arguments.query.dtype());
  const Device& device = arguments.query.device();
  if (device.is_gpu()) return;
  const Tensor& random_projection = arguments.constants.random_projection;
  if (random_projection.defined()) {
    const std::int64_t sets = random_projection.shape().rank() == 3 ? random_projection.extent(0) : 1;
    arguments.directions_transposed = Tensor::empty(
        {sets, arguments.sizes.d, LinearAttentionSizes::row_stride(arguments.n_projections)}, dtype, device);
    arguments.direction_norms = Tensor::empty({sets, arguments.n_projections}, dtype, device);
    if (arguments.sizes.bfloat16) pack_projections_cpu(arguments, sets);
  }
  if (arguments.sizes.rotates) {
    std::int64_t before = 0;  // largest position of a first key
    for (const std::int64_t tokens : arguments.open_document_tokens) before = std::max(before, tokens);
    const std::int64_t last =
        before + std::max(arguments.query_offset + arguments.query.extent(1), arguments.key.extent(1)) - 1;
    const std::int64_t powers = std::bit_width(static_cast<std::uint64_t>(std::max<std::int64_t>(last, 0)));
    arguments.rotation = Tensor::empty({1 + powers, 2, arguments.sizes.ld_rotations}, DType::float64, device);
  }
  arguments.scratch = Tensor::empty({thread_count(), elements}, dtype, device);
}

enum class SavedLinear : std::uint8_t {
  query,
  key,
  value,
  output,
  top,
  inverse_denominator,
  gate,
  random_projection,
  query_center,
  key_center,
  scaling,
  oprf_a,
  mask_keys,
  mask_documents,
  start_sum,
  start_normalizer,
  start_maximum,
  start_magnitude
};

/// Non-tensor arguments of forward that backward needs.
struct Call {
  LinearAttentionOptions options;
  std::int64_t earlier = 0, first_position = 0;
  SegmentExchange* segments = nullptr;
  std::vector<std::int64_t> open_document_tokens{};
  std::int64_t parts = 1;  // Arguments::segments
};

/// Returns an empty state for the document at one end of a segment, or for those at both ends.
LinearAttentionState state_of_segment(const Arguments& arguments) {
  const bool both_ends = !arguments.options.causal && arguments.mask.documents.defined();
  return empty_linear_attention_state(arguments.options, (both_ends ? 2 : 1) * arguments.query.extent(0),
                                      arguments.features, arguments.value.extent(3), arguments.query.dtype(),
                                      arguments.query.device());
}

/// Exchanges the sums over the segments' keys. Forward and backward's sweep over queries start from the result.
void start_from_segments(const Stream& stream, Arguments& arguments, SegmentExchange& segments) {
  const LinearAttentionOptions& options = arguments.options;
  const bool is_cpu = stream.device.is_cpu();
  require(is_cpu || stream.device.is_shape_only(),
          "{}: a sequence split over several ranks is supported on the CPU only, found device {}", linear_op,
          stream.device.text());
  require(options.window == 0 && options.softmax_window == 0,
          "{}: a sequence split over several ranks cannot be combined with a window", linear_op);
  const bool packed = arguments.mask.documents.defined();
  arguments.open_document_tokens = segments.open_document_tokens();
  require(arguments.open_document_tokens.size() == (packed ? static_cast<std::size_t>(arguments.query.extent(0)) : 0),
          "{}: open_document_tokens has {} rows for batch {} with {}", linear_op, arguments.open_document_tokens.size(),
          arguments.query.extent(0), packed ? "packed documents" : "no packed documents");
  if (!packed) arguments.first_position = segments.first_position();
  LinearAttentionState state = state_of_segment(arguments);
  Arguments keys_alone = arguments;
  keys_alone.gathered = &state;
  allocate_scratch(keys_alone, keys_alone.sizes.forward_elements(keys_alone.query.extent(1)));
  if (is_cpu) linear_attention_forward_cpu(keys_alone);
  segments.exchange_keys(stream, state, options.causal);
  arguments.start_sum = state.sum;
  arguments.start_normalizer = state.normalizer;
  arguments.start_maximum = state.maximum;
  arguments.start_magnitude = state.magnitude;
}

/// Exchanges the sums over the segments' queries. Backward's sweep over keys starts from the result.
void end_with_segments(const Stream& stream, Arguments& arguments, const LinearAttentionGradients& gradients,
                       SegmentExchange& segments) {
  LinearAttentionState state = state_of_segment(arguments);
  arguments.gathered = &state;
  if (stream.device.is_cpu()) linear_attention_backward_cpu(arguments, gradients);
  arguments.gathered = nullptr;
  segments.exchange_queries(stream, state, arguments.options.causal);
  arguments.end_sum = state.sum;
  arguments.end_normalizer = state.normalizer;
  arguments.end_maximum = state.maximum;
  arguments.end_magnitude = state.magnitude;
}

void linear_backward(BackwardContext& context, const Call& call) {
  const auto saved = [&](SavedLinear name) { return context.saved(name); };
  LinearAttentionConstants constants;
  constants.random_projection = saved(SavedLinear::random_projection);
  constants.query_center = saved(SavedLinear::query_center);
  constants.key_center = saved(SavedLinear::key_center);
  constants.scaling = saved(SavedLinear::scaling);
  constants.oprf_a = saved(SavedLinear::oprf_a);
  Arguments arguments =
      check(saved(SavedLinear::query), saved(SavedLinear::key), saved(SavedLinear::value), saved(SavedLinear::gate),
            constants, {saved(SavedLinear::mask_keys), saved(SavedLinear::mask_documents)}, call.options, call.earlier);
  arguments.first_position = call.first_position;
  arguments.open_document_tokens = call.open_document_tokens;
  const std::int64_t d_value = arguments.value.extent(3), batch = arguments.query.extent(0);
  arguments.output = saved(SavedLinear::output).split_last(d_value);
  arguments.top = saved(SavedLinear::top);
  arguments.inverse_denominator = saved(SavedLinear::inverse_denominator);
  arguments.start_sum = saved(SavedLinear::start_sum);
  arguments.start_normalizer = saved(SavedLinear::start_normalizer);
  arguments.start_maximum = saved(SavedLinear::start_maximum);
  arguments.start_magnitude = saved(SavedLinear::start_magnitude);
  const auto per_head = [&](GradientTarget target, std::int64_t width) {
    if (target.wanted()) target.tensor = target.tensor.split_last(width);
    return target;
  };
  LinearAttentionGradients gradients;
  gradients.d_output = context.d_output().split_last(d_value);
  gradients.d_query = per_head(context.d_input(0), arguments.query.extent(3));
  gradients.d_key = per_head(context.d_input(1), arguments.query.extent(3));
  gradients.d_value = per_head(context.d_input(2), d_value);
  arguments.sizes.sums_key_gradients =
      call.options.n_heads > call.options.n_kv_heads || arguments.sizes.two_sweeps || gradients.share_columns();
  const GradientTarget d_gate = arguments.gate.defined() ? context.d_input(3) : GradientTarget{};
  if (d_gate.wanted())
    gradients.d_gate = Tensor::empty({batch, call.options.n_heads}, accumulate_dtype(arguments.query.dtype()),
                                     arguments.query.device());
  allocate_scratch(
      arguments, arguments.sizes.for_backward().backward_elements(arguments.query.extent(1), arguments.key.extent(1)));
  if (call.segments) end_with_segments(context.stream(), arguments, gradients, *call.segments);
  if (call.parts > 1) {
    arguments.segments = call.parts;
    if (context.stream().device.is_cpu()) end_segments_cpu(arguments, gradients);
  }
  dispatch_kernel(context.stream(), linear_attention_backward_cpu, linear_attention_backward_gpu, arguments, gradients);
  if (d_gate.wanted() && batch == 0 && !d_gate.accumulates()) fill(context.stream(), d_gate.tensor, 0.0);
  for (std::int64_t b = 0; d_gate.wanted() && b < batch; ++b) {
    add(context.stream(), d_gate.tensor, gradients.d_gate.narrow(0, b, 1).reshape({call.options.n_heads}),
        b == 0 && !d_gate.accumulates() ? GradientMode::overwrite : GradientMode::accumulate);
  }
}

void check_state(const LinearAttentionState& state, const Arguments& arguments) {
  const LinearAttentionOptions& options = arguments.options;
  const std::int64_t batch = arguments.query.extent(0), d_value = arguments.value.extent(3);
  require(options.causal && !arguments.mask.documents.defined(),
          "{}: a state needs causal attention without a document mask", linear_op);
  require(state.sum.shape() == Shape({batch, options.n_heads, arguments.features, d_value}) &&
              state.sum.dtype() == accumulate_dtype(arguments.query.dtype()),
          "{}: state is {}, expected {} heads, {} features and values of width {}", linear_op, state.sum.shape().text(),
          options.n_heads, arguments.features, d_value);
}

/// Concatenates `earlier_rows` rows of `earlier` and all of `now` along the sequence.
Tensor joined(const Stream& stream, const Tensor& earlier, std::int64_t earlier_rows, const Tensor& now) {
  if (earlier_rows == 0) return now;
  const Tensor both =
      Tensor::empty({now.extent(0), earlier_rows + now.extent(1), now.extent(2)}, now.dtype(), now.device());
  convert(stream, both.narrow(1, 0, earlier_rows), earlier.narrow(1, 0, earlier_rows));
  convert(stream, both.narrow(1, earlier_rows, now.extent(1)), now);
  return both;
}

/// Returns a copy of the last rows of `all`, which a window may still reach.
Tensor kept(const Stream& stream, const Tensor& all, std::int64_t rows) {
  const Tensor last = Tensor::empty({all.extent(0), rows, all.extent(2)}, all.dtype(), all.device());
  convert(stream, last, all.narrow(1, all.extent(1) - rows, rows));
  return last;
}

}  // namespace

DenominatorReport& DenominatorReport::gather() {
  for (const Tensor& counts : std::exchange(pending, {})) {
    std::vector<double> values;
    if (counts.dtype() == DType::float64) {
      values = counts.to_vector<double>();
    } else {
      for (const float value : counts.to_vector<float>()) values.push_back(value);
    }
    for (std::size_t i = 0; i < values.size(); i += 2) {
      guarded += static_cast<std::int64_t>(values[i]);
      least = std::min(least, values[i + 1]);
    }
  }
  return *this;
}

DenominatorReport& DenominatorReport::operator+=(const DenominatorReport& other) {
  rows += other.rows;
  guarded += other.guarded;
  least = std::min(least, other.least);
  pending.insert(pending.end(), other.pending.begin(), other.pending.end());
  return gather();
}

std::int64_t LinearAttentionState::bytes() const {
  std::int64_t total = 0;
  for (const Tensor* tensor : {&sum, &normalizer, &maximum, &magnitude, &recent_key, &recent_value}) {
    if (tensor->defined()) total += tensor->bytes();
  }
  return total;
}

namespace {

/// Joins features [first, end) of one head of one sequence. T is float or double.
template <class T>
void join_head(LinearAttentionState& state, const LinearAttentionState& other, std::int64_t head, std::int64_t first,
               std::int64_t end) {
  const std::int64_t features = state.sum.extent(2), width = state.sum.extent(3);
  T *sum = state.sum.data<T>() + head * features * width, *normalizer = state.normalizer.data<T>() + head * features;
  T *maximum = state.maximum.data<T>() + head * features, *magnitude = state.magnitude.data<T>() + head;
  const T *sum2 = other.sum.data<T>() + head * features * width,
          *normalizer2 = other.normalizer.data<T>() + head * features;
  const T *maximum2 = other.maximum.data<T>() + head * features, *magnitude2 = other.magnitude.data<T>() + head;
  for (std::int64_t f = first; f < end; ++f) {
    const T top = std::max(maximum[f], maximum2[f]), one = std::exp(maximum[f] - top),
            two = std::exp(maximum2[f] - top);
    for (std::int64_t j = 0; j < width; ++j) sum[f * width + j] = one * sum[f * width + j] + two * sum2[f * width + j];
    normalizer[f] = one * normalizer[f] + two * normalizer2[f];
    // Only map forms with one maximum for all features have a magnitude, so any feature's factors are right.
    if (f == 0) *magnitude = one * *magnitude + two * *magnitude2;
    maximum[f] = top;
  }
}

}  // namespace

LinearAttentionState empty_like(const Stream& stream, const LinearAttentionState& state) {
  LinearAttentionState empty;
  const auto zeros = [&](const Tensor& tensor) {
    return Tensor::zeros(tensor.shape(), tensor.dtype(), tensor.device());
  };
  empty.sum = zeros(state.sum);
  empty.normalizer = zeros(state.normalizer);
  empty.magnitude = zeros(state.magnitude);
  empty.maximum = Tensor::empty(state.maximum.shape(), state.maximum.dtype(), state.maximum.device());
  fill(stream, empty.maximum, -1e30);  // negligible next to any real maximum; the difference of two is 0, not NaN
  return empty;
}

void join(LinearAttentionState& state, const LinearAttentionState& other) {
  require(
      state.sum.shape() == other.sum.shape() && state.sum.dtype() == other.sum.dtype() && state.sum.device().is_cpu(),
      "{}: cannot join states of {} and {}; expected equal shapes and dtypes on the CPU", linear_op,
      state.sum.shape().text(), other.sum.shape().text());
  constexpr std::int64_t block = 64;
  const std::int64_t heads = state.sum.extent(0) * state.sum.extent(1), features = state.sum.extent(2),
                     blocks = (features + block - 1) / block;
  parallel_tasks(heads * blocks, [&](std::int64_t task) {
    const std::int64_t head = task / blocks, first = task % blocks * block, end = std::min(features, first + block);
    state.sum.dtype() == DType::float64 ? join_head<double>(state, other, head, first, end)
                                        : join_head<float>(state, other, head, first, end);
  });
  state.tokens += other.tokens;
}

LinearAttentionState empty_linear_attention_state(const LinearAttentionOptions& options, std::int64_t batch,
                                                  std::int64_t features, std::int64_t d_value, DType storage,
                                                  const Device& device) {
  const DType dtype = accumulate_dtype(storage);
  const std::int64_t heads = options.n_heads;
  LinearAttentionState state;
  state.sum = Tensor::empty({batch, heads, features, d_value}, dtype, device);
  state.normalizer = Tensor::empty({batch, heads, features}, dtype, device);
  state.maximum = Tensor::empty({batch, heads, features}, dtype, device);
  state.magnitude = Tensor::empty({batch, heads}, dtype, device);
  return empty_like(Stream{device}, state);
}

Variable linear_attention(Tape& tape, const LinearAttentionInputs& inputs, const LinearAttentionOptions& options) {
  const Stream& stream = tape.stream();
  LinearAttentionState* state = inputs.state;
  const std::int64_t recent = state && state->recent_key.defined() ? state->recent_key.extent(1) : 0;
  const Tensor& query = inputs.query.value();
  const Tensor key = recent > 0 ? joined(stream, state->recent_key, recent, inputs.key.value()) : inputs.key.value();
  const Tensor value =
      recent > 0 ? joined(stream, state->recent_value, recent, inputs.value.value()) : inputs.value.value();
  require(!state || Arguments::recent_keys(options) == 0 || !inputs.mask.keys.defined(),
          "{}: a window with a state cannot be combined with a key mask", linear_op);
  Arguments arguments = check(query, key, value, inputs.gate.defined() ? inputs.gate.value() : Tensor{},
                              inputs.constants, inputs.mask, options, recent);
  const std::int64_t batch = query.extent(0), n = query.extent(1), d_value = arguments.value.extent(3);
  const DType dtype = accumulate_dtype(query.dtype());
  const bool records = inputs.gate.defined() ? tape.records({&inputs.query, &inputs.key, &inputs.value, &inputs.gate})
                                             : tape.records({&inputs.query, &inputs.key, &inputs.value});
  if (state) {
    check_state(*state, arguments);
    // Backward needs the state before this call.
    const auto before = [&](const Tensor& tensor) { return records ? tensor.clone() : tensor; };
    arguments.start_sum = before(state->sum);
    arguments.start_normalizer = before(state->normalizer);
    arguments.start_maximum = before(state->maximum);
    arguments.start_magnitude = before(state->magnitude);
    arguments.state = state;
    arguments.first_position = state->tokens - recent;
  }
  if (inputs.segments) {
    require(!state, "{}: a segment of a sequence cannot be combined with a state", linear_op);
    start_from_segments(stream, arguments, *inputs.segments);
  }
  const Tensor output = Tensor::empty({batch, n, options.n_heads * d_value}, query.dtype(), tape.device());
  arguments.output = output.split_last(d_value);
  if (records) {
    arguments.top = Tensor::empty({batch, options.n_heads, n}, dtype, tape.device());
    arguments.inverse_denominator = Tensor::empty({batch, options.n_heads, n}, dtype, tape.device());
  }
  const bool reports = inputs.report && options.normalizer == Normalizer::sum;
  if (reports) arguments.denominators = Tensor::empty({batch, options.n_heads, 2}, dtype, tape.device());
  allocate_scratch(arguments, arguments.sizes.forward_elements(n));
  if (stream.device.is_cpu()) start_segments_cpu(arguments);
  dispatch_kernel(stream, linear_attention_forward_cpu, linear_attention_forward_gpu, arguments);
  if (reports && !stream.device.is_shape_only()) {
    inputs.report->rows += batch * n * options.n_heads;
    inputs.report->pending.push_back(arguments.denominators);
    if (stream.device.is_cpu()) inputs.report->gather();
  }
  if (state) {
    const std::int64_t reach = Arguments::recent_keys(options);
    if (reach > 0) {
      state->recent_key = kept(stream, key, std::min(reach, key.extent(1)));
      state->recent_value = kept(stream, value, std::min(reach, value.extent(1)));
    }
    state->tokens += n;
  }
  std::vector<Variable> recorded{inputs.query, inputs.key, inputs.value};
  if (inputs.gate.defined()) recorded.push_back(inputs.gate);
  const LinearAttentionConstants& constants = inputs.constants;
  return tape.record_one(
      linear_op, recorded, output,
      saved_by_name<SavedLinear>({{SavedLinear::query, query},
                                  {SavedLinear::key, key},
                                  {SavedLinear::value, value},
                                  {SavedLinear::output, output},
                                  {SavedLinear::top, arguments.top},
                                  {SavedLinear::inverse_denominator, arguments.inverse_denominator},
                                  {SavedLinear::gate, arguments.gate},
                                  {SavedLinear::random_projection, constants.random_projection},
                                  {SavedLinear::query_center, constants.query_center},
                                  {SavedLinear::key_center, constants.key_center},
                                  {SavedLinear::scaling, constants.scaling},
                                  {SavedLinear::oprf_a, constants.oprf_a},
                                  {SavedLinear::mask_keys, inputs.mask.keys},
                                  {SavedLinear::mask_documents, inputs.mask.documents},
                                  {SavedLinear::start_sum, arguments.start_sum},
                                  {SavedLinear::start_normalizer, arguments.start_normalizer},
                                  {SavedLinear::start_maximum, arguments.start_maximum},
                                  {SavedLinear::start_magnitude, arguments.start_magnitude}}),
      [call = Call{options, recent, arguments.first_position, inputs.segments, arguments.open_document_tokens,
                   arguments.segments}](BackwardContext& context) { linear_backward(context, call); });
}

}  // namespace furlong::ops
