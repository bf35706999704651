#include "layers/attention/linear/random_projection.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "framework/core/dtype.h"
#include "framework/core/error.h"

namespace furlong::layers {
namespace {

/// A sequence of random numbers from one key.
class Draws {
 public:
  explicit Draws(const RandomKey& key) : key_(key) {}
  double normal() { return random_normal(key_, next_++); }
  double sign() { return philox(key_, next_++)[0] >> 31 ? -1.0 : 1.0; }
  /// Returns a number in [0, n). It uses 64 random bits, so the bias of the division is negligible.
  std::uint64_t below(std::uint64_t n) {
    const auto words = philox(key_, next_++);
    return ((std::uint64_t{words[0]} << 32) | words[1]) % n;
  }

 private:
  RandomKey key_;
  std::uint64_t next_ = 0;
};

/// Orthonormalizes `count` Gaussian rows of width d by modified Gram-Schmidt, applied twice. The triangular factor has
/// a positive diagonal, which is the sign convention that makes Q Haar-distributed (Mezzadri 2007, "How to generate
/// random matrices from the classical compact groups").
void orthonormalize(std::vector<double>& rows, std::int64_t count, std::int64_t d) {
  for (std::int64_t i = 0; i < count; ++i) {
    double* row = rows.data() + i * d;
    for (int pass = 0; pass < 2; ++pass) {
      for (std::int64_t j = 0; j < i; ++j) {
        const double* other = rows.data() + j * d;
        double dot = 0;
        for (std::int64_t c = 0; c < d; ++c) dot += row[c] * other[c];
        for (std::int64_t c = 0; c < d; ++c) row[c] -= dot * other[c];
      }
    }
    double square = 0;
    for (std::int64_t c = 0; c < d; ++c) square += row[c] * row[c];
    for (std::int64_t c = 0; c < d; ++c) row[c] /= std::sqrt(square);
  }
}

/// Returns the quantiles i/(m+1) of χ_d in random order, so that a feature's index does not determine its norm.
std::vector<double> stratified_norms(std::int64_t m, std::int64_t d, Draws& draws) {
  std::vector<double> norms;
  for (std::int64_t i = 1; i <= m; ++i)
    norms.push_back(chi_quantile(static_cast<double>(i) / static_cast<double>(m + 1), d));
  for (std::size_t i = norms.size(); i > 1; --i) std::swap(norms[i - 1], norms[draws.below(i)]);
  return norms;
}

/// Returns the norm of an independent Gaussian row.
double chi_norm(std::int64_t d, Draws& draws) {
  double square = 0;
  for (std::int64_t c = 0; c < d; ++c) {
    const double value = draws.normal();
    square += value * value;
  }
  return std::sqrt(square);
}

std::vector<double> orthogonal_rows(RandomProjectionKind kind, std::int64_t m, std::int64_t d, Draws& draws) {
  std::vector<double> rows(static_cast<std::size_t>(m * d)), block(static_cast<std::size_t>(std::min(m, d) * d)), norms;
  if (kind == RandomProjectionKind::norm_stratified) norms = stratified_norms(m, d, draws);
  for (std::int64_t start = 0; start < m; start += d) {
    const std::int64_t count = std::min(d, m - start);
    for (std::int64_t i = 0; i < d * d; ++i) {  // a whole block, so that draws do not depend on m
      const double value = draws.normal();
      if (i < count * d) block[static_cast<std::size_t>(i)] = value;
    }
    orthonormalize(block, count, d);
    for (std::int64_t i = start; i < start + count; ++i) {
      const double norm = kind == RandomProjectionKind::norm_stratified ? norms[static_cast<std::size_t>(i)]
                          : kind == RandomProjectionKind::orthogonal    ? chi_norm(d, draws)
                                                                        : std::sqrt(static_cast<double>(d));
      for (std::int64_t c = 0; c < d; ++c)
        rows[static_cast<std::size_t>(i * d + c)] = block[static_cast<std::size_t>((i - start) * d + c)] * norm;
    }
  }
  return rows;
}

/// Computes row ← row H by butterflies. H is symmetric, orthonormal and of size row.size(), a power of two.
void walsh_hadamard(std::vector<double>& row) {
  for (std::size_t half = 1; half < row.size(); half *= 2) {
    for (std::size_t start = 0; start < row.size(); start += 2 * half) {
      for (std::size_t i = start; i < start + half; ++i) {
        const double a = row[i], b = row[i + half];
        row[i] = (a + b) * std::sqrt(0.5);
        row[i + half] = (a - b) * std::sqrt(0.5);
      }
    }
  }
}

std::vector<double> structured_rows(std::int64_t m, std::int64_t d, Draws& draws) {
  const auto width = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(d)));
  std::vector<double> rows(static_cast<std::size_t>(m * d)), row(static_cast<std::size_t>(width)),
      signs(3 * row.size());
  for (std::int64_t i = 0; i < m; ++i) {
    if (i % width == 0) std::generate(signs.begin(), signs.end(), [&] { return draws.sign(); });
    std::fill(row.begin(), row.end(), 0.0);
    row[static_cast<std::size_t>(i % width)] = std::sqrt(static_cast<double>(width));
    for (std::size_t round = 0; round < 3; ++round) {
      walsh_hadamard(row);
      for (std::size_t c = 0; c < row.size(); ++c) row[c] *= signs[round * row.size() + c];
    }
    std::copy_n(row.begin(), d, rows.begin() + i * d);
  }
  return rows;
}

/// P(a, x), the regularized lower incomplete gamma function. Uses its power series for x < a + 1, and Lentz's continued
/// fraction of 1 - P otherwise.
double lower_gamma(double a, double x) {
  const double front = std::exp(a * std::log(x) - x - std::lgamma(a));
  if (x < a + 1) {
    double term = 1 / a, sum = term;
    for (double n = a + 1; term > sum * 1e-17; ++n) sum += term *= x / n;
    return front * sum;
  }
  const double tiny = std::numeric_limits<double>::min();
  double b = x + 1 - a, c = 1 / tiny, reciprocal = 1 / b, fraction = reciprocal;
  for (int n = 1; n < 100000; ++n) {
    const double numerator = -n * (n - a);
    b += 2;
    reciprocal = 1 / (numerator * reciprocal + b);
    c = b + numerator / c;
    fraction *= reciprocal * c;
    if (std::abs(reciprocal * c - 1) < 1e-16) break;
  }
  return 1 - front * fraction;
}

}  // namespace

double chi_quantile(double probability, std::int64_t d) {
  require(probability > 0 && probability < 1 && d > 0, "chi_quantile of {} for d = {}", probability, d);
  const double a = static_cast<double>(d) / 2;
  double low = 0, high = a + 1;
  while (lower_gamma(a, high) < probability) high *= 2;
  // Newton's method in x = r²/2, inside a bracket that shrinks at every step.
  double x = a;
  for (int step = 0; step < 200; ++step) {
    const double excess = lower_gamma(a, x) - probability;
    (excess > 0 ? high : low) = x;
    const double density = std::exp((a - 1) * std::log(x) - x - std::lgamma(a));
    const double next = x - excess / density;
    if (std::abs(next - x) <= 1e-14 * x) break;
    x = next > low && next < high ? next : (low + high) / 2;
  }
  return std::sqrt(2 * x);
}

std::vector<float> draw_random_projection(RandomProjectionKind kind, std::int64_t m, std::int64_t d,
                                          const RandomKey& key) {
  Draws draws(key);
  std::vector<double> rows;
  if (kind == RandomProjectionKind::iid) {
    rows.resize(static_cast<std::size_t>(m * d));
    for (double& value : rows) value = draws.normal();
  } else if (kind == RandomProjectionKind::structured) {
    rows = structured_rows(m, d, draws);
  } else {
    rows = orthogonal_rows(kind, m, d, draws);
  }
  std::vector<float> rounded(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) rounded[i] = static_cast<float>(bfloat16(static_cast<float>(rows[i])));
  return rounded;
}

}  // namespace furlong::layers
