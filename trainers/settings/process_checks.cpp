#include "trainers/settings/process_checks.h"

#include "framework/core/error.h"
#include "layers/attention/mechanism.h"

namespace furlong {
namespace {

/// Checks settings that sequences divided among ranks do not support.
void check_context_parallel_size(const Settings& settings, const ProcessCount& count) {
  const std::int64_t processes = settings.parallel.context_parallel_size;
  if (processes == 1) return;
  const std::string key = fmt::format("parallel.context_parallel_size: {}", processes);
  if (count.processes % processes != 0)
    throw UserError("{}: {}; expected a multiple of parallel.context_parallel_size", key, count.found);
  if (settings.data.sequence_length % processes != 0)
    throw UserError("{}: data.sequence_length: {} is not a multiple of it; change one of the two", key,
                    settings.data.sequence_length);
  const auto refuse = [&](bool condition, std::string_view what, std::string_view why) {
    if (condition) throw UserError("{} cannot be combined with {}: {}", key, what, why);
  };
  const layers::ModelConfig& model = settings.model;
  const layers::AttentionConfig& attention = model.attention;
  using Mechanism = layers::MechanismInfo;
  refuse(
      layers::first_mechanism(attention, &Mechanism::exchanges_segments, false) ||
          !attention.layer_mechanisms.empty() || !attention.head_mechanisms.empty(),
      "attention other than model.attention.mechanism: " +
          config::join(layers::mechanisms_where([](const Mechanism& one) { return one.exchanges_segments; }), " or "),
      "only its state has a fixed size");
  refuse(attention.window > 0, "model.attention.window", "keys near a segment boundary are on another rank");
  refuse(model.short_convolution > 0, "model.short_convolution",
         "tokens before a segment boundary are on another rank");
  refuse(settings.objective.learns_labels(), std::string("objective.name: ") + name_of(settings.objective.name),
         "a label needs the whole sequence on one rank");
  refuse(settings.data.sampler == "documents" && settings.data.padding == "longest", "data.padding: longest",
         "all segments must have the same length");
}

}  // namespace

void check_process_settings(const Settings& settings, const ProcessCount& count) {
  const auto& [processes, found, verb] = count;
  if (settings.parallel.backend == "none")
    throw UserError("parallel.backend: none supports one process only, but {}; {} one, or set it to auto", found, verb);
  if (settings.teacher.has_loss())
    throw UserError("teacher.loss: {}: {}, but distillation supports one process only; {} one", settings.teacher.loss,
                    found, verb);
  if (settings.data.stateful)
    throw UserError(
        "data.stateful: true: {}, but stateful training supports one process only; {} one, or set it to false", found,
        verb);
  check_context_parallel_size(settings, count);
  const std::int64_t rows = processes / settings.parallel.context_parallel_size;
  if (settings.data.batch_size < rows)
    throw UserError("data.batch_size: {}: {}, which divide each batch; raise it to at least {}, or {} fewer",
                    settings.data.batch_size, found, rows, verb);
  if (settings.data.sampler == "stream" && settings.data.batch_size % rows != 0)
    throw UserError(
        "data.batch_size: {}: {}, and data.sampler: stream needs equally many rows for each; expected a multiple of {}",
        settings.data.batch_size, found, rows);
}

void check_one_process(const Settings& settings) {
  if (settings.parallel.context_parallel_size > 1)
    throw UserError(
        "parallel.context_parallel_size: {}: found one process; start a multiple of that number, or set it to 1",
        settings.parallel.context_parallel_size);
}

void refuse_segments_on_gpu(const Settings& settings, const std::string& instead) {
  if (settings.parallel.context_parallel_size > 1)
    throw UserError("parallel.context_parallel_size: {}: supported on CPUs only; set it to 1, or {}",
                    settings.parallel.context_parallel_size, instead);
}

}  // namespace furlong
