#include "layers/attention/directions.h"

#include <cmath>

#include "framework/core/dtype.h"
#include "framework/core/error.h"

namespace furlong::layers {
namespace {

/// Orthonormal rows from Gaussian ones by modified Gram-Schmidt, twice. The triangular factor's diagonal is positive by construction, which
/// is the sign convention under which Q is Haar-distributed (Mezzadri 2007, "How to generate random matrices from the classical compact
/// groups").
void orthonormalise(std::vector<double>& rows, std::int64_t d) {
  for (std::int64_t i = 0; i < d; ++i) {
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

}  // namespace

const std::vector<std::pair<DirectionsKind, const char*>>& directions_kinds() {
  static const std::vector<std::pair<DirectionsKind, const char*>> kinds{{DirectionsKind::iid, "iid"},
                                                                         {DirectionsKind::orthogonal, "orthogonal"}};
  return kinds;
}

DirectionsKind directions_kind(const std::string& name) {
  for (const auto& [kind, known] : directions_kinds()) {
    if (name == known) return kind;
  }
  throw UserError("directions '{}' are unknown; expected iid or orthogonal", name);
}

std::vector<float> draw_directions(DirectionsKind kind, std::int64_t m, std::int64_t d, const RandomKey& key) {
  std::vector<double> rows(static_cast<std::size_t>(m * d));
  std::uint64_t next = 0;  // normal numbers drawn so far
  if (kind == DirectionsKind::iid) {
    for (double& value : rows) value = random_normal(key, next++);
  } else {
    std::vector<double> block(static_cast<std::size_t>(d * d));
    for (std::int64_t start = 0; start < m; start += d) {
      for (double& value : block) value = random_normal(key, next++);
      orthonormalise(block, d);
      for (std::int64_t i = 0; i < std::min(d, m - start); ++i) {
        double square = 0;  // χ²_d: the squared norm of a Gaussian row of its own
        for (std::int64_t c = 0; c < d; ++c) {
          const double value = random_normal(key, next++);
          square += value * value;
        }
        for (std::int64_t c = 0; c < d; ++c)
          rows[static_cast<std::size_t>((start + i) * d + c)] = block[static_cast<std::size_t>(i * d + c)] * std::sqrt(square);
      }
    }
  }
  std::vector<float> rounded(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) rounded[i] = static_cast<float>(bfloat16(static_cast<float>(rows[i])));
  return rounded;
}

}  // namespace furlong::layers
