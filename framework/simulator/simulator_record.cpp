#include "framework/simulator/simulator_record.h"

#include <optional>
#include <utility>

#include "framework/core/error.h"

namespace furlong::simulator {
namespace {

std::optional<std::vector<std::function<void()>>>& recorded() {
  static std::optional<std::vector<std::function<void()>>> work;
  return work;
}

}  // namespace

bool is_recording() { return recorded().has_value(); }

bool record(std::function<void()> work) {
  if (!recorded()) return false;
  recorded()->push_back(std::move(work));
  return true;
}

void begin_recording() {
  require(!recorded(), "recording is already in progress");
  recorded().emplace();
}

std::vector<std::function<void()>> end_recording() {
  require(recorded().has_value(), "no recording is in progress");
  return *std::exchange(recorded(), std::nullopt);
}

}  // namespace furlong::simulator
