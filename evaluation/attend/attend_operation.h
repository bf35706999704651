#pragma once
// Any attention of the framework on tensors of one's own, without a model around it: what `furlong attend` and `furlong
// bench attention` call.
#include <string>
#include <vector>

#include "framework/ops/attention/linear/linear_attention.h"
#include "framework/ops/attention/linformer/sequence_projection.h"

namespace furlong {

enum class AttendMechanism : std::uint8_t {
  softmax,    ///< exact
  linear,     ///< features of a feature map
  linformer,  ///< softmax over a projected sequence of keys and values
  windowed    ///< exact weights inside a window, features outside
};
/// Every mechanism by its name, in the order of the enumeration.
const std::vector<std::pair<std::string, AttendMechanism>>& attend_mechanisms();
const char* name_of(AttendMechanism mechanism);

/// Which attention, and the numbers that belong to its definition.
struct AttentionChoice {
  AttendMechanism mechanism = AttendMechanism::softmax;
  bool causal = false;
  std::int64_t window =
      0;  ///< softmax, linear: keys farther away are not seen, 0 = all are; windowed: the part with exact weights
  ops::FeatureMap feature_map = ops::FeatureMap::favor_positive;  ///< linear and windowed
  ops::FeatureMapOptions map_options{};
  ops::Normalizer normalizer = ops::Normalizer::sum;
  double denominator_guard = 0x1p-20;
  std::int64_t chunk_size = 64;
  ops::SequenceProjection projection = ops::SequenceProjection::linear;  ///< linformer
  std::string compat;  ///< empty, performer_pytorch or fast_transformers: that library's arithmetic, with its epsilons
  double compat_kernel_epsilon = -1;  ///< performer_pytorch: added to features; negative: the library's own
  bool compat_stabilize = false;      ///< fast_transformers with favor_hyperbolic: as ops::CompatAttentionOptions

  bool uses_features() const { return mechanism == AttendMechanism::linear || mechanism == AttendMechanism::windowed; }
  /// Throws UserError, in terms of the command line's options, when the parts do not go together.
  void check() const;
};

/// Shapes as in framework/ops/attention/linear/linear_attention.h: query [batch, n, n_heads·d], key and value [batch,
/// n_key, n_kv_heads·width].
struct AttentionOperands {
  Variable query, key, value;
  std::int64_t n_heads = 1, n_kv_heads = 1;
  Variable gate;  ///< windowed: [n_heads], or undefined for zero
  /// linformer: E and F, in the storage type, undefined for mean pooling; shapes in
  /// framework/ops/attention/linformer/sequence_projection.h. F may be E.
  Variable key_projection, value_projection;
  std::int64_t projected_length = 0, max_length = 0;  ///< linformer: r, and the longest sequence that E and F take
  ops::LinearAttentionConstants constants;
  ops::AttentionMask mask;

  std::int64_t d() const { return query.extent(2) / n_heads; }
  std::int64_t d_value() const { return value.extent(2) / n_kv_heads; }
};

/// The attention over all tokens at once, recorded on the tape -> [batch, n, n_heads·d_value]. `report`, where given,
/// is added to.
Variable attend_in_parallel(Tape& tape, const AttentionOperands& operands, const AttentionChoice& choice,
                            ops::DenominatorReport* report);

/// The same for the first `prefill` tokens at once and the others one by one, each from the state (for softmax: the
/// keys and values) that the earlier ones left. Causal mechanisms without documents only. Nothing is recorded.
Tensor attend_in_steps(const Stream& stream, const AttentionOperands& operands, const AttentionChoice& choice,
                       std::int64_t prefill, ops::DenominatorReport* report);

/// The directions that `m` features take (0: twice d features, or what the map has), none for maps without. Throws
/// UserError where m does not fit the map.
std::int64_t attend_direction_count(const AttentionChoice& choice, std::int64_t m, std::int64_t d);
/// m for heads of width d. Throws UserError, in terms of the command line's options, where the map cannot have so many
/// or not that order.
std::int64_t attend_feature_count(const AttentionChoice& choice, std::int64_t d, std::int64_t n_directions);

}  // namespace furlong
