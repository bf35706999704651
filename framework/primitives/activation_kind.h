#pragma once
#include <array>
#include <cstdint>

namespace furlong::ops {

/// Point-wise non-linearities. Phi is the standard normal distribution function and sigmoid(z) = 1 / (1 + e^-z):
///   gelu       x Phi(x), exact (Hendrycks and Gimpel 2016)
///   gelu_tanh  x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)), the tanh approximation of the same authors, rearranged
///   relu       max(x, 0), with derivative 0 at 0
///   silu       x sigmoid(x)
/// float32 results are within 6 ulp for gelu, 4 for silu, 0 for relu, in both tails (no cancellation for negative x).
enum class ActivationKind : std::uint8_t { gelu, gelu_tanh, relu, silu };

/// A row of the table of names.
struct ActivationName {
  ActivationKind kind;
  const char* name;  ///< as in YAML
};
inline constexpr std::array<ActivationName, 4> activation_names{{{ActivationKind::gelu, "gelu"},
                                                                 {ActivationKind::gelu_tanh, "gelu_tanh"},
                                                                 {ActivationKind::relu, "relu"},
                                                                 {ActivationKind::silu, "silu"}}};
/// Returns the name in activation_names.
const char* name_of(ActivationKind kind);

}  // namespace furlong::ops
