#include "evaluation/embed.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>

#include "evaluation/embedding_file.h"
#include "evaluation/sequences/hidden_states.h"
#include "framework/core/enum_names.h"
#include "framework/core/shape.h"
#include "framework/core/version.h"

namespace furlong {
namespace {

using Pooling = EmbedOptions::Pooling;

const char* name_of(Pooling pooling) {
  switch (pooling) {
    case Pooling::mean:
      return "mean";
    case Pooling::class_token:
      return "class";
    case Pooling::last:
      return "last";
    case Pooling::none:
      break;
  }
  return "none";
}

/// The vectors of one sequence, made of the states of its tokens as they come.
class Pool {
 public:
  /// The first `front` and the last `back` states are left out.
  Pool(const EmbedOptions& options, std::size_t width, std::size_t front, std::size_t back)
      : options_(options), width_(width), front_(front), back_(back), sum_(width) {}

  void add(std::span<const double> state) {
    if (seen_++ < front_) return;
    if (back_ == 0) return take(state);
    held_.emplace_back(state.begin(), state.end());
    if (held_.size() <= back_) return;
    take(held_.front());
    held_.pop_front();
  }
  /// Ends the sequence: what is pooled of it joins the vectors.
  void finish() {
    if (options_.pooling == Pooling::none) return;
    if (options_.pooling == Pooling::mean) {
      for (double& value : sum_) value /= static_cast<double>(std::max<std::size_t>(taken_, 1));
    }
    put(sum_);
  }
  /// The vectors since the last call.
  std::vector<float> vectors() { return std::exchange(vectors_, {}); }
  bool is_finite() const { return finite_; }

 private:
  void take(std::span<const double> state) {
    const bool first = taken_++ == 0;
    switch (options_.pooling) {
      case Pooling::mean:
        for (std::size_t i = 0; i < width_; ++i) sum_[i] += state[i];
        break;
      case Pooling::class_token:
        if (first) sum_.assign(state.begin(), state.end());
        break;
      case Pooling::last:
        sum_.assign(state.begin(), state.end());
        break;
      case Pooling::none:
        put(state);
        break;
    }
  }
  void put(std::span<const double> vector) {
    double scale = 1;
    if (options_.normalize) {
      double squares = 0;
      for (const double value : vector) squares += value * value;
      scale = 1 / std::max(std::sqrt(squares), 1e-12);
    }
    for (const double value : vector) {
      vectors_.push_back(static_cast<float>(value * scale));
      finite_ = finite_ && std::isfinite(vectors_.back());
    }
  }

  const EmbedOptions& options_;
  std::size_t width_, front_, back_, seen_ = 0, taken_ = 0;
  std::vector<double> sum_;               // of the states taken; or the one state
  std::deque<std::vector<double>> held_;  // the last states, which may be those to leave out
  std::vector<float> vectors_;
  bool finite_ = true;  // all vectors so far
};

class Embedder : public SequenceWork {
 public:
  Embedder(Model& model, const EmbedOptions& options, std::int64_t layer, const SequenceFrame& frame,
           EmbeddingFile& file)
      : model_(model), options_(options), layer_(layer), width_(at(model.settings.model.d_model)), file_(file) {
    const bool skips = options.skip_special && options.pooling != Pooling::class_token;
    if (skips) {
      front_ = frame.front.size();
      back_ = frame.back.size();
    }
  }

  void window(const std::vector<Sequence>& sequences, const ShareDone& done) override {
    std::vector<std::int64_t> lengths;
    for (const Sequence& sequence : sequences) lengths.push_back(std::ssize(sequence.tokens));
    BatchProgress progress(lengths, done);
    std::vector<std::vector<float>> vectors(sequences.size());
    for (std::vector<std::size_t> batch : batches_by_length(lengths, options_.batch_tokens)) {
      std::erase_if(batch, [&](std::size_t index) { return lengths[index] == 0; });
      if (batch.empty()) continue;
      if (model_.decoder && lengths[batch.front()] > options_.batch_tokens) {
        vectors[batch.front()] = in_pieces(sequences[batch.front()].tokens);
      } else {
        run(sequences, batch, vectors);
      }
      for (const std::size_t index : batch) progress.add(lengths[index]);
    }
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      if (lengths[i] == 0) vectors[i].assign(width_, std::numeric_limits<float>::quiet_NaN());
      file_.begin(sequences[i].id);
      file_.rows(vectors[i]);
      file_.end();
    }
  }

  void begin_long(const Sequence& sequence) override {
    file_.begin(sequence.id);
    state_ = model_.decoder->new_state(1, 0);
    pool_.emplace(options_, width_, front_, back_);
  }
  void extend_long(std::span<const std::int32_t> tokens) override {
    extend(tokens, state_, *pool_);
    file_.rows(pool_->vectors());
  }
  void end_long() override {
    pool_->finish();
    file_.rows(pool_->vectors());
    file_.end();
    not_finite_ += !pool_->is_finite();
  }
  std::uint64_t not_finite() const { return not_finite_; }

 private:
  void run(const std::vector<Sequence>& sequences, const std::vector<std::size_t>& batch,
           std::vector<std::vector<float>>& vectors) {
    std::vector<std::span<const std::int32_t>> rows;
    for (const std::size_t index : batch) rows.emplace_back(sequences[index].tokens);
    ForwardPass pass(model_, layer_);
    const Tensor hidden = pass.hidden(rows);
    for (std::size_t row = 0; row < rows.size(); ++row) {
      Pool pool(options_, width_, front_, back_);
      add(hidden.narrow(0, static_cast<std::int64_t>(row), 1).narrow(1, 0, std::ssize(rows[row])), pool);
      pool.finish();
      vectors[batch[row]] = pool.vectors();
      not_finite_ += !pool.is_finite();
    }
  }

  /// A sequence whose length is known, so that a cache of keys and values can be as long as it.
  std::vector<float> in_pieces(const std::vector<std::int32_t>& tokens) {
    layers::GenerationState state = model_.decoder->new_state(1, std::ssize(tokens));
    Pool pool(options_, width_, front_, back_);
    for (std::size_t begin = 0; begin < tokens.size(); begin += at(options_.batch_tokens)) {
      const std::size_t count = std::min(at(options_.batch_tokens), tokens.size() - begin);
      extend(std::span(tokens).subspan(begin, count), state, pool);
    }
    pool.finish();
    not_finite_ += !pool.is_finite();
    return pool.vectors();
  }

  void extend(std::span<const std::int32_t> tokens, layers::GenerationState& state, Pool& pool) {
    ForwardPass pass(model_, layer_);
    add(pass.extend(tokens, state), pool);
  }

  /// States [1, n, d_model].
  void add(const Tensor& states, Pool& pool) const {
    const std::vector<double> values = doubles_of(states.reshape({states.elements()}));
    for (std::size_t begin = 0; begin < values.size(); begin += width_)
      pool.add(std::span(values).subspan(begin, width_));
  }

  Model& model_;
  const EmbedOptions& options_;
  std::int64_t layer_;
  std::size_t width_, front_ = 0, back_ = 0;
  EmbeddingFile& file_;
  layers::GenerationState state_;
  std::optional<Pool> pool_;
  std::uint64_t not_finite_ = 0;
};

std::int64_t layer_of(const Model& model, const EmbedOptions& options) {
  const std::int64_t count = model.settings.model.n_layers, wanted = options.layer;
  const std::int64_t layer = wanted < 0 ? count + 1 + wanted : wanted;
  if (layer < 0 || layer > count)
    throw UserError("--layer: {} is no layer of this model; expected 0 (the embeddings) to {} (the last), or -1 to {}",
                    wanted, count, -count - 1);
  return layer;
}

void check_pooling(const Model& model, const EmbedOptions& options, const SequenceFrame& frame) {
  if (options.pooling != Pooling::class_token) return;
  // Without a class token of its own, as in RoBERTa's files, the first token of an imported model's frame is it.
  const auto token = model.vocabulary.class_id();
  if (model.encoder && !frame.front.empty() && frame.front.front() == token.value_or(frame.front.front())) return;
  throw UserError("--pooling class: this model has no class token in front of a sequence; expected mean, last or none");
}

}  // namespace

EmbedReport embed(Model& model, const SequenceInput& input, std::unique_ptr<AtomicFile> output,
                  const EmbedOptions& options) {
  const std::int64_t layer = layer_of(model, options);
  const SequenceFrame frame = frame_of(model);
  check_pooling(model, options, frame);
  const bool is_npy = output->path().extension() == ".npy";
  const bool per_token = options.pooling == Pooling::none;
  const std::int64_t width = model.settings.model.d_model;
  const auto file =
      make_embedding_file(std::move(output), {.width = width,
                                              .per_token = per_token,
                                              .attributes = {{"model", options.model},
                                                             {"checkpoint", model.checkpoint},
                                                             {"step", model.step},
                                                             {"weights", model.has_ema_weights ? "ema" : "raw"},
                                                             {"pooling", name_of(options.pooling)},
                                                             {"layer", layer},
                                                             {"normalized", std::int64_t{options.normalize}},
                                                             {"skip_special", std::int64_t{options.skip_special}},
                                                             {"furlong_version", version()},
                                                             {"furlong_commit", commit()}}});
  Embedder work(model, options, layer, frame, *file);
  ReadOptions read;
  // The states of all tokens of a window are kept until it is written.
  read.window_tokens = per_token ? options.batch_tokens : 16 * options.batch_tokens;
  read.long_tokens = has_constant_state(model) ? options.batch_tokens : 0;
  read.max_tokens = longest_sequence(model);
  read.keep_empty = is_npy;  // rows have no ids: their number is that of the sequence
  read.frame = frame;
  read.progress = options.progress;
  ReadSummary summary = read_sequences(input, model.vocabulary, read, work);
  summary.not_finite = work.not_finite();
  file->finish();
  return {summary, width, layer};
}

}  // namespace furlong
