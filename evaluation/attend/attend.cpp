#include "evaluation/attend/attend.h"

#include <functional>

#include "evaluation/attend/attend_tensors.h"
#include "framework/core/arena.h"
#include "framework/core/clock.h"
#include "framework/core/gpu_engine.h"
#include "framework/core/version.h"
#include "framework/io/atomic_file.h"
#include "framework/ops/attention/linformer/sequence_projection.h"
#include "layers/attention/linear/random_projection.h"

namespace furlong {
namespace {

/// Returns the duration of `work`, including all that it launches on the stream.
double seconds_of(const Stream& stream, const std::function<void()>& work) {
  synchronize(stream);
  const auto begin = Clock::now();
  work();
  synchronize(stream);
  return seconds_since(begin);
}

void check(const AttendOptions& options) {
  check_attention(options.config);
  const layers::MechanismInfo& mechanism = layers::mechanism_info(options.config.mechanism);
  refuse_replacing_inputs({options.input.string()}, options.output);
  if (!options.recurrent) {
    if (options.prefill > 0)
      throw UserError("--prefill {} applies only to --mode recurrent; remove it, or add --mode recurrent",
                      options.prefill);
    return;
  }
  if (mechanism.past == layers::Past::none)
    throw UserError("--mode recurrent: {} cannot run recurrently: {}; use --mode parallel", mechanism.name,
                    mechanism.limits);
  if (!options.config.causal) throw UserError("--mode recurrent requires a causal attention; add --causal");
  if (options.gradients)
    throw UserError(
        "--gradients: --mode recurrent computes no gradients; use --mode parallel, which computes the same output");
}

std::string kind_of(const AttendOptions& options) { return options.projection_kind.value_or("orthogonal"); }

/// Draws a random projection if the file has none. Checks its number of rows against --features.
void settle_random_projection(const AttendOptions& options, AttendTensors& tensors, AttendReport& report) {
  layers::AttentionConfig config = options.config;
  config.d_head = tensors.d;
  const ops::FeatureMapInfo& map = ops::feature_map_info(config.feature_map);
  const std::int64_t wanted = attend_projection_count(config, options.features);
  Tensor& random_projection = tensors.constants.random_projection;
  if (wanted > 0 && !random_projection.defined()) {
    const RandomKey key{options.seed.value_or(0), 0, random_stream("attend.directions")};
    const std::vector<float> drawn = layers::draw_random_projection(
        value_named<layers::RandomProjectionKind>(kind_of(options), "--random-projection"), wanted, tensors.d, key);
    random_projection =
        accumulate_dtype(options.dtype) == DType::float64
            ? Tensor::from(std::vector<double>(drawn.begin(), drawn.end()), {wanted, tensors.d}, options.device)
            : Tensor::from(drawn, {wanted, tensors.d}, options.device);
    report.drew_projection = true;
  }
  if ((options.seed || options.projection_kind) && !report.drew_projection) {
    const char* const given = options.seed ? "--seed" : "--random-projection";
    if (wanted == 0)
      throw UserError("{} has no effect: feature map {} has no random projection; remove it", given, map.name);
    throw UserError("{} has no effect: '{}' is read from {}; remove {} or the dataset", given, tensors.projection_name,
                    options.input.string(), given);
  }
  const std::int64_t n_projections = random_projection.defined() ? random_projection.shape()[-2] : 0;
  report.features = attend_feature_count(config, n_projections);
  if (options.features > 0 && n_projections != wanted) {
    throw UserError(
        "--features {}: HDF5 dataset '{}' of {} has {} rows, expected {}; remove --features to use all rows",
        options.features, tensors.projection_name, options.input.string(), n_projections, wanted);
  }
}

/// Reshapes convolution filters [heads, d, stride] to the op's [heads·d, stride]. Returns other projections unchanged.
Tensor in_op_layout(const Tensor& projection, ops::SequenceProjection kind) {
  if (!projection.defined() || kind != ops::SequenceProjection::convolution || projection.shape().rank() == 2)
    return projection;
  return projection.reshape({projection.extent(0) * projection.extent(1), projection.extent(2)});
}

/// Operands and weights as leaves, which hold their gradients after backward.
struct Leaves {
  AttentionOperands operands;
  layers::AttentionTensors tensors;
};

Leaves leaves_of(const AttendTensors& tensors, const AttendOptions& options) {
  const auto variable = [&](const Tensor& tensor) {
    if (!tensor.defined()) return Variable{};
    return options.gradients ? Variable::leaf(tensor) : Variable(tensor);
  };
  const ops::SequenceProjection kind = options.config.projection;
  Leaves leaves{{variable(tensors.query), variable(tensors.key), variable(tensors.value), tensors.mask}, {}};
  layers::AttentionTensors& given = leaves.tensors;
  given.gate = variable(tensors.gate);
  given.key_projection = variable(in_op_layout(tensors.key_projection, kind));
  const Tensor value_projection = in_op_layout(tensors.value_projection, kind);
  given.value_projection = value_projection.defined() ? variable(value_projection) : given.key_projection;
  given.constants = tensors.constants;
  return leaves;
}

layers::AttentionConfig config_of(const AttendOptions& options, const AttendTensors& tensors, std::int64_t features) {
  layers::AttentionConfig config = options.config;
  config.n_heads = tensors.n_heads;
  config.n_kv_heads = tensors.n_kv_heads;
  config.d_head = tensors.d;
  config.d_value = tensors.d_value;
  config.n_features = features;
  config.projected_length = tensors.projected_length;
  config.max_sequence_length = tensors.max_length;
  return config;
}

/// Returns the output [batch, n, heads·d_value].
Tensor compute(const AttendOptions& options, BareAttention& attention, const Leaves& leaves, const Tensor& d_output,
               AttendReport& report) {
  const Stream stream{options.device};
  Arena& memory = arena(options.device);
  memory.reset_peak();
  const std::int64_t before = memory.counters().bytes_in_use;
  Tape tape(stream);
  ops::DenominatorReport counted;
  AttentionOperands operands = leaves.operands;
  operands.denominators = &counted;
  Tensor output;
  if (options.recurrent) {
    report.forward_seconds =
        seconds_of(stream, [&] { output = attention.in_steps(stream, operands, options.prefill); });
  } else {
    Variable result;
    report.forward_seconds = seconds_of(stream, [&] { result = attention.in_parallel(tape, operands); });
    output = result.value();
    if (options.gradients) {
      report.backward_seconds = seconds_of(stream, [&] { tape.backward({result}, {d_output}); });
    }
  }
  report.peak_bytes = memory.counters().peak_bytes - before;
  if (report.has_denominators) report.denominators = counted;
  report.denominators.gather();
  return output;
}

void write_attributes(hdf5::File& file, const AttendOptions& options, const AttendReport& report) {
  const layers::AttentionConfig& config = options.config;
  const layers::MechanismInfo& mechanism = layers::mechanism_info(config.mechanism);
  file.set_text("format", "furlong attention");
  file.set_integer("format_version", 1);
  file.set_text("version", version());
  file.set_text("commit", commit());
  file.set_text("mechanism", mechanism.name);
  file.set_integer("causal", config.causal ? 1 : 0);
  file.set_integer("window", mechanism.window_in(config));
  file.set_text("dtype", name_of(options.dtype));
  file.set_text("mode", options.recurrent ? "recurrent" : "parallel");
  if (mechanism.projects_sequence) file.set_text("projection", name_of(config.projection));
  if (options.recurrent) file.set_integer("prefill", options.prefill);
  if (mechanism.has_features) {
    const ops::FeatureMapInfo& map = ops::feature_map_info(config.feature_map);
    file.set_text("feature_map", config.feature_map);
    file.set_integer("m", report.features);
    file.set_integer("chunk_size", config.chunk_size);
    file.set_text("normalizer", name_of(config.normalizer));
    if (map.highest_order > 0) file.set_integer("order", config.map_options.order);
    if (map.uses_kernel_epsilon) file.set_number("kernel_epsilon", config.map_options.kernel_epsilon);
    if (map.can_cancel && config.normalizer == ops::Normalizer::sum)
      file.set_number("denominator_guard", config.denominator_guard);
    if (map.needs_random_projection)
      file.set_text("random_projection", report.drew_projection ? kind_of(options) : "given");
    if (report.drew_projection) file.set_integer("seed", static_cast<std::int64_t>(options.seed.value_or(0)));
  }
  if (report.has_denominators) {
    file.set_integer("rows", report.denominators.rows);
    file.set_integer("guarded_rows", report.denominators.guarded);
    file.set_number("least_denominator", report.denominators.least);
  }
  file.set_number("forward_seconds", report.forward_seconds);
  if (options.gradients) file.set_number("backward_seconds", report.backward_seconds);
  file.set_number("seconds", report.forward_seconds + report.backward_seconds);
  file.set_integer("peak_bytes", report.peak_bytes);
}

/// Returns the gradient of a leaf, or zeros if it has none.
Tensor gradient_of(const Variable& leaf) {
  const Tensor gradient = leaf.gradient();
  return gradient.defined() ? gradient : Tensor::zeros(leaf.shape(), leaf.dtype(), leaf.value().device());
}

void write_gradients(hdf5::File& file, const Leaves& leaves, const AttendTensors& tensors) {
  write_by_heads(file, "d_query", gradient_of(leaves.operands.query), tensors.n_heads);
  write_by_heads(file, "d_key", gradient_of(leaves.operands.key), tensors.n_kv_heads);
  write_by_heads(file, "d_value", gradient_of(leaves.operands.value), tensors.n_kv_heads);
  const auto in_shape_of_file = [&](const std::string& name, const Variable& weight, const Tensor& read) {
    if (read.defined()) write_unchanged(file, name, gradient_of(weight).reshape(read.shape()));
  };
  in_shape_of_file("d_gate", leaves.tensors.gate, tensors.gate);
  in_shape_of_file("d_key_projection", leaves.tensors.key_projection, tensors.key_projection);
  in_shape_of_file("d_value_projection", leaves.tensors.value_projection, tensors.value_projection);
}

}  // namespace

AttendReport attend(const AttendOptions& options) {
  check(options);
  hdf5::File::check_output_name(options.output);
  AtomicFile place(options.output);  // before the reading: a wrong path and a second writer fail early
  const layers::MechanismInfo& mechanism = layers::mechanism_info(options.config.mechanism);
  AttendTensors tensors = read_attend_tensors(options.input.string(), options.config, options.dtype, options.gradients,
                                              options.projected_length, options.device);
  if (options.recurrent && tensors.mask.documents.defined()) {
    throw UserError(
        "{}: HDF5 dataset 'documents': --mode recurrent supports only one document; use --mode parallel, or one file "
        "per document",
        options.input.string());
  }
  if (options.recurrent && tensors.mask.keys.defined() && mechanism.has_features &&
      mechanism.window_in(options.config) > 0) {
    throw UserError(
        "{}: HDF5 dataset 'mask': --mode recurrent with --window supports no mask; use --mode parallel, which computes "
        "the same output",
        options.input.string());
  }
  AttendReport report;
  report.output = {tensors.batch, tensors.n_heads, tensors.n, tensors.d_value};
  report.read = tensors.read;
  report.has_denominators = mechanism.has_features;
  if (mechanism.has_features) settle_random_projection(options, tensors, report);

  const Leaves leaves = leaves_of(tensors, options);
  BareAttention attention(config_of(options, tensors, report.features), leaves.tensors, options.dtype, options.device);
  const Tensor output = compute(options, attention, leaves, tensors.d_output, report);

  hdf5::File file = hdf5::File::create(place);
  write_attributes(file, options, report);
  write_by_heads(file, "output", output, tensors.n_heads);
  if (tensors.constants.random_projection.defined())
    write_unchanged(file, "random_projection", tensors.constants.random_projection);
  if (options.gradients) write_gradients(file, leaves, tensors);
  file.close();
  place.commit_last();
  return report;
}

}  // namespace furlong
