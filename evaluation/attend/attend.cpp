#include "evaluation/attend/attend.h"

#include <chrono>
#include <functional>

#include "evaluation/attend/attend_tensors.h"
#include "framework/core/arena.h"
#include "framework/core/gpu_engine.h"
#include "framework/core/version.h"
#include "framework/io/atomic_file.h"
#include "layers/attention/linear/directions.h"

namespace furlong {
namespace {

/// Until all that `work` began on the stream is done.
double seconds_of(const Stream& stream, const std::function<void()>& work) {
  synchronize(stream);
  const auto begin = std::chrono::steady_clock::now();
  work();
  synchronize(stream);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void check(const AttendOptions& options) {
  options.choice.check();
  std::error_code ignored;
  if (std::filesystem::equivalent(options.input, options.output, ignored))
    throw UserError("--output {}: is the input; choose another name", options.output.string());
  if (!options.recurrent) {
    if (options.prefill > 0) throw UserError("--prefill {}: only --mode recurrent has a prefill", options.prefill);
    return;
  }
  if (options.choice.mechanism == AttendMechanism::linformer)
    throw UserError("--mode recurrent: linformer's projections mix all positions, so it has no recurrent form");
  if (!options.choice.compat.empty())
    throw UserError(
        "--mode recurrent: {}'s features are scaled by a maximum over all tokens, later ones included, so it has no "
        "recurrent form",
        options.choice.compat);
  if (!options.choice.causal) throw UserError("--mode recurrent: goes from earlier tokens to later ones; add --causal");
  if (options.gradients)
    throw UserError(
        "--gradients: none flows through the state of --mode recurrent; use --mode parallel, which computes the same "
        "output");
}

std::string kind_of(const AttendOptions& options) { return options.directions_kind.value_or("orthogonal"); }

/// Directions of the file, or drawn ones; checks their number against --features.
void settle_directions(const AttendOptions& options, AttendTensors& tensors, AttendReport& report) {
  const AttentionChoice& choice = options.choice;
  const std::int64_t wanted = attend_direction_count(choice, options.features, tensors.d);
  Tensor& directions = tensors.constants.directions;
  if (wanted > 0 && !directions.defined()) {
    const RandomKey key{options.seed.value_or(0), 0, random_stream("attend.directions")};
    const std::vector<float> drawn =
        layers::draw_directions(layers::directions_kind(kind_of(options)), wanted, tensors.d, key);
    directions =
        accumulate_dtype(options.dtype) == DType::float64
            ? Tensor::from(std::vector<double>(drawn.begin(), drawn.end()), {wanted, tensors.d}, options.device)
            : Tensor::from(drawn, {wanted, tensors.d}, options.device);
    report.drew_directions = true;
  }
  if ((options.seed || options.directions_kind) && !report.drew_directions) {
    const char* const given = options.seed ? "--seed" : "--directions-kind";
    if (wanted == 0)
      throw UserError("{}: {} has no random directions; leave it out", given,
                      ops::feature_map_info(choice.feature_map).name);
    throw UserError("{}: dataset 'directions' of {} is taken as it is; leave out one of the two", given,
                    options.input.string());
  }
  const std::int64_t n_directions = directions.defined() ? directions.shape()[-2] : 0;
  report.features = attend_feature_count(choice, tensors.d, n_directions);
  if (options.features > 0 && n_directions != wanted) {
    throw UserError(
        "--features {}: dataset 'directions' of {} has {} rows, expected {}; leave out --features to take what is "
        "there",
        options.features, options.input.string(), n_directions, wanted);
  }
}

/// Filters [heads, d, stride] as the op has them, [heads·d, stride]; everything else as it is.
Tensor as_the_op_has_it(const Tensor& projection, ops::SequenceProjection kind) {
  if (!projection.defined() || kind != ops::SequenceProjection::convolution || projection.shape().rank() == 2)
    return projection;
  return projection.reshape({projection.extent(0) * projection.extent(1), projection.extent(2)});
}

AttentionOperands operands_of(const AttendTensors& tensors, ops::SequenceProjection kind, bool gradients) {
  const auto variable = [&](const Tensor& tensor) {
    if (!tensor.defined()) return Variable{};
    return gradients ? Variable::leaf(tensor) : Variable(tensor);
  };
  AttentionOperands operands;
  operands.query = variable(tensors.query);
  operands.key = variable(tensors.key);
  operands.value = variable(tensors.value);
  operands.n_heads = tensors.n_heads;
  operands.n_kv_heads = tensors.n_kv_heads;
  operands.gate = variable(tensors.gate);
  operands.key_projection = variable(as_the_op_has_it(tensors.key_projection, kind));
  const Tensor value_projection = as_the_op_has_it(tensors.value_projection, kind);
  operands.value_projection = value_projection.defined() ? variable(value_projection) : operands.key_projection;
  operands.projected_length = tensors.projected_length;
  operands.max_length = tensors.max_length;
  operands.constants = tensors.constants;
  operands.mask = tensors.mask;
  return operands;
}

/// The output [batch, n, heads·d_value]; with gradients, those of the operands are theirs to give afterwards.
Tensor compute(const AttendOptions& options, const AttentionOperands& operands, const Tensor& d_output,
               AttendReport& report) {
  const Stream stream{options.device};
  Arena& memory = arena(options.device);
  memory.reset_peak();
  const std::int64_t before = memory.counters().bytes_in_use;
  ops::DenominatorReport* const denominators = report.denominators_told ? &report.denominators : nullptr;
  Tape tape(stream);
  Tensor output;
  if (options.recurrent) {
    report.forward_seconds = seconds_of(
        stream, [&] { output = attend_in_steps(stream, operands, options.choice, options.prefill, denominators); });
  } else {
    Variable result;
    report.forward_seconds =
        seconds_of(stream, [&] { result = attend_in_parallel(tape, operands, options.choice, denominators); });
    output = result.value();
    if (options.gradients) {
      report.backward_seconds = seconds_of(stream, [&] { tape.backward({result}, {d_output}); });
    }
  }
  report.peak_bytes = memory.counters().peak_bytes - before;
  report.denominators.gather();
  return output;
}

void write_attributes(hdf5::File& file, const AttendOptions& options, const AttendReport& report) {
  const AttentionChoice& choice = options.choice;
  file.set_text("format", "furlong attention");
  file.set_integer("format_version", 1);
  file.set_text("version", version());
  file.set_text("commit", commit());
  file.set_text("mechanism", name_of(choice.mechanism));
  file.set_integer("causal", choice.causal ? 1 : 0);
  file.set_integer("window", choice.window);
  file.set_text("dtype", name_of(options.dtype));
  file.set_text("mode", options.recurrent ? "recurrent" : "parallel");
  if (!choice.compat.empty()) file.set_text("compat", choice.compat);
  if (choice.compat_stabilize) file.set_integer("compat_stabilize", 1);
  if (choice.mechanism == AttendMechanism::linformer) {
    for (const auto& [kind, name] : ops::sequence_projections()) {
      if (kind == choice.projection) file.set_text("projection", name);
    }
  }
  if (choice.uses_features()) {
    file.set_text("feature_map", ops::feature_map_info(choice.feature_map).name);
    file.set_integer("m", report.features);
    file.set_integer("chunk_size", choice.chunk_size);
    if (ops::feature_map_info(choice.feature_map).needs_directions)
      file.set_text("directions", report.drew_directions ? kind_of(options) : "given");
    if (report.drew_directions) file.set_integer("seed", static_cast<std::int64_t>(options.seed.value_or(0)));
  }
  if (report.denominators_told) {
    file.set_integer("rows", report.denominators.rows);
    file.set_integer("guarded_rows", report.denominators.guarded);
    file.set_number("least_denominator", report.denominators.least);
  }
  file.set_number("forward_seconds", report.forward_seconds);
  if (options.gradients) file.set_number("backward_seconds", report.backward_seconds);
  file.set_number("seconds", report.forward_seconds + report.backward_seconds);
  file.set_integer("peak_bytes", report.peak_bytes);
}

/// The gradient of a leaf, zeros where none reached it.
Tensor gradient_of(const Variable& leaf) {
  const Tensor gradient = leaf.gradient();
  return gradient.defined() ? gradient : Tensor::zeros(leaf.shape(), leaf.dtype(), leaf.value().device());
}

void write_gradients(hdf5::File& file, const AttentionOperands& operands, const AttendTensors& tensors) {
  write_by_heads(file, "d_query", gradient_of(operands.query), tensors.n_heads);
  write_by_heads(file, "d_key", gradient_of(operands.key), tensors.n_kv_heads);
  write_by_heads(file, "d_value", gradient_of(operands.value), tensors.n_kv_heads);
  if (operands.gate.defined()) write_as_it_is(file, "d_gate", gradient_of(operands.gate));
  const auto in_shape_of_file = [&](const std::string& name, const Variable& weight, const Tensor& read) {
    if (read.defined()) write_as_it_is(file, name, gradient_of(weight).reshape(read.shape()));
  };
  in_shape_of_file("d_key_projection", operands.key_projection, tensors.key_projection);
  in_shape_of_file("d_value_projection", operands.value_projection, tensors.value_projection);
}

}  // namespace

AttendReport attend(const AttendOptions& options) {
  check(options);
  AttendTensors tensors = read_attend_tensors(options.input.string(), options.choice, options.dtype, options.gradients,
                                              options.projected_length, options.device);
  if (options.recurrent && tensors.mask.documents.defined()) {
    throw UserError(
        "{}: dataset 'documents': --mode recurrent goes through one document; use --mode parallel, or one file for "
        "each",
        options.input.string());
  }
  if (options.recurrent && tensors.mask.keys.defined() && options.choice.uses_features() && options.choice.window > 0) {
    throw UserError(
        "{}: dataset 'mask': the recurrent form of a window takes no mask; use --mode parallel, which computes the "
        "same output",
        options.input.string());
  }
  AttendReport report;
  report.output = {tensors.batch, tensors.n_heads, tensors.n, tensors.d_value};
  report.read = tensors.read;
  report.denominators_told = options.choice.uses_features() && options.choice.compat.empty();
  if (options.choice.uses_features()) settle_directions(options, tensors, report);

  AtomicFile place(options.output);  // before the work, so that a wrong place is told at once
  const AttentionOperands operands = operands_of(tensors, options.choice.projection, options.gradients);
  const Tensor output = compute(options, operands, tensors.d_output, report);

  hdf5::File file = hdf5::File::create(place);
  write_attributes(file, options, report);
  write_by_heads(file, "output", output, tensors.n_heads);
  if (tensors.constants.directions.defined()) write_as_it_is(file, "directions", tensors.constants.directions);
  if (options.gradients) write_gradients(file, operands, tensors);
  file.close();
  place.commit();
  return report;
}

}  // namespace furlong
