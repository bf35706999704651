#pragma once
// Reference implementations of Llama and BERT in float64, written from the papers, over tensors in foreign layout.
#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "tests/conversion/tiny_models.h"

namespace furlong::testing {

using Rows = std::vector<std::vector<double>>;

class NaiveTransformer {
 public:
  explicit NaiveTransformer(const TinyModel& model) : model_(model) {}

  /// Returns the logits [tokens, vocabulary] of tiny_llama.
  Rows llama(const std::vector<int>& tokens) const {
    const Json& c = model_.config;
    Rows x = lookup("model.embed_tokens.weight", tokens);
    for (int layer = 0; layer < c.at("num_hidden_layers"); ++layer) {
      const std::string name = "model.layers." + std::to_string(layer) + ".";
      const Rows h = rms_norm(x, name + "input_layernorm.weight", c.at("rms_norm_eps"));
      Rows q = linear(h, name + "self_attn.q_proj"), k = linear(h, name + "self_attn.k_proj");
      const int heads = c.at("num_attention_heads"), key_heads = c.at("num_key_value_heads");
      rotate(q, heads, c.at("rope_theta"));
      rotate(k, key_heads, c.at("rope_theta"));
      add(x, linear(attention(q, k, linear(h, name + "self_attn.v_proj"), heads, key_heads, true),
                    name + "self_attn.o_proj"));
      const Rows f = rms_norm(x, name + "post_attention_layernorm.weight", c.at("rms_norm_eps"));
      Rows gate = linear(f, name + "mlp.gate_proj");
      const Rows up = linear(f, name + "mlp.up_proj");
      for (std::size_t i = 0; i < gate.size(); ++i) {
        for (std::size_t j = 0; j < gate[i].size(); ++j)
          gate[i][j] = gate[i][j] / (1 + std::exp(-gate[i][j])) * up[i][j];
      }
      add(x, linear(gate, name + "mlp.down_proj"));
    }
    return linear(rms_norm(x, "model.norm.weight", c.at("rms_norm_eps")), "lm_head");
  }

  /// Returns the final hidden states of tiny_bert, whose tensor names start with `prefix`.
  Rows bert_states(const std::vector<int>& tokens, const std::vector<int>& segments, const std::string& prefix) const {
    Rows x = lookup(prefix + "embeddings.word_embeddings.weight", tokens);
    std::vector<int> positions(tokens.size());
    for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int>(i);
    add(x, lookup(prefix + "embeddings.position_embeddings.weight", positions));
    add(x, lookup(prefix + "embeddings.token_type_embeddings.weight", segments));
    x = layer_norm(x, prefix + "embeddings.LayerNorm");
    const int heads = model_.config.at("num_attention_heads");
    for (int layer = 0; layer < model_.config.at("num_hidden_layers"); ++layer) {
      const std::string name = prefix + "encoder.layer." + std::to_string(layer) + ".", self = name + "attention.self.";
      const Rows attended =
          attention(linear(x, self + "query"), linear(x, self + "key"), linear(x, self + "value"), heads, heads, false);
      add(x, linear(attended, name + "attention.output.dense"));
      x = layer_norm(x, name + "attention.output.LayerNorm");
      add(x, linear(gelu(linear(x, name + "intermediate.dense")), name + "output.dense"));
      x = layer_norm(x, name + "output.LayerNorm");
    }
    return x;
  }

  Rows bert_logits(const std::vector<int>& tokens, const std::vector<int>& segments) const {
    Rows x = gelu(linear(bert_states(tokens, segments, "bert."), "cls.predictions.transform.dense"));
    x = layer_norm(x, "cls.predictions.transform.LayerNorm");
    const std::vector<float>&table = model_["bert.embeddings.word_embeddings.weight"],
          &bias = model_["cls.predictions.bias"];
    Rows logits;
    for (const auto& row : x) {
      std::vector<double>& out = logits.emplace_back(bias.begin(), bias.end());
      for (std::size_t v = 0; v < out.size(); ++v) {
        for (std::size_t i = 0; i < row.size(); ++i) out[v] += row[i] * static_cast<double>(table[v * row.size() + i]);
      }
    }
    return logits;
  }

 private:
  Rows lookup(const std::string& name, const std::vector<int>& ids) const {
    const std::size_t width = static_cast<std::size_t>(model_.described.at(name).shape[1]);
    Rows rows;
    for (const int id : ids) {
      const auto begin = model_[name].begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(id) * width);
      rows.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(width));
    }
    return rows;
  }

  Rows linear(const Rows& x, const std::string& name) const {
    const std::vector<float>& weight = model_[name + ".weight"];
    const std::size_t out = static_cast<std::size_t>(model_.described.at(name + ".weight").shape[0]);
    Rows result;
    for (const auto& row : x) {
      std::vector<double>& y = result.emplace_back(out);
      if (model_.values.contains(name + ".bias"))
        y.assign(model_[name + ".bias"].begin(), model_[name + ".bias"].end());
      for (std::size_t o = 0; o < out; ++o) {
        for (std::size_t i = 0; i < row.size(); ++i) y[o] += row[i] * static_cast<double>(weight[o * row.size() + i]);
      }
    }
    return result;
  }

  Rows rms_norm(const Rows& x, const std::string& name, double epsilon) const {
    Rows result = x;
    for (auto& row : result) {
      double square = 0;
      for (const double value : row) square += value * value / static_cast<double>(row.size());
      for (std::size_t i = 0; i < row.size(); ++i)
        row[i] *= static_cast<double>(model_[name][i]) / std::sqrt(square + epsilon);
    }
    return result;
  }

  Rows layer_norm(const Rows& x, const std::string& name) const {
    Rows result = x;
    for (auto& row : result) {
      double mean = 0, variance = 0;
      for (const double value : row) mean += value / static_cast<double>(row.size());
      for (const double value : row) variance += (value - mean) * (value - mean) / static_cast<double>(row.size());
      for (std::size_t i = 0; i < row.size(); ++i)
        row[i] = (row[i] - mean) / std::sqrt(variance + 1e-12) * static_cast<double>(model_[name + ".weight"][i]) +
                 static_cast<double>(model_[name + ".bias"][i]);
    }
    return result;
  }

  static Rows gelu(Rows x) {
    for (auto& row : x) {
      for (double& value : row) value *= 0.5 * (1 + std::erf(value / std::numbers::sqrt2));
    }
    return x;
  }

  static void add(Rows& x, const Rows& y) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      for (std::size_t j = 0; j < x[i].size(); ++j) x[i][j] += y[i][j];
    }
  }

  static void rotate(Rows& x, int heads, double base) {
    for (std::size_t position = 0; position < x.size(); ++position) {
      const std::size_t d = x[position].size() / static_cast<std::size_t>(heads), half = d / 2;
      for (std::size_t first = 0; first < x[position].size(); first += d) {
        for (std::size_t i = 0; i < half; ++i) {
          const double angle =
              static_cast<double>(position) * std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(d));
          double &a = x[position][first + i], &b = x[position][first + i + half];
          const double turned = a * std::cos(angle) - b * std::sin(angle);
          b = a * std::sin(angle) + b * std::cos(angle);
          a = turned;
        }
      }
    }
  }

  static Rows attention(const Rows& q, const Rows& k, const Rows& v, int heads, int key_heads, bool causal) {
    const std::size_t d = q[0].size() / static_cast<std::size_t>(heads),
                      group = static_cast<std::size_t>(heads / key_heads);
    Rows result(q.size(), std::vector<double>(q[0].size()));
    for (std::size_t head = 0; head < static_cast<std::size_t>(heads); ++head) {
      const std::size_t key_head = head / group;
      for (std::size_t i = 0; i < q.size(); ++i) {
        const std::size_t seen = causal ? i + 1 : k.size();
        std::vector<double> weights(seen);
        double total = 0;
        for (std::size_t j = 0; j < seen; ++j) {
          double score = 0;
          for (std::size_t c = 0; c < d; ++c) score += q[i][head * d + c] * k[j][key_head * d + c];
          total += weights[j] = std::exp(score / std::sqrt(static_cast<double>(d)));
        }
        for (std::size_t j = 0; j < seen; ++j) {
          for (std::size_t c = 0; c < d; ++c) result[i][head * d + c] += weights[j] / total * v[j][key_head * d + c];
        }
      }
    }
    return result;
  }

  const TinyModel& model_;
};

}  // namespace furlong::testing
