#pragma once
#include "framework/autodiff/tape.h"
#include "framework/core/enum_names.h"

namespace furlong::ops {

/// How a sequence's hidden states become one vector.
enum class Pooling : std::uint8_t {
  first,  ///< the first position (the class token)
  mean    ///< the mean over the unmasked positions; zero, without gradient, if all are masked
};
constexpr auto names_of(Pooling) { return std::array{"class_token", "mean"}; }

/// Returns one vector for each sequence, [batch, d]. x [batch, n, d], contiguous; mask int32 [batch, n], 1 keeps a
/// position, undefined keeps all (`first` ignores the mask). Sums are in float32 (float64 for float64), in a fixed
/// order. Throws ContractError if shapes do not match.
Variable pool(Tape& tape, const Variable& x, const Tensor& mask, Pooling kind);

/// Returns the features by which a classifier compares the two sequences of a pair: u, v, u v and u - v, concatenated.
/// x [2 pairs, d], contiguous, with u in row 2i and v in row 2i + 1 -> [pairs, 4 d]. See Mou et al. 2016, "Natural
/// Language Inference by Tree-Based Convolution", section 3.2, and Tay et al. 2021, "Long Range Arena", document
/// matching. Throws ContractError for an odd number of rows.
Variable pair_features(Tape& tape, const Variable& x);

}  // namespace furlong::ops
