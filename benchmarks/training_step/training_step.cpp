// Whole training steps of the decoder that peer.py builds: forward, loss, backward, clipping, AdamW. The model
// is given by the first request (worker.h), defaults as shown; each request runs one step and answers with its seconds
// and this process's peak memory:
//   attention=linear n=8192 batch=1 layers=6 d_model=512 heads=8 d_feedforward=2048 vocabulary=256 m=256 chunk=64
//   dtype=float32 activation_checkpointing=elementwise (none, blocks)
#include <chrono>
#include <cmath>
#include <optional>

#include "benchmarks/worker.h"
#include "framework/core/arena.h"
#include "framework/core/random.h"
#include "framework/core/version.h"
#include "framework/primitives/arithmetic.h"
#include "layers/models/decoder.h"
#include "trainers/train/optimizer/optimizer.h"

namespace furlong::benchmarks {
namespace {

layers::ModelConfig config_of(const Request& request) {
  layers::ModelConfig config;
  config.vocabulary_size = integer_of(request, "vocabulary", 256);
  config.n_layers = integer_of(request, "layers", 6);
  config.d_model = integer_of(request, "d_model", 512);
  config.d_feedforward = integer_of(request, "d_feedforward", 2048);
  config.max_sequence_length = integer_of(request, "n", 8192);
  config.activation = layers::Activation::gelu_tanh;
  config.position = layers::Position::learned;
  config.attention.mechanism = text_of(request, "attention", "linear");
  config.attention.n_heads = config.attention.n_kv_heads = integer_of(request, "heads", 8);
  config.attention.d_head = config.d_model / config.attention.n_heads;
  config.attention.n_features = config.attention.mechanism == "linear" ? integer_of(request, "m", 256) : 0;
  config.attention.chunk_size = integer_of(request, "chunk", 64);
  return config;
}

class Training {
 public:
  explicit Training(const Request& request)
      : n_(integer_of(request, "n", 8192)),
        batch_(integer_of(request, "batch", 1)),
        store_(dtype_from_name(text_of(request, "dtype", "float32")), Device{}),
        model_(store_, config_of(request),
               value_named<layers::ActivationCheckpointing>(text_of(request, "activation_checkpointing", "elementwise"),
                                                            "activation_checkpointing")) {
    store_.allocate(1);
    model_.redraw(1, 0);
    optimizer_.emplace(OptimizerSettings{}, store_);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(batch_ * (n_ + 1)));
    const auto vocabulary = static_cast<std::uint32_t>(model_.config().vocabulary_size);
    for (std::size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<std::int32_t>(random_word({1, 0, random_stream("tokens")}, i) % vocabulary);
    const auto window = [&](std::size_t first) {
      std::vector<std::int32_t> part;
      for (std::int64_t b = 0; b < batch_; ++b) {
        const auto begin = tokens.begin() + b * (n_ + 1) + static_cast<std::int64_t>(first);
        part.insert(part.end(), begin, begin + n_);
      }
      return Tensor::from(part, {batch_, n_});
    };
    tokens_ = window(0);
    targets_ = window(1);
  }

  double step() {
    store_.forget_gradients();
    Tape tape{Stream{}};
    layers::ForwardContext context{tape, true, 1, static_cast<std::uint32_t>(optimizer_->steps()), 0};
    const ops::CrossEntropyResult result = model_.loss(context, tokens_, targets_);
    const double loss = static_cast<double>(result.loss.value().to_vector<float>()[0]);
    tape.backward(result.loss);
    store_.complete_gradients(tape.stream());
    const double norm = std::sqrt(ops::sum_of_squares(tape.stream(), store_.gradients()));
    optimizer_->step(tape.stream(), 3e-4, norm > 1 ? 1 / norm : 1);
    return loss;
  }
  std::int64_t parameters() const { return store_.trained_parameter_count(); }

 private:
  std::int64_t n_, batch_;
  ParameterStore store_;
  layers::Decoder model_;
  std::optional<Optimizer> optimizer_;
  Tensor tokens_, targets_;
};

}  // namespace
}  // namespace furlong::benchmarks

int main() {
  using namespace furlong::benchmarks;
  std::optional<Training> training;
  return serve([&](const Request& request) -> nlohmann::json {
    if (!training) training.emplace(request);
    const auto start = std::chrono::steady_clock::now();
    const double loss = training->step();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    return {{"seconds", {seconds.count()}},
            {"loss", loss},
            {"parameters", training->parameters()},
            {"peak_resident_bytes", peak_resident_bytes()},
            {"peak_tensor_bytes", furlong::arena({}).counters().peak_bytes},
            {"commit", furlong::commit()}};
  });
}
