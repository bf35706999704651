#include "evaluation/data_change.h"

#include <system_error>

#include "framework/core/log.h"
#include "trainers/train/data_checks.h"

namespace furlong {
namespace {

/// Returns whether `given` is the one dataset that the model was trained on, by any path.
bool is_own(const std::filesystem::path& given, const DataSettings& own) {
  const auto sources = own.mixture();
  std::error_code missing;
  return sources.size() == 1 && std::filesystem::equivalent(given, sources.front().dataset, missing);
}

}  // namespace

std::optional<bool> has_changed_since_training(const CheckpointReader& checkpoint, const DataSettings& own,
                                               const std::filesystem::path& given, const Dataset& data, Split split) {
  if (!given.empty() && !is_own(given, own)) return std::nullopt;
  const std::optional<bool> changed = was_trained_on_other_data(checkpoint, data);
  if (changed.value_or(false))
    log_warn("{}: was trained on other data than {} contains now{}; restore the data for comparable results",
             checkpoint.path().string(), data.path(),
             split == Split::train ? "" : fmt::format("; its {} split may hold training data", name_of(split)));
  return changed;
}

}  // namespace furlong
