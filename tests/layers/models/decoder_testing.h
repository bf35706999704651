#pragma once
// Small decoders of every kind that a config can name, for the tests of models.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "framework/ops/linear_attention.h"
#include "layers/models/decoder.h"
#include "tests/reference/values.h"

namespace furlong::layers::testing {

/// One way of attending: a mechanism and, where it takes one, a feature map.
struct Attending {
  std::string mechanism, feature_map;
  std::string name() const { return feature_map.empty() ? mechanism : mechanism + "_" + feature_map; }
};
inline void PrintTo(const Attending& attending, std::ostream* stream) { *stream << attending.name(); }
inline std::vector<Attending> all_attending() {
  std::vector<Attending> all;
  for (const MechanismInfo& mechanism : attention_mechanisms()) {
    if (std::string(mechanism.name) != "linear") {
      all.push_back({mechanism.name, ""});
      continue;
    }
    for (const ops::FeatureMapInfo& map : ops::feature_maps()) all.push_back({mechanism.name, map.name});
  }
  return all;
}

inline const std::vector<std::string>& all_positions() {
  static const std::vector<std::string> positions{"none", "learned", "sinusoidal", "rotary"};
  return positions;
}

enum class Style { gpt2, llama };

/// A model of two layers whose sizes are odd where they may be: heads of 6 that do not add up to d_model, chunks of 4 tokens.
inline DecoderConfig small_config(const Attending& attending, const std::string& position, std::int64_t short_convolution, Style style) {
  DecoderConfig config;
  config.vocabulary_size = 11;
  config.n_layers = 2;
  config.d_model = 10;
  config.d_feedforward = 13;
  config.max_sequence_length = 48;
  config.attention.mechanism = attending.mechanism;
  if (!attending.feature_map.empty()) config.attention.feature_map = attending.feature_map;
  config.attention.n_features = 9;
  config.attention.chunk_size = 4;
  config.attention.d_head = 6;
  config.position = position;
  config.short_convolution = short_convolution;
  config.initializer_range = 0.4;  // far from the linear regime that the usual 0.02 begins in
  if (style == Style::gpt2) {
    config.attention.n_heads = config.attention.n_kv_heads = 2;
    config.activation = "gelu_tanh";
  } else {
    config.attention.n_heads = 4;
    config.attention.n_kv_heads = 2;
    config.activation = "swiglu";
    config.norm = "rmsnorm";
    config.norm_epsilon = 1e-6;
    config.bias = false;
    config.tied_embeddings = false;
  }
  return config;
}

/// Calls body(config) for both styles, with and without short convolution, each traced by name.
template <class Body>
void for_each_variant(const Attending& attending, const std::string& position, const Body& body) {
  for (Style style : {Style::gpt2, Style::llama}) {
    for (std::int64_t short_convolution : {0, 4}) {
      const ::testing::ScopedTrace trace(__FILE__, __LINE__,
                                         fmt::format("{}, positions {}, {}, short convolution {}", attending.name(), position,
                                                     style == Style::gpt2 ? "GPT-2" : "Llama", short_convolution));
      body(small_config(attending, position, short_convolution, style));
    }
  }
}

struct TestModel {
  ParameterStore store;
  Decoder decoder;

  TestModel(const DecoderConfig& config, DType dtype, Device device = {}, std::uint64_t seed = 5)
      : store(dtype, device), decoder(store, config) {
    store.allocate(seed);
    decoder.redraw(seed, 0);
    if (device.is_cpu()) disturb();
  }

  /// Gains that are not all one and biases that are not all zero, or their gradients would be untested.
  void disturb() {
    for (const Parameter& parameter : store.parameters()) {
      if (store.is_buffer(parameter) || parameter.decays()) continue;
      const RandomKey key{9, 0, random_stream(parameter.name())};
      for (std::int64_t i = 0; i < parameter.shape().elements(); ++i) {
        const double offset = 0.3 * random_normal(key, static_cast<std::uint64_t>(i));
        if (parameter.master().dtype() == DType::float64) {
          parameter.master().data<double>()[i] += offset;
        } else {
          parameter.master().data<float>()[i] += static_cast<float>(offset);
        }
      }
    }
    store.refresh_compute_values(Stream{});
  }
};

/// Where a training pass stands: what its random numbers are keyed by.
struct Pass {
  bool training = false;
  std::uint64_t seed = 1;
  std::uint32_t step = 3;
  std::uint64_t first_sample = 0;

  ForwardContext context(Tape& tape) const { return {tape, training, seed, step, first_sample}; }
};

inline Tensor random_tokens(std::int64_t batch, std::int64_t n, const DecoderConfig& config, const std::string& name = "tokens") {
  return reference::integer_tensor({batch, n}, 0, config.vocabulary_size, name);
}
/// Some of them -1, which are left out.
inline Tensor random_targets(std::int64_t batch, std::int64_t n, const DecoderConfig& config) {
  return reference::integer_tensor({batch, n}, -1, config.vocabulary_size, "targets");
}

inline double scalar(const Tensor& tensor) { return reference::doubles(tensor)[0]; }

/// The loss alone.
inline double loss_of(TestModel& model, const Tensor& tokens, const Tensor& targets, const Pass& pass = {}) {
  Tape tape(Stream{});
  const Tape::NoGradient guard(tape);
  ForwardContext context = pass.context(tape);
  return scalar(model.decoder.loss(context, tokens, targets).loss.value());
}

/// One forward and backward pass; the gradients are in the store.
inline double run_step(TestModel& model, const Tensor& tokens, const Tensor& targets, const Pass& pass = {}) {
  const Stream stream{model.store.device()};
  model.store.forget_gradients();
  Tape tape(stream);
  ForwardContext context = pass.context(tape);
  double loss = 0;
  {
    const auto result = model.decoder.loss(context, tokens, targets);
    if (stream.device.is_cpu()) loss = scalar(result.loss.value());
    tape.backward(result.loss);
  }
  model.store.complete_gradients(stream);
  return loss;
}

/// Final hidden states, nothing recorded.
inline Tensor hidden_of(TestModel& model, const Tensor& tokens, const Pass& pass = {}) {
  Tape tape(Stream{});
  const Tape::NoGradient guard(tape);
  ForwardContext context = pass.context(tape);
  return model.decoder.hidden(context, tokens).value();
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() && a.is_contiguous() && b.is_contiguous() &&
         std::memcmp(a.address(), b.address(), static_cast<std::size_t>(a.bytes())) == 0;
}

}  // namespace furlong::layers::testing
