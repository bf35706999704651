#include "trainers/settings/process_checks.h"

#include "framework/core/error.h"
#include "layers/attention/mechanism.h"

namespace furlong {
namespace {

/// What a sequence of which each process has a segment cannot have.
void check_sequence_processes(const Settings& settings, const ProcessCount& count) {
  const std::int64_t processes = settings.parallel.sequence_processes;
  if (processes == 1) return;
  const std::string key = fmt::format("parallel.sequence_processes: {}", processes);
  if (count.processes % processes != 0) throw UserError("{}: {}, which is no multiple of it", key, count.found);
  if (settings.data.sequence_length % processes != 0)
    throw UserError("{}: data.sequence_length: {} does not divide into as many segments", key,
                    settings.data.sequence_length);
  const auto refuse = [&](bool condition, std::string_view what, std::string_view why) {
    if (condition) throw UserError("{} cannot be with {}: {}", key, what, why);
  };
  const layers::ModelConfig& model = settings.model;
  const layers::AttentionConfig& attention = model.attention;
  using Mechanism = layers::MechanismInfo;
  refuse(
      layers::first_mechanism(attention, &Mechanism::exchanges_segments, false) ||
          !attention.layer_mechanisms.empty() || !attention.head_mechanisms.empty(),
      "attention other than model.attention.mechanism: " +
          config::join(layers::mechanisms_where([](const Mechanism& one) { return one.exchanges_segments; }), " or "),
      "only its state has one size whatever the length of a segment");
  refuse(attention.window > 0, "model.attention.window", "keys near a border lie in another process");
  refuse(model.short_convolution > 0, "model.short_convolution", "tokens before a border lie in another process");
  refuse(settings.objective.learns_labels(), std::string("objective.name: ") + name_of(settings.objective.name),
         "a label belongs to a whole sequence");
  refuse(settings.data.sampler == "documents" && settings.data.padding == "longest", "data.padding: longest",
         "segments have one length");
}

}  // namespace

void check_process_settings(const Settings& settings, const ProcessCount& count) {
  const auto& [processes, found, verb] = count;
  if (settings.parallel.engine == "none")
    throw UserError("parallel.engine: none trains in one process, but {}; {} one, or set it to auto", found, verb);
  if (settings.teacher.teaches())
    throw UserError("teacher.loss: {}: {}, and a model learns from a teacher in one; {} one", settings.teacher.loss,
                    found, verb);
  if (settings.data.carry_state)
    throw UserError("data.carry_state: true: {}, and states are carried in one; {} one, or set it to false", found,
                    verb);
  check_sequence_processes(settings, count);
  const std::int64_t rows = processes / settings.parallel.sequence_processes;
  if (settings.data.batch_size < rows)
    throw UserError("data.batch_size: {}: {}, which share the samples of each batch; raise it to {} or {} fewer",
                    settings.data.batch_size, found, rows, verb);
  if (settings.data.sampler == "stream" && settings.data.batch_size % rows != 0)
    throw UserError(
        "data.batch_size: {}: {}, and data.sampler: stream gives each as many rows; expected a multiple of {}",
        settings.data.batch_size, found, rows);
}

void check_one_process(const Settings& settings) {
  if (settings.parallel.sequence_processes > 1)
    throw UserError(
        "parallel.sequence_processes: {}: there is one process; start a multiple of that many, or set it to 1",
        settings.parallel.sequence_processes);
}

void refuse_segments_on_gpu(const Settings& settings, const std::string& instead) {
  if (settings.parallel.sequence_processes > 1)
    throw UserError("parallel.sequence_processes: {}: segments are exchanged between CPUs alone; set it to 1, or {}",
                    settings.parallel.sequence_processes, instead);
}

}  // namespace furlong
