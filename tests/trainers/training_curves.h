#pragma once
// Results by which trainings are compared: curves of losses, and weights.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "tests/trainers/parallel_testing.h"
#include "trainers/train/trainer.h"

namespace furlong::parallel_testing {

/// Loss, gradient norm, tokens and targets of each step; every tenth step loss, targets and accuracy of a validation.
inline void train_some(Trainer& trainer, int steps, const Report& report) {
  for (int i = 1; i <= steps; ++i) {
    const StepReport found = trainer.step();
    report.add(
        {found.loss, found.gradient_norm, static_cast<double>(found.tokens), static_cast<double>(found.targets)});
    if (i % 10 != 0) continue;
    const Evaluation validation = trainer.validate();
    const double accuracy = std::isnan(validation.accuracy) ? 0 : validation.accuracy;  // numbers have none
    report.add({validation.loss, static_cast<double>(validation.targets), accuracy});
  }
}

/// The number of these values, and how many of them are accuracies.
inline std::size_t accuracies_of(int steps) { return static_cast<std::size_t>(steps / 10); }
inline std::size_t numbers_of(int steps) { return 4 * static_cast<std::size_t>(steps) + 3 * accuracies_of(steps); }
inline std::vector<double> without_accuracies(const std::vector<double>& curve) {
  std::vector<double> rest;
  for (std::size_t i = 0; i < curve.size(); ++i) {
    if ((i + 1) % numbers_of(10) != 0) rest.push_back(curve[i]);
  }
  return rest;
}

inline std::vector<double> values_of(const Tensor& tensor) {
  if (tensor.dtype() == DType::float64) return tensor.to_vector<double>();
  const auto widened = [](const auto& narrow) {
    std::vector<double> all;
    for (const auto& value : narrow) all.push_back(static_cast<double>(static_cast<float>(value)));
    return all;
  };
  return tensor.dtype() == DType::bfloat16 ? widened(tensor.to_vector<bfloat16>()) : widened(tensor.to_vector<float>());
}

/// The curve, then the compute weights and, if every rank has all of them, the master weights.
inline World::Body training(const Settings& settings, std::optional<DType> compute, int steps) {
  return [=](ProcessGroup& group, const Report& report) {
    const auto data = open_data(settings.data);
    Trainer trainer(settings, *data, Device{}, compute, &group);
    train_some(trainer, steps, report);
    const ParameterStore& store = *trainer.model().store;
    report.add(values_of(store.compute_values()));
    if (!settings.parallel.zero_stage) report.add(values_of(store.values()));
  };
}

/// The largest relative difference between the first `count` numbers of two curves.
inline double difference(const std::vector<double>& found, const std::vector<double>& expected, std::size_t count) {
  if (found.size() < count || expected.size() < count) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double apart = std::abs(found[i] - expected[i]) / std::max(std::abs(expected[i]), 1e-3);
    largest = std::max(largest, std::isfinite(apart) ? apart : std::numeric_limits<double>::infinity());
  }
  return largest;
}

}  // namespace furlong::parallel_testing
