#include "trainers/model/weights.h"

#include <algorithm>
#include <set>

#include "layers/linear.h"
#include "trainers/checkpoint/checkpoint_tensors.h"
#include "trainers/settings/settings.h"

namespace furlong {
namespace {

constexpr const char* positions_name = "position_embedding.weight";

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

/// Returns whether the output layers predict the same: tokens, or the labels of one objective by names and order.
bool same_outputs(const CheckpointReader& checkpoint, const Vocabulary& theirs, const Model& model) {
  const std::string origin = checkpoint.path().string();
  const ObjectiveSettings before =
                              from_checkpoint_text(checkpoint.text("config"), origin + " (config)").settings.objective,
                          now = model.settings.objective;
  if (before.learns_labels() != now.learns_labels()) return false;
  return !now.learns_labels() || (before.name == now.name && theirs.labels() == model.vocabulary.labels());
}

}  // namespace

WeightsReport initialize_from(const CheckpointReader& checkpoint, Model& model, bool takes_adapters) {
  const Vocabulary theirs = Vocabulary::from_json(checkpoint.text("vocabulary"), checkpoint.path().string());
  check_vocabulary(checkpoint, theirs, model);
  const bool takes_classifier = same_outputs(checkpoint, theirs, model);
  WeightsReport report;
  std::set<std::string> known;
  for (const Parameter& parameter : model.store->parameters()) {
    const std::string ema = "ema/" + parameter.name();
    std::string name = "parameters/" + parameter.name();
    known.insert(name);
    const bool restarts = (!takes_classifier && parameter.name().starts_with("classifier.")) ||
                          (!takes_adapters && layers::is_adapter(parameter.name()));
    if (restarts || !checkpoint.has(name)) {
      (checkpoint.has(name) ? report.restarted : report.missing).push_back(parameter.name());
      model.store->draw(model.store->find(parameter.name()), static_cast<std::uint64_t>(model.settings.seed));
      continue;
    }
    if (checkpoint.has(ema)) name = ema;
    const std::vector<std::int64_t>& shape = checkpoint.info(name).shape;
    const bool fewer_positions = parameter.name() == positions_name && shape.size() == 2 && shape[0] > 0 &&
                                 shape[0] < parameter.shape()[0] && shape[1] == parameter.shape()[1];
    if (fewer_positions) {
      repeat_rows(checkpoint, name, shape[0], parameter.master());
      report.positions_before = shape[0];
    } else {
      read_tensor(checkpoint, name, parameter.master());
    }
  }
  for (const TensorInfo& info : checkpoint.tensors("parameters/"))
    if (!known.contains(info.name)) report.unused.push_back(info.name.substr(std::string_view("parameters/").size()));
  model.store->refresh_compute_values(model.stream);
  return report;
}

}  // namespace furlong
