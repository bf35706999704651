#pragma once
// Small decoders of every kind that a config can name, for the tests of models.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "framework/ops/attention/linear/linear_attention.h"
#include "layers/models/decoder.h"
#include "tests/reference/values.h"

namespace furlong::layers::testing {

/// One kind of attention: a mechanism, its feature map if it has one, and one option.
struct Attending {
  std::string mechanism, feature_map, option{};
  std::string name() const {
    return mechanism + (feature_map.empty() ? "" : "_" + feature_map) + (option.empty() ? "" : "_" + option);
  }
  /// Returns true if its state has a constant size.
  bool is_recurrent() const { return mechanism != "softmax" && option != "heads" && option != "layers"; }
  /// Returns true for the kinds that are tested in every variant; the others are tested in one variant.
  bool is_basic() const {
    return option.empty() && (mechanism == "softmax" ||
                              (mechanism == "linear" && (feature_map == "elu1" || feature_map == "favor_positive")));
  }
  /// Returns true if finite differences work with large steps: no kinks and no denominators near zero.
  bool is_smooth() const {
    return feature_map != "elu1" && feature_map != "relu" && feature_map != "favor_relu" && feature_map != "favor_trig";
  }
};
inline void PrintTo(const Attending& attending, std::ostream* stream) { *stream << attending.name(); }
/// Returns every mechanism of a decoder with every feature map, and every option once.
inline std::vector<Attending> all_attending() {
  std::vector<Attending> all;
  for (const MechanismInfo& mechanism : attention_mechanisms()) {
    const std::string name = mechanism.name;
    if (name == "linformer") continue;  // bidirectional only: test_linformer.cpp
    if (name != "linear" && name != "windowed") {
      all.push_back({name, ""});
      continue;
    }
    for (const ops::FeatureMapInfo& map : ops::feature_maps()) all.push_back({name, map.name});
  }
  for (const char* option : {"unnormalized", "constants", "window", "heads", "recurrent_heads", "layers", "rotated"})
    all.push_back({"linear", "favor_positive", option});
  all.push_back({"linear", "oprf", "constants"});
  return all;
}
/// Returns the basic kinds, and one of each other kind of state and arithmetic, for slow tests.
inline std::vector<Attending> some_attending() {
  std::vector<Attending> some;
  for (const Attending& attending : all_attending()) {
    if (attending.is_basic()) some.push_back(attending);
  }
  some.insert(some.end(),
              {{"linear", "taylor"}, {"windowed", "favor_positive"}, {"linear", "favor_positive", "heads"}});
  return some;
}

/// Kinds of attention with kinds of positions: basic kinds with all positions, others with rotary and one more, which
/// alternates.
struct Case {
  Attending attending;
  Position position;
};
inline void PrintTo(const Case& named, std::ostream* stream) {
  *stream << named.attending.name() << ", " << name_of(named.position);
}
inline std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const Attending& attending : all_attending()) {
    const auto other = static_cast<Position>(random_stream(attending.name()) % 3);
    for (const Position position : all_values<Position>()) {
      if (attending.is_basic() || position == Position::rotary || position == other)
        cases.push_back({attending, position});
    }
  }
  return cases;
}
inline std::string case_name(const ::testing::TestParamInfo<Case>& instance) {
  return instance.param.attending.name() + "_" + name_of(instance.param.position);
}

enum class Style { gpt2, llama };

/// A model of two layers with odd sizes where possible: heads of 6 that do not add up to d_model, chunks of 4 tokens.
inline ModelConfig small_config(const Attending& attending, Position position, std::int64_t short_convolution,
                                Style style) {
  ModelConfig config;
  config.vocabulary_size = 11;
  config.n_layers = 2;
  config.d_model = 10;
  config.d_feedforward = 13;
  config.max_sequence_length = 48;
  config.attention.mechanism = attending.mechanism;
  if (!attending.feature_map.empty()) config.attention.feature_map = attending.feature_map;
  config.attention.n_features = 10;
  config.attention.chunk_size = 4;
  if (attending.mechanism == "windowed" || attending.option == "recurrent_heads") config.attention.softmax_window = 6;
  if (attending.option == "window") config.attention.window = 6;
  if (attending.option == "unnormalized") config.attention.normalizer = ops::Normalizer::rms;
  if (attending.option == "constants") {
    config.attention.centering = true;
    config.attention.scaling = Scaling::saderf;
  }
  if (attending.option == "rotated")
    config.rotary_placement = RotaryPlacement::numerator;  // used with rotary positions
  if (attending.option == "layers") config.attention.layer_mechanisms = {"softmax", "linear"};
  config.attention.d_head = 6;
  config.position = position;
  config.short_convolution = short_convolution;
  config.initializer_range = 0.4;  // far from the linear regime of the usual 0.02
  if (style == Style::gpt2) {
    config.attention.n_heads = config.attention.n_kv_heads = 2;
    config.activation = Activation::gelu_tanh;
  } else {
    config.attention.n_heads = 4;
    config.attention.n_kv_heads = 2;
    config.activation = Activation::swiglu;
    config.norm = ops::NormKind::rmsnorm;
    config.norm_epsilon = 1e-6;
    config.bias = false;
    config.tied_embeddings = false;
  }
  if (attending.option == "heads") {
    config.attention.head_mechanisms = {"softmax", "linear"};
    if (style == Style::llama) config.attention.head_mechanisms = {"linear", "linear", "softmax", "softmax"};
  }
  if (attending.option == "recurrent_heads") {
    config.attention.head_mechanisms = {"linear", "windowed"};
    if (style == Style::llama) config.attention.head_mechanisms = {"windowed", "windowed", "linear", "linear"};
  }
  return config;
}

/// Calls body(config) for both styles, with and without short convolution, each with a trace. Kinds that are not basic
/// run in one of the four variants, which alternates with the name.
template <class Body>
void for_each_variant(const Attending& attending, Position position, const Body& body) {
  const std::uint64_t chosen = random_stream(attending.name() + name_of(position)) % 4;
  std::uint64_t variant = 0;
  for (Style style : {Style::gpt2, Style::llama}) {
    for (std::int64_t short_convolution : {0, 4}) {
      if (variant++ != chosen && !attending.is_basic()) continue;
      const ::testing::ScopedTrace trace(
          __FILE__, __LINE__,
          fmt::format("{}, positions {}, {}, short convolution {}", attending.name(), name_of(position),
                      style == Style::gpt2 ? "GPT-2" : "Llama", short_convolution));
      // Threads cost more than they save on models of this size. GradientsAreBitIdenticalForAnyThreadCount tests them.
      reference::with_threads(1, [&] { body(small_config(attending, position, short_convolution, style)); });
    }
  }
}

struct TestModel {
  ParameterStore store;
  Decoder decoder;

  TestModel(const ModelConfig& config, DType dtype, Device device = {}, std::uint64_t seed = 5,
            ActivationCheckpointing recompute = ActivationCheckpointing::elementwise)
      : store(dtype, device), decoder(store, config, recompute) {
    store.allocate(seed);
    decoder.redraw(seed, 0);
    if (!device.is_cpu()) return;
    disturb();
    if (invent_statistics()) decoder.redraw(seed, 1);
  }

  TestModel(const ModelConfig& config, DType dtype, ActivationCheckpointing recompute)
      : TestModel(config, dtype, {}, 5, recompute) {}

  /// Sets moments of queries and keys as after some steps, so that constants are not neutral. Returns false if the
  /// model has no statistics.
  bool invent_statistics() {
    bool any = false;
    for (const Parameter& parameter : store.parameters()) {
      if (!parameter.name().ends_with(".statistics")) continue;
      any = true;
      const std::int64_t heads = parameter.shape()[0], d = (parameter.shape()[1] - 1) / 4;
      std::vector<double> values;
      const RandomKey key{12, 0, random_stream(parameter.name())};
      for (std::int64_t head = 0; head < heads; ++head) {
        values.push_back(10);
        std::vector<double> means, squares;
        for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(2 * d); ++i) {
          const double mean = 0.3 * random_normal(key, static_cast<std::uint64_t>(2 * d * head) + i);
          means.push_back(10 * mean);
          squares.push_back(10 * (mean * mean + 0.4 + 0.1 * static_cast<double>(i % 7)));
        }
        values.insert(values.end(), means.begin(), means.end());
        values.insert(values.end(), squares.begin(), squares.end());
      }
      parameter.master().copy_from(reference::tensor_of(values, parameter.shape(), parameter.master().dtype()));
    }
    return any;
  }

  /// Sets gains that are not all one and biases that are not all zero, so that their gradients are tested.
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

/// Keys of a training pass's random numbers.
struct Pass {
  bool training = false;
  std::uint64_t seed = 1;
  std::uint32_t step = 3;
  std::uint64_t first_sample = 0;
  ops::DenominatorReport* denominators = nullptr;

  ForwardContext context(Tape& tape) const {
    ForwardContext context{tape, training, seed, step, first_sample};
    context.denominators = denominators;
    return context;
  }
};

inline Tensor random_tokens(std::int64_t batch, std::int64_t n, const ModelConfig& config,
                            const std::string& name = "tokens") {
  return reference::integer_tensor({batch, n}, 0, config.vocabulary_size, name);
}
/// Some targets are -1, which are ignored.
inline Tensor random_targets(std::int64_t batch, std::int64_t n, const ModelConfig& config) {
  return reference::integer_tensor({batch, n}, -1, config.vocabulary_size, "targets");
}

inline double scalar(const Tensor& tensor) { return reference::doubles(tensor)[0]; }

/// Returns the loss alone.
inline double loss_of(TestModel& model, const Tensor& tokens, const Tensor& targets, const Pass& pass = {}) {
  Tape tape(Stream{});
  const Tape::NoGradient guard(tape);
  ForwardContext context = pass.context(tape);
  return scalar(model.decoder.loss(context, tokens, targets).loss.value());
}

/// Runs one forward and backward pass; the gradients are in the store.
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

/// Runs parallel loops in one thread during its lifetime.
struct OneThread {
  int before = thread_count();
  OneThread() { set_thread_count(1); }
  ~OneThread() { set_thread_count(before); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;
};

/// Returns the final hidden states, without recording.
inline Tensor hidden_of(TestModel& model, const Tensor& tokens, const Pass& pass = {}) {
  Tape tape(Stream{});
  const Tape::NoGradient guard(tape);
  ForwardContext context = pass.context(tape);
  return model.decoder.hidden(context, tokens).value();
}

using furlong::reference::same_bits;

struct Worst {
  double error = 0;
  std::string where;
};

/// Compares gradients of the loss with fourth-order central differences, for up to three elements of every parameter.
/// Errors are relative to the largest gradient of the parameter.
inline Worst check_in_one_thread(TestModel& model, const Tensor& tokens, const Tensor& targets, const Pass& pass,
                                 double step) {
  run_step(model, tokens, targets, pass);
  Worst worst;
  for (const Parameter& parameter : model.store.parameters()) {
    if (!model.store.is_trained(parameter)) continue;
    const std::vector<double> gradient = parameter.gradient().to_vector<double>();
    double largest = 0;
    for (double value : gradient) largest = std::max(largest, std::abs(value));
    EXPECT_GT(largest, 1e-5) << parameter.name() << " has too small a gradient";
    std::set<std::uint32_t> elements;
    for (std::uint64_t i = 0; i < 3; ++i)
      elements.insert(random_word({4, 0, random_stream(parameter.name())}, i) %
                      static_cast<std::uint32_t>(gradient.size()));
    for (std::uint32_t element : elements) {
      double& value = parameter.master().data<double>()[element];
      const double before = value;
      const auto loss_at = [&](double offset) {
        value = before + offset;
        return loss_of(model, tokens, targets, pass);
      };
      const double near = loss_at(step) - loss_at(-step), far = loss_at(2 * step) - loss_at(-2 * step);
      value = before;
      const double numeric = (8 * near - far) / (12 * step), error = std::abs(numeric - gradient[element]) / largest;
      if (!(error <= worst.error))
        worst = {error, fmt::format("{}, element {}: {} from the tape, {} from finite differences", parameter.name(),
                                    element, gradient[element], numeric)};
    }
  }
  return worst;
}

inline Worst check_loss_gradients(TestModel& model, const Tensor& tokens, const Tensor& targets, const Pass& pass,
                                  double step = 1e-3) {
  // Hundreds of passes, each too small for several threads.
  return furlong::reference::with_threads(1, [&] { return check_in_one_thread(model, tokens, targets, pass, step); });
}

/// Returns the hidden states of `tokens` processed in pieces of these lengths and then one token at a time, joined as
/// [batch, n, d].
inline std::vector<double> extended(TestModel& model, const Tensor& tokens, const std::vector<std::int64_t>& pieces,
                                    GenerationState& state) {
  Tape tape(Stream{});
  const Tape::NoGradient guard(tape);
  ForwardContext context = Pass{}.context(tape);
  const std::int64_t batch = tokens.extent(0), n = tokens.extent(1), d = model.decoder.config().d_model;
  std::vector<double> joined(static_cast<std::size_t>(batch * n * d));
  std::int64_t start = 0;
  for (std::size_t piece = 0; start < n; ++piece) {
    const std::int64_t length = piece < pieces.size() ? pieces[piece] : 1;
    const Tensor part = Tensor::from(tokens.narrow(1, start, length).to_vector<std::int32_t>(), {batch, length});
    EXPECT_EQ(state.position, start);
    const Tensor hidden = model.decoder.extend(context, part, state).value();
    EXPECT_EQ(hidden.shape(), Shape({batch, length, d}));
    const std::vector<double> values = reference::doubles(hidden);
    for (std::int64_t b = 0; b < batch; ++b) {
      std::copy_n(values.begin() + b * length * d, length * d, joined.begin() + (b * n + start) * d);
    }
    start += length;
  }
  return joined;
}

}  // namespace furlong::layers::testing
