#include "evaluation/context_loss.h"

#include <algorithm>
#include <bit>
#include <numbers>

#include "evaluation/sequences/hidden_states.h"
#include "framework/core/shape.h"
#include "trainers/model/objective.h"

namespace furlong {
namespace {

/// The rows of another source, cut into shorter rows. Rows without a target are left out.
class CutRows : public BatchSource {
 public:
  /// `bidirectional`: padding that cutting adds needs a mask.
  CutRows(const BatchSource& rows, std::int64_t length, bool bidirectional)
      : rows_(rows), length_(length), bidirectional_(bidirectional) {}
  std::uint64_t n_samples() const override { return rows_.n_samples(); }
  Batch batch(std::uint64_t first, std::int64_t samples) const override { return cut(rows_.batch(first, samples)); }
  Batch single_pass_batch(std::uint64_t first, std::int64_t samples) const override {
    return cut(rows_.single_pass_batch(first, samples));
  }

 private:
  Batch cut(Batch whole) const {
    if (whole.n <= length_ || whole.n_targets == 0) return whole;
    // Padding of packed documents is a document of its own.
    if (bidirectional_ && whole.documents.empty() && whole.mask.empty()) whole.mask.assign(whole.inputs.size(), 1);
    Batch made;
    made.n = length_;
    made.n_targets = whole.n_targets;
    made.n_tokens = whole.n_tokens;
    for (std::int64_t row = 0; row < whole.batch; ++row) {
      for (std::int64_t begin = 0; begin < whole.n; begin += length_) {
        const std::int64_t from = row * whole.n + begin, count = std::min(length_, whole.n - begin);
        const auto targets = whole.targets.begin() + from;
        if (std::all_of(targets, targets + count, [](std::int32_t target) { return target == ignored_target; }))
          continue;
        ++made.batch;
        const auto append = [&](std::vector<std::int32_t>& to, const std::vector<std::int32_t>& values,
                                std::int32_t padding) {
          if (values.empty()) return;
          to.insert(to.end(), values.begin() + from, values.begin() + from + count);
          to.resize(at(made.batch * length_), padding);
        };
        append(made.inputs, whole.inputs, 0);
        append(made.targets, whole.targets, ignored_target);
        append(made.mask, whole.mask, 0);
        append(made.documents, whole.documents, -1);
      }
    }
    return made;
  }

  const BatchSource& rows_;
  std::int64_t length_;
  bool bidirectional_;
};

void check_lengths(const Model& model, const Dataset& data, Split split, std::int64_t longest) {
  const Settings& settings = model.settings;
  if (settings.objective.learns_labels())
    throw UserError(
        "--lengths applies only to models that predict tokens; use --sequence-length N to truncate documents");
  if (settings.data.task != "none")
    throw UserError("--lengths: the sequences of {} have one length; use --sequence-length or --suite recall",
                    data.path());
  if (settings.data.stateful)
    throw UserError(
        "--lengths: this model's state crosses windows (data.stateful), so their length does not limit the "
        "context; use --by-position");
  const std::int64_t limit = longest_sequence(model);
  if (limit > 0 && longest > limit)
    throw UserError("--lengths {}: the model has {} {}; expected at most as many", longest, limit,
                    settings.model.position == layers::Position::learned ? "learned positions"
                                                                         : "positions (model.max_sequence_length)");
  const std::uint64_t size = data.size(split);
  if (static_cast<std::uint64_t>(longest) > size && settings.data.sampler != "documents")
    throw UserError("--lengths {}: the {} split of {} has {} tokens; expected at most as many", longest, name_of(split),
                    data.path(), size);
}

}  // namespace

double ContextRange::bits() const { return loss / std::numbers::ln2; }

void ContextLosses::add(const Batch& batch, const std::vector<double>& losses) {
  require(losses.size() == batch.targets.size(), "{} losses of {} targets", losses.size(), batch.targets.size());
  before_.resize(at(batch.batch));
  for (std::int64_t row = 0; row < batch.batch; ++row) {
    const bool continues = stateful_ && batch.fresh[at(row)] == 0;
    std::int64_t context = continues ? before_[at(row)] : 0;
    for (std::int64_t i = 0; i < batch.n; ++i) {
      const std::size_t place = at(row * batch.n + i);
      if (i > 0 && !batch.documents.empty() && batch.documents[place] != batch.documents[place - 1]) context = 0;
      ++context;
      if (batch.targets[place] == ignored_target) continue;
      const auto range = static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(context - 1)));
      while (ranges_.size() <= range) {
        const std::int64_t last = std::int64_t{1} << ranges_.size();
        ranges_.push_back({.first = last / 2 + 1, .last = last});
      }
      ++ranges_[range].targets;
      ranges_[range].loss += losses[place];
    }
    before_[at(row)] = context;
  }
}

std::vector<ContextRange> ContextLosses::ranges() const {
  std::vector<ContextRange> found;
  for (ContextRange range : ranges_) {
    if (range.targets == 0) continue;
    range.loss /= static_cast<double>(range.targets);
    found.push_back(range);
  }
  return found;
}

void require_causal(const Model& model, const std::string& option) {
  if (model.decoder) return;
  const bool labels = model.settings.objective.learns_labels();
  throw UserError("{}: this model predicts {}; expected a causal model{}", option,
                  labels ? "labels of documents" : "masked tokens from both sides", labels ? "" : ", or use --lengths");
}

std::vector<LengthLoss> losses_by_length(Model& model, const Dataset& data, Split split,
                                         std::vector<std::int64_t> lengths, std::int64_t batch_size,
                                         std::int64_t max_batches) {
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  require(!lengths.empty() && lengths.front() > 0, "losses_by_length: no lengths");
  check_lengths(model, data, split, lengths.back());
  const auto rows = evaluation_source(model.settings, model.vocabulary, data, split, lengths.back(), batch_size);
  std::vector<LengthLoss> found;
  for (const std::int64_t length : lengths) {
    const Evaluation one = evaluate(model, CutRows(*rows, length, model.encoder != nullptr),
                                    {.batch_size = batch_size, .max_batches = max_batches});
    if (one.targets == 0)
      throw UserError("{}: no targets in the {} split, so there is no loss; evaluate more of it", data.path(),
                      name_of(split));
    found.push_back({length, one});
  }
  return found;
}

}  // namespace furlong
