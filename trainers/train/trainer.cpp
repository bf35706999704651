#include "trainers/train/trainer.h"

#include <algorithm>
#include <cmath>

#include "framework/core/clock.h"
#include "framework/core/trace.h"
#include "framework/ops/optimizer/step_control.h"
#include "framework/primitives/arithmetic.h"
#include "trainers/train/optimizer/learning_rate.h"

namespace furlong {

Trainer::Trainer(const Settings& settings, const Dataset& data, const Device& device, std::optional<DType> compute,
                 const ProcessGroup* group, bool draws)
    : data_(data),
      teacher_(make_teacher(settings, data.vocabulary(), device, compute)),
      model_(draws ? make_model(settings, data.vocabulary(), device, compute, frozen_by(teacher_))
                   : make_empty_model(settings, data.vocabulary(), device, compute, frozen_by(teacher_))),
      parallel_(settings, *model_.store, device, group),
      optimizer_(parallel_.make_optimizer(settings)),
      input_(settings, model_.vocabulary, data, device),
      numbers_(Tensor::zeros({ops::step_numbers}, DType::float64, device)),
      graph_(device),
      outliers_(settings.trainer.skip_outlier_factor),
      early_stopping_(settings.trainer.early_stopping_patience) {
  require(!teacher_ || !parallel_.group(), "a teacher needs a single process");
  require(!settings.data.stateful || !parallel_.group(), "stateful training needs a single process");
  for (std::int64_t i = 0; settings.data.stateful && i < settings.trainer.gradient_accumulation; ++i)
    recurrent_states_.emplace_back(*model_.decoder, settings.data.batch_size);
}

StepReport Trainer::step(bool stop_requested) {
  const auto start = Clock::now();
  const trace::Span span("step", "step", {.step = steps_ + 1});
  redraw();
  parallel_.split_sums();
  const StepInput::Step& data = input_.next(parallel_.work());
  const std::optional<LayerInterval> interval = teacher_ ? teacher_->layer_interval(steps_) : std::nullopt;
  if (teacher_) teacher_->begin_step(steps_, data.compared, optimizer_);
  if (interval && interval->first == steps_) outliers_.forget();  // those of another layer

  StepReport report;
  for (const Batch& batch : data.batches) {
    report.tokens += batch.n_tokens;
    report.targets += batch.n_targets;
  }
  parallel_.combine(report.tokens, report.targets);
  const std::int64_t max_steps = model_.settings.trainer.max_steps;
  // Each layer's interval covers the whole schedule, from its first step to its last one.
  report.learning_rate = learning_rate(model_.settings, interval ? (steps_ - interval->first) * (max_steps - 1) /
                                                                       std::max<std::int64_t>(interval->length - 1, 1)
                                                                 : steps_);
  write_numbers(report, interval, stop_requested);
  input_.load();
  denominators_ = {};

  const auto work = [&] {  // on the device
    const Stream& stream = model_.stream;
    gradients(data.batches, false);
    parallel_.combine_sums(stream);
    const trace::Span optimizing("step", "optimizer");
    parallel_.combine_numbers(stream, optimizer_, numbers_);
    ops::control_step(stream, numbers_);  // clips, or skips an outlier
    optimizer_.step(stream, ops::adamw_numbers(numbers_));
  };
  if (may_record()) {
    const trace::Span recorded("step", "recorded step");
    graph_.run((interval ? fmt::format("layer {}; ", interval->layer) : "") + input_.shapes(), work);
  } else {
    work();
  }
  if (steps_ + 1 < max_steps) input_.prefetch(parallel_.work());  // while the device works

  const std::vector<double> numbers = [&] {
    const trace::Span waiting("step", "wait for the device");
    return numbers_.to_vector<double>();  // waits for the device
  }();
  parallel_.check();
  report.loss = numbers[ops::step_loss];
  report.gradient_norm = numbers[ops::step_gradient_norm];
  report.skipped = numbers[ops::step_skipped] != 0;
  report.stops = numbers[ops::step_stops] != 0;
  report.denominators = std::move(denominators_.gather());
  counts_denominators_ = counts_denominators_ || report.denominators.rows > 0;
  parallel_.combine(report.denominators);
  if (!std::isfinite(report.loss) || !std::isfinite(report.gradient_norm))
    throw_non_finite(data.batches, report.loss, report.gradient_norm);
  const bool has_loss = report.targets > 0 || (teacher_ && teacher_->has_loss());
  if (!has_loss) report.loss = MetricsRecord::not_measured;
  if (!report.skipped) optimizer_.count_step(static_cast<std::int64_t>(numbers[ops::step_number]));
  outliers_.note(report.gradient_norm);
  ++steps_;
  tokens_ += report.tokens;
  seconds_ += seconds_since(start);
  return report;
}

void Trainer::redraw() {
  if (steps_ == 0) return;  // the first projections and constants come with the model or its weights
  const std::optional<LayerInterval> before = teacher_ ? teacher_->layer_interval(steps_ - 1) : std::nullopt;
  model_.redraw(steps_, before ? std::optional(before->layer) : std::nullopt);
}

void Trainer::write_numbers(const StepReport& report, const std::optional<LayerInterval>& interval,
                            bool stop_requested) {
  std::vector<double> numbers(ops::step_numbers, 0.0);
  numbers[ops::step_learning_rate] = report.learning_rate;
  numbers[ops::step_normalizer] = static_cast<double>(std::max<std::int64_t>(report.targets, 1));
  numbers[ops::step_of_run] = static_cast<double>(steps_);
  // Layer-wise: the bias correction counts the layer's own steps, because its moments start at zero.
  numbers[ops::step_number] = static_cast<double>(interval ? steps_ - interval->first + 1 : optimizer_.steps() + 1);
  numbers[ops::step_gradient_clip] = model_.settings.optimizer.gradient_clip;
  numbers[ops::step_outlier_threshold] = outliers_.threshold();
  numbers[ops::step_stops] = stop_requested ? 1 : 0;
  numbers_.copy_from(Tensor::from(numbers, {ops::step_numbers}));
}

/// Recurrent states bring new positions, and the host counts denominators, in each step.
bool Trainer::may_record() const {
  return model_.stream.device.is_gpu() && model_.settings.trainer.cuda_graph && recurrent_states_.empty() &&
         !counts_denominators_;
}

void Trainer::gradients(const std::vector<Batch>& batches, bool checks) {
  const Settings& settings = model_.settings;
  const Stream& stream = model_.stream;
  const SampleShare share = parallel_.work().samples(settings.data.batch_size);
  const Tensor step_loss = numbers_.narrow(0, ops::step_loss, 1).reshape({});
  ops::CrossEntropyOptions loss_options;
  loss_options.device_normalizer = numbers_.narrow(0, ops::step_normalizer, 1);
  const bool reduces = !checks;  // the search for a non-finite op is local to each rank

  model_.store->forget_gradients();
  parallel_.abandon_reduction();  // of a step whose recording failed
  Tape tape(stream);
  tape.set_checks(checks);
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const Batch& batch = batches[i];
    const std::int64_t rows = batch.batch / share.samples;  // per sample
    const std::int64_t first_row = (static_cast<std::int64_t>(i) * settings.data.batch_size + share.first) * rows;
    layers::ForwardContext context{tape, true, static_cast<std::uint64_t>(settings.seed),
                                   static_cast<std::uint32_t>(steps_), static_cast<std::uint64_t>(first_row)};
    if (batches.size() > 1) context.longest_row = settings.data.sequence_length;
    context.device_step = numbers_.narrow(0, ops::step_of_run, 1);
    context.denominators = &denominators_;
    if (teacher_) {
      const trace::Span span("compute", "distillation");
      teacher_->accumulate_loss(model_, context, input_.on_device(i),
                                {1.0 / static_cast<double>(batches.size()), step_loss, loss_options.device_normalizer,
                                 input_.compared_on_device(i), steps_});
      continue;
    }
    parallel_.work().put_into(context, batch);
    layers::GenerationState* carried =
        recurrent_states_.empty() ? nullptr : &recurrent_states_[i].begin(context, batch);
    const auto loss = [&] {
      const trace::Span span("compute", "forward");
      return loss_of(model_, context, input_.on_device(i), loss_options, carried);
    }();
    ops::add(stream, step_loss, loss.loss.value(), GradientMode::accumulate);
    if (reduces && i + 1 == batches.size()) parallel_.begin_reduction(tape);
    const trace::Span span("compute", "backward");
    tape.backward(loss.loss);
  }
  model_.store->complete_gradients(stream);
  if (reduces) parallel_.finish_reduction(stream);
}

void Trainer::throw_non_finite(const std::vector<Batch>& batches, double loss, double gradient_norm) {
  const std::string what = fmt::format("step {}: loss {}, gradient norm {}", steps_ + 1, loss, gradient_norm);
  for (const Parameter& parameter : model_.store->parameters()) {
    if (const std::int64_t bad = ops::count_non_finite(model_.stream, parameter.master()); bad > 0) {
      throw NonFiniteError(fmt::format("{}: {} of {} values of parameter {} were not finite before this step", what,
                                       bad, parameter.master().elements(), parameter.name()));
    }
  }
  graph_.forget();  // the step below needs its memory
  // Repeats the step and checks every result. Recurrent states are already those after the step; non-finite values in
  // them are found as well.
  try {
    gradients(batches, true);
  } catch (const NonFiniteError& error) {
    throw NonFiniteError(
        fmt::format("{}. First op with a non-finite result: {}. A lower optimizer.learning_rate, a longer warmup or "
                    "float32 may help",
                    what, error.what()));
  }
  if (parallel_.group()) parallel_.group()->barrier();  // does not complete if another rank has found the op
  throw NonFiniteError(
      what + ": every value was finite when the step was rerun with checks, but the sum of squares overflowed");
}

Evaluation Trainer::validate() {
  const trace::Span span("validation", "validation", {.step = steps_});
  const Optimizer::WithEma averaged(optimizer_);
  const Settings& settings = model_.settings;
  const auto measure = [&] {
    if (teacher_)
      return teacher_->evaluate(model_, data_, Split::validation, settings.data.sequence_length,
                                settings.data.batch_size, settings.trainer.validation_batches);
    return furlong::validate(model_, data_, parallel_.work());
  };
  if (!graph_.holds_memory()) return measure();
  try {
    return measure();
  } catch (const MachineError&) {
    // The recording may hold the missing memory. On GPUs, ranks exchange only sums after the last batch, so one of them
    // may measure again.
    graph_.forget();
    return measure();
  }
}

}  // namespace furlong
