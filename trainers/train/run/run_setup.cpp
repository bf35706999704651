#include "trainers/train/run/run_setup.h"

#include "framework/core/log.h"
#include "framework/core/parallel.h"
#include "trainers/model/objective.h"
#include "trainers/settings/process_checks.h"
#include "trainers/train/data_checks.h"
#include "trainers/train/parallel/process_devices.h"
#include "trainers/train/run/run_memory.h"

namespace furlong {
namespace {

/// furlong launch prefixes the lines of its ranks itself.
std::string log_prefix(const ProcessGroup& group) {
  return group.is_alone() || group.environment().launcher == "furlong" ? "" : fmt::format("[rank {}] ", group.rank());
}

void check_processes(const Settings& settings, const Device& device, const ProcessGroup& group) {
  if (group.is_alone()) return check_one_process(settings);
  const LaunchEnvironment& environment = group.environment();
  check_process_settings(
      settings, {group.size(),
                 fmt::format("the launcher ({}) started {} processes", environment.launcher, group.size()), "start"});
  check_process_devices(settings.parallel.backend, device, group);
  if (device.is_gpu()) refuse_segments_on_gpu(settings, "set device: cpu");
  log_info("rank {} of {} on {}: {}, {} thread{}, {}", group.rank(), group.size(), environment.host, device.text(),
           thread_count(), thread_count() == 1 ? "" : "s", environment.launcher);
  if (!group.is_first() && (settings.log.level == "info" || settings.log.level == "debug"))
    configure_logging("warning", log_prefix(group));
  group.device_communicator(device);  // before free memory is measured: it needs some itself
}

std::unique_ptr<Dataset> open_named_data(const DataSettings& data) {
  try {
    return open_data(data);
  } catch (const UserError& error) {
    if (data.dataset.empty()) throw;
    throw UserError("data.dataset: {}", error.what());
  }
}

}  // namespace

RunSetup set_up_run(const LoadedSettings& loaded, const TrainOptions& options, const ProcessGroup& group,
                    const std::string& program) {
  check_same_program(group, program);
  const Settings& settings = loaded.settings;
  RunSetup setup;
  setup.data = open_named_data(settings.data);
  if (!settings.finetune.source.empty())
    throw UserError("finetune.source: {}: this config finetunes a model in stages; run it with furlong finetune",
                    settings.finetune.source.string());
  configure_logging(settings.log.level, log_prefix(group));
  if (group.is_first()) log_warnings(loaded);
  const int default_threads = group.default_threads();  // a collective: all ranks call it, even if `threads` is set
  set_thread_count(settings.threads > 0 ? static_cast<int>(settings.threads) : default_threads);
  setup.device = device_of_process(settings.device, group.environment());
  check_processes(settings, setup.device, group);
  check_agreement(group, settings, *setup.data, &options);
  check_against_data(loaded, *setup.data);
  if (const std::string warning = setup.data->vocabulary().prompt_warning(settings.trainer.sample_prompt);
      group.is_first() && settings.trainer.sample_tokens > 0 && !warning.empty())
    log_warn("trainer.sample_prompt: {}", warning);
  setup.copies_checkpoints = check_memory(settings, setup.data->vocabulary(), setup.device, group);
  return setup;
}

}  // namespace furlong
