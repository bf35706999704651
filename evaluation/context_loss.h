#pragma once
// Loss against the length of the context: what a model gains from a longer one.
#include <cstdint>
#include <string>
#include <vector>

#include "trainers/train/validation.h"

namespace furlong {

/// The targets that are predicted from `first` to `last` tokens.
struct ContextRange {
  std::int64_t first = 0, last = 0;
  std::int64_t targets = 0;
  double loss = 0;  ///< mean, nats
  /// Returns loss / ln 2.
  double bits() const;
};

/// Sums losses of tokens by their context: the tokens from the start of the row to the input of the prediction. In
/// packed documents the context starts with the document. Ranges are 1, 2, 3 to 4, 5 to 8 and so on.
class ContextLosses {
 public:
  /// `stateful`: the context of a row continues in the next batch (Batch::fresh).
  explicit ContextLosses(bool stateful) : stateful_(stateful) {}
  /// `losses` [batch, n] are those of the batch's targets.
  void add(const Batch& batch, const std::vector<double>& losses);
  /// Returns the ranges that have targets, in order.
  std::vector<ContextRange> ranges() const;

 private:
  bool stateful_;
  std::vector<std::int64_t> before_;  // stateful: context of each row before the next batch
  std::vector<ContextRange> ranges_;  // loss: the sum
};

/// Throws UserError unless the model predicts each token from the tokens before it. `option` starts the message.
void require_causal(const Model& model, const std::string& option);

/// The evaluation with windows, or documents, of at most `length` tokens.
struct LengthLoss {
  std::int64_t length = 0;
  Evaluation found;
};

/// Evaluates the same targets with contexts of each length. Rows of the longest length are cut into rows of each
/// length, so targets, and masks of masked tokens, are the same. A batch has `batch_size` rows of the longest length.
/// `max_batches` as in evaluate(). Returns the lengths in ascending order. Throws UserError if rows are not windows or
/// documents, and if the model or the split is shorter than the longest length.
std::vector<LengthLoss> losses_by_length(Model& model, const Dataset& data, Split split,
                                         std::vector<std::int64_t> lengths, std::int64_t batch_size,
                                         std::int64_t max_batches = 0);

}  // namespace furlong
