#include "evaluation/plan/plan.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "framework/core/arena.h"
#include "framework/core/error.h"
#include "trainers/checkpoint/shard_layout.h"
#include "trainers/model/model.h"
#include "trainers/settings/process_checks.h"
#include "trainers/train/run/step_forecast.h"

namespace furlong {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// Throws UserError for settings that furlong train rejects or that plan does not support.
void check_sharing(const Settings& settings, int devices, PlanDeviceKind kind) {
  if (!settings.finetune.source.empty())
    throw UserError(
        "finetune.source: {}: furlong plan does not support furlong finetune; expected a config for furlong train",
        settings.finetune.source.string());
  if (settings.teacher.has_loss())
    throw UserError("teacher.loss: {}: furlong plan does not support a teacher; set it to none to plan without one",
                    settings.teacher.loss);
  if (devices == 1) return check_one_process(settings);
  check_process_settings(settings, {devices, fmt::format("the plan is for {} devices", devices), "plan for"});
  if (kind == PlanDeviceKind::gpu) refuse_segments_on_gpu(settings, "plan for --device cpu");
}

/// Returns the settings of one context-parallel group with `samples` samples and no data parallelism.
Settings of_one_row(const Settings& settings, std::int64_t samples) {
  Settings row = settings;
  row.data.batch_size = samples;
  row.parallel.zero_stage = false;
  row.parallel.gradient_dtype = "float32";
  return row;
}

/// Returns the peak bytes of tensors on one rank, without the effects of ZeRO-1 and of the gradient exchange. Returns
/// infinity if they cannot be counted.
double peak_bytes(const Settings& settings, const Vocabulary& vocabulary, std::int64_t samples, bool recompute) {
  Settings local = of_one_row(settings, samples);
  if (recompute) local.trainer.activation_checkpointing = layers::ActivationCheckpointing::blocks;
  const layers::ModelConfig& model = local.model;
  const auto widest = static_cast<double>(
      std::max({model.d_model, model.attention.n_heads * model.attention.d_head, model.d_feedforward}));
  const auto countable = static_cast<double>(arena(Device{DeviceType::shape_only, 0}).capacity());
  if (static_cast<double>(samples) * static_cast<double>(tokens_of_segment(local)) * widest > countable)
    return infinity;
  try {
    return static_cast<double>(
        forecast_step(local, vocabulary, static_cast<int>(local.parallel.context_parallel_size)).peak_bytes);
  } catch (const MachineError&) {
    return infinity;
  }
}

/// The model without memory, and sizes that depend only on its parameters.
class Shapes {
 public:
  Shapes(const Settings& settings, const Vocabulary& vocabulary)
      : settings_(settings),
        memory_(arena(Device{DeviceType::shape_only, 0})),
        before_(memory_.counters().bytes_in_use),
        model_(make_shapes(vocabulary)) {
    bytes_ = static_cast<double>(memory_.counters().bytes_in_use - before_);
  }

  const ParameterStore& store() const { return *model_.store; }
  const Vocabulary& vocabulary() const { return model_.vocabulary; }
  DType gradient_dtype() const { return dtype_from_name(settings_.parallel.gradient_dtype); }
  ShardLayout layout(int devices) const {
    return {store(), settings_.parallel.bucket_megabytes * 1'000'000 / size_of(gradient_dtype()), devices};
  }

  /// Returns the number of elements that one device updates.
  double updated(PlanSharing sharing, int devices) const {
    if (sharing == PlanSharing::data_parallel || devices == 1) return static_cast<double>(store().values().elements());
    std::int64_t elements = 0;
    for (const OwnedRange& range : layout(devices).ranges(0)) elements += range.elements();
    return static_cast<double>(elements);
  }
  double optimizer_bytes(PlanSharing sharing, int devices) const {
    const int tensors =
        settings_.optimizer.ema_decay > 0 ? 4 : 2;  // moments; with EMA also the averages and a backup of the values
    return updated(sharing, devices) * tensors * static_cast<double>(size_of(store().master_dtype()));
  }
  /// Returns the bytes of parameters that are not trained.
  double frozen_bytes() const {
    double bytes = 0;
    for (const Parameter& parameter : store().parameters())
      if (!store().is_trained(parameter)) bytes += static_cast<double>(parameter.master().bytes());
    return bytes;
  }
  double exchange_bytes(int devices) const {
    if (devices == 1 || gradient_dtype() == store().gradients().dtype()) return 0;
    return static_cast<double>(store().values().elements() * size_of(gradient_dtype()));
  }
  /// Returns the memory of each part. `peak` is the peak on a single device.
  PlanMemory memory(double peak, PlanSharing sharing, int devices) const {
    PlanMemory memory;
    memory.gradients = static_cast<double>(store().gradients().bytes());
    memory.parameters = bytes_ - memory.gradients;
    memory.exchange = exchange_bytes(devices);
    memory.optimizer = optimizer_bytes(sharing, devices);
    memory.activations = peak - bytes_ - optimizer_bytes(PlanSharing::data_parallel, 1);
    return memory;
  }

  std::vector<PlanBucket> buckets(int devices, std::size_t n_stages) const {
    const ShardLayout shared = layout(devices);
    std::vector<PlanBucket> buckets;
    for (const ShardLayout::Bucket& range : shared.buckets()) {
      PlanBucket bucket{static_cast<double>(range.end - range.begin), static_cast<double>(range.part * devices),
                        n_stages - 1};
      for (const Parameter* parameter : range.parameters)
        bucket.stage = std::min(bucket.stage, plan_stage_of(parameter->name(), n_stages));
      buckets.push_back(bucket);
    }
    return buckets;
  }

 private:
  Model make_shapes(const Vocabulary& vocabulary) const {
    return make_model(settings_, vocabulary, Device{DeviceType::shape_only, 0});
  }

  const Settings& settings_;
  Arena& memory_;
  std::int64_t before_;
  Model model_;
  double bytes_ = 0;
};

/// Returns the communication of context parallelism in a step.
PlanSegments segments_of(const Settings& settings, const Vocabulary& vocabulary, const PlanReport& report) {
  PlanSegments segments;
  segments.ranks = static_cast<int>(settings.parallel.context_parallel_size);
  segments.tokens = tokens_of_segment(settings);
  if (segments.ranks == 1) return segments;
  // The size of states does not depend on the length of segments and is proportional to the samples: measure one sample
  // with one token per rank.
  Settings shortest = of_one_row(settings, 1);
  shortest.data.sequence_length = segments.ranks;
  const StepForecast forecast = forecast_step(shortest, vocabulary, segments.ranks);
  const auto gather = [&](double bytes, double& seconds) {
    segments.bytes += bytes;
    seconds += row_gather_seconds(report.device, report.cluster, segments.ranks, segments.ranks * bytes);
  };
  const auto exchange = [&](const std::vector<std::int64_t>& states, double& seconds) {
    for (const std::int64_t state : states) {
      const double bytes = static_cast<double>(state * report.samples);
      gather(bytes, seconds);
      segments.state_bytes = std::max(segments.state_bytes, bytes);
      ++segments.exchanges;
    }
  };
  for (std::int64_t batch = 0; batch < settings.trainer.gradient_accumulation; ++batch) {
    // Documents that cross segment boundaries: three numbers per sample.
    if (settings.data.packing == "documents")
      gather(static_cast<double>(3 * sizeof(std::int32_t)) * static_cast<double>(report.samples), segments.forward);
    exchange(forecast.forward_states, segments.forward);
    exchange(forecast.backward_states, segments.backward);
  }
  return segments;
}

/// Returns the communication of one step: buckets during the last backward, then all that never overlaps.
PlanExchange exchange_of(const Shapes& shapes, const PlanReport& report, PlanSharing sharing,
                         const std::vector<double>& backward) {
  const PlanCluster& cluster = report.cluster;
  if (cluster.devices() == 1) return {};
  const auto gradient = static_cast<double>(size_of(shapes.gradient_dtype()));
  const auto value = static_cast<double>(size_of(shapes.store().compute_dtype()));
  const std::vector<PlanBucket> buckets = shapes.buckets(cluster.devices(), backward.size());
  std::vector<double> seconds;
  double gathered = 0;
  for (const PlanBucket& bucket : buckets) {
    if (sharing == PlanSharing::data_parallel) {
      seconds.push_back(all_reduce_seconds(report.device, cluster, bucket.elements * gradient));
      continue;
    }
    const double rest = bucket.elements - bucket.shared;
    seconds.push_back(
        (bucket.shared > 0 ? reduce_scatter_seconds(report.device, cluster, bucket.shared * gradient) : 0) +
        (rest > 0 ? all_reduce_seconds(report.device, cluster, rest * gradient) : 0));
    if (bucket.shared > 0) gathered += all_gather_seconds(report.device, cluster, bucket.shared * value);
  }
  PlanExchange exchange = overlapped(backward, buckets, seconds, report.device.overlap);
  // Number of tokens before the step, loss and norm after it: a few numbers each.
  constexpr double numbers = 3 * sizeof(double);
  exchange.states = report.segments.seconds();
  exchange.busy += exchange.states + gathered + 2 * all_reduce_seconds(report.device, cluster, numbers);
  return exchange;
}

/// Returns the bytes that the optimizer's step reads and writes per updated element.
double update_bytes(const Settings& settings, const ParameterStore& store) {
  constexpr double norm = 4, adamw = 7 * 4,
                   average = 3 * 4;  // reads value, gradient and two moments; writes all but the gradient
  const bool copies = store.compute_dtype() != store.master_dtype();
  return norm + adamw + (copies ? static_cast<double>(size_of(store.compute_dtype())) : 0) +
         (settings.optimizer.ema_decay > 0 ? average : 0);
}

std::vector<std::string> assumptions_of(const PlanReport& report) {
  const PlanDevice& device = report.device;
  std::vector<std::string> list{
      fmt::format("matrix products, with those that backward recomputes, reach {} of the peak", device.utilization),
      fmt::format("memory and connections reach {} of their bandwidth", device.reached)};
  if (report.cluster.devices() > 1) {
    list.emplace_back(device.by_host ? "gradients are reduced inside hosts first, then between hosts"
                                     : "gradients are reduced in one ring through all ranks");
    list.push_back(device.overlap == 0 ? "communication uses the cores that compute: none of it overlaps"
                   : device.overlap == 1
                       ? "communication during backward does not slow it down"
                       : fmt::format("{} of the communication during backward does not slow it down", device.overlap));
  }
  if (report.segments.ranks > 1) {
    list.emplace_back(
        "in each layer, all ranks of a context-parallel group wait for states, and nothing overlaps with it");
    if (device.kind == PlanDeviceKind::unknown)
      list.emplace_back("context parallelism runs only on CPUs: these devices are planned as CPUs");
  }
  list.emplace_back("all sequences have data.sequence_length tokens, and all devices are equally fast");
  list.emplace_back("data loading, validation and checkpoints take no time");
  if (device.reserve > 0)
    list.push_back(fmt::format("{} of memory are reserved for driver, libraries and communication buffers",
                               with_prefix(device.reserve, "B")));
  return list;
}

/// Fills the parts of the report that do not depend on PlanSharing.
PlanReport begin_report(const Settings& settings, const Vocabulary& vocabulary, const Shapes& shapes,
                        const PlanCluster& cluster, const PlanDevice& device) {
  PlanReport report;
  report.cluster = cluster;
  report.device = device;
  if (settings.parallel.context_parallel_size > 1) report.device.by_host = false;  // Gloo's rings
  report.parameters = shapes.store().total_parameter_count();
  report.trained = shapes.store().trained_parameter_count();
  const std::int64_t groups = cluster.devices() / settings.parallel.context_parallel_size,
                     accumulation = settings.trainer.gradient_accumulation;
  report.samples = (settings.data.batch_size + groups - 1) / groups;
  const std::int64_t rows = settings.objective.name == Objective::pair_classification ? 2 : 1;
  report.tokens = settings.data.batch_size * accumulation * rows * settings.data.sequence_length;
  report.segments = segments_of(settings, vocabulary, report);
  if (settings.checkpoint.async) {
    report.checkpoint_copy = static_cast<double>(predicted_copy_bytes(settings, vocabulary, cluster.devices()));
    const double frozen = shapes.frozen_bytes();  // only rank 0 writes them
    report.checkpoint_copy_of_host = frozen + cluster.per_host * (report.checkpoint_copy - frozen);
  }
  report.assumptions = assumptions_of(report);
  return report;
}

class Planner {
 public:
  Planner(const Settings& settings, const Vocabulary& vocabulary, const PlanCluster& cluster, const PlanDevice& device)
      : settings_(settings),
        vocabulary_(vocabulary),
        shapes_(settings, vocabulary),
        report_(begin_report(settings, vocabulary, shapes_, cluster, device)),
        stages_(plan_stages(settings, vocabulary_size(settings, vocabulary),
                            static_cast<std::int64_t>(vocabulary.labels().size()), report_.samples)),
        recomputes_(settings.trainer.activation_checkpointing == layers::ActivationCheckpointing::blocks),
        peak_(peak_bytes(settings, vocabulary, report_.samples, recomputes_)) {
    const double accumulation = static_cast<double>(settings.trainer.gradient_accumulation);
    const auto seconds = [&](double plain, double attention) {
      return (plain / device.flops + attention / device.attention_flops) / device.utilization;
    };
    double flops = 0;
    for (const PlanStage& stage : stages_) {
      forward_ += accumulation * seconds(stage.forward, stage.attention_forward);
      backward_.push_back(seconds(stage.backward, stage.attention_backward));
      flops += stage.forward + stage.backward + stage.attention_forward + stage.attention_backward;
    }
    // Some devices can have one sample less than others.
    report_.flops = accumulation * flops * static_cast<double>(settings.parallel.context_parallel_size) /
                    static_cast<double>(report_.samples) * static_cast<double>(settings.data.batch_size);
    if (cluster.devices() > 1) {
      for (const PlanBucket& bucket : shapes_.buckets(cluster.devices(), stages_.size())) {
        ++report_.n_buckets;
        report_.bucket_bytes =
            std::max(report_.bucket_bytes, bucket.elements * static_cast<double>(size_of(shapes_.gradient_dtype())));
      }
    }
  }

  PlanReport run() {
    for (const PlanSharing sharing : {PlanSharing::data_parallel, PlanSharing::zero_1})
      report_.plans.push_back(plan_of(sharing));
    const Plan& plain = report_.plans[0];
    report_.alone = plain.forward + plain.backward + plain.optimizer;
    return report_;
  }

 private:
  Plan plan_of(PlanSharing sharing) const {
    const PlanDevice& device = report_.device;
    const int devices = report_.cluster.devices();
    Plan plan;
    plan.sharing = sharing;
    plan.memory = shapes_.memory(peak_, sharing, devices);
    plan.available = device.memory - device.reserve;
    plan.forward = forward_;
    plan.backward = std::accumulate(backward_.begin(), backward_.end(), 0.0) *
                    static_cast<double>(settings_.trainer.gradient_accumulation);
    plan.optimizer = shapes_.updated(sharing, devices) * update_bytes(settings_, shapes_.store()) /
                     (device.bandwidth * device.reached);
    plan.exchange = exchange_of(shapes_, report_, sharing, backward_);
    plan.step = plan.forward + plan.backward + plan.optimizer + plan.waited();
    plan.tokens_per_second = static_cast<double>(report_.tokens) / plan.step;
    if (!plan.fits()) {
      const PlanChange now{report_.samples, recomputes_, sharing, devices, report_.segments.ranks};
      plan.would_fit = what_would_fit(now, settings_.data.batch_size, plan.available,
                                      [this](const PlanChange& change) { return bytes_with(change); });
    }
    return plan;
  }

  /// Returns infinity if furlong train rejects the change.
  double bytes_with(const PlanChange& change) const {
    Settings changed = settings_;
    changed.parallel.context_parallel_size = change.context_parallel_size;
    if (change.context_parallel_size != report_.segments.ranks) {
      try {
        check_sharing(changed, change.devices, report_.device.kind);
      } catch (const UserError&) {
        return infinity;
      }
    }
    const double peak = peak_bytes(changed, vocabulary_, change.samples, change.recompute);
    return shapes_.memory(peak, change.sharing, change.devices).total();
  }

  const Settings& settings_;
  const Vocabulary& vocabulary_;
  Shapes shapes_;
  PlanReport report_;
  std::vector<PlanStage> stages_;
  bool recomputes_;
  double peak_;
  double forward_ = 0;            // seconds of a step
  std::vector<double> backward_;  // of each stage, for one batch
};

}  // namespace

const char* name_of(PlanSharing sharing) { return sharing == PlanSharing::zero_1 ? "ZeRO-1" : "data parallel"; }

PlanReport make_plan(const Settings& settings, const Vocabulary& vocabulary, const PlanCluster& cluster,
                     const PlanDevice& device) {
  check_sharing(settings, cluster.devices(), device.kind);
  check_plan_device(device, cluster);
  return Planner(settings, vocabulary, cluster, device).run();
}

}  // namespace furlong
