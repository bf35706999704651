#include "evaluation/label_metrics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <compare>
#include <numeric>

#include "framework/core/error.h"
#include "framework/core/parallel.h"
#include "framework/core/random.h"

namespace furlong {
namespace {

constexpr std::array<const char*, 6> metric_names{"accuracy", "balanced_accuracy", "f1_macro", "mcc", "auroc", "auprc"};
/// Of the resamples, at least, that an interval rests on: those that are left out are not a random part of all.
constexpr double least_share = 0.9;
using MetricValues = std::array<double, metric_names.size()>;

/// Computes all metrics of samples that each count a number of times: once, or as often as a resample draws them.
class MetricComputation {
 public:
  explicit MetricComputation(const ClassScores& given)
      : given_(given),
        classes_(static_cast<std::size_t>(given.n_classes)),
        samples_(given.labels.size()),
        occurs_(classes_),
        found_(classes_) {
    for (std::size_t i = 0; i < samples_; ++i) {
      predicted_.push_back(given.predicted(i));
      occurs_[static_cast<std::size_t>(given.labels[i])] = true;
      found_[static_cast<std::size_t>(predicted_[i])] = true;
    }
    for (std::size_t label = classes_ == 2 ? 1 : 0; label < classes_; ++label) {
      std::vector<std::uint32_t>& order = orders_.emplace_back(samples_);
      std::iota(order.begin(), order.end(), 0u);
      std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
        return std::weak_order(score(b, label), score(a, label)) < 0;
      });
    }
  }

  MetricValues of(const std::vector<std::uint32_t>& counts) const {
    MetricValues values{};
    from_predictions(counts, values);
    double auroc = 0, precision = 0, ranked = 0;
    for (std::size_t i = 0; i < orders_.size(); ++i) {
      const auto [area, average] = from_ranks(counts, classes_ - orders_.size() + i, orders_[i]);
      if (std::isnan(area)) continue;
      auroc += area;
      precision += average;
      ++ranked;
    }
    values[4] = auroc / ranked;
    values[5] = precision / ranked;
    // A mean over fewer classes would not be the metric of all samples: a classifier that is wrong on a rare class
    // seems perfect without it.
    if (!has_all_classes(counts)) values[1] = values[2] = values[4] = values[5] = std::nan("");
    return values;
  }

 private:
  double score(std::size_t sample, std::size_t label) const { return given_.scores[sample * classes_ + label]; }

  bool has_all_classes(const std::vector<std::uint32_t>& counts) const {
    std::vector<bool> missing = occurs_;
    for (std::size_t i = 0; i < samples_; ++i)
      if (counts[i] > 0) missing[static_cast<std::size_t>(given_.labels[i])] = false;
    return std::find(missing.begin(), missing.end(), true) == missing.end();
  }

  void from_predictions(const std::vector<std::uint32_t>& counts, MetricValues& values) const {
    std::vector<double> actual(classes_), predicted(classes_), correct(classes_);
    for (std::size_t i = 0; i < samples_; ++i) {
      const auto label = static_cast<std::size_t>(given_.labels[i]), found = static_cast<std::size_t>(predicted_[i]);
      actual[label] += counts[i];
      predicted[found] += counts[i];
      if (label == found) correct[label] += counts[i];
    }
    double n = 0, hits = 0, recall = 0, recalled = 0, f1 = 0, present = 0, both = 0, of_actual = 0, of_predicted = 0;
    for (std::size_t label = 0; label < classes_; ++label) {
      n += actual[label];
      hits += correct[label];
      if (actual[label] > 0) {
        recall += correct[label] / actual[label];
        ++recalled;
      }
      if (occurs_[label] || found_[label]) {
        f1 += 2 * correct[label] / std::max(1.0, actual[label] + predicted[label]);
        ++present;
      }
      both += actual[label] * predicted[label];
      of_actual += actual[label] * actual[label];
      of_predicted += predicted[label] * predicted[label];
    }
    values[0] = hits / n;
    values[1] = recall / recalled;
    values[2] = f1 / present;
    // Gorodkin 2004, "Comparing two K-category assignments by a K-category correlation coefficient".
    const double variances = (n * n - of_actual) * (n * n - of_predicted);
    values[3] = variances > 0 ? (hits * n - both) / std::sqrt(variances) : 0;
  }

  /// Returns AUROC and average precision of one class against the others; samples with equal scores are one threshold.
  /// NaN if a score is.
  std::pair<double, double> from_ranks(const std::vector<std::uint32_t>& counts, std::size_t label,
                                       const std::vector<std::uint32_t>& order) const {
    double positives = 0, negatives = 0, ordered_pairs = 0, precisions = 0;
    for (std::size_t begin = 0; begin < order.size();) {
      double of_class = 0, of_others = 0;
      const double threshold = score(order[begin], label);
      if (std::isnan(threshold)) return {threshold, threshold};
      do {
        (static_cast<std::size_t>(given_.labels[order[begin]]) == label ? of_class : of_others) += counts[order[begin]];
      } while (++begin < order.size() && score(order[begin], label) == threshold);
      ordered_pairs += of_others * (positives + of_class / 2);
      positives += of_class;
      negatives += of_others;
      if (of_class > 0) precisions += of_class * positives / (positives + negatives);
    }
    if (positives == 0 || negatives == 0) return {std::nan(""), std::nan("")};
    return {ordered_pairs / (positives * negatives), precisions / positives};
  }

  const ClassScores& given_;
  std::size_t classes_, samples_;
  std::vector<bool> occurs_, found_;  // [classes]: whether any sample has this class as its label, as its prediction
  std::vector<std::int32_t> predicted_;
  std::vector<std::vector<std::uint32_t>> orders_;  // of each ranked class: samples from the highest score down
};

/// Interpolates between the two nearest values. `sorted` is not empty.
double quantile(const std::vector<double>& sorted, double share) {
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const double above = sorted[std::min(below + 1, sorted.size() - 1)];
  return sorted[below] + (above - sorted[below]) * (place - static_cast<double>(below));
}

}  // namespace

std::int32_t ClassScores::predicted(std::size_t sample) const {
  const auto first = scores.begin() + static_cast<std::ptrdiff_t>(sample) * n_classes;
  return static_cast<std::int32_t>(std::max_element(first, first + n_classes) - first);
}

std::vector<Metric> class_metrics(const ClassScores& scores, const Bootstrap& bootstrap) {
  const std::size_t n = scores.labels.size();
  require(n > 0 && scores.scores.size() == n * static_cast<std::size_t>(scores.n_classes),
          "{} scores of {} samples and {} classes", scores.scores.size(), n, scores.n_classes);
  const MetricComputation computation(scores);
  const MetricValues values = computation.of(std::vector<std::uint32_t>(n, 1));
  std::vector<MetricValues> resampled(static_cast<std::size_t>(bootstrap.resamples));
  parallel_ranges(bootstrap.resamples, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const RandomKey key{bootstrap.seed, static_cast<std::uint32_t>(i), random_stream("bootstrap")};
      std::vector<std::uint32_t> counts(n);
      // The high half of a product is uniform up to a bias of n / 2^32.
      for (std::size_t k = 0; k < n; ++k) ++counts[random_word(key, k) * std::uint64_t{n} >> 32];
      resampled[static_cast<std::size_t>(i)] = computation.of(counts);
    }
  });
  std::vector<Metric> metrics;
  for (std::size_t metric = 0; metric < values.size(); ++metric) {
    Metric& made = metrics.emplace_back(Metric{.name = metric_names[metric], .value = values[metric]});
    std::vector<double> sorted;
    for (const MetricValues& one : resampled) {
      if (!std::isnan(one[metric])) sorted.push_back(one[metric]);
    }
    if (static_cast<double>(sorted.size()) < least_share * static_cast<double>(bootstrap.resamples)) continue;
    if (sorted.empty()) continue;
    std::sort(sorted.begin(), sorted.end());
    made.low = quantile(sorted, 0.025);
    made.high = quantile(sorted, 0.975);
  }
  return metrics;
}

}  // namespace furlong
