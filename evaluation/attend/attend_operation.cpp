#include "evaluation/attend/attend_operation.h"

#include <algorithm>

#include "framework/primitives/arithmetic.h"

namespace furlong {
namespace {

/// Returns tokens [start, start + length) of a key mask [batch, n], contiguous.
Tensor mask_of_tokens(const Tensor& keys, std::int64_t start, std::int64_t length) {
  if (!keys.defined()) return {};
  const Tensor part = keys.narrow(1, start, length);
  return part.is_contiguous() ? part : Tensor::from(part.to_vector<std::int32_t>(), part.shape(), part.device());
}

/// Calls `function`. Prefixes a UserError with the options `given` on the command line.
template <class Function>
auto with_option_names(const std::string& given, const Function& function) {
  try {
    return function();
  } catch (const UserError& error) {
    throw UserError("{}: {}", given, error.what());
  }
}

}  // namespace

void check_attention(const layers::AttentionConfig& config) {
  const layers::MechanismInfo& mechanism = layers::mechanism_info(config.mechanism);
  if (mechanism.is_hybrid && mechanism.window_in(config) < 1)
    throw UserError("--mechanism {} requires the length of its softmax window; add --window W, in tokens",
                    mechanism.name);
  if (config.causal && !mechanism.can_be_causal) {
    throw UserError(
        "--mechanism {} cannot be --causal, because {}: a query would attend to later tokens; use linear or softmax",
        mechanism.name, mechanism.limits);
  }
}

BareAttention::BareAttention(const layers::AttentionConfig& config, const layers::AttentionTensors& tensors,
                             DType dtype, const Device& device)
    : config_(config), store_(dtype, device), mechanism_(layers::make_attention(store_, "attention", config)) {
  if (mechanism_->substitute(tensors) || store_.parameters().empty()) return;
  store_.allocate(0);
  mechanism_->redraw(0, 0);
}

Variable BareAttention::in_parallel(Tape& tape, const AttentionOperands& operands) const {
  layers::ForwardContext context{tape};
  context.attention_mask = operands.mask;
  context.denominators = operands.denominators;
  return mechanism_->forward(context, operands.query, operands.key, operands.value);
}

Tensor BareAttention::in_steps(const Stream& stream, const AttentionOperands& operands, std::int64_t prefill) const {
  require(config_.causal && !operands.mask.documents.defined(), "in_steps: the attention cannot run recurrently");
  const Tensor &query = operands.query.value(), &key = operands.key.value(), &value = operands.value.value();
  const std::int64_t batch = query.extent(0), n = query.extent(1);
  const auto state = mechanism_->new_state(batch, n, query.dtype(), stream.device);
  const Tensor output =
      Tensor::empty({batch, n, config_.n_heads * config_.value_width()}, query.dtype(), stream.device);
  for (std::int64_t start = 0; start < n;) {
    const std::int64_t length = start == 0 && prefill > 0 ? std::min(prefill, n) : 1;
    const auto part = [&](const Tensor& tensor) { return tensor.narrow(1, start, length); };
    ops::convert(stream, part(output),
                 mechanism_->extend(stream, part(query), part(key), part(value), *state,
                                    mask_of_tokens(operands.mask.keys, start, length), operands.denominators));
    // Each token leaves its counts on the device until they are gathered.
    constexpr std::size_t most_pending = 64;
    if (operands.denominators && operands.denominators->pending.size() >= most_pending) operands.denominators->gather();
    start += length;
  }
  return output;
}

std::int64_t attend_projection_count(const layers::AttentionConfig& config, std::int64_t m) {
  const ops::FeatureMapInfo& info = ops::feature_map_info(config.feature_map);
  if (info.needs_random_projection) {
    const std::int64_t wanted = m > 0 ? m : 2 * config.d_head;
    return with_option_names(fmt::format("--features {}", wanted),
                             [&] { return ops::projection_count(info.map, wanted); });
  }
  const std::int64_t features = attend_feature_count(config, 0);
  if (m > 0) {
    throw UserError("--features {}: {} always has {} features for heads of width {}; remove --features", m, info.name,
                    features, config.d_head);
  }
  return 0;
}

std::int64_t attend_feature_count(const layers::AttentionConfig& config, std::int64_t n_projections) {
  const ops::FeatureMapInfo& info = ops::feature_map_info(config.feature_map);
  std::string given = std::string("--feature-map ") + info.name;
  if (info.highest_order > 0)
    given += fmt::format(" --order {} --max-features {}", config.map_options.order, config.map_options.max_features);
  return with_option_names(
      given, [&] { return ops::feature_count(info.map, config.map_options, config.d_head, n_projections); });
}

}  // namespace furlong
