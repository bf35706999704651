#pragma once
// furlong plan: estimates training on devices that need not exist. docs/scaling.md describes the model, with formulas
// and sources.
#include <functional>
#include <string>
#include <vector>

#include "datasets/vocabulary.h"
#include "evaluation/plan/plan_device.h"
#include "evaluation/plan/plan_work.h"

namespace furlong {

/// How ranks share the work.
enum class PlanSharing : std::uint8_t {
  data_parallel,  ///< samples only
  zero_1          ///< samples and optimizer state (parallel.zero_stage: 1)
};
const char* name_of(PlanSharing sharing);

// --- Parts of the model that depend only on numbers.

/// Returns the seconds of collective operations over all devices. `bytes` is the size of the whole tensor.
double reduce_scatter_seconds(const PlanDevice& device, const PlanCluster& cluster, double bytes);
double all_gather_seconds(const PlanDevice& device, const PlanCluster& cluster, double bytes);
double all_reduce_seconds(const PlanDevice& device, const PlanCluster& cluster, double bytes);

/// Returns the seconds of simultaneous all-gathers in groups of `members` consecutive ranks, each in a ring as in Gloo,
/// for the slowest group. `bytes` is the size of the whole tensor that a group gathers.
double row_gather_seconds(const PlanDevice& device, const PlanCluster& cluster, int members, double bytes);

/// A bucket of gradients, as GradientReducer sends it.
struct PlanBucket {
  double elements = 0;
  double shared = 0;      ///< elements that ZeRO-1 scatters; each rank has all others
  std::size_t stage = 0;  ///< stage whose backward computes the bucket's last gradient
};

struct PlanExchange {
  double busy = 0;        ///< seconds of communication
  double overlapped = 0;  ///< part that overlaps with backward
  double states = 0;      ///< part for states of context parallelism; never overlapped
};
/// Simulates the reduction of buckets in sequence, each as soon as backward has computed its gradients. `backward`:
/// seconds of each stage; the last stage runs first. `seconds`: of each bucket's reduction. `overlap`: fraction of the
/// time during backward that does not slow backward down.
PlanExchange overlapped(const std::vector<double>& backward, const std::vector<PlanBucket>& buckets,
                        const std::vector<double>& seconds, double overlap);

// --- The plan.

/// Bytes on each device.
struct PlanMemory {
  double parameters = 0;  ///< master weights, compute copies, buffers
  double gradients = 0;
  double exchange = 0;     ///< gradients in transfer, if they have another dtype
  double optimizer = 0;    ///< moments, EMA
  double activations = 0;  ///< activations saved for backward, and scratch of ops
  double total() const { return parameters + gradients + exchange + optimizer + activations; }
};

struct Plan {
  PlanSharing sharing = PlanSharing::data_parallel;
  PlanMemory memory;  ///< not finite if too large to count
  double available = 0;
  double forward = 0, backward = 0, optimizer = 0;  ///< seconds of a step
  PlanExchange exchange;                            ///< all communication of a step
  double step = 0;                                  ///< seconds
  double tokens_per_second = 0;
  std::vector<std::string> would_fit;  ///< if the plan does not fit: changes that would fit
  bool fits() const { return memory.total() <= available; }
  /// Returns whether a copy of a checkpoint also fits, on devices that share the host's memory.
  bool fits_with(double copy) const { return memory.total() + copy <= available; }
  double waited() const { return exchange.busy - exchange.overlapped; }
  /// Returns the fraction of the step with nothing but communication.
  double communication_share() const { return waited() / step; }
};

/// Context parallelism: groups of ranks share sequences (parallel.context_parallel_size).
struct PlanSegments {
  int ranks = 1;                     ///< context-parallel size
  std::int64_t tokens = 0;           ///< per rank
  std::int64_t exchanges = 0;        ///< of states per step
  double state_bytes = 0;            ///< of the largest state that a rank sends to its group
  double bytes = 0;                  ///< that a rank sends to its group per step
  double forward = 0, backward = 0;  ///< seconds of a step
  double seconds() const { return forward + backward; }
};

struct PlanReport {
  PlanCluster cluster;
  PlanDevice device;
  PlanSegments segments;
  std::int64_t parameters = 0, trained = 0;
  std::int64_t samples = 0;  ///< per batch, on the device with the most
  std::int64_t tokens = 0;   ///< of a step, on all devices
  double flops = 0;          ///< of a step, on all devices
  double alone = 0;          ///< seconds of a step on one device with as many samples
  double bucket_bytes = 0;   ///< of the largest bucket
  std::int64_t n_buckets = 0;
  /// Bytes of the host's memory for the copy of a checkpoint: the maximum of one rank, and the sum over a host. 0: no
  /// copy.
  double checkpoint_copy = 0, checkpoint_copy_of_host = 0;
  std::vector<Plan> plans;  ///< one per PlanSharing
  std::vector<std::string> assumptions;
};

/// Plans training. Throws UserError if the settings are not for furlong train, or do not support the number of devices.
PlanReport make_plan(const Settings& settings, const Vocabulary& vocabulary, const PlanCluster& cluster,
                     const PlanDevice& device);

/// Settings that can be changed if a plan does not fit.
struct PlanChange {
  std::int64_t samples = 1;  ///< per device and batch
  bool recompute = false;    ///< trainer.activation_checkpointing: blocks
  PlanSharing sharing = PlanSharing::data_parallel;
  int devices = 1;
  int context_parallel_size = 1;
};
/// Returns "1.50 GiB" or "12.0 MiB", or words if `bytes` is not finite.
std::string in_binary_units(double bytes);

/// Describes changes that would fit: single changes, or, if none fits, all together. `bytes` returns the memory of a
/// change, and infinity for an impossible one.
std::vector<std::string> what_would_fit(const PlanChange& now, std::int64_t batch_size, double available,
                                        const std::function<double(const PlanChange&)>& bytes);

}  // namespace furlong
