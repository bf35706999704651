#include "trainers/train/run/run_memory.h"

#include <algorithm>
#include <array>

#include "framework/core/arena.h"
#include "framework/core/error.h"
#include "framework/core/gpu_engine.h"
#include "framework/core/log.h"
#include "framework/core/machine.h"
#include "trainers/train/run/step_forecast.h"

namespace furlong {
namespace {

double in_gibibytes(std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

/// What the step and the copy take; nothing where that is more than can be counted.
bool count_needs(const Settings& settings, const Vocabulary& vocabulary, int processes, MemoryShare& share) {
  const layers::ModelConfig& model = settings.model;
  const auto widest = static_cast<double>(
      std::max({model.d_model, model.attention.n_heads * model.attention.d_head, model.d_feedforward}));
  // A single activation beyond what can be counted may have more elements than 64 bits hold: then nothing is tried.
  if (static_cast<double>(settings.data.batch_size) * static_cast<double>(settings.data.sequence_length) * widest >
      static_cast<double>(arena(Device{DeviceType::shape_only, 0}).capacity()))
    return false;
  try {
    share.step = predicted_peak_bytes(settings, vocabulary, processes);
    share.copy = predicted_copy_bytes(settings, vocabulary, processes);
    return true;
  } catch (const MachineError&) {
    return false;  // not even the shape-only device, which only counts, has room for it
  }
}

}  // namespace

bool check_memory(const Settings& settings, const Vocabulary& vocabulary, const Device& device,
                  const ProcessGroup& group) {
  MemoryShare share;
  const bool is_countable = count_needs(settings, vocabulary, group.size(), share);
  share.is_one_memory = device.has_host_memory();
  share.on_host = static_cast<std::int64_t>(read_machine().memory.available) / group.environment().local_world_size;
  share.on_device = device.type == DeviceType::cuda ? require_gpu_engine(device.type).describe(device.index).free_bytes
                                                    : share.on_host;
  log_debug("one step will take {} MiB for tensors of {} MiB available, a copy of a checkpoint {} MiB",
            share.step >> 20, share.on_device >> 20, share.copy >> 20);
  if (!is_countable || !share.fits_step()) {
    const std::string found =
        is_countable ? fmt::format("{:.1f} GiB", in_gibibytes(share.step))
                     : fmt::format("more than {} TiB", arena(Device{DeviceType::shape_only, 0}).capacity() >> 40);
    throw UserError(
        "this configuration needs {} for tensors and {:.1f} GiB are available on {}; lower data.batch_size or "
        "data.sequence_length, use trainer.recompute: blocks, or raise trainer.gradient_accumulation with a smaller "
        "batch",
        found, in_gibibytes(share.on_device), device.text());
  }
  std::array<double, 1> has_room{share.fits_copy() ? 1.0 : 0.0};
  group.minimum(has_room);  // and all have looked
  if (!settings.checkpoint.background) return false;
  if (has_room[0] == 0 && group.is_first())
    log_warn(
        "checkpoint.background: a copy of what a checkpoint holds ({:.1f} GiB) does not fit into memory beside a step; "
        "training waits while checkpoints are written",
        in_gibibytes(share.copy));
  return has_room[0] != 0;
}

}  // namespace furlong
