#include "trainers/plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "framework/core/arena.h"
#include "framework/core/error.h"
#include "trainers/model.h"
#include "trainers/process_checks.h"
#include "trainers/shard_layout.h"
#include "trainers/trainer.h"

namespace furlong {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// What furlong train refuses as well.
void check_sharing(const Settings& settings, int devices) {
  if (!settings.finetune.source.empty())
    throw UserError("finetune.source: {}: the stages of furlong finetune, which is not planned; expected a config of furlong train",
                    settings.finetune.source.string());
  if (settings.teacher.teaches())
    throw UserError("teacher.loss: {}: what a teacher takes is not planned; set it to none to plan training without one",
                    settings.teacher.loss);
  if (settings.parallel.sequence_processes > 1)
    throw UserError("parallel.sequence_processes: {}: sequences in segments are not planned yet; set it to 1",
                    settings.parallel.sequence_processes);
  if (devices > 1) check_process_settings(settings, {devices, fmt::format("the plan is for {} devices", devices), "plan for"});
}

/// Peak bytes of tensors in one process alone with `samples` samples at once; infinite where they cannot be counted.
double peak_bytes(const Settings& settings, const Vocabulary& vocabulary, std::int64_t samples, bool recompute) {
  Settings local = settings;
  local.data.batch_size = samples;
  if (recompute) local.trainer.recompute = "blocks";
  const ModelSettings& model = local.model;
  const auto widest = static_cast<double>(std::max({model.d_model, model.n_heads * model.d_head, model.d_feedforward}));
  const auto countable = static_cast<double>(arena(Device{DeviceType::shape_only, 0}).capacity());
  if (static_cast<double>(samples) * static_cast<double>(local.data.sequence_length) * widest > countable) return infinity;
  try {
    return static_cast<double>(predicted_peak_bytes(local, vocabulary));
  } catch (const MachineError&) {
    return infinity;
  }
}

/// The model without memory, and what follows from its parameters.
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

  /// Elements that one device updates.
  double updated(PlanSharing sharing, int devices) const {
    if (sharing == PlanSharing::data_parallel || devices == 1) return static_cast<double>(store().values().elements());
    std::int64_t elements = 0;
    for (const OwnedRange& range : layout(devices).ranges(0)) elements += range.elements();
    return static_cast<double>(elements);
  }
  double optimizer_bytes(PlanSharing sharing, int devices) const {
    const int tensors = settings_.optimizer.ema_decay > 0 ? 4 : 2;  // moments; averages, and room for the values while they are in use
    return updated(sharing, devices) * tensors * static_cast<double>(size_of(store().master_dtype()));
  }
  double exchange_bytes(int devices) const {
    if (devices == 1 || gradient_dtype() == store().gradients().dtype()) return 0;
    return static_cast<double>(store().values().elements() * size_of(gradient_dtype()));
  }
  /// Of all, `peak` being what one device alone takes.
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
      PlanBucket bucket{static_cast<double>(range.end - range.begin), static_cast<double>(range.part * devices), n_stages - 1};
      for (const Parameter* parameter : range.parameters) bucket.stage = std::min(bucket.stage, plan_stage_of(parameter->name(), n_stages));
      buckets.push_back(bucket);
    }
    return buckets;
  }

 private:
  Model make_shapes(const Vocabulary& vocabulary) const { return make_model(settings_, vocabulary, Device{DeviceType::shape_only, 0}); }

  const Settings& settings_;
  Arena& memory_;
  std::int64_t before_;
  Model model_;
  double bytes_ = 0;
};

/// Of one step: reduction of the buckets beside the last backward, then what nothing else goes on beside.
PlanExchange exchange_of(const Shapes& shapes, const PlanReport& report, PlanSharing sharing, const std::vector<double>& backward) {
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
    seconds.push_back((bucket.shared > 0 ? reduce_scatter_seconds(report.device, cluster, bucket.shared * gradient) : 0) +
                      (rest > 0 ? all_reduce_seconds(report.device, cluster, rest * gradient) : 0));
    if (bucket.shared > 0) gathered += all_gather_seconds(report.device, cluster, bucket.shared * value);
  }
  PlanExchange exchange = overlapped(backward, buckets, seconds, report.device.overlap);
  // How many tokens there were, before; loss and norm, behind: a few numbers each.
  constexpr double numbers = 3 * sizeof(double);
  exchange.busy += gathered + 2 * all_reduce_seconds(report.device, cluster, numbers);
  return exchange;
}

/// Of memory that the optimizer's step reads and writes for each element that it updates.
double update_bytes(const Settings& settings, const ParameterStore& store) {
  constexpr double norm = 4, adamw = 7 * 4, average = 3 * 4;  // value, gradient and two moments; all but the gradient written
  const bool copies = store.compute_dtype() != store.master_dtype();
  return norm + adamw + (copies ? static_cast<double>(size_of(store.compute_dtype())) : 0) +
         (settings.optimizer.ema_decay > 0 ? average : 0);
}

std::vector<std::string> assumptions_of(const PlanReport& report) {
  const PlanDevice& device = report.device;
  std::vector<std::string> list{fmt::format("products run at {} of their peak, what backward computes again included", device.utilisation),
                                fmt::format("memory and connections give {} of their bandwidth", device.reached)};
  if (report.cluster.devices() > 1) {
    list.emplace_back(device.by_host ? "sums are formed inside hosts, then between them, one after the other"
                                     : "sums are formed in one ring through all processes");
    list.push_back(device.overlap == 0   ? "communication takes the cores that compute: none of its time is hidden"
                   : device.overlap == 1 ? "communication beside backward takes nothing from it"
                                         : fmt::format("of communication beside backward {} costs nothing", device.overlap));
  }
  list.emplace_back("all sequences are as long as data.sequence_length, and all devices as fast as each other");
  list.emplace_back("reading data, validation and checkpoints take no time");
  if (device.reserve > 0)
    list.push_back(fmt::format("{} of memory go to driver, libraries and buffers of the communication", with_prefix(device.reserve, "B")));
  return list;
}

/// Everything that does not depend on how the work is shared.
PlanReport begin_report(const Settings& settings, const Shapes& shapes, const PlanCluster& cluster, const PlanDevice& device) {
  PlanReport report;
  report.cluster = cluster;
  report.device = device;
  report.parameters = shapes.store().total_count();
  report.trained = shapes.store().parameter_count();
  const std::int64_t devices = cluster.devices(), accumulation = settings.trainer.gradient_accumulation;
  report.samples = (settings.data.batch_size + devices - 1) / devices;
  const std::int64_t rows = settings.objective.which() == ObjectiveSettings::Name::matching ? 2 : 1;
  report.tokens = settings.data.batch_size * accumulation * rows * settings.data.sequence_length;
  report.assumptions = assumptions_of(report);
  return report;
}

class Planner {
 public:
  Planner(const Settings& settings, const Vocabulary& vocabulary, const PlanCluster& cluster, const PlanDevice& device)
      : settings_(settings),
        vocabulary_(vocabulary),
        shapes_(settings, vocabulary),
        report_(begin_report(settings, shapes_, cluster, device)),
        stages_(plan_stages(settings, vocabulary_size(settings, vocabulary), static_cast<std::int64_t>(vocabulary.labels().size()),
                            report_.samples)),
        recomputes_(settings.trainer.recompute == "blocks"),
        peak_(peak_bytes(settings, vocabulary, report_.samples, recomputes_)) {
    const double accumulation = static_cast<double>(settings.trainer.gradient_accumulation);
    const auto seconds = [&](double plain, double attention) {
      return (plain / device.flops + attention / device.attention_flops) / device.utilisation;
    };
    double flops = 0;
    for (const PlanStage& stage : stages_) {
      forward_ += accumulation * seconds(stage.forward, stage.attention_forward);
      backward_.push_back(seconds(stage.backward, stage.attention_backward));
      flops += stage.forward + stage.backward + stage.attention_forward + stage.attention_backward;
    }
    // Devices with one sample less than the busiest have less to do.
    report_.flops = accumulation * flops / static_cast<double>(report_.samples) * static_cast<double>(settings.data.batch_size);
    if (cluster.devices() > 1) {
      for (const PlanBucket& bucket : shapes_.buckets(cluster.devices(), stages_.size())) {
        ++report_.n_buckets;
        report_.bucket_bytes = std::max(report_.bucket_bytes, bucket.elements * static_cast<double>(size_of(shapes_.gradient_dtype())));
      }
    }
  }

  PlanReport run() {
    for (const PlanSharing sharing : {PlanSharing::data_parallel, PlanSharing::zero_1}) report_.plans.push_back(plan_of(sharing));
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
    plan.backward = std::accumulate(backward_.begin(), backward_.end(), 0.0) * static_cast<double>(settings_.trainer.gradient_accumulation);
    plan.optimizer = shapes_.updated(sharing, devices) * update_bytes(settings_, shapes_.store()) / (device.bandwidth * device.reached);
    plan.exchange = exchange_of(shapes_, report_, sharing, backward_);
    plan.step = plan.forward + plan.backward + plan.optimizer + plan.waited();
    plan.tokens_per_second = static_cast<double>(report_.tokens) / plan.step;
    if (!plan.fits()) {
      plan.would_fit = what_would_fit({report_.samples, recomputes_, sharing, devices}, settings_.data.batch_size, plan.available,
                                      [&](const PlanChange& change) {
                                        const double peak = peak_bytes(settings_, vocabulary_, change.samples, change.recompute);
                                        return shapes_.memory(peak, change.sharing, change.devices).total();
                                      });
    }
    return plan;
  }

  const Settings& settings_;
  const Vocabulary& vocabulary_;
  Shapes shapes_;
  PlanReport report_;
  std::vector<PlanStage> stages_;
  bool recomputes_;
  double peak_;
  double forward_ = 0;            // seconds of a step
  std::vector<double> backward_;  // of each stage, once
};

}  // namespace

const char* name_of(PlanSharing sharing) { return sharing == PlanSharing::zero_1 ? "ZeRO-1" : "data parallel"; }

PlanReport make_plan(const Settings& settings, const Vocabulary& vocabulary, const PlanCluster& cluster, const PlanDevice& device) {
  check_sharing(settings, cluster.devices());
  check_plan_device(device, cluster);
  return Planner(settings, vocabulary, cluster, device).run();
}

}  // namespace furlong
