#include "evaluation/score.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <set>
#include <utility>

#include "evaluation/sequences/hidden_states.h"
#include "framework/core/shape.h"

namespace furlong {
namespace {

/// The first token of a row that has a score. Nothing stands before a row's first token, which an encoder sees from
/// both sides.
std::size_t first_scored(const Model& model, const SequenceFrame& frame) {
  return std::max<std::size_t>(frame.front.size(), model.decoder ? 1 : 0);
}

/// Causal: log p of the tokens of one sequence that comes in pieces.
class Pieces {
 public:
  /// `max_tokens`: of the sequence, for states that grow; any number for others.
  Pieces(Model& model, std::int64_t max_tokens) : model_(model), state_(model.decoder->new_state(1, max_tokens)) {}

  /// log p of each token; of the sequence's first, after which nothing is known, 0.
  std::vector<double> extend(std::span<const std::int32_t> tokens) {
    std::vector<double> found{0};
    ForwardPass pass(model_);
    if (last_.defined()) found = pass.log_probabilities(last_, {tokens[0]});
    const Tensor hidden = pass.extend(tokens, state_);
    const std::int64_t n = hidden.extent(1), d = hidden.extent(2);
    std::vector<std::int32_t> targets(tokens.begin() + 1, tokens.end());
    if (!targets.empty()) {
      const auto rest = pass.log_probabilities(hidden.narrow(1, 0, n - 1).reshape({n - 1, d}), targets);
      found.insert(found.end(), rest.begin(), rest.end());
    }
    last_ = hidden.narrow(1, n - 1, 1).reshape({1, d}).clone();
    return found;
  }

 private:
  Model& model_;
  layers::GenerationState state_;
  Tensor last_;  // [1, d_model]: the hidden state of the last token
};

using Scores = std::vector<std::vector<double>>;

void score_causal(Model& model, const std::vector<Sequence>& sequences, const SequenceFrame& frame,
                  std::int64_t batch_tokens, const ShareDone& done, Scores& results) {
  std::vector<std::int64_t> lengths;
  for (const Sequence& sequence : sequences) lengths.push_back(std::ssize(sequence.tokens));
  BatchProgress progress(lengths, done);
  const auto keep = [&](std::size_t index, std::span<const double> all) {  // of all tokens of the sequence
    const std::size_t first = first_scored(model, frame), end = all.size() - frame.back.size();
    if (first < end) results[index].assign(all.begin() + std::ptrdiff_t(first), all.begin() + std::ptrdiff_t(end));
  };
  for (const std::vector<std::size_t>& batch : batches_by_length(lengths, batch_tokens)) {
    const std::int64_t n = lengths[batch.front()];
    if (n > batch_tokens) {
      Pieces pieces(model, n);
      std::vector<double> all;
      const std::span<const std::int32_t> tokens = sequences[batch.front()].tokens;
      for (std::int64_t begin = 0; begin < n; begin += batch_tokens) {
        const auto some = pieces.extend(tokens.subspan(at(begin), at(std::min(batch_tokens, n - begin))));
        all.insert(all.end(), some.begin(), some.end());
        progress.add(std::ssize(some));
      }
      keep(batch.front(), all);
      continue;
    }
    std::vector<std::span<const std::int32_t>> rows;
    std::vector<std::int32_t> targets(batch.size() * at(n), -1);
    for (const std::size_t index : batch) {
      std::copy(sequences[index].tokens.begin() + 1, sequences[index].tokens.end(),
                targets.begin() + std::ssize(rows) * n);
      rows.emplace_back(sequences[index].tokens);
    }
    ForwardPass pass(model);
    const Tensor hidden = pass.hidden(rows);
    std::vector<double> found =
        pass.log_probabilities(hidden.reshape({std::ssize(rows) * n, hidden.extent(2)}), targets);
    found.insert(found.begin(), 0.0);  // what stands at a token is that of the next
    for (std::size_t row = 0; row < rows.size(); ++row)
      keep(batch[row], std::span<const double>(found).subspan(row * at(n), rows[row].size()));
    for (const std::size_t index : batch) progress.add(lengths[index]);
  }
}

void score_masked(Model& model, const std::vector<Sequence>& sequences, const SequenceFrame& frame,
                  std::int64_t batch_tokens, const ShareDone& done, Scores& results) {
  struct Copy {
    std::size_t sequence, position;
  };
  std::vector<Copy> copies;
  std::vector<std::int64_t> lengths;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const std::size_t n = sequences[i].tokens.size(), end = n - frame.back.size();
    for (std::size_t position = frame.front.size(); position < end; ++position) {
      copies.push_back({i, position});
      lengths.push_back(std::ssize(sequences[i].tokens));
    }
    results[i].resize(end - frame.front.size());
  }
  BatchProgress progress(lengths, done);
  for (const std::vector<std::size_t>& batch : batches_by_length(lengths, batch_tokens)) {
    std::vector<std::vector<std::int32_t>> masked;
    std::vector<std::span<const std::int32_t>> rows;
    std::vector<std::int32_t> places, targets;
    masked.reserve(batch.size());
    for (const std::size_t index : batch) {
      const auto [sequence, position] = copies[index];
      places.push_back(static_cast<std::int32_t>(std::ssize(masked) * lengths[batch.front()] + std::int64_t(position)));
      targets.push_back(sequences[sequence].tokens[position]);
      masked.push_back(sequences[sequence].tokens);
      masked.back()[position] = *model.vocabulary.mask_id();
      rows.emplace_back(masked.back());
    }
    ForwardPass pass(model);
    const std::vector<double> found = pass.log_probabilities(pass.gather(pass.hidden(rows), places), targets);
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const auto [sequence, position] = copies[batch[i]];
      results[sequence][position - frame.front.size()] = found[i];
      progress.add(lengths[batch[i]]);
    }
  }
}

class Scorer : public SequenceWork {
 public:
  Scorer(Model& model, const ScoreOptions& options, const SequenceFrame& frame, ScoreFile& output)
      : model_(model), options_(options), frame_(frame), output_(output) {
    for (const std::string& symbol : model.settings.data.ignore_tokens)
      untrained_tokens_.insert(model.vocabulary.id_of(symbol));
  }
  const TextCount& untrained() const { return untrained_; }
  std::uint64_t not_finite() const { return not_finite_; }

  void window(const std::vector<Sequence>& sequences, const ShareDone& done) override {
    const Scores results = token_log_probabilities(model_, sequences, frame_, options_.batch_tokens, done);
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      begin(sequences[i].id);
      for (std::size_t k = 0; k < results[i].size(); ++k)
        add(sequences[i].tokens[k + first_scored(model_, frame_)], results[i][k]);
      end();
    }
  }

  void begin_long(const Sequence& sequence) override {
    begin(sequence.id);
    pieces_.emplace(model_, 0);
    seen_ = 0;
  }
  void extend_long(std::span<const std::int32_t> tokens) override {
    const std::vector<double> found = pieces_->extend(tokens);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (seen_++ < first_scored(model_, frame_)) continue;
      held_.emplace_back(tokens[i], found[i]);
      if (held_.size() <= frame_.back.size()) continue;
      add(held_.front().first, held_.front().second);
      held_.pop_front();
    }
  }
  void end_long() override {
    held_.clear();
    end();
  }

 private:
  void begin(const std::string& id) {
    id_ = id;
    score_ = {};
    untrained_here_ = 0;
    output_.begin(id);
  }
  void add(std::int32_t token, double log_probability) {
    ++score_.tokens;
    if (untrained_tokens_.contains(token)) ++untrained_here_;
    score_.log_likelihood += log_probability;
    if (!options_.positions) return;
    // A frame is no part of the sequence; without one the first token has no score.
    const std::int64_t before = frame_.front.empty() && model_.decoder ? 1 : 0;
    output_.position(score_.tokens + before, model_.vocabulary.symbol(token), log_probability);
  }
  void end() {
    if (score_.tokens == 0)
      throw UserError(
          "sequence {}: its only token has nothing before it, and so no probability; leave it out, or give "
          "--start a token",
          id_);
    if (!std::isfinite(score_.log_likelihood)) ++not_finite_;
    untrained_.characters += untrained_here_;
    if (untrained_here_ > 0) ++untrained_.documents;
    output_.end(score_);
  }

  Model& model_;
  const ScoreOptions& options_;
  const SequenceFrame& frame_;
  ScoreFile& output_;
  std::string id_;
  SequenceScore score_;
  std::optional<Pieces> pieces_;
  std::set<std::int32_t> untrained_tokens_;
  std::uint64_t untrained_here_ = 0;
  TextCount untrained_;
  std::uint64_t not_finite_ = 0;
  std::size_t seen_ = 0;                              // tokens of a long sequence
  std::deque<std::pair<std::int32_t, double>> held_;  // its last tokens, which may be the frame's
};

}  // namespace

SequenceFrame scoring_frame(const Model& model, const std::string& start) {
  if (model.settings.objective.learns_labels())
    throw UserError(
        "this model learns labels and gives tokens no probabilities; expected one that predicts tokens, or use furlong "
        "predict");
  require_output_layer(model.settings, "score");
  if (model.encoder && !model.vocabulary.mask_id())
    throw UserError(
        "this model's tokenizer has no mask token ({}), and so hides nothing; expected a masked language model",
        model.vocabulary.description());
  SequenceFrame frame = frame_of(model);
  if (start != "auto") {
    if (!model.decoder)
      throw UserError("--start {}: a masked model predicts each token from both sides; remove --start", start);
    if (!frame.front.empty())
      throw UserError("--start {}: this model's tokenizer puts '{}' in front of a sequence; remove --start", start,
                      model.vocabulary.symbol(frame.front.front()));
    if (start == "none") return frame;
    try {
      frame.front = {model.vocabulary.id_of(start)};
    } catch (const UserError& error) {
      throw UserError("--start: {}", error.what());
    }
    return frame;
  }
  const auto document = model.vocabulary.document_id();
  if (model.decoder && frame.front.empty() && model.settings.data.crosses_documents() && document)
    frame.front = {*document};
  return frame;
}

std::int64_t longest_trained(const Model& model) {
  const DataSettings& data = model.settings.data;
  const bool imported = data.task == "none" && data.mixture().empty();
  if (imported || data.stateful) return 0;
  return data.sequence_length + (model.decoder ? 1 : 0);
}

Scores token_log_probabilities(Model& model, const std::vector<Sequence>& sequences, const SequenceFrame& frame,
                               std::int64_t batch_tokens, const ShareDone& done) {
  Scores results(sequences.size());
  if (model.decoder) {
    score_causal(model, sequences, frame, batch_tokens, done, results);
  } else {
    score_masked(model, sequences, frame, batch_tokens, done, results);
  }
  return results;
}

ReadSummary score(Model& model, const SequenceInput& input, ScoreFile& output, const ScoreOptions& options) {
  const SequenceFrame frame = scoring_frame(model, options.start);
  Scorer work(model, options, frame, output);
  ReadOptions read;
  read.window_tokens = 16 * options.batch_tokens;
  read.long_tokens = has_constant_state(model) ? options.batch_tokens : 0;
  read.max_tokens = longest_sequence(model);
  read.trained_tokens = longest_trained(model);
  read.frame = frame;
  read.progress = options.progress;
  ReadSummary summary = read_sequences(input, model.vocabulary, read, work);
  summary.untrained = work.untrained();
  summary.not_finite = work.not_finite();
  output.finish();
  return summary;
}

}  // namespace furlong
