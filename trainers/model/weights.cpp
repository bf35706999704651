#include "trainers/model/weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "framework/core/log.h"
#include "framework/core/printable.h"
#include "framework/core/tensor_values.h"
#include "layers/linear.h"
#include "trainers/checkpoint/checkpoint_tensors.h"
#include "trainers/settings/settings.h"

namespace furlong {
namespace {

constexpr const char* positions_name = "position_embedding.weight";
constexpr const char* embedding_name = "token_embedding.weight";

/// Returns whether a tensor belongs to an output layer, over tokens or labels.
bool is_of_output(const std::string& name) {
  return name.starts_with("classifier.") || name.starts_with("matching.") || name.starts_with("prediction.") ||
         name == "output_bias";
}

/// Returns whether weights fit models with other values of a key under `model`, whatever the checkpoint stores.
bool never_matters(const std::string& key) {
  static const std::set<std::string> keys{"model.weights", "model.dropout", "model.dtype", "model.initializer_range",
                                          "model.attention.chunk_size", "model.attention.redraw_every",
                                          "model.attention.denominator_guard",
                                          // Output layers may differ.
                                          "model.prediction_head", "model.output_bias", "model.tied_embeddings"};
  return keys.contains(key);
}

/// Returns whether weights fit models with other values of a key under `model` unless tensors do not: the attention is
/// what a new run may change, adapters are added, and learned positions are repeated.
bool matters_with_tensors(const std::string& key) {
  static const std::set<std::string> keys{"model.max_sequence_length", "model.vocabulary_size",
                                          "model.lora_rank",           "model.lora_alpha",
                                          "model.query_key_norm",      "model.rotary_placement"};
  return keys.contains(key) || key.starts_with("model.attention.");
}

/// Returns the keys under `model` that differ, with both values. Without `all`, those that always matter.
std::vector<std::string> differences(Settings there, Settings here, bool all) {
  const bool same_rank = there.model.adapter.rank > 0 && there.model.adapter.rank == here.model.adapter.rank;
  const auto has_features = [](const Settings& one) {
    return layers::uses(one.model.attention, &layers::MechanismInfo::has_features);
  };
  const bool same_kind = has_features(there) && has_features(here);
  const config::Table theirs = settings_table(there, false), ours = settings_table(here, false);
  std::vector<std::string> found;
  for (const config::Key& key : theirs.keys()) {
    const std::string& path = key.path();
    // What the same tensors compute.
    const bool computes = (same_rank && path == "model.lora_alpha") || (same_kind && path == "model.rotary_placement");
    if (!path.starts_with("model.") || never_matters(path) || (!all && matters_with_tensors(path) && !computes))
      continue;
    const config::Value now = ours.find(path)->get();
    // If the key has no effect there, another key, whose value it needs, differs.
    if (theirs.unmet(key) || key.get() == now) continue;
    found.push_back(fmt::format("{} is {} there and {} here", path, config::to_text(key.get()), config::to_text(now)));
  }
  return found;
}

void check_vocabulary(const CheckpointReader& checkpoint, const Vocabulary& theirs, const Model& model) {
  const std::string origin = checkpoint.path().string();
  if (theirs.with_labels({}) == model.vocabulary.with_labels({})) return;
  throw UserError(
      "{}: the vocabulary of the weights ({}, {} tokens) differs from the vocabulary of the dataset ({}, {} tokens); "
      "prepare the dataset with the tokenizer of the weights, or use weights that were trained with the tokenizer of "
      "the dataset",
      origin, theirs.description(), theirs.size(), model.vocabulary.description(), model.vocabulary.size());
}

/// Fills row p of `table` from row p mod n of the checkpoint's [n, width].
void repeat_rows(const CheckpointReader& checkpoint, const std::string& name, std::int64_t rows, const Tensor& table) {
  const Tensor known = Tensor::empty({rows, table.extent(1)}, table.dtype());
  read_tensor(checkpoint, name, known);
  for (std::int64_t first = 0; first < table.extent(0); first += rows) {
    const std::int64_t count = std::min(rows, table.extent(0) - first);
    table.narrow(0, first, count).copy_from(known.narrow(0, 0, count));
  }
}

/// Returns whether the output layers predict the same: tokens, or the labels of one objective by names and order, from
/// equally pooled states.
bool same_outputs(const CheckpointReader& checkpoint, const Vocabulary& theirs, const Model& model) {
  const std::string origin = checkpoint.path().string();
  const ObjectiveSettings before =
                              from_checkpoint_text(checkpoint.text("config"), origin + " (config)").settings.objective,
                          now = model.settings.objective;
  if (before.learns_labels() != now.learns_labels()) return false;
  return !now.learns_labels() ||
         (before.name == now.name && before.pooling == now.pooling && theirs.labels() == model.vocabulary.labels());
}

/// Changes an output layer over numbers from the units of the labels there to those here: the predicted numbers,
/// output · scale + mean, stay the same.
void change_units(const Model& model, const std::vector<LabelScale>& there) {
  const std::vector<LabelScale>& here = model.vocabulary.label_scales();
  const auto changed = [&](const Tensor& tensor, bool is_bias) {
    std::vector<double> values = host_values(tensor);
    const std::size_t width = values.size() / here.size();
    for (std::size_t label = 0; label < here.size(); ++label) {
      const double ratio = there[label].scale / here[label].scale,
                   shift = is_bias ? (there[label].mean - here[label].mean) / here[label].scale : 0;
      for (std::size_t i = label * width; i < (label + 1) * width; ++i) values[i] = values[i] * ratio + shift;
    }
    set_values(tensor, values);
  };
  changed(model.store->find("classifier.weight").master(), false);
  changed(model.store->find("classifier.bias").master(), true);
}

/// Returns whether a parameter repeats the rows of a stored table of learned positions.
bool has_more_positions(const Parameter& parameter, const std::vector<std::int64_t>& stored) {
  return parameter.name() == positions_name && stored.size() == 2 && stored[0] > 0 &&
         stored[0] < parameter.shape()[0] && stored[1] == parameter.shape()[1];
}

/// Returns whether a parameter gets initial values although the checkpoint has one of its name.
bool restarts(const Parameter& parameter, bool takes_classifier, bool takes_adapters) {
  return (!takes_classifier && parameter.name().starts_with("classifier.")) ||
         (!takes_adapters && layers::is_adapter(parameter.name()));
}

/// Returns the stored tensors that have no place in the model, or another shape than there; none of output layers that
/// the model does not take.
std::vector<std::string> unfit_tensors(const CheckpointReader& checkpoint, const Model& model, bool takes_classifier) {
  std::map<std::string, const Parameter*> known;
  for (const Parameter& parameter : model.store->parameters()) known.emplace(parameter.name(), &parameter);
  std::vector<std::string> unfit;
  for (const TensorInfo& info : checkpoint.tensors("parameters/")) {
    const std::string name = info.name.substr(std::string_view("parameters/").size());
    const auto found = known.find(name);
    if (found == known.end()) {
      if (!is_of_output(name)) unfit.push_back(foreign::printable(name));
      continue;
    }
    const Parameter& parameter = *found->second;
    const bool same =
        std::equal(info.shape.begin(), info.shape.end(), parameter.shape().begin(), parameter.shape().end());
    if (!same && !has_more_positions(parameter, info.shape) && !restarts(parameter, takes_classifier, true))
      unfit.push_back(
          fmt::format("{} ([{}] there, {} here)", name, fmt::join(info.shape, ", "), parameter.shape().text()));
  }
  return unfit;
}

std::int64_t rows_of_embedding(const CheckpointReader& checkpoint) {
  const std::string name = std::string("parameters/") + embedding_name;
  return checkpoint.has(name) && !checkpoint.info(name).shape.empty() ? checkpoint.info(name).shape[0] : 0;
}

layers::RandomProjectionKind projection_of(const CheckpointReader& checkpoint) {
  const std::string origin = checkpoint.path().string() + " (config)";
  return from_checkpoint_text(checkpoint.text("config"), origin).settings.model.attention.random_projection;
}

}  // namespace

void check_same_model(const CheckpointReader& checkpoint, const Model& model) {
  const std::string origin = checkpoint.path().string();
  const Vocabulary theirs = Vocabulary::from_json(checkpoint.text("vocabulary"), origin);
  const Settings before = from_checkpoint_text(checkpoint.text("config"), origin + " (config)").settings;
  if (const auto keys = differences(before, model.settings, false); !keys.empty())
    throw UserError(
        "model.weights: {} has another model: {}; set these keys as there, or let furlong finetune take them from it "
        "(finetune.source: {} with finetune.stages: [task])",
        origin, config::join(keys, ", "), origin);
  check_vocabulary(checkpoint, theirs, model);
  const std::vector<std::string> tensors = unfit_tensors(checkpoint, model, same_outputs(checkpoint, theirs, model));
  if (tensors.empty()) return;
  Settings stored = before, present = model.settings;
  stored.model.vocabulary_size = rows_of_embedding(checkpoint);
  present.model.vocabulary_size = model.store->find(embedding_name).shape()[0];
  const auto keys = differences(stored, present, true);
  throw UserError(
      "model.weights: {} has {} tensors that this model lacks, or has in another shape: {}{}{}; set these keys as "
      "there, or change the checkpoint with furlong convert",
      origin, tensors.size(),
      config::join({tensors.begin(), tensors.begin() + std::min<std::ptrdiff_t>(3, std::ssize(tensors))}, ", "),
      keys.empty() ? "" : "; ", config::join(keys, ", "));
}

bool is_random_projection(std::string_view parameter) { return parameter.ends_with(".directions"); }

WeightsReport initialize_from(const CheckpointReader& checkpoint, Model& model, bool takes_adapters) {
  const Vocabulary theirs = Vocabulary::from_json(checkpoint.text("vocabulary"), checkpoint.path().string());
  check_vocabulary(checkpoint, theirs, model);
  const bool takes_classifier = same_outputs(checkpoint, theirs, model);
  WeightsReport report{.same_outputs = takes_classifier, .missing = {}, .unused = {}, .restarted = {}};
  const bool same_projection = projection_of(checkpoint) == model.settings.model.attention.random_projection;
  bool drawn_again = false;
  std::set<std::string> known;
  for (const Parameter& parameter : model.store->parameters()) {
    const std::string ema = "ema/" + parameter.name();
    std::string name = "parameters/" + parameter.name();
    known.insert(name);
    if (restarts(parameter, takes_classifier, takes_adapters) || !checkpoint.has(name)) {
      (checkpoint.has(name) ? report.restarted : report.missing).push_back(parameter.name());
      model.store->draw(model.store->find(parameter.name()), static_cast<std::uint64_t>(model.settings.seed));
      continue;
    }
    if (checkpoint.has(ema)) name = ema;
    const std::vector<std::int64_t>& shape = checkpoint.info(name).shape;
    const bool same_shape = std::equal(shape.begin(), shape.end(), parameter.shape().begin(), parameter.shape().end());
    if (is_random_projection(name) && !(same_projection && same_shape)) {
      drawn_again = true;  // when the model was made
      continue;
    }
    if (has_more_positions(parameter, shape)) {
      repeat_rows(checkpoint, name, shape[0], parameter.master());
      report.positions_before = shape[0];
    } else {
      read_tensor(checkpoint, name, parameter.master());
    }
    require_finite(checkpoint, name, parameter.master());
  }
  if (drawn_again)
    log_warn(
        "{}: its random projections have another distribution or size; they are drawn again; to keep them, set "
        "model.attention.random_projection and model.attention.n_features as in its config",
        checkpoint.path().string());
  const std::size_t n_scales = model.vocabulary.label_scales().size();
  if (takes_classifier && n_scales > 0 && theirs.label_scales().size() == n_scales)
    change_units(model, theirs.label_scales());
  for (const TensorInfo& info : checkpoint.tensors("parameters/"))
    if (!known.contains(info.name)) report.unused.push_back(info.name.substr(std::string_view("parameters/").size()));
  model.store->refresh_compute_values(model.stream);
  return report;
}

}  // namespace furlong
