#include "evaluation/plan/plan_measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "communication/gloo/gloo_communicator.h"
#include "communication/job_store/store_client.h"
#include "communication/job_store/store_server.h"
#include "evaluation/bench/bench_attention.h"
#include "framework/core/clock.h"
#include "framework/core/machine.h"
#include "framework/core/parallel.h"
#include "framework/core/tensor.h"

namespace furlong {
namespace {

/// Returns the minimum of `times` short runs: the time without disturbances.
template <class Body>
double best_of(int times, const Body& body) {
  double best = 0;
  for (int i = 0; i < times; ++i) {
    const auto begin = Clock::now();
    body();
    const double seconds = seconds_since(begin);
    best = i == 0 ? seconds : std::min(best, seconds);
  }
  return best;
}

double product_rate(DType dtype) {
  PeakRate peak(dtype, Device{});
  peak.measure();
  return peak.flops_per_second();
}

/// Returns the bytes per second that all threads read and write, on tensors much larger than the caches.
double copy_rate() {
  constexpr std::int64_t bytes = std::int64_t{256} << 20;
  const Tensor from = Tensor::zeros({bytes}, DType::uint8), to = Tensor::zeros({bytes}, DType::uint8);
  const double seconds = best_of(4, [&] {
    parallel_ranges(bytes, 1 << 20, [&](std::int64_t begin, std::int64_t end) {
      std::memcpy(to.data<std::uint8_t>() + begin, from.data<std::uint8_t>() + begin,
                  static_cast<std::size_t>(end - begin));
    });
  });
  return 2.0 * static_cast<double>(bytes) / seconds;
}

/// Two ranks in this process, connected by Gloo.
class Pair {
 public:
  Pair() : server_(server_options()) {
    std::array<std::future<void>, 2> joined;
    for (int rank = 0; rank < 2; ++rank)
      joined[static_cast<std::size_t>(rank)] = std::async(std::launch::async, [this, rank] { join(rank); });
    for (auto& one : joined) one.get();
  }
  ~Pair() {
    for (Rank& rank : ranks_) rank.communicator.reset();
    for (Rank& rank : ranks_)
      if (rank.store) rank.store->goodbye();
    server_.wait_for_goodbyes(std::chrono::seconds(5));
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  /// Returns the seconds of an all-reduce of this many float32.
  double seconds(std::int64_t elements, int times) {
    const Tensor a = Tensor::zeros({elements}, DType::float32), b = Tensor::zeros({elements}, DType::float32);
    return best_of(times, [&] {
      const Work first = ranks_[0].communicator->all_reduce(Stream{}, a),
                 second = ranks_[1].communicator->all_reduce(Stream{}, b);
      first.wait();
      second.wait();
    });
  }

 private:
  struct Rank {
    std::unique_ptr<StoreClient> store;
    std::unique_ptr<Communicator> communicator;
  };

  StoreServerOptions server_options() {
    std::random_device random;
    for (int i = 0; i < 8; ++i) secret_ += fmt::format("{:08x}", random());
    StoreServerOptions options;
    options.secret = secret_;
    options.world_size = 2;
    return options;
  }
  void join(int rank) {
    StoreClientOptions client;
    client.port = server_.port();
    client.secret = secret_;
    client.rank = rank;
    client.world_size = 2;
    Rank& own = ranks_[static_cast<std::size_t>(rank)];
    own.store = std::make_unique<StoreClient>(client);
    GlooOptions options;
    options.rank = rank;
    options.size = 2;
    own.communicator = make_gloo_communicator(*own.store, options);
  }

  std::string secret_;
  StoreServer server_;
  std::array<Rank, 2> ranks_;
};

/// An all-reduce of n bytes on two ranks takes 2 latency + n / link: a small and a large one give both numbers.
void measure_links(PlanDevice& device) {
  Pair pair;
  constexpr std::int64_t small = 64, large = std::int64_t{4} << 20;
  const double least = pair.seconds(small, 50), most = pair.seconds(large, 5);
  device.link_latency = least / 2;
  device.link = static_cast<double>((large - small) * size_of(DType::float32)) / std::max(most - least, 1e-9);
}

}  // namespace

PlanDevice measure_plan_device(DType dtype, const PlanCluster& cluster, int threads) {
  const Machine machine = read_machine();
  const int cores = machine.cpu.usable_cores(), processes = cluster.per_host;
  const int busy =
      threads > 0 ? static_cast<int>(std::min<std::int64_t>(cores, std::int64_t{threads} * processes)) : cores;
  set_thread_count(busy);
  const double share = 1.0 / processes;
  PlanDevice device;
  device.name = "cpu";
  device.kind = PlanDeviceKind::cpu;
  device.attention_flops = product_rate(DType::float32) * share;
  device.flops = dtype == DType::float32 ? device.attention_flops : product_rate(dtype) * share;
  device.bandwidth = copy_rate() * share;
  device.memory = static_cast<double>(machine.memory.available) * share;
  if (processes > 1) {
    measure_links(device);
    device.link *= std::min(1.0, static_cast<double>(cores) / processes);  // both ends of a connection occupy a core
  }
  constexpr double ten_gigabits = 1.25e9;
  device.network = ten_gigabits * share;
  device.network_latency = 50e-6;
  device.reached = 1;
  device.utilization = 0.8;
  device.overlap = 0;
  device.by_host = false;
  device.source = fmt::format("measured now: {}, {} of {} threads for {} rank{} of a host", machine.cpu.model, busy,
                              cores, processes, processes == 1 ? "" : "s");
  device.assumed = {"utilization", "overlap"};
  if (cluster.hosts > 1) device.assumed.insert(device.assumed.end(), {"network", "network_latency"});
  return device;
}

}  // namespace furlong
