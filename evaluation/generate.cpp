#include "evaluation/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "framework/core/clock.h"
#include "framework/core/parallel.h"
#include "framework/primitives/arithmetic.h"
#include "trainers/train/validation.h"

namespace furlong {

namespace {

/// Throws UserError if the logits give no probabilities. A token of logit -infinity has the probability 0.
void check_logits(const std::vector<float>& logits) {
  float top = -INFINITY;
  for (const float logit : logits) top = std::isnan(top) || std::isnan(logit) ? NAN : std::max(top, logit);
  if (std::isfinite(top)) return;
  throw UserError(
      "the largest logit of the next token is {}; expected a finite number. The weights or activations overflowed: use "
      "an earlier checkpoint",
      top);
}

/// Samples from all tokens, in the order of their ids. `uniform` is in [0, 1).
std::int32_t sample_any_token(const std::vector<float>& logits, double temperature, double uniform) {
  const double top = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  std::vector<float> weights(logits.size());
  double total = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    weights[i] = std::exp(static_cast<float>((static_cast<double>(logits[i]) - top) / temperature));
    total += static_cast<double>(weights[i]);
  }
  double sum = 0;
  std::size_t last = 0;  // the last possible token, should rounding leave the sum below uniform * total
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] == 0) continue;
    last = i;
    if ((sum += static_cast<double>(weights[i])) > uniform * total) break;
  }
  return static_cast<std::int32_t>(last);
}

}  // namespace

std::int32_t sample_token(std::vector<float> logits, const GenerateOptions& options, double uniform) {
  require(!logits.empty(), "sample_token: no logits");
  check_logits(logits);
  if (options.temperature == 0)
    return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  if ((options.top_k == 0 || options.top_k >= std::ssize(logits)) && options.top_p == 1)
    return sample_any_token(logits, options.temperature, uniform);
  // The most probable tokens first, from a heap: usually few of the vocabulary are looked at.
  const auto logit = [&](std::int32_t id) { return static_cast<double>(logits[static_cast<std::size_t>(id)]); };
  const auto less = [&](std::int32_t a, std::int32_t b) {
    return logit(a) < logit(b) || (logit(a) == logit(b) && a > b);
  };
  std::vector<std::int32_t> heap(logits.size());
  std::iota(heap.begin(), heap.end(), 0);
  std::make_heap(heap.begin(), heap.end(), less);
  const double top = logit(heap.front());
  const auto probability = [&](std::int32_t id) { return std::exp((logit(id) - top) / options.temperature); };

  const auto size = static_cast<std::int64_t>(heap.size());
  const std::int64_t candidates = options.top_k > 0 ? std::min(options.top_k, size) : size;
  std::vector<std::int32_t> order;  // taken from the heap
  std::vector<double> sums;         // of their probabilities, up to each
  const auto take = [&] {
    std::pop_heap(heap.begin(), heap.end(), less);
    order.push_back(heap.back());
    sums.push_back((sums.empty() ? 0 : sums.back()) + probability(heap.back()));
    heap.pop_back();
  };
  double total = 0;
  if (candidates < size) {
    while (static_cast<std::int64_t>(order.size()) < candidates) take();
    total = sums.back();
  } else {
    for (const std::int32_t id : heap) total += probability(id);
  }
  // The nucleus: the most probable tokens that reach top_p of the total. With top_p = 1 that is all candidates.
  double kept = total;
  if (options.top_p < 1) {
    std::size_t count = 0;
    do {
      if (count == order.size()) take();
      kept = sums[count++];
    } while (kept < options.top_p * total && static_cast<std::int64_t>(count) < candidates);
  }
  for (std::size_t i = 0;; ++i) {
    if (i == order.size()) take();
    if (uniform * kept < sums[i] || sums[i] >= kept || static_cast<std::int64_t>(i) + 1 == candidates) return order[i];
  }
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

DecodingThreads::DecodingThreads(const Model& model, std::int64_t batch) : before_(thread_count()) {
  constexpr std::int64_t small = 8 << 20;  // bytes
  std::int64_t bytes = 0;
  for (const Parameter& parameter : model.store->parameters()) bytes += parameter.variable().value().bytes();
  if (before_ > 1 && batch == 1 && model.store->device().is_cpu() && bytes < small) set_thread_count(1);
}
DecodingThreads::~DecodingThreads() {
  if (thread_count() != before_) set_thread_count(before_);
}

std::int64_t Generated::tokens() const {
  std::int64_t count = 0;
  for (const auto& sample : samples) count += std::ssize(sample);
  return count;
}

double Generated::tokens_per_second() const {
  std::int64_t steps = 0;
  for (const auto& sample : samples) steps += std::max<std::int64_t>(std::ssize(sample) - 1, 0);
  return static_cast<double>(steps) / std::max(seconds, 1e-9);
}

namespace {

/// Returns the number of tokens that the model reads at most: all but the last one, which nothing follows.
std::int64_t longest_input(std::int64_t prompt, const GenerateOptions& options) {
  return prompt + std::max<std::int64_t>(options.max_tokens, 1) - 1;
}

/// Returns the prompt, or a document token instead of an empty one. Throws UserError if the model cannot continue it.
std::vector<std::int32_t> checked_prompt(const Model& model, std::vector<std::int32_t> prompt,
                                         const GenerateOptions& options) {
  require_output_layer(model.settings, "generation");
  if (!model.decoder) {
    throw UserError(
        "this model is an encoder (objective {}) and cannot generate text; use furlong evaluate, or a decoder",
        name_of(model.settings.objective.name));
  }
  if (prompt.empty()) {
    const auto document = model.vocabulary.document_id();
    if (!document)
      throw UserError(
          "the prompt is empty, and this vocabulary has no document token to start from; give at least one symbol in "
          "--prompt");
    prompt.push_back(*document);
  }
  const std::int64_t total = longest_input(std::ssize(prompt), options);
  const layers::ModelConfig& config = model.decoder->config();
  if (config.position == layers::Position::learned && total > config.max_sequence_length) {
    throw UserError("prompt and --max-tokens need {} positions, but the model has {} learned positions; {}", total,
                    config.max_sequence_length,
                    std::ssize(prompt) <= config.max_sequence_length ? "reduce --max-tokens" : "shorten the prompt");
  }
  return prompt;
}

/// The samples of one batch, all after the same prompt.
class SampleBatch {
 public:
  /// The first sample has number `first`, counted from 0; `samples` receives the tokens.
  SampleBatch(const Model& model, const GenerateOptions& options, std::int64_t first,
              std::span<std::vector<std::int32_t>> samples)
      : options_(options),
        vocabulary_(static_cast<std::size_t>(model.vocabulary.size())),
        first_(first),
        samples_(samples),
        ended_(samples.size(), 0),
        last_(samples.size(), 0) {}

  std::int64_t size() const { return std::ssize(samples_); }
  /// The tokens [size()] that the model reads next; those of ended samples do not matter.
  std::span<const std::int32_t> last() const { return last_; }

  /// Appends token number `i` to each sample that has not ended, drawn from logits [size() or 1, at least the
  /// vocabulary]: with one row, all samples use that. Returns false if all samples have ended.
  bool append(std::int64_t i, std::span<const float> logits, std::int64_t rows) {
    const std::size_t width = logits.size() / static_cast<std::size_t>(rows);
    parallel_tasks(size(), [&](std::int64_t sample) {
      const auto row = static_cast<std::size_t>(sample);
      if (ended_[row] != 0) return;
      const RandomKey key{options_.seed, static_cast<std::uint32_t>(first_ + sample), random_stream("generate")};
      const std::span<const float> own = logits.subspan(rows == 1 ? 0 : row * width, vocabulary_);
      last_[row] = sample_token({own.begin(), own.end()}, options_,
                                static_cast<double>(random_uniform(key, static_cast<std::uint64_t>(i))));
      if (std::find(options_.stop.begin(), options_.stop.end(), last_[row]) != options_.stop.end()) {
        ended_[row] = 1;
      } else {
        samples_[row].push_back(last_[row]);
      }
    });
    return std::find(ended_.begin(), ended_.end(), 0) != ended_.end();
  }

 private:
  const GenerateOptions& options_;
  std::size_t vocabulary_;  // the output layer can be larger
  std::int64_t first_;
  std::span<std::vector<std::int32_t>> samples_;
  std::vector<char> ended_;
  std::vector<std::int32_t> last_;
};

}  // namespace

std::string prompt_warning(const Model& model, std::string_view prompt, std::span<const std::int32_t> tokens) {
  const DataSettings& data = model.settings.data;
  const bool starts_with_document = tokens.empty() && model.vocabulary.document_id();
  if (!starts_with_document || model.encoder || data.crosses_documents() || data.task != "none")
    return model.vocabulary.prompt_warning(prompt);
  return "the prompt is empty, so texts start with a document token, which this model has not read in training; give "
         "the first symbols of a text";
}

Generated generate(Model& model, const std::vector<std::int32_t>& prompt_tokens, const GenerateOptions& options,
                   const GenerateEvents& events) {
  const std::vector<std::int32_t> prompt = checked_prompt(model, prompt_tokens, options);
  require(options.samples > 0 && options.batch_size > 0, "{} samples in batches of {}", options.samples,
          options.batch_size);
  Tape tape(model.stream);
  const Tape::NoGradient guard(tape);
  layers::ForwardContext context{tape};
  layers::GenerationState prompted = model.decoder->new_state(1, longest_input(std::ssize(prompt), options));
  const auto start = Clock::now();
  const std::vector<float> after_prompt = extended_logits(model, context, prompt, 1, prompted).to_vector<float>();
  Generated result;
  result.prompt_seconds = seconds_since(start);

  const auto begin = Clock::now();
  result.samples.resize(static_cast<std::size_t>(options.samples));
  const auto stops = [&] { return events.stop_requested && events.stop_requested(); };
  for (std::int64_t first = 0; first < options.samples && (first == 0 || !stops()); first += options.batch_size) {
    const std::int64_t count = std::min(options.batch_size, options.samples - first);
    const auto samples =
        std::span(result.samples).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
    SampleBatch batch(model, options, first, samples);
    const DecodingThreads threads(model, count);
    layers::GenerationState state = options.samples == 1 ? std::move(prompted) : prompted.repeated(model.stream, count);
    bool continues = batch.append(0, after_prompt, 1);
    for (std::int64_t i = 1; continues; ++i) {
      if (options.samples == 1 && events.on_token) events.on_token(batch.last()[0]);
      if (i == options.max_tokens || stops()) break;
      const Tensor logits = extended_logits(model, context, batch.last(), count, state);
      continues = batch.append(i, logits.to_vector<float>(), count);
    }
    result.state_bytes = state.bytes() / count;
    for (const auto& sample : samples)
      if (events.on_sample) events.on_sample(sample);
  }
  result.seconds = seconds_since(begin);
  return result;
}

}  // namespace furlong
