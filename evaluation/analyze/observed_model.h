#pragma once
// Runs a model on batches of a split and passes the queries, keys and values of each attention to an observer.
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "evaluation/analyze/analyze_attention.h"
#include "trainers/model/objective.h"

namespace furlong {

struct ObservedBatches {
  std::filesystem::path store;  ///< tokenized dataset; empty: that of the model's training
  Split split = Split::validation;
  std::int64_t sequence_length = 0;  ///< 0: as in training
  std::int64_t batch_size = 1, batches = 1;
  std::int64_t tokens = 0;  ///< if not 0, replaces `batches`: number of tokens, without padding, that batches must hold
};

class ObservedModel {
 public:
  /// Reads batches of evaluation_source(). `model` is on the CPU and must outlive this object. Throws UserError if the
  /// dataset is missing, if its vocabulary differs from the model's, or if the split has no sequence.
  ObservedModel(Model& model, const ObservedBatches& batches);

  const Settings& settings() const { return model_.settings; }
  const Dataset& data() const { return *data_; }
  std::int64_t length() const { return length_; }
  std::int64_t tokens() const { return tokens_; }
  bool causal() const { return model_.decoder != nullptr; }
  std::size_t batches() const { return batches_.size(); }
  const DeviceBatch& batch(std::size_t i) const { return batches_[i]; }
  /// Returns int32 [rows, n]: 1 for tokens of a batch, 0 for padding. Undefined if there is no padding.
  const Tensor& real(std::size_t batch) const { return real_[batch]; }

  /// Calls observe(context, attention, index of the batch) for every layer of the first `batches` batches.
  using Observer = std::function<void(layers::ForwardContext&, const layers::ObservedAttention&, std::size_t)>;
  void run(std::size_t batches, const Observer& observe);

 private:
  Model& model_;
  std::unique_ptr<Dataset> data_;
  std::int64_t length_ = 0, tokens_ = 0;
  std::vector<DeviceBatch> batches_;
  std::vector<Tensor> real_;
};

/// Returns queries, keys and values of an attention in float64, with its sliding window, which applies to all heads of
/// the sample. `real` is ObservedModel::real of the batch.
AttentionSample observed_sample(const layers::ForwardContext& context, const layers::ObservedAttention& observed,
                                const layers::AttentionConfig& config, const Tensor& real);

}  // namespace furlong
