#pragma once
// furlong plan: what training on devices that are not there would take. The model, with its formulas and sources:
// docs/scaling.md.
#include <functional>
#include <string>
#include <vector>

#include "datasets/vocabulary.h"
#include "evaluation/plan/plan_device.h"
#include "evaluation/plan/plan_work.h"

namespace furlong {

/// How the work is shared.
enum class PlanSharing : std::uint8_t {
  data_parallel,  ///< samples alone
  zero_1          ///< and the optimizer's state (parallel.shard_optimizer)
};
const char* name_of(PlanSharing sharing);

// --- Parts of the model, of numbers alone.

/// Seconds that collective operations over all devices take. `bytes` is the whole of what is reduced or gathered.
double reduce_scatter_seconds(const PlanDevice& device, const PlanCluster& cluster, double bytes);
double all_gather_seconds(const PlanDevice& device, const PlanCluster& cluster, double bytes);
double all_reduce_seconds(const PlanDevice& device, const PlanCluster& cluster, double bytes);

/// Seconds of an all-gather in each row of `members` processes that follow one another, in all rows at once: a ring in
/// each, as Gloo's. `bytes` is the whole of what a row gathers. Of the slowest row.
double row_gather_seconds(const PlanDevice& device, const PlanCluster& cluster, int members, double bytes);

/// A bucket of gradients as trainers/gradient_reducer sends it.
struct PlanBucket {
  double elements = 0;
  double shared = 0;      ///< of them, those that ZeRO-1 scatters; every process has the others
  std::size_t stage = 0;  ///< with whose backward the last of its gradients is there
};

struct PlanExchange {
  double busy = 0;    ///< seconds of communication
  double hidden = 0;  ///< of them, while backward goes on
  double states = 0;  ///< of them, for what segments of a sequence tell each other; never hidden
};
/// Buckets one after the other, each once backward has its gradients. backward: seconds of each stage, which begin with
/// the last. seconds: of each bucket's reduction. overlap: share of the time beside backward that costs backward
/// nothing.
PlanExchange overlapped(const std::vector<double>& backward, const std::vector<PlanBucket>& buckets,
                        const std::vector<double>& seconds, double overlap);

// --- The plan.

/// Bytes on each device.
struct PlanMemory {
  double parameters = 0;  ///< masters, the copies that layers compute with, buffers
  double gradients = 0;
  double exchange = 0;     ///< gradients as they travel, where that is another dtype
  double optimizer = 0;    ///< moments, averages
  double activations = 0;  ///< what backward keeps, and what ops need on the way
  double total() const { return parameters + gradients + exchange + optimizer + activations; }
};

struct Plan {
  PlanSharing sharing = PlanSharing::data_parallel;
  PlanMemory memory;  ///< not finite where it is more than can be counted
  double available = 0;
  double forward = 0, backward = 0, optimizer = 0;  ///< seconds of a step
  PlanExchange exchange;                            ///< all communication of a step
  double step = 0;                                  ///< seconds
  double tokens_per_second = 0;
  std::vector<std::string> would_fit;  ///< where it does not fit: what would
  bool fits() const { return memory.total() <= available; }
  /// Where device and host have one memory: of a copy of what a checkpoint holds.
  bool has_room_for(double copy) const { return memory.total() + copy <= available; }
  double waited() const { return exchange.busy - exchange.hidden; }
  /// Share of the step in which nothing but communication goes on.
  double communication_share() const { return waited() / step; }
};

/// Of sequences that processes share in rows (parallel.sequence_processes).
struct PlanSegments {
  int processes = 1;                 ///< of a row
  std::int64_t tokens = 0;           ///< of a segment
  std::int64_t exchanges = 0;        ///< of states in a step
  double state_bytes = 0;            ///< of the largest state that a process tells its row
  double bytes = 0;                  ///< that it tells its row in a step
  double forward = 0, backward = 0;  ///< seconds of a step
  double seconds() const { return forward + backward; }
};

struct PlanReport {
  PlanCluster cluster;
  PlanDevice device;
  PlanSegments segments;
  std::int64_t parameters = 0, trained = 0;
  std::int64_t samples = 0;  ///< of the busiest device, at once
  std::int64_t tokens = 0;   ///< of a step, on all devices
  double flops = 0;          ///< of a step, on all devices
  double alone = 0;          ///< seconds of a step of one device with as many samples, without others
  double bucket_bytes = 0;   ///< of the largest
  std::int64_t n_buckets = 0;
  /// Bytes of the host's memory that a checkpoint is copied into, at most by one process and by all of a host; 0:
  /// written without a copy.
  double checkpoint_copy = 0, checkpoint_copy_of_host = 0;
  std::vector<Plan> plans;  ///< of each sharing
  std::vector<std::string> assumptions;
};

/// Throws UserError where the settings cannot be trained by so many processes, as furlong train does, or are not
/// furlong train's.
PlanReport make_plan(const Settings& settings, const Vocabulary& vocabulary, const PlanCluster& cluster,
                     const PlanDevice& device);

/// What of a plan that does not fit can be changed.
struct PlanChange {
  std::int64_t samples = 1;  ///< of each device at once
  bool recompute = false;    ///< trainer.recompute: blocks
  PlanSharing sharing = PlanSharing::data_parallel;
  int devices = 1;
  int sequence_processes = 1;
};
/// "1.50 GiB", "12.0 MiB"; in words where it is not finite.
std::string in_binary_units(double bytes);

/// In words what would fit: single changes, and where there is none, all together. `bytes` tells what a change takes;
/// more than can be counted where it cannot be made.
std::vector<std::string> what_would_fit(const PlanChange& now, std::int64_t batch_size, double available,
                                        const std::function<double(const PlanChange&)>& bytes);

}  // namespace furlong
