#include "framework/ops/linear_attention.h"

#include <algorithm>

#include "framework/core/parallel.h"
#include "framework/ops/arithmetic.h"
#include "framework/ops/dispatch.h"
#include "framework/ops/linear_attention_arguments.h"

namespace furlong::ops {

const std::vector<FeatureMapInfo>& feature_maps() {
  static const std::vector<FeatureMapInfo> maps{{FeatureMap::elu1, "elu1", false}, {FeatureMap::favor_positive, "favor_positive", true}};
  return maps;
}

const FeatureMapInfo& feature_map_info(const std::string& name) {
  std::string known;
  for (const FeatureMapInfo& info : feature_maps()) {
    if (name == info.name) return info;
    known += (known.empty() ? "" : ", ") + std::string(info.name);
  }
  throw UserError("feature map '{}' is unknown; expected one of {}", name, known);
}

const FeatureMapInfo& feature_map_info(FeatureMap map) {
  for (const FeatureMapInfo& info : feature_maps()) {
    if (info.map == map) return info;
  }
  throw ContractError("a feature map without a row in the table");
}

LinearAttentionState LinearAttentionState::empty(std::int64_t batch, std::int64_t n_heads, std::int64_t features, std::int64_t d_value,
                                                 DType dtype, const Device& device) {
  const Stream stream{device};
  LinearAttentionState state{Tensor::zeros({batch, n_heads, features, d_value}, dtype, device),
                             Tensor::zeros({batch, n_heads, features}, dtype, device),
                             Tensor::empty({batch, n_heads, features}, dtype, device)};
  fill(stream, state.maximum,
       -1e30);  // finite, so that differences of two such are not NaN; its exponential is zero beside any real maximum
  return state;
}

namespace {

LinearAttentionArguments check(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& directions,
                               const LinearAttentionOptions& options) {
  const char* const op = "linear_attention";
  require(query.shape().rank() == 3 && key.shape().rank() == 3 && value.shape().rank() == 3,
          "{}: query {}, key {}, value {}: three dimensions each", op, query.shape().text(), key.shape().text(), value.shape().text());
  require(options.n_heads > 0 && options.n_kv_heads > 0 && options.n_heads % options.n_kv_heads == 0,
          "{}: {} heads over {} key-value heads", op, options.n_heads, options.n_kv_heads);
  require(options.chunk_size >= 1, "{}: chunk_size {}", op, options.chunk_size);
  require(query.extent(2) % options.n_heads == 0 && key.extent(2) % options.n_kv_heads == 0 && value.extent(2) % options.n_kv_heads == 0,
          "{}: widths {}, {}, {} do not divide into {} and {} heads", op, query.extent(2), key.extent(2), value.extent(2), options.n_heads,
          options.n_kv_heads);
  LinearAttentionArguments arguments;
  arguments.options = options;
  arguments.query = query.split_last(query.extent(2) / options.n_heads);
  arguments.key = key.split_last(key.extent(2) / options.n_kv_heads);
  arguments.value = value.split_last(value.extent(2) / options.n_kv_heads);
  const std::int64_t d = arguments.query.extent(3);
  require(arguments.key.extent(3) == d, "{}: query heads are {} wide, key heads {}", op, d, arguments.key.extent(3));
  require(query.extent(0) == key.extent(0) && key.extent(0) == value.extent(0) && key.extent(1) == value.extent(1),
          "{}: query {}, key {}, value {}", op, query.shape().text(), key.shape().text(), value.shape().text());
  require(!options.causal || query.extent(1) == key.extent(1), "{}: causal attention of {} queries over {} keys", op, query.extent(1),
          key.extent(1));
  require(query.dtype() == key.dtype() && key.dtype() == value.dtype(), "{}: query, key and value differ in dtype", op);
  for (const Tensor* tensor : {&query, &key, &value}) require(tensor->has_contiguous_rows(), "{}: rows are not contiguous", op);
  arguments.features = d;
  if (feature_map_info(options.feature_map).needs_directions) {
    require(directions.defined() && directions.is_contiguous() && directions.shape().rank() >= 2 && directions.extent(-1) == d &&
                (directions.shape().rank() == 2 || directions.extent(0) == options.n_heads) &&
                directions.dtype() == accumulate_dtype(query.dtype()),
            "{}: directions {} for {} heads of width {}", op, directions.shape().text(), options.n_heads, d);
    arguments.features = directions.extent(-2);
    arguments.directions = directions;
  } else {
    require(!directions.defined(), "{}: {} takes no directions", op, feature_map_info(options.feature_map).name);
  }
  LinearAttentionSizes& sizes = arguments.sizes;
  sizes.d = d;
  sizes.d_value = arguments.value.extent(3);
  sizes.m = arguments.features;
  sizes.chunk = std::min(options.chunk_size, std::max({std::int64_t{1}, query.extent(1), key.extent(1)}));
  sizes.finish();
  return arguments;
}

/// What the body works in: `elements` for each thread, by thread_index(), and the directions turned for the tile functions.
void allocate_scratch(LinearAttentionArguments& arguments, std::int64_t elements) {
  const DType dtype = accumulate_dtype(arguments.query.dtype());
  const Device& device = arguments.query.device();
  if (arguments.directions.defined()) {
    const std::int64_t sets = arguments.directions.shape().rank() == 3 ? arguments.directions.extent(0) : 1;
    arguments.directions_transposed = Tensor::empty({sets, arguments.sizes.d, arguments.sizes.ld_m}, dtype, device);
  }
  arguments.scratch = Tensor::empty({thread_count(), elements}, dtype, device);
}

void backward(BackwardContext& context, const LinearAttentionOptions& options) {
  LinearAttentionArguments arguments = check(context.saved(0), context.saved(1), context.saved(2), context.saved(3), options);
  const std::int64_t d_value = arguments.value.extent(3);
  arguments.output = context.saved(4).split_last(d_value);
  arguments.top = context.saved(5);
  arguments.inverse_denominator = context.saved(6);
  const auto per_head = [&](GradientTarget target, std::int64_t width) {
    if (target.wanted()) target.tensor = target.tensor.split_last(width);
    return target;
  };
  LinearAttentionGradients gradients;
  gradients.d_output = context.d_output().split_last(d_value);
  gradients.d_query = per_head(context.d_input(0), arguments.query.extent(3));
  gradients.d_key = per_head(context.d_input(1), arguments.key.extent(3));
  gradients.d_value = per_head(context.d_input(2), d_value);
  allocate_scratch(arguments, arguments.sizes.backward_elements(arguments.query.extent(1), arguments.key.extent(1)));
  if (runs_on_cpu(context.stream(), "linear_attention")) linear_attention_backward_cpu(arguments, gradients);
}

}  // namespace

Variable linear_attention(Tape& tape, const Variable& query, const Variable& key, const Variable& value, const Tensor& directions,
                          const LinearAttentionOptions& options) {
  LinearAttentionArguments arguments = check(query.value(), key.value(), value.value(), directions, options);
  const std::int64_t batch = query.extent(0), n = query.extent(1), d_value = arguments.value.extent(3);
  const Tensor output = Tensor::empty({batch, n, options.n_heads * d_value}, query.dtype(), tape.device());
  arguments.output = output.split_last(d_value);
  if (tape.records({&query, &key, &value})) {
    arguments.top = Tensor::empty({batch, options.n_heads, n}, accumulate_dtype(query.dtype()), tape.device());
    arguments.inverse_denominator = Tensor::empty({batch, options.n_heads, n}, accumulate_dtype(query.dtype()), tape.device());
  }
  allocate_scratch(arguments, arguments.sizes.forward_elements());
  if (runs_on_cpu(tape.stream(), "linear_attention")) linear_attention_forward_cpu(arguments);
  return tape.record_one("linear_attention", {query, key, value}, output,
                         {query.value(), key.value(), value.value(), directions, output, arguments.top, arguments.inverse_denominator},
                         [options](BackwardContext& context) { backward(context, options); });
}

Tensor linear_attention_continue(const Stream& stream, const Tensor& query, const Tensor& key, const Tensor& value,
                                 const Tensor& directions, const LinearAttentionOptions& options, LinearAttentionState& state) {
  require(options.causal, "linear_attention: only causal attention can be continued from a state");
  LinearAttentionArguments arguments = check(query, key, value, directions, options);
  const std::int64_t batch = query.extent(0), d_value = arguments.value.extent(3);
  require(state.sum.shape() == Shape({batch, options.n_heads, arguments.features, d_value}) &&
              state.sum.dtype() == accumulate_dtype(query.dtype()),
          "linear_attention: a state of {} for {} heads, {} features, values of width {}", state.sum.shape().text(), options.n_heads,
          arguments.features, d_value);
  const Tensor output = Tensor::empty({batch, query.extent(1), options.n_heads * d_value}, query.dtype(), stream.device);
  arguments.output = output.split_last(d_value);
  arguments.state = &state;
  allocate_scratch(arguments, arguments.sizes.forward_elements());
  if (runs_on_cpu(stream, "linear_attention")) linear_attention_forward_cpu(arguments);
  return output;
}

}  // namespace furlong::ops
