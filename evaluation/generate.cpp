#include "evaluation/generate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "framework/core/clock.h"
#include "framework/primitives/arithmetic.h"
#include "trainers/train/validation.h"

namespace furlong {

std::int32_t sample_token(std::vector<float> logits, const GenerateOptions& options, double uniform) {
  require(!logits.empty(), "sample_token: no logits");
  if (options.temperature == 0)
    return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  if (options.top_k > 0 && options.top_k < static_cast<std::int64_t>(order.size()))
    order.resize(static_cast<std::size_t>(options.top_k));
  std::vector<double> probability;
  double total = 0;
  for (std::int32_t id : order) {
    probability.push_back(std::exp((static_cast<double>(logits[static_cast<std::size_t>(id)]) -
                                    static_cast<double>(logits[static_cast<std::size_t>(order[0])])) /
                                   options.temperature));
    total += probability.back();
  }
  double kept = 0;
  std::size_t count = 0;
  while (count < order.size() && (count == 0 || kept < options.top_p * total)) kept += probability[count++];
  double remaining = uniform * kept;
  for (std::size_t i = 0; i < count; ++i) {
    remaining -= probability[i];
    if (remaining < 0) return order[i];
  }
  return order[count - 1];
}

Tensor extended_logits(Model& model, layers::ForwardContext& context, std::span<const std::int32_t> tokens,
                       std::int64_t batch, layers::GenerationState& state) {
  constexpr std::int64_t piece = 4096;
  const Stream& stream = context.stream();
  const std::int64_t n = static_cast<std::int64_t>(tokens.size()) / batch;
  Tensor hidden;  // [batch, length of the piece, d_model]
  for (std::int64_t begin = 0; begin < n; begin += piece) {
    const std::int64_t length = std::min(piece, n - begin);
    std::vector<std::int32_t> part;
    for (std::int64_t row = 0; row < batch; ++row) {
      const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(row * n + begin);
      part.insert(part.end(), first, first + static_cast<std::ptrdiff_t>(length));
    }
    hidden = model.decoder->extend(context, token_tensor(part, batch, model.store->device()), state).value();
  }
  const std::int64_t length = hidden.extent(1), width = hidden.extent(2);
  const auto last_of = [&](std::int64_t row) {
    return hidden.narrow(0, row, 1).narrow(1, length - 1, 1).reshape({1, width});
  };
  if (batch == 1) return model.decoder->logits(stream, last_of(0));
  const Tensor last = Tensor::empty({batch, width}, hidden.dtype(), hidden.device());
  for (std::int64_t row = 0; row < batch; ++row) ops::convert(stream, last.narrow(0, row, 1), last_of(row));
  return model.decoder->logits(stream, last);
}

Generated generate(Model& model, const std::vector<std::int32_t>& prompt_tokens, const GenerateOptions& options,
                   const std::function<void(std::int32_t)>& on_token) {
  require_output_layer(model.settings, "generation");
  if (!model.decoder) {
    throw UserError(
        "this model is an encoder (objective {}) and cannot generate text; use furlong evaluate, or a decoder",
        name_of(model.settings.objective.name));
  }
  std::vector<std::int32_t> prompt = prompt_tokens;
  if (prompt.empty()) {
    const auto document = model.vocabulary.document_id();
    if (!document)
      throw UserError(
          "the prompt is empty, and this vocabulary has no document token to start from; give at least one symbol in "
          "--prompt");
    prompt.push_back(*document);
  }
  const std::int64_t total = static_cast<std::int64_t>(prompt.size()) + options.max_tokens;
  const layers::ModelConfig& config = model.decoder->config();
  if (config.position == layers::Position::learned && total > config.max_sequence_length) {
    throw UserError(
        "prompt and --max-tokens need {} positions, but the model has {} learned positions; reduce --max-tokens", total,
        config.max_sequence_length);
  }
  Tape tape(model.stream);
  const Tape::NoGradient guard(tape);
  layers::ForwardContext context{tape};
  layers::GenerationState state = model.decoder->new_state(1, total);

  const auto logits_after = [&](std::span<const std::int32_t> tokens) {
    return extended_logits(model, context, tokens, 1, state).to_vector<float>();
  };
  const auto start = Clock::now();
  std::vector<float> logits = logits_after(prompt);
  const auto prompted = std::chrono::steady_clock::now();

  Generated result;
  const RandomKey key{options.seed, 0, random_stream("generate")};
  const auto size =
      static_cast<std::size_t>(model.vocabulary.size());  // the output layer can be larger than the vocabulary
  for (std::int64_t i = 0; i < options.max_tokens; ++i) {
    logits.resize(size);
    const std::int32_t token =
        sample_token(logits, options, static_cast<double>(random_uniform(key, static_cast<std::uint64_t>(i))));
    if (std::find(options.stop.begin(), options.stop.end(), token) != options.stop.end()) break;
    result.tokens.push_back(token);
    if (on_token) on_token(token);
    if (i + 1 < options.max_tokens) logits = logits_after(std::span(&token, 1));
  }
  result.prompt_seconds = std::chrono::duration<double>(prompted - start).count();
  result.seconds = seconds_since(prompted);
  result.state_bytes = state.bytes();
  return result;
}

}  // namespace furlong
