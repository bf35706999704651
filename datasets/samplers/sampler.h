#pragma once
// Windows of a token store as batches: inputs, and for each input the token that follows it.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "datasets/batch.h"
#include "datasets/token_store.h"

namespace furlong {

struct SamplerOptions {
  /// `random`: each window begins anywhere, with equal probability. `sequential`: windows follow each other, the last
  /// one padded, so that each token of the split but the first is a target exactly once; then again from the front.
  enum class Order { random, sequential } order = Order::random;
  std::int64_t sequence_length = 0;
  std::uint64_t seed = 0;
  /// Targets of these symbols are left out of the loss (ambiguity codes, say).
  std::vector<std::string> ignore_tokens;
  /// Batches number the documents in each row, and no target is in another document than its input.
  bool separate_documents = false;
};

/// A sample is a function of (seed, global sample index) and of nothing else: the same on any number of ranks or
/// threads, and a sampler whose counter is set continues exactly. A window lies in the split's ranges laid end to end;
/// where two neighbours in a window are not neighbours in the store, the first one's target is left out. A range that
/// begins inside a document begins one of its own.
class Sampler : public RowSource {
 public:
  /// The store has to outlive the sampler. Throws UserError when the split is too short (random: sequence_length + 1
  /// tokens; sequential: 2), or a symbol is not in the vocabulary.
  Sampler(const TokenStore& store, Split split, const SamplerOptions& options);

  /// Random: places where a window can begin. Sequential: windows that it takes to see the split once.
  std::uint64_t n_windows() const { return n_windows_; }
  std::uint64_t n_samples() const override { return n_windows_; }
  std::int64_t sequence_length() const override { return options_.sequence_length; }

  /// Sample `index`; both spans have sequence_length elements. Returns the number of targets that are not ignored. Any
  /// thread may call it.
  std::int64_t sample(std::uint64_t index, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const;
  /// With separate_documents: the number of each input's document within the window, from 0; padding is a document of
  /// its own.
  void documents(std::uint64_t index, std::span<std::int32_t> numbers) const;
  std::int64_t tokens_in(std::uint64_t index) const override;
  /// Samples [first, first + batch).
  Batch batch(std::uint64_t first, std::int64_t batch) const override;
  /// The same, with rows from n_windows() on empty (inputs 0, all targets ignored): for one pass over a split with
  /// batches of one shape.
  Batch batch_of_one_pass(std::uint64_t first, std::int64_t batch) const override;

  /// The next `batch` samples; the counter is all the state there is.
  Batch next(std::int64_t batch);
  std::uint64_t counter() const { return counter_; }
  void set_counter(std::uint64_t counter) { counter_ = counter; }

 private:
  std::uint64_t window_start(std::uint64_t index) const;
  /// Positions in (position, position + count) whose token does not follow the one before it.
  std::vector<std::uint64_t> breaks(std::uint64_t position, std::uint64_t count) const;
  Batch make_batch(std::uint64_t first, std::int64_t batch, std::uint64_t end) const;

  const TokenStore* store_;
  Split split_;
  SamplerOptions options_;
  std::vector<bool> ignored_;  // by token id
  /// With separate_documents: where documents begin in the split's ranges laid end to end, ascending. Shared by copies.
  std::shared_ptr<const std::vector<std::uint64_t>> starts_;
  std::uint64_t n_windows_ = 0;
  std::uint64_t counter_ = 0;
};

/// Where documents begin in a split's ranges laid end to end, ascending and each place once: offsets of the store, and
/// beginnings of ranges. Throws UserError when the store contradicts itself.
std::vector<std::uint64_t> document_starts(const TokenStore& store, Split split);

}  // namespace furlong
