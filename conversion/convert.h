#pragma once
// From a model with softmax attention to one with another attention and the same weights: furlong convert.
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "conversion/approximation.h"
#include "conversion/choose_attention.h"
#include "conversion/fold_scaling.h"
#include "conversion/import_model.h"

namespace furlong {

struct ConvertOptions {
  std::filesystem::path source, destination;
  ImportOptions import;
  std::string attention;                 ///< AttentionRequest as text, "auto", or empty: what the source has
  std::int64_t features = 0;             ///< m of random features; 0: the default
  std::string layers;                    ///< which of them change; empty: all
  std::string heads_keep_softmax;        ///< LAYER:HEAD,...
  std::vector<std::string> overrides;    ///< "model.attention.x=y", "seed=n"
  std::int64_t max_sequence_length = 0;  ///< 0: the source's
  std::optional<ObservedBatches> data;   ///< for measurements
  bool fold_scaling = false;
  double target_error = 0.1;          ///< auto
  std::int64_t most_features = 1024;  ///< auto: of random features
  bool bounds_polynomials = false;    ///< auto: whether most_features binds polynomials too
  std::int64_t cost_at = 0;           ///< n that costs are told for; 0: the data's length, or the longest sequence
  bool overwrite = false;
};

struct ConversionResult {
  std::string source;  ///< what it was
  TensorReport tensors;
  Settings settings;  ///< of the model written
  std::optional<AutomaticChoice> automatic;
  std::optional<FoldReport> fold;
  std::vector<HeadApproximation> approximation;  ///< with data, of the layers that changed
  std::string data;                              ///< where it was measured
  std::int64_t data_tokens = 0;
  std::int64_t cost_length = 0;
  double source_flops = 0, flops = 0;  ///< of all attentions, a token at cost_length
  nlohmann::ordered_json json() const;
  std::string text() const;
};

/// Reads, converts and measures; then writes the checkpoint, which appears whole or not at all. Throws UserError for
/// whatever does not fit together, before anything is written.
ConversionResult convert(const ConvertOptions& options);

/// Floating point operations a token of forward through all attentions of a model, for sequences of n tokens, as
/// layers::AttentionCost counts.
double attention_flops_per_token(const Settings& settings, std::int64_t n);

}  // namespace furlong
