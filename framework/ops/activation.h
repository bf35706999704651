#pragma once
#include <array>
#include <string>

#include "framework/autodiff/tape.h"

namespace furlong::ops {

/// Point-wise non-linearities. With Phi the standard normal distribution function and sigmoid(z) = 1 / (1 + e^-z):
///   gelu       x Phi(x), exact (Hendrycks and Gimpel 2016)
///   gelu_tanh  x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)), which is the same authors' tanh approximation rearranged
///   relu       max(x, 0), with derivative 0 at 0
///   silu       x sigmoid(x)
/// float32 results are within 6 ulp for gelu, 4 for silu, 0 for relu, in both tails (no cancellation for negative x).
enum class ActivationKind : std::uint8_t { gelu, gelu_tanh, relu, silu };

struct ActivationName {
  ActivationKind kind;
  const char* name;  ///< as in YAML
};
inline constexpr std::array<ActivationName, 4> activation_names{{{ActivationKind::gelu, "gelu"},
                                                                 {ActivationKind::gelu_tanh, "gelu_tanh"},
                                                                 {ActivationKind::relu, "relu"},
                                                                 {ActivationKind::silu, "silu"}}};
const char* name_of(ActivationKind kind);
/// Inverse of name_of. Throws UserError that lists the known names.
ActivationKind activation_from_name(const std::string& name);

/// f(x) element by element; any shape with contiguous rows. Saves x. A NaN stays a NaN.
Variable activation(Tape& tape, const Variable& x, ActivationKind kind);

/// [..., 2f] -> [..., f]: f(gate) * up, the gate being the first half of a row and up the second. silu gives SwiGLU,
/// gelu GeGLU (Shazeer 2020, GLU Variants Improve Transformer). Saves x. Throws ContractError when the last dimension
/// is odd.
Variable gated_activation(Tape& tape, const Variable& x, ActivationKind kind);

}  // namespace furlong::ops
