#include <algorithm>
#include <cmath>

#include "evaluation/plan/plan.h"
#include "framework/core/error.h"

namespace furlong {
namespace {

/// Returns the seconds of half an all-reduce (reduce-scatter or all-gather) of `bytes` in a ring of p members: p - 1
/// messages of bytes / p (Patarasuk and Yuan 2009, section 4).
double half_ring(double members, double bytes, double bandwidth, double latency) {
  return members < 2 ? 0 : (members - 1) / members * bytes / bandwidth + (members - 1) * latency;
}

double half_seconds(const PlanDevice& device, const PlanCluster& cluster, double bytes) {
  const double hosts = cluster.hosts, per_host = cluster.per_host;
  const double link = device.link * device.reached, network = device.network * device.reached;
  if (device.by_host) {
    // Reduce inside each host first. Then each device reduces its part with the devices of other hosts that have the
    // same part.
    return half_ring(per_host, bytes, link, device.link_latency) +
           half_ring(hosts, bytes / per_host, network, device.network_latency);
  }
  if (cluster.hosts == 1) return half_ring(per_host, bytes, link, device.link_latency);
  // One ring leaves each host once and has the whole network of the host there. The slowest connection determines its
  // speed.
  const double slowest = cluster.per_host == 1 ? network : std::min(link, network * per_host);
  return half_ring(hosts * per_host, bytes, slowest, std::max(device.link_latency, device.network_latency));
}

/// Tries the same batch on 2, 4, ... times as many devices, as long as each has a sample, and then with larger
/// context-parallel groups. Returns an empty string if none fits.
std::string more_devices(const PlanChange& now, std::int64_t batch_size,
                         const std::function<bool(const PlanChange&)>& fits) {
  constexpr std::int64_t most = 1 << 20;
  PlanChange change = now;
  std::int64_t rows = now.devices / now.context_parallel_size;
  for (rows *= 2; rows <= batch_size && rows * now.context_parallel_size <= most; rows *= 2) {
    change.devices = static_cast<int>(rows * now.context_parallel_size);
    change.samples = (batch_size + rows - 1) / rows;
    if (fits(change)) return fmt::format("{} devices", change.devices);
  }
  change = now;
  rows = now.devices / now.context_parallel_size;
  for (std::int64_t of_each = 2 * static_cast<std::int64_t>(now.context_parallel_size); rows * of_each <= most;
       of_each *= 2) {
    change.context_parallel_size = static_cast<int>(of_each);
    change.devices = static_cast<int>(rows * of_each);
    if (fits(change)) return fmt::format("{} devices with parallel.context_parallel_size: {}", change.devices, of_each);
  }
  return {};
}

}  // namespace

double reduce_scatter_seconds(const PlanDevice& device, const PlanCluster& cluster, double bytes) {
  return half_seconds(device, cluster, bytes);
}
double all_gather_seconds(const PlanDevice& device, const PlanCluster& cluster, double bytes) {
  return half_seconds(device, cluster, bytes);
}
double all_reduce_seconds(const PlanDevice& device, const PlanCluster& cluster, double bytes) {
  return 2 * half_seconds(device, cluster, bytes);
}

double row_gather_seconds(const PlanDevice& device, const PlanCluster& cluster, int members, double bytes) {
  const double link = device.link * device.reached, network = device.network * device.reached;
  const int devices = cluster.devices();
  require(devices % members == 0, "groups of {} ranks, of {}", members, devices);
  std::vector<int> leaving(static_cast<std::size_t>(cluster.hosts));  // groups with members on this host and on others
  bool stays = false;
  for (int first = 0; first < devices; first += members) {
    const int host = first / cluster.per_host, last_host = (first + members - 1) / cluster.per_host;
    stays = stays || host == last_host;
    for (int on = host; host != last_host && on <= last_host; ++on) ++leaving[static_cast<std::size_t>(on)];
  }
  const double inside = stays ? half_ring(members, bytes, link, device.link_latency) : 0;
  const int most = *std::max_element(leaving.begin(), leaving.end());
  if (most == 0) return inside;
  // The rings that leave a host share its network. The slowest connection determines the speed of a ring.
  const double share = network * cluster.per_host / most,
               slowest = cluster.per_host == 1 ? share : std::min(link, share);
  return std::max(inside, half_ring(members, bytes, slowest, std::max(device.link_latency, device.network_latency)));
}

PlanExchange overlapped(const std::vector<double>& backward, const std::vector<PlanBucket>& buckets,
                        const std::vector<double>& seconds, double overlap) {
  require(buckets.size() == seconds.size(), "{} buckets and the times of {}", buckets.size(), seconds.size());
  std::vector<double> done(backward.size());  // time when backward finishes a stage
  double now = 0;
  for (std::size_t stage = backward.size(); stage-- > 0;) done[stage] = now += backward[stage];
  PlanExchange exchange;
  double free = 0, during = 0;  // time when the previous bucket is sent; seconds of communication during backward
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    const double begin = std::max(free, done.at(buckets[i].stage));
    free = begin + seconds[i];
    during += std::max(0.0, std::min(free, now) - begin);
    exchange.busy += seconds[i];
  }
  exchange.overlapped = overlap * during;
  return exchange;
}

std::string in_binary_units(double bytes) {
  if (!std::isfinite(bytes)) return "too large to count";
  return bytes < 0x1p30 ? fmt::format("{:.1f} MiB", bytes * 0x1p-20) : fmt::format("{:.2f} GiB", bytes * 0x1p-30);
}

std::vector<std::string> what_would_fit(const PlanChange& now, std::int64_t batch_size, double available,
                                        const std::function<double(const PlanChange&)>& bytes) {
  std::vector<std::string> words;
  const auto fits = [&](const PlanChange& change) { return bytes(change) <= available; };
  PlanChange change = now;
  change.sharing = PlanSharing::zero_1;
  if (now.sharing != PlanSharing::zero_1 && now.devices > 1 && fits(change))
    words.emplace_back("parallel.zero_stage: 1 (ZeRO-1)");
  change = now;
  change.recompute = true;
  if (!now.recompute && fits(change)) words.emplace_back("trainer.activation_checkpointing: blocks");
  change = now;
  change.samples = 1;
  const std::int64_t rows = now.devices / now.context_parallel_size;  // number of groups that share the samples
  if (now.samples > 1 && fits(change)) {
    std::int64_t most = 1;
    for (std::int64_t none = now.samples; none - most > 1;) {
      change.samples = most + (none - most) / 2;
      (fits(change) ? most : none) = change.samples;
    }
    words.push_back(fmt::format("data.batch_size: {} ({} per device), with a higher trainer.gradient_accumulation",
                                most * rows, most));
  }
  if (const std::string more = more_devices(now, batch_size, fits); !more.empty()) words.push_back(more);
  if (!words.empty()) return words;
  change = now;
  change.recompute = true;
  change.samples = 1;
  const std::string together =
      fmt::format("trainer.activation_checkpointing: blocks and data.batch_size: {} together", rows);
  if (fits(change)) return {together};
  if (now.devices > 1) change.sharing = PlanSharing::zero_1;
  if (fits(change)) return {together + ", with parallel.zero_stage: 1 (ZeRO-1)"};
  return {fmt::format(
      "none of these: a smaller batch, trainer.activation_checkpointing: blocks{}; all together still need {}",
      now.devices > 1 ? ", ZeRO-1" : "", in_binary_units(bytes(change)))};
}

}  // namespace furlong
