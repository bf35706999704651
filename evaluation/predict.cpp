#include "evaluation/predict.h"

#include <algorithm>
#include <cmath>

#include "evaluation/sequences/hidden_states.h"

namespace furlong {
namespace {

using Json = nlohmann::ordered_json;

void require_labels(const Settings& settings) {
  if (!settings.objective.learns_labels())
    throw UserError(
        "this model predicts tokens, not labels; expected one trained with classification, regression, "
        "multi_label_classification or token_classification as objective.name");
  if (settings.objective.name == Objective::pair_classification)
    throw UserError(
        "this model classifies pairs of texts, and INPUT has one text in each record; expected a model of single "
        "texts, or evaluate pairs of a dataset with furlong evaluate --predictions");
}

std::int64_t cut_length(const Model& model, const SequenceFrame& frame, std::int64_t wanted) {
  const std::int64_t most = longest_sequence(model), length = wanted > 0 ? wanted : model.settings.data.sequence_length;
  if (wanted > 0 && most > 0 && wanted > most)
    throw UserError("--sequence-length {}: the model has {} positions; expected at most as many", wanted, most);
  if (wanted > 0 && wanted <= std::ssize(frame.front))
    throw UserError("--sequence-length {}: {} special tokens come first; expected at least {}", wanted,
                    frame.front.size(), frame.front.size() + 1);
  return most > 0 ? std::min(most, length) : length;
}

class Predictor : public SequenceWork {
 public:
  Predictor(Model& model, const PredictOptions& options, const SequenceFrame& frame, PredictionRows& output)
      : model_(model),
        options_(options),
        frame_(frame),
        output_(output),
        kind_(model.settings.objective.label_kind()),
        n_labels_(model.vocabulary.labels().size()) {}

  void window(const std::vector<Sequence>& sequences, const ShareDone& done) override {
    std::vector<std::int64_t> lengths;
    for (const Sequence& sequence : sequences) lengths.push_back(std::ssize(sequence.tokens));
    BatchProgress progress(lengths, done);
    std::vector<std::vector<double>> logits(sequences.size());
    for (const std::vector<std::size_t>& batch : batches_by_length(lengths, options_.batch_tokens)) {
      std::vector<std::span<const std::int32_t>> rows;
      for (const std::size_t index : batch) rows.emplace_back(sequences[index].tokens);
      ForwardPass pass(model_);
      const std::vector<double> found = pass.label_logits(rows);
      const std::size_t width = found.size() / rows.size();  // of labels of tokens those of the padding too
      for (std::size_t row = 0; row < rows.size(); ++row) {
        const auto begin = found.begin() + static_cast<std::ptrdiff_t>(row * width);
        const std::size_t count = kind_ == LabelKind::tokens ? rows[row].size() * n_labels_ : width;
        logits[batch[row]].assign(begin, begin + static_cast<std::ptrdiff_t>(count));
        progress.add(lengths[batch[row]]);
      }
    }
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      not_finite_ +=
          !std::all_of(logits[i].begin(), logits[i].end(), [](double logit) { return std::isfinite(logit); });
      write(sequences[i], logits[i]);
    }
  }
  std::uint64_t not_finite() const { return not_finite_; }

 private:
  void write(const Sequence& sequence, std::span<double> logits) {
    if (kind_ != LabelKind::tokens) {
      Json row = {{"id", sequence.id}};
      add_prediction(row, model_.vocabulary, kind_, logits);
      return output_.write(row);
    }
    const std::size_t front = frame_.front.size(), end = sequence.tokens.size() - sequence.n_back;
    for (std::size_t i = front; i < end; ++i) {
      Json row = {
          {"id", sequence.id}, {"position", i - front + 1}, {"token", model_.vocabulary.symbol(sequence.tokens[i])}};
      add_prediction(row, model_.vocabulary, kind_, logits.subspan(i * n_labels_, n_labels_));
      output_.write(row);
    }
  }

  Model& model_;
  const PredictOptions& options_;
  const SequenceFrame& frame_;
  PredictionRows& output_;
  LabelKind kind_;
  std::size_t n_labels_;
  std::uint64_t not_finite_ = 0;
};

}  // namespace

ReadSummary predict(Model& model, const SequenceInput& input, PredictionRows& output, const PredictOptions& options) {
  require_labels(model.settings);
  const SequenceFrame frame = frame_of(model);
  Predictor work(model, options, frame, output);
  ReadOptions read;
  // The logits of all tokens of a window are kept until they are written.
  const bool per_token = model.settings.objective.label_kind() == LabelKind::tokens;
  read.window_tokens = per_token ? options.batch_tokens : 16 * options.batch_tokens;
  read.cut_tokens = cut_length(model, frame, options.sequence_length);
  read.frame = frame;
  read.progress = options.progress;
  ReadSummary summary = read_sequences(input, model.vocabulary, read, work);
  summary.not_finite = work.not_finite();
  output.finish();
  return summary;
}

}  // namespace furlong
