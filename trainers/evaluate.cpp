#include "trainers/evaluate.h"

#include <chrono>
#include <cmath>
#include <numbers>

namespace furlong {

double Evaluation::perplexity() const { return std::exp(loss); }
double Evaluation::bits_per_token() const { return loss / std::numbers::ln2; }

Tensor token_tensor(const std::vector<std::int32_t>& tokens, std::int64_t batch, const Device& device) {
  return Tensor::from(tokens, {batch, static_cast<std::int64_t>(tokens.size()) / batch}, device);
}

Evaluation evaluate(Model& model, const TokenStore& data, Split split, std::int64_t sequence_length, std::int64_t batch_size,
                    std::int64_t max_batches) {
  SamplerOptions options;
  options.order = SamplerOptions::Order::sequential;
  options.sequence_length = sequence_length;
  options.ignore_tokens = model.settings.data.ignore_tokens;
  const Sampler sampler(data, split, options);

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
  for (std::uint64_t first = 0; first < sampler.n_windows() && (max_batches == 0 || batches < max_batches);
       first += static_cast<std::uint64_t>(batch_size), ++batches) {
    const Batch batch = sampler.batch_of_one_pass(first, batch_size);
    if (batch.n_targets == 0) continue;
    const auto step = model.decoder->loss(context, token_tensor(batch.inputs, batch.batch, model.store->device()),
                                          token_tensor(batch.targets, batch.batch, model.store->device()), loss_options);
    result.loss += static_cast<double>(step.loss.value().dtype() == DType::float64 ? step.loss.value().to_vector<double>()[0]
                                                                                   : step.loss.value().to_vector<float>()[0]);
    const auto counts = step.counts.to_vector<std::int32_t>();
    result.tokens += counts[0];
    correct += counts[1];
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  // Without a target (all of them left out) both are 0 / 0: not a number rather than a perfect score.
  result.loss /= static_cast<double>(result.tokens);
  result.accuracy = correct / static_cast<double>(result.tokens);
  return result;
}

}  // namespace furlong
