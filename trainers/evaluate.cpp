#include "trainers/evaluate.h"

#include <chrono>
#include <cmath>
#include <numbers>
#include <optional>

#include "trainers/carried_state.h"
#include "trainers/objective.h"

namespace furlong {

double Evaluation::perplexity() const { return std::exp(loss); }
double Evaluation::bits_per_token() const { return loss / std::numbers::ln2; }

Tensor token_tensor(const std::vector<std::int32_t>& tokens, std::int64_t batch, const Device& device) {
  return Tensor::from(tokens, {batch, static_cast<std::int64_t>(tokens.size()) / batch}, device);
}

Evaluation evaluate(Model& model, const Dataset& data, Split split, std::int64_t sequence_length, std::int64_t batch_size,
                    std::int64_t max_batches) {
  const auto source = evaluation_source(model.settings, model.vocabulary, data, split, sequence_length, batch_size);
  std::optional<CarriedState> carried;
  if (model.settings.data.carry_state) carried.emplace(*model.decoder, batch_size);

  Tape tape(Stream{model.store->device()});
  const Tape::NoGradient guard(tape);
  layers::ForwardContext context{tape};
  ops::CrossEntropyOptions loss_options;
  loss_options.count_correct = true;
  loss_options.normalizer = 1.0;  // sums: batches differ in how many targets count

  Evaluation result;
  double correct = 0;
  const auto start = std::chrono::steady_clock::now();
  std::int64_t batches = 0;
  for (std::uint64_t first = 0; first < source->n_samples() && (max_batches == 0 || batches < max_batches);
       first += static_cast<std::uint64_t>(batch_size), ++batches) {
    const Batch batch = source->batch_of_one_pass(first, batch_size);
    if (batch.n_targets == 0 && !carried) continue;
    layers::GenerationState* past = carried ? &carried->begin(context, batch) : nullptr;
    const auto step = loss_of(model, context, on_device(batch, model.store->device()), loss_options, past);
    result.loss += static_cast<double>(step.loss.value().dtype() == DType::float64 ? step.loss.value().to_vector<double>()[0]
                                                                                   : step.loss.value().to_vector<float>()[0]);
    const auto counts = step.counts.to_vector<std::int32_t>();
    result.targets += counts[0];
    result.tokens += batch.n_tokens;
    correct += counts[1];
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  // Without a target (all of them left out) both are 0 / 0: not a number rather than a perfect score.
  result.loss /= static_cast<double>(result.targets);
  result.accuracy = correct / static_cast<double>(result.targets);
  return result;
}

}  // namespace furlong
