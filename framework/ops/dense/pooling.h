#pragma once
#include "framework/autodiff/tape.h"
#include "framework/core/enum_names.h"

namespace furlong::ops {

enum class Pooling : std::uint8_t {
  first,  ///< the first position (a class token's)
  mean    ///< the mean over the positions that the mask keeps; zero, and no gradient, where it keeps none
};
constexpr auto names_of(Pooling) { return std::array{"class_token", "mean"}; }

/// One vector for each sequence: x [batch, n, d], contiguous, and mask int32 [batch, n] (1 keeps a position; undefined:
/// all are kept; `first` does not look at it) -> [batch, d]. Sums are in float32 (float64 for float64), in a fixed
/// order. Throws ContractError on shapes that do not fit.
Variable pool(Tape& tape, const Variable& x, const Tensor& mask, Pooling kind);

/// The features of a pair of sequences that a classifier compares them by: x [2 pairs, d], rows u = 2i and v = 2i + 1,
/// contiguous -> [pairs, 4 d]: u, v, u v, u - v, side by side (Mou et al. 2016, "Natural Language Inference by
/// Tree-Based Convolution", section 3.2, and Tay et al. 2021, "Long Range Arena", document matching). Throws
/// ContractError for an odd number of rows.
Variable pair_features(Tape& tape, const Variable& x);

}  // namespace furlong::ops
