#include "trainers/train/parallel/work_share.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "framework/core/error.h"

namespace furlong {
namespace {

/// Returns columns [first, first + n) of rows of `width`.
std::vector<std::int32_t> columns(const std::vector<std::int32_t>& values, std::int64_t width, std::int64_t first,
                                  std::int64_t n) {
  std::vector<std::int32_t> part;
  part.reserve(values.size() / static_cast<std::size_t>(width) * static_cast<std::size_t>(n));
  for (auto row = values.begin(); row != values.end(); row += width)
    part.insert(part.end(), row + first, row + first + n);
  return part;
}

/// For one row of a batch: how far the documents at this segment's ends extend into other segments.
struct Reach {
  std::int64_t earlier = 0;        // segments before this one that hold parts of its first document
  std::int64_t later = 0;          // segments after this one that hold parts of its last document
  std::int64_t tokens_before = 0;  // tokens of its first document in those earlier segments
  bool one_document = true;        // the whole segment belongs to one document
};

/// The documents at the ends of one row's segment.
struct Ends {
  std::int32_t first_document, last_document, tokens_of_last;
};
constexpr std::int64_t numbers_of_ends = 3;
static_assert(sizeof(Ends) == numbers_of_ends * sizeof(std::int32_t));

Ends ends_of(const std::int32_t* documents, std::int64_t n) {
  std::int64_t begin = n - 1;
  while (begin > 0 && documents[begin - 1] == documents[n - 1]) --begin;
  return {documents[0], documents[n - 1], static_cast<std::int32_t>(n - begin)};
}

/// `ends`: the ends of all segments of n tokens of a row, in order.
Reach reach_of(const std::vector<Ends>& ends, std::int64_t place, std::int64_t n) {
  const auto at = [&](std::int64_t segment) -> const Ends& { return ends[static_cast<std::size_t>(segment)]; };
  const auto is_whole = [&](std::int64_t segment) { return at(segment).tokens_of_last == n; };
  const auto goes_on_behind = [&](std::int64_t segment) {
    return at(segment).last_document == at(segment + 1).first_document;
  };
  Reach reach;
  reach.one_document = is_whole(place);
  for (std::int64_t s = place - 1; s >= 0 && goes_on_behind(s) && (s == place - 1 || is_whole(s + 1)); --s) {
    ++reach.earlier;
    reach.tokens_before += at(s).tokens_of_last;
  }
  const auto last = static_cast<std::int64_t>(ends.size()) - 1;
  for (std::int64_t s = place; s < last && goes_on_behind(s) && (s == place || is_whole(s)); ++s) ++reach.later;
  return reach;
}

/// Returns rows [first, first + count) of a state.
ops::LinearAttentionState rows_of(const ops::LinearAttentionState& state, std::int64_t first, std::int64_t count) {
  ops::LinearAttentionState rows;
  rows.sum = state.sum.narrow(0, first, count);
  rows.normalizer = state.normalizer.narrow(0, first, count);
  rows.maximum = state.maximum.narrow(0, first, count);
  rows.magnitude = state.magnitude.narrow(0, first, count);
  return rows;
}

std::vector<Tensor*> parts_of(ops::LinearAttentionState& state) {
  return {&state.sum, &state.normalizer, &state.maximum, &state.magnitude};
}

}  // namespace

/// Exchanges attention states within a row of ranks: one all-gather, after which each rank joins the states that it
/// needs. The traffic is the number of ranks times the size of a state.
class WorkShare::Segments final : public ops::SegmentExchange {
 public:
  Segments(std::unique_ptr<Communicator> row, std::int64_t place) : row_(std::move(row)), place_(place) {}

  void exchange_keys(const Stream& stream, ops::LinearAttentionState& state, bool causal) override {
    exchange(stream, state, true, !causal);
  }
  void exchange_queries(const Stream& stream, ops::LinearAttentionState& state, bool causal) override {
    exchange(stream, state, !causal, true);
  }
  std::int64_t first_position() const override { return first_position_; }
  std::int64_t sequence_length() const override { return sequence_length_; }
  std::vector<std::int64_t> open_document_tokens() const override {
    std::vector<std::int64_t> tokens;
    for (const Reach& reach : reaches_)
      if (packs_documents_) tokens.push_back(reach.tokens_before);
    return tokens;
  }

  /// Starts a new batch with this segment of each row. All ranks of a row call it.
  void begin(const Batch& segment) {
    first_position_ = place_ * segment.n;
    sequence_length_ = row_->size() * segment.n;
    packs_documents_ = !segment.documents.empty();
    reaches_ = packs_documents_ ? exchange_ends(segment)
                                : std::vector<Reach>{{place_, row_->size() - 1 - place_, first_position_, true}};
    positions_ = positions_in(segment);
  }
  /// int32 [rows, n]: position of each token in its document.
  const Tensor& positions() const { return positions_; }

 private:
  std::vector<Reach> exchange_ends(const Batch& segment) const {
    std::vector<std::int32_t> numbers;
    for (std::int64_t b = 0; b < segment.batch; ++b) {
      const Ends ends = ends_of(segment.documents.data() + b * segment.n, segment.n);
      numbers.insert(numbers.end(), {ends.first_document, ends.last_document, ends.tokens_of_last});
    }
    const Tensor all = Tensor::empty({row_->size(), segment.batch, numbers_of_ends}, DType::int32);
    row_->all_gather(Stream{}, Tensor::from(numbers, {segment.batch, numbers_of_ends}), all).wait();
    std::vector<Reach> reaches;
    std::vector<Ends> of_row(static_cast<std::size_t>(row_->size()));
    for (std::int64_t b = 0; b < segment.batch; ++b) {
      for (std::int64_t other = 0; other < row_->size(); ++other)
        std::memcpy(&of_row[static_cast<std::size_t>(other)],
                    all.data<std::int32_t>() + (other * segment.batch + b) * numbers_of_ends, sizeof(Ends));
      reaches.push_back(reach_of(of_row, place_, segment.n));
    }
    return reaches;
  }

  Tensor positions_in(const Batch& segment) const {
    std::vector<std::int32_t> places;
    places.reserve(static_cast<std::size_t>(segment.batch * segment.n));
    for (std::int64_t b = 0; b < segment.batch; ++b) {
      const std::int32_t* documents = packs_documents_ ? segment.documents.data() + b * segment.n : nullptr;
      std::int64_t position = reaches_[packs_documents_ ? static_cast<std::size_t>(b) : 0].tokens_before;
      for (std::int64_t i = 0; i < segment.n; ++i, ++position) {
        if (documents && i > 0 && documents[i] != documents[i - 1]) position = 0;
        places.push_back(static_cast<std::int32_t>(position));
      }
    }
    return Tensor::from(places, {segment.batch, segment.n});
  }

  /// Replaces `state` by the joined states of earlier segments, later segments or both, for this segment's documents.
  void exchange(const Stream& stream, ops::LinearAttentionState& state, bool earlier, bool later) const {
    const std::vector<ops::LinearAttentionState> all = gather(stream, state);
    state = ops::empty_like(stream, state);
    const bool both_ends = packs_documents_ && earlier && later;
    const std::int64_t rows = state.sum.extent(0) / (both_ends ? 2 : 1),
                       count = rows / static_cast<std::int64_t>(reaches_.size());
    require(count * static_cast<std::int64_t>(reaches_.size()) == rows && (count == 1 || !packs_documents_),
            "a state of {} rows for {} batch rows", state.sum.extent(0), reaches_.size());
    const std::int64_t last = both_ends ? rows : 0;  // where states of last documents start
    for (std::int64_t b = 0; b < rows; b += count) {
      const Reach& reach = reaches_[static_cast<std::size_t>(b / count)];
      const auto add = [&](std::int64_t into, std::int64_t from, std::int64_t first, std::int64_t end) {
        ops::LinearAttentionState sum = rows_of(state, into + b, count);
        for (std::int64_t other = first; other < end; ++other)
          ops::join(sum, rows_of(all[static_cast<std::size_t>(other)], from + b, count));
      };
      if (earlier) add(0, last, place_ - reach.earlier, place_);
      if (later && (!both_ends || reach.one_document)) add(0, 0, place_ + 1, place_ + 1 + reach.later);
      if (both_ends) add(last, 0, place_ + 1, place_ + 1 + reach.later);
    }
  }

  /// Returns the states of all segments.
  std::vector<ops::LinearAttentionState> gather(const Stream& stream, ops::LinearAttentionState& state) const {
    std::int64_t elements = 0;
    for (const Tensor* part : parts_of(state)) elements += part->elements();
    const Tensor own = Tensor::empty({elements}, state.sum.dtype()),
                 all = Tensor::empty({row_->size() * elements}, state.sum.dtype());
    std::int64_t at = 0;
    for (const Tensor* part : parts_of(state)) {
      std::memcpy(own.narrow(0, at, part->elements()).address(), part->address(),
                  static_cast<std::size_t>(part->bytes()));
      at += part->elements();
    }
    row_->all_gather(stream, own, all).wait();
    std::vector<ops::LinearAttentionState> states(static_cast<std::size_t>(row_->size()), state);
    at = 0;
    for (ops::LinearAttentionState& its : states) {
      for (Tensor* part : parts_of(its)) {
        const Shape shape = part->shape();
        *part = all.narrow(0, at, shape.elements()).reshape(shape);
        at += shape.elements();
      }
    }
    return states;
  }

  std::unique_ptr<Communicator> row_;
  std::int64_t place_, first_position_ = 0, sequence_length_ = 0;
  bool packs_documents_ = false;
  std::vector<Reach> reaches_;  // one per row; a single one without packed documents
  Tensor positions_;
};

WorkShare::WorkShare() = default;
WorkShare::WorkShare(WorkShare&&) noexcept = default;
WorkShare& WorkShare::operator=(WorkShare&&) noexcept = default;
WorkShare::~WorkShare() = default;

WorkShare::WorkShare(const ProcessGroup* group, int context_parallel_size)
    : group_(group && !group->is_alone() ? group : nullptr), context_parallel_size_(context_parallel_size) {
  require(context_parallel_size >= 1 && (context_parallel_size == 1 || group_), "{} ranks per sequence, in one process",
          context_parallel_size);
  if (context_parallel_size == 1) return;
  require(group_->size() % context_parallel_size == 0, "{} ranks per sequence, of {} ranks", context_parallel_size,
          group_->size());
  place_ = group_->rank() % context_parallel_size;
  segments_ = std::make_unique<Segments>(group_->split_consecutive(context_parallel_size), place_);
}

SampleShare WorkShare::samples(std::int64_t batch_size) const {
  if (!group_) return {0, batch_size};
  return SampleShare::of(batch_size, group_->rank() / context_parallel_size_, group_->size() / context_parallel_size_);
}

Batch WorkShare::cut(const Batch& batch, bool counts_targets) const {
  if (!segments_) return batch;
  require(batch.n % context_parallel_size_ == 0 && batch.labels.empty(), "rows of {} tokens in {} segments, {} labels",
          batch.n, context_parallel_size_, batch.labels.size());
  Batch part = batch;
  part.n = batch.n / context_parallel_size_;
  const std::int64_t first = place_ * part.n;
  for (std::vector<std::int32_t>* values : {&part.inputs, &part.targets, &part.mask, &part.documents})
    if (!values->empty()) *values = columns(*values, batch.n, first, part.n);
  for (std::int32_t& length : part.lengths)
    length = static_cast<std::int32_t>(std::clamp<std::int64_t>(length - first, 0, part.n));
  part.n_targets = std::count_if(part.targets.begin(), part.targets.end(),
                                 [](std::int32_t target) { return target != ignored_target; });
  const std::vector<std::int32_t> real = real_tokens(part);
  part.n_tokens = counts_targets ? part.n_targets : std::count(real.begin(), real.end(), 1);
  return part;
}

void WorkShare::put_into(layers::ForwardContext& context, const Batch& segment) const {
  if (!segments_) return;
  segments_->begin(segment);
  context.positions = segments_->positions();
  context.exchange = segments_.get();
}

}  // namespace furlong
