#pragma once
// Small models, and definitions in float64, for the tests of furlong embed and furlong score.
#include <cmath>
#include <string>
#include <vector>

#include "tests/reference/transformer.h"
#include "tests/temporary_folder.h"
#include "tests/trainers/training.h"
#include "trainers/model/model.h"

namespace furlong::testing {

inline const std::vector<std::string> encoder{"model.architecture=encoder", "objective.name=masked_tokens",
                                              "model.attention.mechanism=softmax", "data.sampler=documents"};

/// In float64, with weights large enough that tokens differ.
inline Model sequence_model(const Vocabulary& vocabulary, const std::vector<std::string>& overrides) {
  return make_model(small_settings("none.h5", with({"model.initializer_range=0.3"}, overrides)).settings, vocabulary,
                    Device{}, DType::float64);
}

inline reference::Transformer::Result defined_run(const Model& model, const std::vector<std::int32_t>& tokens) {
  const layers::ModelConfig& config = model.decoder ? model.decoder->config() : model.encoder->config();
  return reference::Transformer(config, *model.store).run(tokens, {}, 1, std::ssize(tokens));
}

/// log softmax of one row of logits.
inline double defined_log_probability(const Model& model, const reference::Transformer::Result& run, std::size_t row,
                                      std::int32_t token) {
  const auto size = static_cast<std::size_t>(model.store->find("token_embedding.weight").shape()[0]);
  const double* logits = run.logits.data() + row * size;
  double sum = 0;
  for (std::size_t i = 0; i < size; ++i) sum += std::exp(logits[i]);
  return logits[token] - std::log(sum);
}

/// Residues in an order that repeats nowhere soon.
inline std::string residues(std::size_t length, std::uint64_t seed = 1) {
  const RandomKey key{seed, 0, random_stream("residues")};
  std::string text;
  for (std::size_t i = 0; i < length; ++i) text += "ACDEFGHIKLMNPQRSTVWY"[random_word(key, i) % 20];
  return text;
}

}  // namespace furlong::testing
