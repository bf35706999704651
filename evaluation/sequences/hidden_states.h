#pragma once
// Hidden states and labels of sequences: batches of short ones, and long ones in pieces.
#include <optional>
#include <span>
#include <vector>

#include "evaluation/sequences/sequence_reader.h"
#include "trainers/model/model.h"

namespace furlong {

/// Values of a tensor of any floating-point type, as float64 numbers.
std::vector<double> doubles_of(const Tensor& tensor);

/// The frame that the model was trained with: its tokenizer's own ([CLS] ... [SEP], <s> ...). Encoders add to it what
/// it lacks of the class token in front, where labels were learned from it, and of the document token after the
/// sequence, as prepared datasets and LabeledSource do. Another program's model has the frame of its tokenizer alone,
/// unless its vocabulary says more (Vocabulary::ends_documents).
SequenceFrame frame_of(const Model& model);

/// The tokens that a sequence may have: of learned positions, and of a projection along the sequence; 0: any number.
std::int64_t longest_sequence(const Model& model);
/// Whether the past of the model's sequences has a constant size, so that memory does not grow with their length.
bool has_constant_state(const Model& model);

/// One forward pass without gradients. Its tensors are good while it lives.
class ForwardPass {
 public:
  /// `blocks`: the hidden states after that many (ForwardContext::blocks_to_run).
  explicit ForwardPass(Model& model, std::optional<std::int64_t> blocks = std::nullopt);

  /// Final hidden states [rows, n, d_model] of rows of tokens, padded behind to the longest, n; padding is masked.
  Tensor hidden(const std::vector<std::span<const std::int32_t>>& rows);
  /// Logits of labels, [rows, labels], or [rows, n, labels] of labels of tokens, of rows as in hidden(); only encoders
  /// that learn labels.
  std::vector<double> label_logits(const std::vector<std::span<const std::int32_t>>& rows);
  /// Hidden states [1, n, d_model] of tokens that follow those in `state`.
  Tensor extend(std::span<const std::int32_t> tokens, layers::GenerationState& state);
  /// Rows of `hidden`, [..., d_model], counted over all its dimensions but the last: [indices, d_model].
  Tensor gather(const Tensor& hidden, const std::vector<std::int32_t>& indices);
  /// log p(target) of the model's output layer for each row of states [rows, d_model], in nats; 0 for a target of -1.
  std::vector<double> log_probabilities(const Tensor& states, const std::vector<std::int32_t>& targets);

 private:
  /// Returns rows on the device, padded to [rows, n]; encoders: and masks the padding.
  Tensor padded(const std::vector<std::span<const std::int32_t>>& rows);

  Model& model_;
  Tape tape_;
  Tape::NoGradient guard_;
  layers::ForwardContext context_;
};

}  // namespace furlong
