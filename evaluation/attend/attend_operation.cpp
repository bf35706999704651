#include "evaluation/attend/attend_operation.h"

#include "framework/ops/attention/compat/compat_attention.h"
#include "framework/ops/attention/softmax/softmax_attention.h"
#include "framework/primitives/arithmetic.h"

namespace furlong {
namespace {

ops::LinearAttentionOptions linear_options(const AttentionOperands& operands, const AttentionChoice& choice) {
  ops::LinearAttentionOptions options;
  options.n_heads = operands.n_heads;
  options.n_kv_heads = operands.n_kv_heads;
  options.feature_map = choice.feature_map;
  options.map_options = choice.map_options;
  options.causal = choice.causal;
  options.chunk_size = choice.chunk_size;
  (choice.mechanism == AttendMechanism::windowed ? options.softmax_window : options.window) = choice.window;
  options.normalizer = choice.normalizer;
  options.denominator_guard = choice.denominator_guard;
  return options;
}

ops::SoftmaxAttentionOptions softmax_options(const AttentionOperands& operands, const AttentionChoice& choice) {
  ops::SoftmaxAttentionOptions options;
  options.n_heads = operands.n_heads;
  options.n_kv_heads = operands.n_kv_heads;
  options.causal = choice.causal;
  options.window = choice.window;
  return options;
}

ops::LinearAttentionInputs linear_inputs(const AttentionOperands& operands, ops::DenominatorReport* report) {
  ops::LinearAttentionInputs inputs;
  inputs.query = operands.query;
  inputs.key = operands.key;
  inputs.value = operands.value;
  inputs.gate = operands.gate;
  inputs.constants = operands.constants;
  inputs.mask = operands.mask;
  inputs.report = report;
  return inputs;
}

Variable compat(Tape& tape, const AttentionOperands& operands, const AttentionChoice& choice) {
  ops::CompatAttentionOptions options;
  options.n_heads = operands.n_heads;
  options.n_kv_heads = operands.n_kv_heads;
  options.library = ops::compat_library(choice.compat);
  options.feature_map = choice.feature_map;
  options.causal = choice.causal;
  options.kernel_epsilon = choice.compat_kernel_epsilon;
  options.stabilize = choice.compat_stabilize;
  return ops::compat_attention(tape, operands.query, operands.key, operands.value, operands.constants.directions,
                               operands.mask, options);
}

Variable linformer(Tape& tape, const AttentionOperands& operands, const AttentionChoice& choice) {
  ops::SequenceProjectionOptions projection;
  projection.kind = choice.projection;
  projection.n_heads = operands.n_kv_heads;
  projection.projected_length = operands.projected_length;
  projection.max_length = operands.max_length;
  const Tensor& keys = operands.mask.keys;
  const Variable key = ops::sequence_projection(tape, operands.key, operands.key_projection, keys, projection);
  const Variable value = ops::sequence_projection(tape, operands.value, operands.value_projection, keys, projection);
  const ops::AttentionMask rows{ops::sequence_projection_mask(tape.stream(), keys, projection), {}};
  return ops::softmax_attention(tape, operands.query, key, value, softmax_options(operands, choice), rows);
}

/// A key mask [batch, n] as that of tokens [start, start + length), contiguous.
Tensor mask_of_tokens(const Tensor& keys, std::int64_t start, std::int64_t length) {
  if (!keys.defined()) return {};
  const Tensor part = keys.narrow(1, start, length);
  return part.is_contiguous() ? part : Tensor::from(part.to_vector<std::int32_t>(), part.shape(), part.device());
}

/// Calls step(start, length) for the prefill and then for each token, and puts what it returns together.
template <class Step>
Tensor in_steps(const Stream& stream, std::int64_t batch, std::int64_t n, std::int64_t width, DType dtype,
                std::int64_t prefill, const Step& step) {
  const Tensor output = Tensor::empty({batch, n, width}, dtype, stream.device);
  for (std::int64_t start = 0; start < n;) {
    const std::int64_t length = start == 0 && prefill > 0 ? std::min(prefill, n) : 1;
    ops::convert(stream, output.narrow(1, start, length), step(start, length));
    start += length;
  }
  return output;
}

/// What an op says of its options, with what the user has typed in front.
template <class Function>
auto in_words_of(const std::string& given, const Function& function) {
  try {
    return function();
  } catch (const UserError& error) {
    throw UserError("{}: {}", given, error.what());
  }
}

Variable part_of(const Variable& variable, std::int64_t start, std::int64_t length) {
  return Variable(variable.value().narrow(1, start, length));
}

}  // namespace

const std::vector<std::pair<std::string, AttendMechanism>>& attend_mechanisms() {
  static const std::vector<std::pair<std::string, AttendMechanism>> mechanisms{
      {"softmax", AttendMechanism::softmax},
      {"linear", AttendMechanism::linear},
      {"linformer", AttendMechanism::linformer},
      {"windowed", AttendMechanism::windowed}};
  return mechanisms;
}

const char* name_of(AttendMechanism mechanism) {
  return attend_mechanisms()[static_cast<std::size_t>(mechanism)].first.c_str();
}

void AttentionChoice::check() const {
  if (mechanism == AttendMechanism::windowed && window < 1)
    throw UserError("--mechanism windowed: its window of exact weights is not given; add --window W, in tokens");
  if (mechanism == AttendMechanism::linformer) {
    if (causal) {
      throw UserError(
          "--mechanism linformer: cannot be --causal, because its projections mix all positions: a query would see "
          "later tokens; use linear or softmax");
    }
    if (window > 0)
      throw UserError("--window: linformer has no positions left to lay a window over; use softmax or linear");
  }
  if (compat.empty()) return;
  if (mechanism != AttendMechanism::linear)
    throw UserError("--compat {}: the library's linear attention, found --mechanism {}; use --mechanism linear", compat,
                    name_of(mechanism));
  try {
    ops::check_compat(ops::compat_library(compat), feature_map);
  } catch (const UserError& error) {
    throw UserError("--{}", error.what());  // "compat: ...", as in YAML
  }
  if (window > 0) throw UserError("--compat {}: that library has no window; leave out --window", compat);
  if (normalizer != ops::Normalizer::sum)
    throw UserError("--compat {}: that library always divides by the sum; leave out --normalizer", compat);
}

Variable attend_in_parallel(Tape& tape, const AttentionOperands& operands, const AttentionChoice& choice,
                            ops::DenominatorReport* report) {
  switch (choice.mechanism) {
    case AttendMechanism::softmax:
      return ops::softmax_attention(tape, operands.query, operands.key, operands.value,
                                    softmax_options(operands, choice), operands.mask);
    case AttendMechanism::linformer:
      return linformer(tape, operands, choice);
    case AttendMechanism::linear:
    case AttendMechanism::windowed:
      break;
  }
  if (!choice.compat.empty()) return compat(tape, operands, choice);
  return ops::linear_attention(tape, linear_inputs(operands, report), linear_options(operands, choice));
}

Tensor attend_in_steps(const Stream& stream, const AttentionOperands& operands, const AttentionChoice& choice,
                       std::int64_t prefill, ops::DenominatorReport* report) {
  require(choice.causal && choice.mechanism != AttendMechanism::linformer && choice.compat.empty() &&
              !operands.mask.documents.defined(),
          "attend_in_steps: an attention without a recurrent form");
  Tape tape(stream);
  const Tape::NoGradient guard(tape);
  const std::int64_t batch = operands.query.extent(0), n = operands.query.extent(1),
                     width = operands.n_heads * operands.d_value();
  const DType dtype = operands.query.dtype();
  if (choice.mechanism == AttendMechanism::softmax) {
    return in_steps(stream, batch, n, width, dtype, prefill, [&](std::int64_t start, std::int64_t length) {
      ops::SoftmaxAttentionOptions options = softmax_options(operands, choice);
      options.first_query_position = start;
      const ops::AttentionMask mask{mask_of_tokens(operands.mask.keys, 0, start + length), {}};
      return ops::softmax_attention(tape, part_of(operands.query, start, length),
                                    part_of(operands.key, 0, start + length),
                                    part_of(operands.value, 0, start + length), options, mask)
          .value();
    });
  }
  const ops::LinearAttentionOptions options = linear_options(operands, choice);
  const Tensor& directions = operands.constants.directions;
  const std::int64_t n_directions = directions.defined() ? directions.shape()[-2] : 0;
  const std::int64_t features = attend_feature_count(choice, operands.d(), n_directions);
  ops::LinearAttentionState state = ops::empty_linear_attention_state(options, batch, features, operands.d(),
                                                                      operands.d_value(), dtype, stream.device);
  return in_steps(stream, batch, n, width, dtype, prefill, [&](std::int64_t start, std::int64_t length) {
    ops::LinearAttentionInputs inputs = linear_inputs(operands, report);
    inputs.query = part_of(operands.query, start, length);
    inputs.key = part_of(operands.key, start, length);
    inputs.value = part_of(operands.value, start, length);
    inputs.mask.keys = mask_of_tokens(operands.mask.keys, start, length);
    inputs.state = &state;
    return ops::linear_attention(tape, inputs, options).value();
  });
}

std::int64_t attend_direction_count(const AttentionChoice& choice, std::int64_t m, std::int64_t d) {
  const ops::FeatureMapInfo& info = ops::feature_map_info(choice.feature_map);
  if (info.needs_directions) {
    const std::int64_t wanted = m > 0 ? m : 2 * d;
    return in_words_of(fmt::format("--features {}", wanted),
                       [&] { return ops::direction_count(choice.feature_map, wanted); });
  }
  const std::int64_t features = attend_feature_count(choice, d, 0);
  if (m > 0) {
    throw UserError(
        "--features {}: {} has {} features for heads of width {}, whatever is asked for; leave out --features", m,
        info.name, features, d);
  }
  return 0;
}

std::int64_t attend_feature_count(const AttentionChoice& choice, std::int64_t d, std::int64_t n_directions) {
  const ops::FeatureMapInfo& info = ops::feature_map_info(choice.feature_map);
  std::string given = std::string("--feature-map ") + info.name;
  if (info.highest_order > 0)
    given += fmt::format(" --order {} --most-features {}", choice.map_options.order, choice.map_options.most_features);
  return in_words_of(given,
                     [&] { return ops::feature_count(choice.feature_map, choice.map_options, d, n_directions); });
}

}  // namespace furlong
