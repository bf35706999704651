#include "trainers/train/optimizer/outlier_filter.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "framework/core/error.h"

namespace furlong {
namespace {

constexpr std::size_t window = 64;  // number of recent steps in the median
constexpr std::size_t minimum = 16;

}  // namespace

double OutlierFilter::threshold() const {
  if (factor_ == 0 || recent_norms_.size() < minimum) return 0;
  std::vector<double> norms(recent_norms_.begin(), recent_norms_.end());
  const auto middle = norms.begin() + static_cast<std::ptrdiff_t>(norms.size() / 2);
  std::nth_element(norms.begin(), middle, norms.end());
  const bool has_one_middle = norms.size() % 2 == 1;
  return factor_ * (has_one_middle ? *middle : (*middle + *std::max_element(norms.begin(), middle)) / 2);
}

void OutlierFilter::note(double gradient_norm) {
  if (factor_ == 0) return;
  // Outliers are recorded too: if norms rise permanently, the median follows and the filter stops skipping.
  recent_norms_.push_back(gradient_norm);
  if (recent_norms_.size() > window) recent_norms_.pop_front();
}

void OutlierFilter::save(CheckpointSink& file) const {
  const std::vector<double> norms(recent_norms_.begin(), recent_norms_.end());
  const std::int64_t count = static_cast<std::int64_t>(norms.size());
  file.tensor("recent_gradient_norms", "float64", std::span(&count, 1), norms.data());
}

void OutlierFilter::load(const CheckpointReader& checkpoint) {
  const char* name = "recent_gradient_norms";
  const TensorInfo& info = checkpoint.info(name);
  std::vector<double> norms(std::min(info.bytes / sizeof(double), window + 1));
  const bool fits = info.dtype == "float64" && info.shape.size() == 1 && norms.size() <= window;
  if (fits) checkpoint.read(name, norms.data(), norms.size() * sizeof(double));
  if (!fits || !std::all_of(norms.begin(), norms.end(), [](double norm) { return std::isfinite(norm) && norm >= 0; }))
    throw UserError("{}: '{}' is not what Furlong saves: up to {} finite norms in float64; use an earlier checkpoint",
                    checkpoint.path().string(), name, window);
  recent_norms_.assign(norms.begin(), norms.end());
}

}  // namespace furlong
