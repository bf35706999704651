#include "trainers/train/step_input.h"

#include "framework/core/trace.h"
#include "trainers/train/distillation/teacher.h"

namespace furlong {
namespace {

/// Returns whether rows are padded to the longest row of their batch.
bool pads_to_longest(const Settings& settings) {
  return settings.data.padding == "longest" &&
         (settings.data.sampler == "documents" || settings.objective.learns_labels());
}

/// Returns whether the teacher's loss needs compared_tokens(). In attention transfer only segments, the last window of
/// a pass and rows of the copy task do: their padding is not masked.
bool compares_tokens(const Settings& settings) {
  const DataSettings& data = settings.data;
  return settings.teacher.has_loss() && (!settings.teacher.is_attention_transfer() || data.sampler == "stream" ||
                                         data.sampler == "sequential" || data.task == "copy");
}

}  // namespace

StepInput::StepInput(const Settings& settings, const Vocabulary& vocabulary, const Dataset& data, const Device& device)
    : settings_(settings),
      device_(device),
      source_(training_source(settings, vocabulary, data)),
      queue_(device.is_gpu() ? std::make_unique<InputQueue>(device) : nullptr) {}

StepInput::Step StepInput::read(const WorkShare& work) const {
  const trace::Span span("data", "read data");
  const std::int64_t samples = settings_.data.batch_size;
  const SampleShare share = work.samples(samples);
  Step step;
  for (std::int64_t i = 0; i < settings_.trainer.gradient_accumulation; ++i) {
    const std::uint64_t first = samples_drawn_ + static_cast<std::uint64_t>(i * samples);
    step.batches.push_back(source_->batch(first + static_cast<std::uint64_t>(share.first), share.samples));
    Batch& batch = step.batches.back();
    // Rows have the same length as with one process, because dropout counts elements. This costs no time: all ranks
    // wait for the longest row anyway.
    if (work.group() && pads_to_longest(settings_)) widen(batch, source_->batch(first, samples).n);
    batch = work.cut(batch, settings_.objective.name == Objective::next_token);
    if (compares_tokens(settings_)) step.compared.push_back(compared_tokens(settings_, batch));
  }
  return step;
}

std::vector<InputPart> StepInput::parts_of(const Step& step) {
  std::vector<InputPart> parts;
  inputs_.resize(step.batches.size());
  compared_.resize(step.compared.size());
  for (std::size_t i = 0; i < step.batches.size(); ++i) {
    for (const InputPart& part : input_parts(step.batches[i], inputs_[i])) parts.push_back(part);
    if (!step.compared.empty())
      parts.push_back({&step.compared[i], {step.batches[i].batch, step.batches[i].n}, &compared_[i]});
  }
  return parts;
}

const StepInput::Step& StepInput::next(const WorkShare& work) {
  const bool is_ahead = prefetched_ && prefetched_at_ == samples_drawn_;
  step_ = is_ahead ? std::move(*prefetched_) : read(work);
  prefetched_.reset();
  if (queue_ && !is_ahead) queue_->send(parts_of(step_));
  samples_drawn_ += static_cast<std::uint64_t>(settings_.data.batch_size * settings_.trainer.gradient_accumulation);
  return step_;
}

void StepInput::load() {
  if (queue_) {
    queue_->receive(parts_of(step_));
  } else {
    put_on_device(parts_of(step_), device_);
  }
}

void StepInput::prefetch(const WorkShare& work) {
  if (!queue_) return;
  prefetched_ = read(work);
  prefetched_at_ = samples_drawn_;
  queue_->send(parts_of(*prefetched_));
}

std::string StepInput::shapes() const {
  std::string shapes;
  for (std::size_t i = 0; i < step_.batches.size(); ++i) {
    const Batch& batch = step_.batches[i];
    const DeviceBatch& input = inputs_[i];
    shapes +=
        fmt::format("{} x {}, {} labels, {} values{}{}{}; ", batch.batch, batch.n, batch.labels.size(),
                    batch.values.size(), input.targets.defined() ? ", targets" : "",
                    input.mask.keys.defined() ? ", masked" : "", input.mask.documents.defined() ? ", documents" : "");
  }
  return shapes;
}

}  // namespace furlong
