#include "trainers/train/run/run_memory.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "framework/core/arena.h"
#include "framework/core/error.h"
#include "framework/core/gpu_engine.h"
#include "framework/core/log.h"
#include "framework/core/machine.h"
#include "trainers/train/run/step_forecast.h"

namespace furlong {
namespace {

double in_gibibytes(std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

/// Estimates the memory of the step and of the copy. Returns false if it is more than can be counted.
bool count_needs(const Settings& settings, const Vocabulary& vocabulary, int processes, MemoryShare& share) {
  const layers::ModelConfig& model = settings.model;
  const auto widest = static_cast<double>(
      std::max({model.d_model, model.attention.n_heads * model.attention.d_head, model.d_feedforward}));
  // A single activation of this size could have more elements than 64 bits can count.
  if (static_cast<double>(settings.data.batch_size) * static_cast<double>(settings.data.sequence_length) * widest >
      static_cast<double>(arena(Device{DeviceType::shape_only, 0}).capacity()))
    return false;
  try {
    share.step = predicted_peak_bytes(settings, vocabulary, processes);
    share.copy = predicted_copy_bytes(settings, vocabulary, processes);
    return true;
  } catch (const MachineError&) {
    return false;  // exceeds even the shape-only device, which only counts
  }
}

}  // namespace

std::int64_t reusable_bytes(const Device& device) {
  const bool separate = parse_arena_blocks(std::getenv("FURLONG_SEPARATE_TENSORS")) == ArenaBlocks::separate;
  if (device.is_gpu() && separate) return 0;  // the driver has them
  const ArenaCounters counters = arena(device).counters();
  return counters.system_bytes - counters.bytes_in_use;
}

bool check_memory(const Settings& settings, const Vocabulary& vocabulary, const Device& device,
                  const ProcessGroup& group) {
  MemoryShare share;
  const bool is_countable = count_needs(settings, vocabulary, group.size(), share);
  share.is_one_memory = device.has_host_memory();
  share.on_host = static_cast<std::int64_t>(read_machine().memory.available) / group.environment().local_world_size;
  if (share.on_host > 0) share.on_host += reusable_bytes(Device{});
  share.on_device = device.type == DeviceType::cuda
                        ? require_gpu_engine(device.type).describe(device.index).free_bytes + reusable_bytes(device)
                        : share.on_host;
  log_debug("estimated memory: step {} MiB of {} MiB available, checkpoint copy {} MiB", share.step >> 20,
            share.on_device >> 20, share.copy >> 20);
  if (!is_countable || !share.fits_step()) {
    const std::string found =
        is_countable ? fmt::format("{:.1f} GiB", in_gibibytes(share.step))
                     : fmt::format("more than {} TiB", arena(Device{DeviceType::shape_only, 0}).capacity() >> 40);
    throw UserError(
        "this configuration needs {} for tensors, but {:.1f} GiB are available on {}. Lower data.sequence_length, or "
        "data.batch_size with a higher trainer.gradient_accumulation, or set trainer.activation_checkpointing: blocks",
        found, in_gibibytes(share.on_device), device.text());
  }
  std::array<double, 1> has_room{share.fits_copy() ? 1.0 : 0.0};
  group.minimum(has_room);  // also waits until all ranks have checked
  if (!settings.checkpoint.async) return false;
  if (has_room[0] == 0 && group.is_first())
    log_warn(
        "checkpoint.async: a copy of the checkpoint ({:.1f} GiB) does not fit in memory together with a step; "
        "checkpoints are written synchronously",
        in_gibibytes(share.copy));
  return has_room[0] != 0;
}

}  // namespace furlong
