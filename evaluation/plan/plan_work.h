#pragma once
// Counts the operations of one rank in a training step from the model's shapes, by parts in the order of forward.
#include <cstddef>
#include <string>
#include <vector>

#include "trainers/settings/settings.h"

namespace furlong {

/// Floating point operations of matrix products in one part of the model (a multiply-add counts as two). Products
/// inside attention are counted separately.
struct PlanStage {
  std::string name;  ///< "embedding", "blocks.0", ..., "output"
  double forward = 0, backward = 0;
  double attention_forward = 0, attention_backward = 0;
};

/// Returns the number of tokens that one rank has of each sequence.
std::int64_t tokens_of_segment(const Settings& settings);

/// Returns the parts of the model, for `samples` samples of full length. Operations per token, for linear maps of
/// Σ = inner · outer elements:
///   linear maps        forward 2 Σ, backward 4 Σ; 2 Σ if their weights are frozen (model.lora_rank), plus
///                      6 rank (inner + outer) for each adapter, a third of it in forward
///   attention          the cost of each head's mechanism (layers::AttentionCost), including recomputation in
///                      backward; keys as if each query head had its own; learned feature maps count as linear
///                      maps
///   output             6 · width · vocabulary, all in forward: ops::cross_entropy computes the gradients in the
///                      same pass
///   activation_checkpointing: blocks  a block's forward once more, in backward
/// With context parallelism, counts one rank with its segment of each sequence: its tokens, and AttentionCost::segment
/// of each head in forward and in backward (packed documents count as one). `vocabulary`: rows of the output layer.
/// `n_classes`: number of labels, for objectives with labels. `share_of_logits`: of the positions whose logits are
/// computed; on GPUs all.
std::vector<PlanStage> plan_stages(const Settings& settings, std::int64_t vocabulary, std::int64_t n_classes,
                                   std::int64_t samples, double share_of_logits = 1);

/// Returns the width of the states that the output layer multiplies.
std::int64_t output_width(const layers::ModelConfig& model);

/// Returns the first stage in forward, and thus the last in backward, that contributes to a parameter's gradient.
std::size_t plan_stage_of(const std::string& parameter, std::size_t n_stages);

}  // namespace furlong
