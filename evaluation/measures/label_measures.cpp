#include "evaluation/measures/label_measures.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "evaluation/measures/regression.h"
#include "evaluation/sequences/hidden_states.h"

namespace furlong {
namespace {

using Json = nlohmann::ordered_json;

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

/// Returns column `column` of rows of `width`.
std::vector<double> column_of(const std::vector<double>& values, std::size_t width, std::size_t column) {
  std::vector<double> found;
  for (std::size_t i = column; i < values.size(); i += width) found.push_back(values[i]);
  return found;
}

}  // namespace

LabelMeasures::LabelMeasures(Model& model)
    : model_(model),
      kind_(model.settings.objective.label_kind()),
      outputs_(model.vocabulary.labels().size()),
      counts_(kind_ == LabelKind::tokens ? outputs_ : 0) {
  require(model.settings.objective.learns_labels(), "measures of labels without labels");
}

BatchLoss LabelMeasures::loss() {
  return [this](layers::ForwardContext& context, const Batch& batch, const DeviceBatch& input,
                const ops::CrossEntropyOptions& options) {
    context.attention_mask = input.mask;
    Tensor logits;
    const auto result =
        model_.encoder->label_loss(context, input.inputs, label_targets(model_.settings, input), options, &logits);
    logits_ = doubles_of(logits);
    collect(batch);
    return result;
  };
}

void LabelMeasures::collect(const Batch& batch) {
  const bool tokens = kind_ == LabelKind::tokens;
  const std::vector<std::int32_t>& labels = tokens ? batch.targets : batch.labels;
  for (std::size_t row = 0; row < labels.size(); ++row) {
    if (labels[row] == ignored_target) continue;
    const auto begin = logits_.begin() + static_cast<std::ptrdiff_t>(row * outputs_);
    if (tokens)
      counts_.add(
          static_cast<std::size_t>(labels[row]),
          static_cast<std::size_t>(std::max_element(begin, begin + static_cast<std::ptrdiff_t>(outputs_)) - begin));
    for (std::size_t k = 0; !batch.values.empty() && k < outputs_; ++k) {
      const LabelScale scale = kind_ == LabelKind::numbers ? model_.vocabulary.label_scales()[k] : LabelScale{};
      const auto value = static_cast<double>(std::bit_cast<float>(batch.values[row * outputs_ + k]));
      predicted_.push_back(scale.mean + scale.scale * begin[static_cast<std::ptrdiff_t>(k)]);
      targets_.push_back(scale.mean + scale.scale * value);
    }
  }
}

Json LabelMeasures::numbers() const {
  double pearson = 0, spearman = 0;
  Json::object_t labels;  // of distinct names; operator[] would search all labels before the new one
  for (std::size_t k = 0; k < outputs_; ++k) {
    const std::vector<double> x = column_of(predicted_, outputs_, k), y = column_of(targets_, outputs_, k);
    const double p = pearson_correlation(x, y), s = spearman_correlation(x, y);
    pearson += p / static_cast<double>(outputs_);
    spearman += s / static_cast<double>(outputs_);
    labels.emplace_back(
        model_.vocabulary.labels()[k],
        Json{{"pearson", number(p)}, {"spearman", number(s)}, {"rmse", number(root_mean_squared_error(x, y))}});
  }
  return {{"pearson", number(pearson)},
          {"spearman", number(spearman)},
          {"rmse", number(root_mean_squared_error(predicted_, targets_))},
          {"labels", labels}};
}

Json LabelMeasures::sets() const {
  const MultiLabelMeasures found = multi_label_measures(predicted_, targets_, outputs_);
  Json::object_t labels;  // of distinct names; operator[] would search all labels before it
  for (std::size_t k = 0; k < outputs_; ++k) {
    Json label = furlong::to_json(found.labels[k]);
    label["f1"] = found.labels[k].f1();  // 0 without samples and predictions, as in the mean over all labels
    label["auroc"] = number(found.auroc[k]);
    labels.emplace_back(model_.vocabulary.labels()[k], std::move(label));
  }
  return {{"f1_micro", found.f1_micro},
          {"f1_macro", found.f1_macro},
          {"auroc", number(found.mean_auroc)},
          {"labels", labels}};
}

Json LabelMeasures::tokens() const {
  Json found{{"f1_macro", counts_.f1_macro()}};
  found.update(counts_.to_json(model_.vocabulary.labels()));
  return found;
}

Json LabelMeasures::to_json() const {
  switch (kind_) {
    case LabelKind::numbers:
      return numbers();
    case LabelKind::sets:
      return sets();
    case LabelKind::tokens:
      return tokens();
    case LabelKind::classes:
      break;
  }
  return Json::object();
}

}  // namespace furlong
