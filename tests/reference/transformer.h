#pragma once
// A whole transformer with softmax attention from its definition, in float64, with plain loops. It defines every key of
// ModelConfig.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "layers/models/decoder.h"
#include "tests/reference/activation.h"
#include "tests/reference/norm.h"
#include "tests/reference/softmax_attention.h"
#include "tests/reference/values.h"

namespace furlong::reference {

class Transformer {
 public:
  using Rows = std::vector<double>;  // [batch * n, columns]

  Transformer(const layers::ModelConfig& config, const ParameterStore& store) : config_(config) {
    for (const Parameter& parameter : store.parameters()) values_[parameter.name()] = doubles(parameter.master());
  }

  struct Result {
    Rows hidden, logits;
    std::vector<Rows> attention_inputs, attention_outputs;  // of each layer, output projection included
  };
  /// tokens and segments [batch, n]; segments may be empty.
  Result run(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& segments, std::int64_t batch,
             std::int64_t n) const {
    Result result;
    Rows x = embed(tokens, segments, n);
    for (std::int64_t layer = 0; layer < config_.n_layers; ++layer) {
      const std::string block = "blocks." + std::to_string(config_.shared_layers ? 0 : layer);
      const bool after = config_.norm_placement == layers::NormPlacement::post;
      const Rows input = after ? x : norm(x, block + ".attention_norm");
      const Rows attended = attention(input, block + ".attention", batch, n);
      result.attention_inputs.push_back(input);
      result.attention_outputs.push_back(attended);
      x = after ? norm(sum(x, attended), block + ".attention_norm") : sum(x, attended);
      const Rows fed = feedforward(after ? x : norm(x, block + ".feedforward_norm"), block + ".feedforward");
      x = after ? norm(sum(x, fed), block + ".feedforward_norm") : sum(x, fed);
    }
    result.hidden = has("final_norm.gain") ? norm(x, "final_norm") : x;
    result.logits = predict(result.hidden);
    return result;
  }
  /// Returns the parameters that no run has used.
  std::set<std::string> unused() const {
    std::set<std::string> names;
    for (const auto& [name, values] : values_)
      if (!used_.contains(name)) names.insert(name);
    return names;
  }

 private:
  bool has(const std::string& name) const { return values_.contains(name); }
  const Rows& of(const std::string& name) const {
    used_.insert(name);
    return values_.at(name);
  }
  static Rows sum(Rows a, const Rows& b) {
    for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
    return a;
  }
  static Rows product(const Rows& x, const Rows& weight, std::size_t inner) {
    const std::size_t outer = weight.size() / inner, rows = x.size() / inner;
    Rows y(rows * outer);
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t o = 0; o < outer; ++o)
        for (std::size_t i = 0; i < inner; ++i) y[r * outer + o] += x[r * inner + i] * weight[o * inner + i];
    return y;
  }
  Rows linear(const Rows& x, const std::string& name, std::size_t inner) const {
    Rows y = product(x, of(name + ".weight"), inner);
    if (has(name + ".bias")) y = biased(std::move(y), of(name + ".bias"));
    if (!has(name + ".lora_a.weight")) return y;
    const auto rank = static_cast<std::size_t>(config_.adapter.rank);
    const Rows low = product(product(x, of(name + ".lora_a.weight"), inner), of(name + ".lora_b.weight"), rank);
    for (std::size_t i = 0; i < y.size(); ++i) y[i] += config_.adapter.alpha / static_cast<double>(rank) * low[i];
    return y;
  }
  static Rows biased(Rows y, const Rows& bias) {
    for (std::size_t i = 0; i < y.size(); ++i) y[i] += bias[i % bias.size()];
    return y;
  }
  Rows norm(const Rows& x, const std::string& name, bool rms = false) const {
    const auto kind = rms ? ops::NormKind::rmsnorm : config_.norm;
    return reference::norm(x, {}, of(name + ".gain"), has(name + ".bias") ? of(name + ".bias") : Rows{}, kind,
                           config_.norm_epsilon)
        .normed;
  }
  static Rows activated(Rows x, ops::ActivationKind kind) {
    for (double& value : x) value = static_cast<double>(activation(kind, value));
    return x;
  }

  /// Token dropout: 0 for mask tokens, 0.88 / (fraction of other tokens in the sequence) for all others.
  double token_factor(const std::vector<std::int32_t>& tokens, std::size_t t, std::int64_t n) const {
    if (tokens[t] == config_.mask_token) return 0;
    const auto begin = tokens.begin() + static_cast<std::ptrdiff_t>(t) / n * n;
    const auto others = n - std::count(begin, begin + n, static_cast<std::int32_t>(config_.mask_token));
    return 0.88 * static_cast<double>(n) / static_cast<double>(others);
  }

  Rows embed(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& segments, std::int64_t n) const {
    const auto width = static_cast<std::size_t>(config_.d_embedding > 0 ? config_.d_embedding : config_.d_model);
    Rows x;
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      const auto add = [&](std::size_t i, const std::string& table, std::size_t row) {
        x.back() += of(table)[row * width + i];
      };
      for (std::size_t i = 0; i < width; ++i) {
        x.push_back(0);
        add(i, "token_embedding.weight", static_cast<std::size_t>(tokens[t]));
        if (config_.token_dropout) x.back() *= token_factor(tokens, t, n);
        if (config_.position == layers::Position::learned)
          add(i, "position_embedding.weight", t % static_cast<std::size_t>(n));
        if (config_.n_segments > 0)
          add(i, "segment_embedding.weight", segments.empty() ? 0 : static_cast<std::size_t>(segments[t]));
      }
    }
    if (config_.embedding_norm) x = norm(x, "embedding_norm");
    return config_.d_embedding > 0 ? linear(x, "embedding_projection", width) : x;
  }

  /// Normalizes and rotates the heads; x [batch * n, heads * d_head].
  Rows turned(Rows x, const std::string& norm_name, std::int64_t n) const {
    const auto d = static_cast<std::size_t>(config_.attention.d_head), half = d / 2;
    if (config_.query_key_norm == layers::QueryKeyNorm::rmsnorm) x = norm(x, norm_name, true);
    if (config_.position != layers::Position::rotary) return x;
    const auto theta = ops::rotary_frequencies(config_.attention.d_head, config_.rotary_base, config_.rotary_scaling);
    const double factor = ops::rotary_attention_factor(config_.rotary_scaling);
    const std::size_t columns = x.size() / static_cast<std::size_t>(rows_);
    for (std::size_t begin = 0; begin < x.size(); begin += d) {
      const auto position = static_cast<double>(begin / columns % static_cast<std::size_t>(n));
      for (std::size_t i = 0; i < half; ++i) {
        const double a = x[begin + i], b = x[begin + half + i], c = std::cos(position * theta[i]),
                     s = std::sin(position * theta[i]);
        x[begin + i] = factor * (a * c - b * s);
        x[begin + half + i] = factor * (a * s + b * c);
      }
    }
    return x;
  }

  Rows attention(const Rows& x, const std::string& name, std::int64_t batch, std::int64_t n) const {
    const auto& a = config_.attention;
    rows_ = batch * n;
    const Rows fused = linear(x, name + ".query_key_value", static_cast<std::size_t>(config_.d_model));
    const std::size_t queries = static_cast<std::size_t>(a.n_heads * a.d_head),
                      keys = static_cast<std::size_t>(a.n_kv_heads * a.d_head);
    const auto columns = [&](std::size_t first, std::size_t count) {
      Rows part;
      for (std::size_t begin = 0; begin < fused.size(); begin += queries + 2 * keys)
        part.insert(part.end(), fused.begin() + static_cast<std::ptrdiff_t>(begin + first),
                    fused.begin() + static_cast<std::ptrdiff_t>(begin + first + count));
      return part;
    };
    SoftmaxAttentionCase c{.batch = batch,
                           .n_query = n,
                           .n_key = n,
                           .n_heads = a.n_heads,
                           .n_kv_heads = a.n_kv_heads,
                           .d_key = a.d_head,
                           .d_value = a.d_head,
                           .causal = config_.architecture == layers::Architecture::decoder};
    const Rows mixed =
        softmax_attention(c, turned(columns(0, queries), name + ".query_norm", n),
                          turned(columns(queries, keys), name + ".key_norm", n), columns(queries + keys, keys))
            .output;
    return linear(mixed, name + ".output", queries);
  }

  Rows feedforward(const Rows& x, const std::string& name) const {
    const auto inner = static_cast<std::size_t>(config_.d_feedforward);
    Rows inside = linear(x, name + ".input", static_cast<std::size_t>(config_.d_model));
    if (config_.activation != layers::Activation::swiglu) {
      return linear(activated(std::move(inside), layers::kind_of(config_.activation)), name + ".output", inner);
    }
    Rows gated;
    for (std::size_t begin = 0; begin < inside.size(); begin += 2 * inner)
      for (std::size_t i = 0; i < inner; ++i)
        gated.push_back(static_cast<double>(activation(ops::ActivationKind::silu, inside[begin + i])) *
                        inside[begin + inner + i]);
    return linear(gated, name + ".output", inner);
  }

  Rows predict(const Rows& hidden) const {
    Rows x = hidden;
    if (config_.prediction_head == layers::PredictionHead::transform) {
      x = linear(x, "prediction.transform", static_cast<std::size_t>(config_.d_model));
      x = norm(activated(std::move(x), layers::kind_of(config_.activation)), "prediction.norm");
    }
    const Rows& weight = of(config_.tied_embeddings ? "token_embedding.weight" : "classifier.weight");
    x = product(x, weight, weight.size() / static_cast<std::size_t>(config_.vocabulary_size));
    return config_.output_bias ? biased(std::move(x), of("output_bias")) : x;
  }

  layers::ModelConfig config_;
  std::map<std::string, Rows> values_;
  mutable std::set<std::string> used_;
  mutable std::int64_t rows_ = 0;
};

}  // namespace furlong::reference
