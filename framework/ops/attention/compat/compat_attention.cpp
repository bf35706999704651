#include "framework/ops/attention/compat/compat_attention.h"

#include <algorithm>
#include <cmath>

#include "framework/core/parallel.h"
#include "framework/ops/attention/compat/compat_attention_arguments.h"
#include "framework/primitives/dispatch.h"

namespace furlong::ops {
namespace {

constexpr const char* op = "compat_attention";

struct Library {
  Compat library;
  const char* name;
  std::vector<FeatureMap> maps;
};
const std::vector<Library>& libraries() {
  static const std::vector<Library> all{
      {Compat::performer_pytorch, "performer_pytorch", {FeatureMap::favor_positive, FeatureMap::favor_relu}},
      {Compat::fast_transformers,
       "fast_transformers",
       {FeatureMap::elu1, FeatureMap::favor_hyperbolic, FeatureMap::favor_relu}}};
  return all;
}

/// ω in the type that is computed in.
Tensor directions_as(const Tensor& directions, DType dtype) {
  if (!directions.defined() || (directions.dtype() == dtype && directions.is_contiguous()) ||
      !directions.device().is_cpu())
    return directions;
  Tensor converted;
  with_float_type(dtype, op, [&]<class T>(std::type_identity<T>) {
    with_float_type(directions.dtype(), op, [&]<class From>(std::type_identity<From>) {
      std::vector<T> values;
      for (const From value : directions.to_vector<From>())
        values.push_back(static_cast<T>(static_cast<compute_t<From>>(value)));
      converted = Tensor::from(values, directions.shape(), directions.device());
    });
  });
  return converted;
}

CompatAttentionSizes sizes_of(const AttentionShape& shape, std::int64_t n_directions, bool hyperbolic) {
  CompatAttentionSizes sizes;
  sizes.d = shape.d_key;
  sizes.n_directions = n_directions;
  sizes.m = n_directions == 0 ? shape.d_key : hyperbolic ? 2 * n_directions : n_directions;
  sizes.columns = shape.d_value + 1;
  sizes.ld_d = sizes.padded(sizes.d);
  sizes.ld_u = sizes.padded(std::max(n_directions, sizes.d));
  sizes.ld_m = sizes.padded(sizes.m);
  sizes.ld_v = sizes.padded(sizes.columns);
  return sizes;
}

CompatAttentionArguments check(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& output,
                               const Tensor& directions, const AttentionMask& mask,
                               const CompatAttentionOptions& options) {
  check_compat(options.library, options.feature_map);
  CompatAttentionArguments arguments;
  arguments.shape = AttentionShape::of(query, key, value, op);
  const AttentionShape& shape = arguments.shape;
  require(!options.causal || shape.n_query == shape.n_key, "{}: causal, with {} queries and {} keys", op, shape.n_query,
          shape.n_key);
  const bool needed = feature_map_info(options.feature_map).needs_directions;
  require(needed == directions.defined(), "{}: directions are {} for {}", op, needed ? "missing" : "given",
          feature_map_info(options.feature_map).name);
  require(
      !needed || (directions.shape().rank() == 2 && directions.extent(0) > 0 && directions.extent(1) == shape.d_key),
      "{}: directions {}, expected [n_directions, {}]", op, needed ? directions.shape().text() : "", shape.d_key);
  mask.check(shape.batch, shape.n_query, shape.n_key, op);
  if (mask.documents.defined()) {
    throw UserError(
        "compat: packed documents, but the libraries know none; use mechanism linear without compat, or one document a "
        "sequence");
  }
  const std::int64_t n_directions = needed ? directions.extent(0) : 0;
  arguments.definition = compat_definition(options, shape.d_key, n_directions);
  arguments.sizes = sizes_of(shape, n_directions, options.feature_map == FeatureMap::favor_hyperbolic);
  arguments.causal = options.causal;
  arguments.query = query;
  arguments.key = key;
  arguments.value = value;
  arguments.output = output;
  const DType compute = accumulate_dtype(query.dtype());
  arguments.directions = directions_as(directions, compute);
  arguments.key_mask = mask.keys;
  if (needed) arguments.shared = Tensor::empty({arguments.sizes.directions_elements()}, compute, query.device());
  return arguments;
}

void backward(BackwardContext& context, const CompatAttentionOptions& options) {
  const Tensor query = split_heads(context.saved(0), options.n_heads, op, "query"),
               key = split_heads(context.saved(1), options.n_kv_heads, op, "key"),
               value = split_heads(context.saved(2), options.n_kv_heads, op, "value"),
               output = split_heads(context.saved(3), options.n_heads, op, "output");
  AttentionMask mask;
  mask.keys = context.saved(6);
  CompatAttentionArguments arguments = check(query, key, value, output, context.saved(5), mask, options);
  arguments.inverse_denominator = context.saved(4);
  const auto target = [&](std::size_t input, const Tensor& like) {
    GradientTarget gradient = context.d_input(input);
    if (gradient.wanted()) gradient.tensor = gradient.tensor.split_last(like.extent(3));
    return gradient;
  };
  const CompatAttentionGradients gradients{context.d_output().split_last(output.extent(3)), target(0, query),
                                           target(1, key), target(2, value)};
  const std::int64_t elements = arguments.sizes.tile_elements() + arguments.sizes.sums_elements(arguments.shape.n_key);
  arguments.scratch = Tensor::empty({thread_count(), elements}, accumulate_dtype(query.dtype()), query.device());
  if (runs_on_cpu(context.stream(), op)) compat_attention_backward_cpu(arguments, gradients);
}

}  // namespace

Compat compat_library(const std::string& name) {
  for (const Library& library : libraries()) {
    if (name == library.name) return library.library;
  }
  throw UserError(
      "compat: \"{}\" is no library that can be followed; known are performer_pytorch and fast_transformers", name);
}

void check_compat(Compat library, FeatureMap map) {
  for (const Library& known : libraries()) {
    if (known.library != library || std::ranges::count(known.maps, map) > 0) continue;
    std::string names;
    for (const FeatureMap each : known.maps)
      names += (names.empty() ? "" : ", ") + std::string(feature_map_info(each).name);
    throw UserError("compat: {} has no feature map {}; it has {}", known.name, feature_map_info(map).name, names);
  }
}

CompatDefinition compat_definition(const CompatAttentionOptions& options, std::int64_t d, std::int64_t n_directions) {
  using Kernel = CompatDefinition::Kernel;
  const auto or_default = [](double given, double usual) { return given < 0 ? usual : given; };
  CompatDefinition definition;
  const double temperature = std::pow(static_cast<double>(d), -0.25);
  if (options.library == Compat::performer_pytorch) {
    definition.scale = temperature;
    definition.sum_epsilon = options.causal ? or_default(options.denominator_epsilon, 1e-6) : 0;
    if (options.feature_map == FeatureMap::favor_positive) {
      definition.subtract_maximum = true;
      definition.feature_factor = 1 / std::sqrt(static_cast<double>(n_directions));
      definition.feature_epsilon = or_default(options.kernel_epsilon, 1e-4);
    } else {
      definition.kernel = Kernel::relu;
      definition.feature_epsilon = or_default(options.kernel_epsilon, 1e-3);
    }
    return definition;
  }
  definition.denominator_epsilon = or_default(options.denominator_epsilon, 1e-6);
  definition.mask_features = true;
  if (options.feature_map == FeatureMap::favor_hyperbolic) {
    definition.kernel = Kernel::hyperbolic;
    definition.scale = temperature;
    definition.feature_factor = 1 / std::sqrt(2.0 * static_cast<double>(n_directions));
    definition.stabilize = options.stabilize;
  } else {
    definition.kernel = options.feature_map == FeatureMap::elu1 ? Kernel::elu : Kernel::relu;
  }
  return definition;
}

Variable compat_attention(Tape& tape, const Variable& query, const Variable& key, const Variable& value,
                          const Tensor& directions, const AttentionMask& mask, const CompatAttentionOptions& options) {
  if (tape.device().is_gpu()) {
    throw UserError(
        "compat: {} cannot be had on {}: what another library computes, its epsilons and all, is computed on the CPU "
        "alone; use device: cpu, or leave compat away",
        libraries()[options.library == Compat::performer_pytorch ? 0 : 1].name, tape.device().text());
  }
  const Tensor heads_value = split_heads(value.value(), options.n_kv_heads, op, "value");
  const std::int64_t batch = query.extent(0), n = query.extent(1);
  const Tensor output =
      Tensor::empty({batch, n, options.n_heads * heads_value.extent(3)}, query.dtype(), tape.device());
  CompatAttentionArguments arguments = check(split_heads(query.value(), options.n_heads, op, "query"),
                                             split_heads(key.value(), options.n_kv_heads, op, "key"), heads_value,
                                             output.split_last(heads_value.extent(3)), directions, mask, options);
  const DType compute = accumulate_dtype(query.dtype());
  if (tape.records({&query, &key, &value}))
    arguments.inverse_denominator = Tensor::empty({batch, options.n_heads, n}, compute, tape.device());
  arguments.scratch = Tensor::empty({thread_count(), arguments.sizes.tile_elements()}, compute, tape.device());
  if (runs_on_cpu(tape.stream(), op)) compat_attention_forward_cpu(arguments);
  return tape.record_one(op, {query, key, value}, output,
                         {query.value(), key.value(), value.value(), output, arguments.inverse_denominator,
                          arguments.directions, mask.keys},
                         [options](BackwardContext& context) { backward(context, options); });
}

}  // namespace furlong::ops
