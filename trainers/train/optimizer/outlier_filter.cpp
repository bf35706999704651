#include "trainers/train/optimizer/outlier_filter.h"

#include <algorithm>
#include <span>
#include <vector>

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
  std::vector<double> norms(checkpoint.info("recent_gradient_norms").bytes / sizeof(double));
  checkpoint.read("recent_gradient_norms", norms.data(), norms.size() * sizeof(double));
  recent_norms_.assign(norms.begin(), norms.end());
}

}  // namespace furlong
