#pragma once
// Error of approximations of softmax attention on given queries, keys and values, for furlong analyze attention. All
// computations run the ops of models, in float64 on the CPU.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "framework/ops/attention/linear/linear_attention.h"
#include "layers/attention/linear/head_constants.h"
#include "layers/attention/linear/random_projection.h"

namespace furlong {

/// Queries, keys and values in float64: query [batch, n, n_heads·d], key [batch, n_key, n_kv_heads·d], value [batch,
/// n_key, n_kv_heads·d_value], as in framework/ops/attention/linear/linear_attention.h.
struct AttentionSample {
  Tensor query, key, value;
  std::int64_t n_heads = 1, n_kv_heads = 1;
  bool causal = false;
  std::int64_t window = 0;  ///< sliding window: |i - j| < window; 0: all keys. Self-attention only
  ops::AttentionMask mask;
  /// int32 [batch, n]: 0 for padding, whose outputs are ignored. Undefined: there is no padding.
  Tensor real_queries{};

  std::int64_t batch() const { return query.extent(0); }
  std::int64_t n() const { return query.extent(1); }
  std::int64_t n_key() const { return key.extent(1); }
  std::int64_t d() const { return query.extent(2) / n_heads; }
  std::int64_t d_value() const { return value.extent(2) / n_kv_heads; }
  /// Returns int32 [batch, n_key]: 0 for padding. A key is padding if it is masked or, in self-attention, visible to no
  /// real query. Undefined: there is no padding.
  Tensor real_keys() const;
  /// Returns a view of one query head and its key-value head.
  AttentionSample of_head(std::int64_t head) const;
  /// Returns a view of the first sequence of the batch.
  AttentionSample first_sequence() const;
};

/// Determines which keys are visible to the queries of one sequence. No key is visible to padding.
class Visibility {
 public:
  /// `sequence`: the row of the batch. Copies what it needs of `sample`.
  Visibility(const AttentionSample& sample, std::int64_t sequence);
  /// Returns whether `query` attends to `key`.
  bool operator()(std::int64_t query, std::int64_t key) const;

 private:
  bool causal_;
  std::int64_t window_;
  std::vector<std::int32_t> queries_, keys_, documents_;  // empty: no restriction
};

/// Converts a tensor of any float dtype and device to contiguous float64 on the CPU.
Tensor as_float64(const Tensor& tensor);

/// A linear attention without its number of features: a feature map, preprocessing of queries and keys, and the
/// distribution of the random projection.
struct AttentionCandidate {
  ops::FeatureMap map = ops::FeatureMap::favor_positive;
  ops::FeatureMapOptions map_options{};
  bool centering = false, saderf = false;
  layers::RandomProjectionKind kind = layers::RandomProjectionKind::orthogonal;

  /// Returns NAME[:ORDER][+centering][+saderf].
  std::string name() const;
  /// Returns whether the features are random. Only then can their number be chosen.
  bool is_random() const { return ops::feature_map_info(map).needs_random_projection; }
  /// Returns m for heads of width d. `asked` is the requested m; only random features use it. Throws UserError if the
  /// map cannot have so many features.
  std::int64_t features(std::int64_t asked, std::int64_t d) const;
};
/// Parses the name of a candidate. Throws UserError that names `option` if the name is invalid, or if it adds centering
/// or saderf to a map that does not estimate softmax.
AttentionCandidate attention_candidate(const std::string& name, const std::string& option = "--feature-maps");

/// Samples of one attention layer, with the outputs of exact softmax and the moments for constants of candidates. All
/// samples have the same window.
class AttentionData {
 public:
  /// `replicas`: the heads are independent draws of the same distribution, and the error is their median. Otherwise
  /// each head has its own error.
  AttentionData(std::vector<AttentionSample> samples, bool replicas);

  const std::vector<AttentionSample>& samples() const { return samples_; }
  std::int64_t n_heads() const { return samples_[0].n_heads; }
  std::int64_t d() const { return samples_[0].d(); }
  /// Returns the number of keys of the longest sequence, the default n for costs.
  std::int64_t longest() const;
  bool replicas() const { return replicas_; }
  /// Returns the number of errors: 1 for replicas, otherwise one per head.
  std::int64_t groups() const { return replicas_ ? 1 : n_heads(); }
  /// Returns the data of one head, which keeps its random projection. Not for replicas.
  AttentionData head(std::int64_t head) const;

  /// Returns ‖output − exact‖ / ‖exact‖ of each group, in Frobenius norms over all real queries. `outputs` has one
  /// tensor per sample.
  std::vector<double> relative_errors(const std::vector<Tensor>& outputs) const;
  /// Returns the errors of uniform attention: the mean of the values visible to each query.
  std::vector<double> uniform_errors() const;
  /// Returns the moments of one head over all tokens that are not masked.
  const layers::HeadMoments& moments(std::int64_t head) const { return moments_[static_cast<std::size_t>(head)]; }
  /// Returns the centers, Ψ and A of `candidate` for all heads, estimated from moments().
  ops::LinearAttentionConstants constants(const AttentionCandidate& candidate) const;
  /// Returns draw number `draw` of the random projection, [n_heads, m / features per row, d]. Undefined for maps
  /// without a random projection.
  Tensor random_projection(const AttentionCandidate& candidate, std::int64_t m, std::uint64_t seed,
                           std::uint32_t draw) const;

 private:
  AttentionData() = default;
  void add_moments();
  std::vector<double> grouped(std::vector<double> by_head) const;

  std::vector<AttentionSample> samples_;
  std::vector<Tensor> exact_;
  std::vector<layers::HeadMoments> moments_;
  bool replicas_ = false;
  std::int64_t first_head_ = 0;
};

/// Returns Gaussian queries, keys and values of `replicas` independent heads. The entries of q and k have standard
/// deviation `deviation`, those of v 1.
AttentionData gaussian_attention(std::int64_t replicas, std::int64_t n, std::int64_t d, double deviation, bool causal,
                                 std::uint64_t seed);

/// Runs linear_attention() with the candidate's map and the sample's window, in float64. `values`, if defined, replaces
/// those of the sample.
Tensor candidate_output(const AttentionSample& sample, const AttentionCandidate& candidate,
                        const ops::LinearAttentionConstants& constants, ops::DenominatorReport* report = nullptr,
                        const Tensor& values = {});

/// Returns the candidate's relative error in each group: the median over `draws` random projections, or over replicas,
/// each with its own projection. Adds denominators to `report` if it is given.
std::vector<double> candidate_errors(const AttentionData& data, const AttentionCandidate& candidate, std::int64_t m,
                                     std::int64_t draws, std::uint64_t seed, ops::DenominatorReport* report = nullptr);

/// Returns whether an error exceeds that of the uniform baseline by more than float32 rounding.
inline bool worse_than_uniform(double error, double uniform_error) {
  return error > uniform_error + 1e-6 * std::max(1.0, uniform_error);
}

/// Norms ‖x‖ of the rows of a head.
struct RowNorms {
  double mean = 0, largest = 0;
};
/// Returns the norms of each query head.
std::vector<RowNorms> query_norms(const AttentionData& data);
/// Returns, for each query head, the norms of its key head.
std::vector<RowNorms> key_norms(const AttentionData& data);

/// Total variation distance ½ Σ_j |p_j − r_j| between the weights of the keys, per head, as the mean over up to 64
/// queries.
struct TotalVariation {
  std::vector<double> to_softmax, to_uniform;
};
/// Returns the distances of an attention on the first sequence of `sample`. `attend` maps values [1, n_key,
/// n_kv_heads·width] of type `dtype` to outputs [1, n, n_heads·width]. One-hot values give the weights, `width` keys
/// per call.
TotalVariation total_variation(const AttentionSample& sample, const std::function<Tensor(const Tensor& value)>& attend,
                               DType dtype, std::int64_t width);

}  // namespace furlong
