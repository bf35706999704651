#include "trainers/train/run/step_forecast.h"

#include <optional>
#include <utility>

#include "framework/core/arena.h"
#include "trainers/model/recurrent_state.h"
#include "trainers/train/distillation/teacher.h"
#include "trainers/train/parallel/data_parallel.h"

namespace furlong {
namespace {

/// Stands in for WorkShare's exchange on the shape-only device: allocates the same tensors and records the bytes that
/// would be sent. It acts as the last segment, whose positions are largest.
class SegmentExchangeEstimate final : public ops::SegmentExchange {
 public:
  SegmentExchangeEstimate(std::int64_t processes, const DeviceBatch& batch)
      : processes_(processes),
        rows_(batch.inputs.extent(0)),
        n_(batch.inputs.extent(1)),
        packs_documents_(batch.mask.documents.defined()) {}

  void put_into(layers::ForwardContext& context) {
    context.positions = Tensor::empty({rows_, n_}, DType::int32, context.stream().device);
    context.exchange = this;
  }
  /// Returns the bytes of each state exchanged since the last call.
  std::vector<std::int64_t> take_exchanged_bytes() { return std::exchange(exchanged_bytes_, {}); }

  void exchange_keys(const Stream& stream, ops::LinearAttentionState& state, bool /*causal*/) override {
    exchange(stream, state);
  }
  void exchange_queries(const Stream& stream, ops::LinearAttentionState& state, bool /*causal*/) override {
    exchange(stream, state);
  }
  std::vector<std::int64_t> open_document_tokens() const override {
    return std::vector<std::int64_t>(static_cast<std::size_t>(packs_documents_ ? rows_ : 0), first_position());
  }
  std::int64_t first_position() const override { return (processes_ - 1) * n_; }
  std::int64_t sequence_length() const override { return processes_ * n_; }

 private:
  void exchange(const Stream& stream, ops::LinearAttentionState& state) {
    exchanged_bytes_.push_back(state.bytes());
    const Tensor all = gathered(stream, state.bytes());
    state = ops::empty_like(stream, state);
  }
  /// Allocates the states of all ranks; during the copy, one more.
  Tensor gathered(const Stream& stream, std::int64_t bytes) const {
    const Tensor own = Tensor::empty({bytes}, DType::uint8, stream.device);
    return Tensor::empty({processes_ * bytes}, DType::uint8, stream.device);
  }

  std::int64_t processes_, rows_, n_;
  bool packs_documents_;
  std::vector<std::int64_t> exchanged_bytes_;
};

/// A batch whose rows all start new documents.
Batch fresh_rows(const Settings& settings) {
  Batch fresh;
  fresh.batch = settings.data.batch_size;
  fresh.n = settings.data.sequence_length;
  fresh.fresh.assign(static_cast<std::size_t>(fresh.batch), 1);
  return fresh;
}

/// Returns the settings of the largest share among `processes` ranks.
Settings largest_share(const Settings& whole, int processes) {
  Settings settings = whole;
  if (processes == 1) return settings;
  const std::int64_t rows = processes / whole.parallel.context_parallel_size;
  settings.data.batch_size = (whole.data.batch_size + rows - 1) / rows;
  settings.data.sequence_length /= whole.parallel.context_parallel_size;
  return settings;
}

}  // namespace

StepForecast forecast_step(const Settings& whole, const Vocabulary& vocabulary, int processes) {
  const Settings settings = largest_share(whole, processes);
  const Device device{DeviceType::shape_only, 0};
  Arena& memory = arena(device);
  const std::int64_t before = memory.counters().bytes_in_use;
  memory.reset_peak();
  const std::unique_ptr<Teacher> teacher = make_teacher(settings, vocabulary, device, std::nullopt);
  Model model = make_model(settings, vocabulary, device, std::nullopt, frozen_by(teacher));
  const DType travels = processes > 1 ? dtype_from_name(settings.parallel.gradient_dtype) : model.store->master_dtype();
  const ShardLayout layout(*model.store, bucket_elements(settings.parallel, travels), processes);
  const Optimizer optimizer =
      processes > 1 && settings.parallel.zero_stage
          ? Optimizer(settings.optimizer, *model.store, 0, layout.ranges(0), [](const Stream&, const Tensor&) {})
          : Optimizer(settings.optimizer, *model.store);
  const Tensor exchanged = travels == model.store->master_dtype()
                               ? Tensor()
                               : Tensor::empty(model.store->gradients().shape(), travels, device);
  Tape tape(Stream{device});
  layers::ForwardContext context{tape, true};
  ops::DenominatorReport denominators;
  context.denominators = &denominators;
  std::vector<RecurrentState> carried;
  for (std::int64_t i = 0; settings.data.stateful && i < settings.trainer.gradient_accumulation; ++i)
    carried.emplace_back(*model.decoder, settings.data.batch_size);
  const Batch fresh = fresh_rows(settings);
  StepForecast forecast;
  // The inputs of all accumulated batches are on the device at once.
  const std::int64_t accumulated = settings.trainer.gradient_accumulation,
                     before_input = memory.counters().bytes_in_use;
  const DeviceBatch batch =
      largest_batch(settings, static_cast<std::int64_t>(model.vocabulary.labels().size()), device);
  const std::int64_t input_bytes = memory.counters().bytes_in_use - before_input;
  const Tensor other_inputs =
      accumulated > 1 ? Tensor::empty({accumulated - 1, input_bytes}, DType::uint8, device) : Tensor();
  // With gradient accumulation the second batch adds to existing gradients, which can need more memory; later batches
  // repeat it.
  for (std::int64_t i = 0; i < std::min<std::int64_t>(accumulated, 2); ++i) {
    if (teacher) {
      const auto number = [&](const Shape& shape) { return Tensor::empty(shape, DType::float64, device); };
      teacher->accumulate_loss(model, context, batch, {1, number({}), number({1}), batch.targets, 0});
      continue;
    }
    SegmentExchangeEstimate segments(settings.parallel.context_parallel_size, batch);
    if (processes > 1 && settings.parallel.context_parallel_size > 1) segments.put_into(context);
    layers::GenerationState* past =
        carried.empty() ? nullptr : &carried[static_cast<std::size_t>(i)].begin(context, fresh);
    const ops::CrossEntropyResult loss = loss_of(model, context, batch, {}, past);
    forecast.forward_states = segments.take_exchanged_bytes();
    tape.backward(loss.loss);
    forecast.backward_states = segments.take_exchanged_bytes();
  }
  forecast.peak_bytes = memory.counters().peak_bytes - before;
  return forecast;
}

std::int64_t predicted_peak_bytes(const Settings& settings, const Vocabulary& vocabulary, int processes) {
  return forecast_step(settings, vocabulary, processes).peak_bytes;
}

std::int64_t predicted_copy_bytes(const Settings& settings, const Vocabulary& vocabulary, int processes) {
  const Device device{DeviceType::shape_only, 0};
  const std::unique_ptr<Teacher> teacher = make_teacher(settings, vocabulary, device, std::nullopt);
  const Model model = make_model(settings, vocabulary, device, std::nullopt, frozen_by(teacher));
  const ParameterStore& store = *model.store;
  std::int64_t trained = store.values().elements(), bytes = 0;
  if (processes > 1) {
    trained = 0;
    const ShardLayout layout(
        store, bucket_elements(settings.parallel, dtype_from_name(settings.parallel.gradient_dtype)), processes);
    for (const OwnedRange& range : layout.ranges(0)) trained += range.elements();
  }
  for (const Parameter& parameter : store.parameters())
    if (!store.is_trained(parameter)) bytes += parameter.master().bytes();
  const int kinds = settings.optimizer.ema_decay > 0 ? 4 : 3;  // values, two moments, EMA
  return bytes + trained * kinds * size_of(store.master_dtype());
}

}  // namespace furlong
