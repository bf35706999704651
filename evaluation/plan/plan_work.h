#pragma once
// What one process computes in a training step, counted from the model's shapes, part by part in the order of forward.
#include <cstddef>
#include <string>
#include <vector>

#include "trainers/settings/settings.h"

namespace furlong {

/// Floating point operations of one part of the model, products alone (a multiply-add counts as two), those inside
/// attention apart.
struct PlanStage {
  std::string name;  ///< "embedding", "blocks.0", ..., "output"
  double forward = 0, backward = 0;
  double attention_forward = 0, attention_backward = 0;
};

/// Tokens that one process has of each sequence.
std::int64_t tokens_of_segment(const Settings& settings);

/// The parts that `samples` samples go through, all at full length. What is counted for one token, of width d, with
/// linear maps of Σ = inner · outer elements:
///   linear maps        forward 2 Σ, backward 4 Σ; 2 Σ where their weights are frozen (model.lora_rank), and
///                      6 rank (inner + outer) of each adapter, a third of it in forward
///   attention          the cost of each head's mechanism (layers::AttentionCost), which has what backward computes
///                      again; keys as if each query head had its own; learned maps of queries and keys like linear
///                      maps
///   output             6 · width · vocabulary, all of it in forward: ops::cross_entropy makes the gradients in the
///                      same pass
///   recompute: blocks  a block's forward once more, in backward
/// With parallel.sequence_processes they are those of one process with a segment of each sequence: its tokens, and of
/// each head AttentionCost::segment in forward and in backward (packed documents as if they were one). vocabulary: rows
/// of the output layer. n_classes: of labels, where they are learned.
std::vector<PlanStage> plan_stages(const Settings& settings, std::int64_t vocabulary, std::int64_t n_classes,
                                   std::int64_t samples);

/// Which of `n_stages` stages is the first in forward, and so the last in backward, that a parameter's gradient comes
/// from.
std::size_t plan_stage_of(const std::string& parameter, std::size_t n_stages);

}  // namespace furlong
