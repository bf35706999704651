#pragma once
// furlong convert: replaces the attention of a softmax model and keeps its weights.
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "conversion/approximation.h"
#include "conversion/choose_attention.h"
#include "conversion/fold_scaling.h"
#include "conversion/import_model.h"

namespace furlong {

/// Options of convert(), named like those of furlong convert.
struct ConvertOptions {
  std::filesystem::path source, destination;
  ImportOptions import;
  std::string attention;                 ///< text of an AttentionRequest, "auto", or empty to keep the source's
  std::int64_t features = 0;             ///< number m of random features; 0: the default
  std::string layers;                    ///< the layers that change, as in "0,1,5-7"; empty: all
  std::string heads_keep_softmax;        ///< LAYER:HEAD,...
  std::vector<std::string> overrides;    ///< "model.attention.x=y", "seed=n"
  std::int64_t max_sequence_length = 0;  ///< 0: the source's
  std::optional<ObservedBatches> data;   ///< data for the measurements
  bool fold_scaling = false;
  double target_error = 0.1;         ///< auto: largest error of a head against exact softmax
  std::int64_t max_features = 1024;  ///< auto: largest number of random features
  bool limits_polynomials = false;   ///< auto: max_features limits polynomial features too
  std::int64_t cost_at = 0;  ///< sequence length n of the reported costs; 0: that of the data, or max_sequence_length
  bool overwrite = false;
  std::function<void()> completed{};  ///< called once the checkpoint has its name, while signals wait; may be empty
};

/// The result of convert().
struct ConversionResult {
  std::string source;  ///< description of the source model
  TensorReport tensors;
  Settings settings;  ///< of the model written
  std::optional<AutomaticChoice> automatic;
  std::optional<FoldReport> fold;
  std::vector<HeadApproximation> approximation;  ///< of the changed layers; empty without data
  std::string data;                              ///< path of the data measured on
  std::int64_t data_tokens = 0;
  std::int64_t cost_length = 0;
  double source_flops = 0, flops = 0;  ///< per token, over all attention layers, at length cost_length
  bool source_cost_grows = true;       ///< with the length: the source has softmax without a window
  nlohmann::ordered_json json() const;
  std::string text() const;
};

/// Reads the source, converts it, measures it, and writes the checkpoint atomically. No other process writes the
/// destination meanwhile, and an existing file is replaced only with `overwrite`. Throws UserError for options that
/// do not fit together or do not fit the model, before anything is written.
ConversionResult convert(const ConvertOptions& options);

/// Returns the floating point operations per token of the forward pass through all attention layers, with their learned
/// maps, for sequences of n tokens. Counts as layers::AttentionCost does.
double attention_flops_per_token(const Settings& settings, std::int64_t n);

}  // namespace furlong
