#include "framework/core/arena.h"
#include "trainers/trainer.h"
#include "trainers/trainer_parts.h"

namespace furlong {

std::int64_t predicted_peak_bytes(const Settings& whole, const Vocabulary& vocabulary, int processes) {
  Settings settings = whole;
  const std::int64_t rows = processes / std::min<std::int64_t>(processes, whole.parallel.sequence_processes);
  settings.data.batch_size = (whole.data.batch_size + rows - 1) / rows;  // the largest share
  if (processes > 1) settings.data.sequence_length /= whole.parallel.sequence_processes;
  const Device device{DeviceType::shape_only, 0};
  Arena& memory = arena(device);
  const std::int64_t before = memory.counters().bytes_in_use;
  memory.reset_peak();
  const std::unique_ptr<Teacher> teacher = make_teacher(settings, vocabulary, device, std::nullopt);
  Model model = make_model(settings, vocabulary, device, std::nullopt, frozen_by(teacher));
  const DType travels = processes > 1 ? dtype_from_name(settings.parallel.gradient_dtype) : model.store->master_dtype();
  const ShardLayout layout(*model.store, bucket_elements(settings.parallel, travels), processes);
  const Optimizer optimizer = processes > 1 && settings.parallel.shard_optimizer
                                  ? Optimizer(settings.optimizer, *model.store, 0, layout.ranges(0), [](const Stream&, const Tensor&) {})
                                  : Optimizer(settings.optimizer, *model.store);
  const Tensor travelling =
      travels == model.store->master_dtype() ? Tensor() : Tensor::empty(model.store->gradients().shape(), travels, device);
  Tape tape(Stream{device});
  layers::ForwardContext context{tape, true};
  std::vector<CarriedState> carried;
  for (std::int64_t i = 0; settings.data.carry_state && i < settings.trainer.gradient_accumulation; ++i)
    carried.emplace_back(*model.decoder, settings.data.batch_size);
  Batch fresh;
  fresh.batch = settings.data.batch_size;
  fresh.n = settings.data.sequence_length;
  fresh.fresh.assign(static_cast<std::size_t>(fresh.batch), 1);
  // Of accumulated batches the second adds to gradients that are there already, which can take more; the others repeat it.
  for (std::int64_t i = 0; i < std::min<std::int64_t>(settings.trainer.gradient_accumulation, 2); ++i) {
    if (teacher) {
      const DeviceBatch batch = largest_batch(settings, device);
      const auto number = [&](const Shape& shape) { return Tensor::empty(shape, DType::float64, device); };
      teacher->teach(model, context, batch, {1, number({}), number({1}), batch.targets, number({1}), 0});
      continue;
    }
    layers::GenerationState* past = carried.empty() ? nullptr : &carried[static_cast<std::size_t>(i)].begin(context, fresh);
    tape.backward(loss_of(model, context, largest_batch(settings, device), {}, past).loss);
  }
  return memory.counters().peak_bytes - before;
}

std::int64_t predicted_copy_bytes(const Settings& settings, const Vocabulary& vocabulary, int processes) {
  const Device device{DeviceType::shape_only, 0};
  const std::unique_ptr<Teacher> teacher = make_teacher(settings, vocabulary, device, std::nullopt);
  const Model model = make_model(settings, vocabulary, device, std::nullopt, frozen_by(teacher));
  const ParameterStore& store = *model.store;
  std::int64_t trained = store.values().elements(), bytes = 0;
  if (processes > 1) {
    trained = 0;
    const ShardLayout layout(store, bucket_elements(settings.parallel, dtype_from_name(settings.parallel.gradient_dtype)), processes);
    for (const OwnedRange& range : layout.ranges(0)) trained += range.elements();
  }
  for (const Parameter& parameter : store.parameters())
    if (!store.is_trained(parameter)) bytes += parameter.master().bytes();
  const int kinds = settings.optimizer.ema_decay > 0 ? 4 : 3;  // values, two moments, averages
  return bytes + trained * kinds * size_of(store.master_dtype());
}

}  // namespace furlong
