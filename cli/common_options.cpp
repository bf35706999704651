#include "cli/common_options.h"

#include <nlohmann/json.hpp>

#include "framework/core/version.h"
#include "trainers/model/model.h"

namespace furlong::command_line {

Option add_split(Command command, std::string& split, const std::string& description) {
  return command.add_option("--split", split, description).shows_default().one_of({"train", "validation", "test"});
}

Option add_weights(Command command, std::string& weights) {
  return command
      .add_option("--weights", weights,
                  "ema: the exponential moving average of the weights, if the checkpoint has one; raw: the weights "
                  "themselves")
      .shows_default()
      .one_of({"ema", "raw"});
}

Weights weights_named(const std::string& name) { return name == "raw" ? Weights::raw : Weights::ema_if_present; }

Option add_overrides(Command command, std::vector<std::string>& overrides, const std::string& example) {
  return command
      .add_option("--set", overrides, "Override a key of the config, for example --set " + example + ". Repeatable")
      .value_name("KEY=VALUE")
      .repeatable();
}

Option add_device(Command command, std::string& device) {
  return command.add_option("--device", device, "auto, cpu, cuda or cuda:N")
      .shows_default()
      .value_name("DEVICE")
      .common();
}

Option add_threads(Command command, std::int64_t& threads) {
  return command.add_option("--threads", threads, "CPU threads; 0: OMP_NUM_THREADS, or all cores")
      .shows_default()
      .range(0, 4096)
      .common();
}

Option add_json(Command command, bool& json, const std::string& description) {
  return command.add_flag("--json", json, description).common();
}

nlohmann::ordered_json origin_of(const Model& model) {
  return {{"furlong", {{"version", version()}, {"commit", commit()}}},
          {"checkpoint", model.checkpoint},
          {"step", model.step},
          {"weights", model.has_ema_weights ? "ema" : "raw"}};
}

}  // namespace furlong::command_line
