#pragma once
// How far an approximation of softmax attention is from softmax on given queries, keys and values: the ground of
// furlong analyze attention. Everything here is float64 on the CPU, through the ops that models use.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "framework/ops/attention/linear/linear_attention.h"
#include "layers/attention/linear/directions.h"
#include "layers/attention/linear/head_constants.h"

namespace furlong {

/// Shapes as in framework/ops/attention/linear/linear_attention.h, in float64: query [batch, n, n_heads·d], key [batch,
/// n_key, n_kv_heads·d], value [batch, n_key, n_kv_heads·d_value].
struct AttentionSample {
  Tensor query, key, value;
  std::int64_t n_heads = 1, n_kv_heads = 1;
  bool causal = false;
  ops::AttentionMask mask;
  /// int32 [batch, n]: 0 for padding, whose outputs count nowhere; undefined: every query is a token.
  Tensor real_queries{};

  std::int64_t batch() const { return query.extent(0); }
  std::int64_t n() const { return query.extent(1); }
  std::int64_t n_key() const { return key.extent(1); }
  std::int64_t d() const { return query.extent(2) / n_heads; }
  std::int64_t d_value() const { return value.extent(2) / n_kv_heads; }
  /// int32 [batch, n_key]: 0 for padding, masked or, where keys are the queries' tokens, unseen by any real query;
  /// undefined: none.
  Tensor real_keys() const;
  /// Head `head` alone, or the first sequence alone; views.
  AttentionSample of_head(std::int64_t head) const;
  AttentionSample first_sequence() const;
};

/// Which keys the queries of one sequence see; queries that are padding see none.
class Visibility {
 public:
  Visibility(const AttentionSample& sample, std::int64_t sequence);
  bool operator()(std::int64_t query, std::int64_t key) const;

 private:
  bool causal_;
  std::vector<std::int32_t> queries_, keys_, documents_;  // empty: no restriction
};

/// A tensor of any float dtype, on any device, as contiguous float64 on the CPU.
Tensor as_float64(const Tensor& tensor);

/// A linear attention but for its number of features: a feature map, what is done to queries and keys before it, and
/// how its directions are drawn.
struct AttentionCandidate {
  ops::FeatureMap map = ops::FeatureMap::favor_positive;
  ops::FeatureMapOptions map_options{};
  bool centering = false, saderf = false;
  layers::DirectionsKind kind = layers::DirectionsKind::orthogonal;

  /// As a user writes it: NAME[:ORDER][+centering][+saderf].
  std::string name() const;
  /// Whether its features are random, so that their number can be chosen.
  bool is_random() const { return ops::feature_map_info(map).needs_directions; }
  /// m for heads of width d where `asked` are asked for, which counts for random features only. Throws UserError where
  /// the map cannot have so many.
  std::int64_t features(std::int64_t asked, std::int64_t d) const;
};
/// Throws UserError, in terms of `option`, for a name that is not of that form, and for centring or scaling of a map
/// that they would change.
AttentionCandidate attention_candidate(const std::string& name, const std::string& option = "--maps");

/// Samples of one attention layer, what exact softmax makes of them, and what the constants of candidates are estimated
/// from.
class AttentionData {
 public:
  /// `replicas`: the heads are independent draws of one thing, whose error is the median over them; otherwise each head
  /// counts by itself.
  AttentionData(std::vector<AttentionSample> samples, bool replicas);

  const std::vector<AttentionSample>& samples() const { return samples_; }
  std::int64_t n_heads() const { return samples_[0].n_heads; }
  std::int64_t d() const { return samples_[0].d(); }
  /// The longest sequence's keys: the n that costs are told for.
  std::int64_t longest() const;
  bool replicas() const { return replicas_; }
  /// Numbers that an error consists of: 1 for replicas, otherwise one for each head.
  std::int64_t groups() const { return replicas_ ? 1 : n_heads(); }
  /// Head `head` alone, with the directions that it has among the others. Not for replicas.
  AttentionData head(std::int64_t head) const;

  /// ‖output − exact‖ / ‖exact‖ (Frobenius norms over all real queries) of each group; `outputs` are as samples() is.
  std::vector<double> relative_errors(const std::vector<Tensor>& outputs) const;
  /// The same of the mean of the values that each query sees: what attention without queries and keys would give.
  std::vector<double> uniform_errors() const;
  /// Of one head, from all tokens that are not masked.
  const layers::HeadMoments& moments(std::int64_t head) const { return moments_[static_cast<std::size_t>(head)]; }
  /// Centres, Ψ and A that `candidate` takes, for every head, from moments().
  ops::LinearAttentionConstants constants(const AttentionCandidate& candidate) const;
  /// Directions [n_heads, m / features a direction, d] number `draw`; undefined for maps without.
  Tensor directions(const AttentionCandidate& candidate, std::int64_t m, std::uint64_t seed, std::uint32_t draw) const;

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

/// Gaussian queries, keys and values of `replicas` independent heads: entries of q and k have this standard deviation,
/// those of v 1.
AttentionData gaussian_attention(std::int64_t replicas, std::int64_t n, std::int64_t d, double deviation, bool causal,
                                 std::uint64_t seed);

/// linear_attention() with the candidate's map, in float64. `values` in the place of the sample's where defined.
Tensor candidate_output(const AttentionSample& sample, const AttentionCandidate& candidate,
                        const ops::LinearAttentionConstants& constants, ops::DenominatorReport* report = nullptr,
                        const Tensor& values = {});

/// The candidate's relative error in each group: the median over `draws` draws of directions (over the replicas, each
/// with directions of its own, where there are some). `report`, where given, is added to.
std::vector<double> candidate_errors(const AttentionData& data, const AttentionCandidate& candidate, std::int64_t m,
                                     std::int64_t draws, std::uint64_t seed, ops::DenominatorReport* report = nullptr);

/// Whether an error is above that of the uniform baseline by more than rounding (of float32: a model's own outputs).
inline bool worse_than_uniform(double error, double uniform_error) {
  return error > uniform_error + 1e-6 * std::max(1.0, uniform_error);
}

/// ‖x‖ of the rows of each head.
struct RowNorms {
  double mean = 0, largest = 0;
};
std::vector<RowNorms> query_norms(const AttentionData& data);
/// Of the key head that each query head reads.
std::vector<RowNorms> key_norms(const AttentionData& data);

/// Total variation distance ½ Σ_j |p_j − r_j| between distributions of weight over the keys, head by head, the mean
/// over up to 64 queries.
struct TotalVariation {
  std::vector<double> to_softmax, to_uniform;
};
/// Of the attention that maps values [1, n_key, n_kv_heads·width] to outputs [1, n, n_heads·width] for the first
/// sequence of `sample`: its weights are what it makes of values that are 1 for one key. Values are asked for in
/// `dtype`, and `width` at a time.
TotalVariation total_variation(const AttentionSample& sample, const std::function<Tensor(const Tensor& value)>& attend,
                               DType dtype, std::int64_t width);

}  // namespace furlong
