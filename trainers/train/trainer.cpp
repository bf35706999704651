#include "trainers/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "framework/core/log.h"
#include "framework/core/trace.h"
#include "framework/ops/optimizer/step_control.h"
#include "framework/primitives/arithmetic.h"
#include "trainers/train/optimizer/schedule.h"
#include "trainers/train/trainer_parts.h"

namespace furlong {
namespace {

constexpr std::size_t outlier_window = 64;  // steps whose median norm is the measure
constexpr std::size_t outlier_minimum = 16;

/// Whether rows are as long as the longest of their batch.
bool pads_to_longest(const Settings& settings) {
  return settings.data.padding == "longest" &&
         (settings.data.sampler == "documents" || settings.objective.learns_labels());
}

}  // namespace

Trainer::Trainer(const Settings& settings, const Dataset& data, const Device& device, std::optional<DType> compute,
                 const ProcessGroup* group)
    : data_(data),
      device_(device),
      work_share_(group, static_cast<int>(settings.parallel.sequence_processes)),
      group_(work_share_.group()),
      share_(work_share_.samples(settings.data.batch_size)),
      teacher_(make_teacher(settings, data.vocabulary(), device, compute)),
      model_(make_model(settings, data.vocabulary(), device, compute, frozen_by(teacher_))),
      optimizer_((share_work(), make_optimizer())),
      numbers_(Tensor::zeros({ops::step_numbers}, DType::float64, device)),
      n_compared_(Tensor::zeros({1}, DType::float64, device)),
      graph_(device),
      input_queue_(device.is_gpu() ? std::make_unique<InputQueue>(device) : nullptr),
      source_(training_source(settings, model_.vocabulary, data)) {
  for (std::int64_t i = 0; settings.data.carry_state && i < settings.trainer.gradient_accumulation; ++i)
    carried_.emplace_back(*model_.decoder, settings.data.batch_size);
  require(!group_ || carried_.empty(), "carried states are for one process");
}

void Trainer::gradients(const std::vector<Batch>& batches, bool checks) {
  if (teacher_) {
    lessons(batches, checks);
    return;
  }
  ops::CrossEntropyOptions loss_options;
  loss_options.device_normalizer = numbers_.narrow(0, ops::step_normalizer, 1);
  model_.store->forget_gradients();
  Tape tape(model_.stream);
  tape.set_checks(checks);
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const Batch& batch = batches[i];
    const std::int64_t rows = batch.batch / share_.samples;  // of a sample
    const std::int64_t first_row =
        (static_cast<std::int64_t>(i) * model_.settings.data.batch_size + share_.first) * rows;
    layers::ForwardContext context{tape, true, static_cast<std::uint64_t>(model_.settings.seed),
                                   static_cast<std::uint32_t>(steps_), static_cast<std::uint64_t>(first_row)};
    context.device_step = numbers_.narrow(0, ops::step_of_run, 1);
    context.denominators = &denominators_;
    work_share_.put_into(context, batch);
    layers::GenerationState* carried = carried_.empty() ? nullptr : &carried_[i].begin(context, batch);
    const auto loss = [&] {
      const trace::Span span("compute", "forward");
      return loss_of(model_, context, inputs_[i], loss_options, carried);
    }();
    ops::add(tape.stream(), numbers_.narrow(0, ops::step_loss, 1).reshape({}), loss.loss.value(),
             GradientMode::accumulate);
    const bool reduces = reducer_ && !checks;  // looking for a culprit, each process looks at its own
    if (reduces && i + 1 == batches.size()) reducer_->begin(tape);
    const trace::Span span("compute", "backward");
    tape.backward(loss.loss);
  }
  model_.store->complete_gradients(tape.stream());
  if (reducer_ && !checks) reducer_->finish(tape.stream());
}

void Trainer::lessons(const std::vector<Batch>& batches, bool checks) {
  model_.store->forget_gradients();
  Tape tape(model_.stream);
  tape.set_checks(checks);
  Lesson lesson;
  lesson.share = 1.0 / static_cast<double>(batches.size());
  lesson.loss = numbers_.narrow(0, ops::step_loss, 1).reshape({});
  lesson.n_targets = numbers_.narrow(0, ops::step_normalizer, 1);
  lesson.n_compared = n_compared_;
  lesson.step = steps_;
  std::uint64_t first_sample = 0;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    layers::ForwardContext context{tape, true, static_cast<std::uint64_t>(model_.settings.seed),
                                   static_cast<std::uint32_t>(steps_), first_sample};
    context.device_step = numbers_.narrow(0, ops::step_of_run, 1);
    context.denominators = &denominators_;
    if (!compared_.empty()) lesson.compared = compared_[i];
    const trace::Span span("compute", "lesson");
    teacher_->teach(model_, context, inputs_[i], lesson);
    first_sample += static_cast<std::uint64_t>(batches[i].batch);
  }
  model_.store->complete_gradients(tape.stream());
}

std::int64_t Trainer::count_lessons(const StepData& data) {
  if (data.compared.empty()) return 0;
  std::int64_t count = 0;
  for (const std::vector<std::int32_t>& compared : data.compared) count += count_compared(compared);
  n_compared_.copy_from(Tensor::from(std::vector<double>{static_cast<double>(std::max<std::int64_t>(count, 1))}, {1}));
  return count;
}

std::vector<InputPart> Trainer::input_parts_of(const StepData& data) {
  std::vector<InputPart> parts;
  inputs_.resize(data.batches.size());
  compared_.resize(data.compared.size());
  for (std::size_t i = 0; i < data.batches.size(); ++i) {
    for (const InputPart& part : input_parts(data.batches[i], inputs_[i])) parts.push_back(part);
    if (!data.compared.empty())
      parts.push_back({&data.compared[i], {data.batches[i].batch, data.batches[i].n}, &compared_[i]});
  }
  return parts;
}

Trainer::StepData Trainer::take_data() {
  const bool is_ahead = prefetched_ && prefetched_at_ == samples_drawn_;
  StepData data = is_ahead ? std::move(*prefetched_) : read_data();
  prefetched_.reset();
  if (input_queue_ && !is_ahead) input_queue_->send(input_parts_of(data));
  samples_drawn_ +=
      static_cast<std::uint64_t>(model_.settings.data.batch_size * model_.settings.trainer.gradient_accumulation);
  return data;
}

void Trainer::fetch_ahead() {
  if (!input_queue_ || steps_ + 1 >= model_.settings.trainer.max_steps) return;
  prefetched_ = read_data();
  prefetched_at_ = samples_drawn_;
  input_queue_->send(input_parts_of(*prefetched_));
}

void Trainer::take_turn() {
  const std::optional<Turn> turn = teacher_->turn(steps_);
  if (turn)
    optimizer_.restrict_to(
        [layer = turn->layer](const Parameter& parameter) { return Teacher::in_attention(parameter, layer); });
}

void Trainer::redraw() {
  const std::optional<Turn> before = teacher_ ? teacher_->turn(steps_ - 1) : std::nullopt;
  model_.redraw(steps_, before ? std::optional(before->layer) : std::nullopt);
}

StepReport Trainer::step(bool stop_requested) {
  const auto start = std::chrono::steady_clock::now();
  const trace::Span span("step", "step", {.step = steps_ + 1});
  const Settings& settings = model_.settings;
  if (steps_ > 0) redraw();  // the first directions and constants are the model's own, or came with its weights
  split_sums();
  const StepData data = take_data();
  const std::vector<Batch>& batches = data.batches;

  denominators_ = {};
  StepReport report;
  const std::optional<Turn> turn = teacher_ ? teacher_->turn(steps_) : std::nullopt;
  // Each turn goes through the whole schedule.
  report.learning_rate =
      learning_rate(settings, turn ? (steps_ - turn->first) * settings.trainer.max_steps / turn->length : steps_);
  for (const Batch& batch : batches) {
    report.tokens += batch.n_tokens;
    report.targets += batch.n_targets;
  }
  combine(report);
  write_numbers(report, stop_requested);
  std::string shapes = turn ? fmt::format("layer {}; ", turn->layer) : "";
  if (turn) take_turn();
  const std::int64_t compared = count_lessons(data);
  if (input_queue_) {
    input_queue_->receive(input_parts_of(data));
  } else {
    put_on_device(input_parts_of(data), device_);
  }
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const DeviceBatch& input = inputs_[i];
    shapes += fmt::format("{} x {}, {} labels{}{}{}; ", batches[i].batch, batches[i].n, batches[i].labels.size(),
                          input.targets.defined() ? ", targets" : "", input.mask.keys.defined() ? ", masked" : "",
                          input.mask.documents.defined() ? ", documents" : "");
  }
  if (may_record()) {
    const trace::Span recorded("step", "recorded step");
    graph_.run(shapes, [&] { work(batches); });
  } else {
    work(batches);
  }

  fetch_ahead();  // while the device works
  const std::vector<double> numbers = [&] {
    const trace::Span waiting("step", "wait for the device");
    return numbers_.to_vector<double>();  // here the host waits for what the step found
  }();
  if (communicator_) communicator_->check();
  report.stops = numbers[ops::step_stops] != 0;
  report.denominators = std::move(denominators_.gather());
  counts_denominators_ = counts_denominators_ || report.denominators.rows > 0;
  combine(report.denominators);
  report.loss = numbers[ops::step_loss];
  report.gradient_norm = numbers[ops::step_gradient_norm];
  if (!std::isfinite(report.loss) || !std::isfinite(report.gradient_norm))
    name_the_culprit(batches, report.loss, report.gradient_norm);
  const bool has_loss = report.targets > 0 || compared > 0 || settings.teacher.transfers();
  if (!has_loss) report.loss = MetricsRecord::not_measured;
  report.skipped = numbers[ops::step_skipped] != 0;
  if (!report.skipped) optimizer_.count_step(static_cast<std::int64_t>(numbers[ops::step_number]));
  note_norm(report.gradient_norm);
  ++steps_;
  tokens_ += report.tokens;
  seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

Trainer::StepData Trainer::read_data() const {
  const trace::Span span("data", "read data");
  const Settings& settings = model_.settings;
  const std::int64_t samples = settings.data.batch_size;
  StepData data;
  for (std::int64_t i = 0; i < settings.trainer.gradient_accumulation; ++i) {
    const std::uint64_t first = samples_drawn_ + static_cast<std::uint64_t>(i * samples);
    data.batches.push_back(source_->batch(first + static_cast<std::uint64_t>(share_.first), share_.samples));
    // As long as in one process, since dropout counts elements. That takes no longer: all wait for the one with the
    // longest anyway.
    if (group_ && pads_to_longest(settings)) widen(data.batches.back(), source_->batch(first, samples).n);
    data.batches.back() =
        work_share_.cut(data.batches.back(), settings.objective.which() == ObjectiveSettings::Name::next_token);
    if (teacher_ && !settings.teacher.transfers())
      data.compared.push_back(compared_tokens(settings, data.batches.back()));
  }
  return data;
}

void Trainer::work(const std::vector<Batch>& batches) {
  gradients(batches, false);
  const Stream& stream = model_.stream;
  combine_sums(stream);
  const trace::Span span("step", "optimizer");
  sum_squares(stream);
  ops::control_step(stream, numbers_);
  optimizer_.step(stream, ops::adamw_numbers(numbers_));
}

/// Carried states come with positions of their own, and denominators are counted by the host, in each step anew. NCCL's
/// work could be recorded, which was not measured.
bool Trainer::may_record() const {
  return device_.is_gpu() && !group_ && model_.settings.trainer.cuda_graph && carried_.empty() && !counts_denominators_;
}

void Trainer::write_numbers(const StepReport& report, bool stop_requested) {
  std::vector<double> numbers(ops::step_numbers, 0.0);
  numbers[ops::step_learning_rate] = report.learning_rate;
  numbers[ops::step_normalizer] = static_cast<double>(std::max<std::int64_t>(report.targets, 1));
  numbers[ops::step_of_run] = static_cast<double>(steps_);
  // In a turn its own steps count: its moments begin at zero.
  const std::optional<Turn> turn = teacher_ ? teacher_->turn(steps_) : std::nullopt;
  numbers[ops::step_number] = static_cast<double>(turn ? steps_ - turn->first + 1 : optimizer_.steps() + 1);
  numbers[ops::step_gradient_clip] = model_.settings.optimizer.gradient_clip;
  numbers[ops::step_outlier_threshold] = outlier_threshold();
  numbers[ops::step_stops] = stop_requested ? 1 : 0;
  numbers_.copy_from(Tensor::from(numbers, {ops::step_numbers}));
}

double Trainer::outlier_threshold() const {
  const double factor = model_.settings.trainer.skip_outlier_factor;
  if (factor == 0 || recent_norms_.size() < outlier_minimum) return 0;
  std::vector<double> sorted(recent_norms_.begin(), recent_norms_.end());
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return factor * *middle;
}

void Trainer::note_norm(double gradient_norm) {
  if (model_.settings.trainer.skip_outlier_factor == 0) return;
  // Outliers count too: where norms rise for good the median follows, and the run does not skip every step that comes.
  recent_norms_.push_back(gradient_norm);
  if (recent_norms_.size() > outlier_window) recent_norms_.pop_front();
}

void Trainer::name_the_culprit(const std::vector<Batch>& batches, double loss, double gradient_norm) {
  const std::string what = fmt::format("step {}: loss {}, gradient norm {}", steps_ + 1, loss, gradient_norm);
  for (const Parameter& parameter : model_.store->parameters()) {
    if (const std::int64_t bad = ops::count_non_finite(Stream{device_}, parameter.master()); bad > 0) {
      throw NonFiniteError(fmt::format("{}: {} of {} values of the parameter {} were no longer finite before this step",
                                       what, bad, parameter.master().elements(), parameter.name()));
    }
  }
  graph_.forget();  // a second step needs its memory
  // The same step again, each value looked at as it is made. (States that are carried are by now those after it: what
  // was not finite in them is found as well.)
  try {
    gradients(batches, true);
  } catch (const NonFiniteError& error) {
    throw NonFiniteError(fmt::format(
        "{}. The first op that made it: {}. A lower optimizer.learning_rate, a longer warmup or float32 may help", what,
        error.what()));
  }
  if (group_) group_->barrier();  // does not come to pass where another process has found the op
  throw NonFiniteError(what +
                       ": each value was finite when the step was run again with checks; their squares overflowed");
}

Evaluation Trainer::validate() {
  const trace::Span span("validation", "validation", {.step = steps_});
  const Optimizer::WithAverages averaged(optimizer_);
  const Settings& settings = model_.settings;
  const auto measure = [&] {
    if (teacher_)
      return teacher_->evaluate(model_, data_, Split::validation, settings.data.sequence_length,
                                settings.data.batch_size, settings.trainer.validation_batches);
    return evaluate(model_, data_, Split::validation, settings.data.sequence_length, settings.data.batch_size,
                    settings.trainer.validation_batches, {}, work_share_);
  };
  if (!graph_.holds_memory()) return measure();
  try {
    return measure();
  } catch (const MachineError&) {
    graph_.forget();  // what the recorded step holds may be what is missing
    return measure();
  }
}

bool Trainer::note_validation(double loss) {
  last_validation_ = loss;
  validated_at_ = steps_;
  if (loss < best_validation_) {
    best_validation_ = loss;
    without_improvement_ = 0;
    return true;
  }
  ++without_improvement_;
  return false;
}

}  // namespace furlong
