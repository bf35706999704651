#include "evaluation/bench/bench_comm.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string_view>

#include "evaluation/statistics.h"
#include "framework/core/clock.h"
#include "framework/core/error.h"
#include "framework/core/parallel.h"
#include "framework/core/trace.h"
#include "trainers/settings/process_checks.h"
#include "trainers/train/data_checks.h"
#include "trainers/train/parallel/agreement.h"
#include "trainers/train/trainer.h"

namespace furlong {
namespace {

constexpr double least_seconds = 2e-3;  // of a repetition
constexpr std::int64_t most_at_once = 1000;

/// Returns the element-wise maximum over all ranks.
std::vector<double> slowest(const ProcessGroup& group, const std::vector<double>& values) {
  if (values.empty()) return {};
  const Tensor all = Tensor::from(values, {static_cast<std::int64_t>(values.size())});
  group.communicator().all_reduce(Stream{}, all, Reduction::maximum).wait();
  return all.to_vector<double>();
}

class Measurement {
 public:
  Measurement(const ProcessGroup& group, const BenchCommOptions& options)
      : group_(group), communicator_(group.communicator()), repeats_(options.repeats), size_(group.size()) {
    const std::int64_t longest = *std::max_element(options.bytes.begin(), options.bytes.end()) / element + size_;
    whole_ = Tensor::zeros({longest}, DType::float32);
    other_ = Tensor::zeros({longest}, DType::float32);
  }

  BenchCommFigure figure(const std::string& operation, std::int64_t bytes) {
    BenchCommFigure figure;
    figure.operation = operation;
    if (operation != "barrier") {
      const std::int64_t multiple = is_shared_out(operation) ? size_ : 1;
      const std::int64_t elements = std::max<std::int64_t>(bytes / element / multiple, 1) * multiple;
      figure.bytes = elements * element;
      use(elements);
    }
    figure.at_once = how_many_at_once(operation);
    for (std::int64_t i = 0; i < repeats_; ++i) figure.seconds.push_back(time(operation, figure.at_once));
    figure.seconds = slowest(group_, figure.seconds);
    figure.median_seconds = median(figure.seconds);
    return figure;
  }

 private:
  static constexpr std::int64_t element = 4;

  static bool is_shared_out(const std::string& operation) {
    return operation == "reduce_scatter" || operation == "all_gather";
  }

  void use(std::int64_t elements) {
    values_ = whole_.narrow(0, 0, elements);
    received_ = other_.narrow(0, 0, elements);
    const std::int64_t part = elements / size_;
    if (part > 0) own_ = values_.narrow(0, group_.rank() * part, part);
  }

  std::int64_t how_many_at_once(const std::string& operation) {
    time(operation, 2);
    const double once = slowest(group_, {time(operation, 3)})[0];
    return std::clamp<std::int64_t>(static_cast<std::int64_t>(std::ceil(least_seconds / std::max(once, 1e-9))), 1,
                                    most_at_once);
  }

  /// Returns the seconds of one of `times` operations, each synchronized.
  double time(const std::string& operation, std::int64_t times) {
    communicator_.barrier(Stream{}).wait();
    const auto start = Clock::now();
    for (std::int64_t i = 0; i < times; ++i) issue(operation).wait();
    return seconds_since(start) / static_cast<double>(times);
  }

  Work issue(const std::string& operation) {
    const Stream stream;
    if (operation == "all_reduce") return communicator_.all_reduce(stream, values_);
    if (operation == "reduce_scatter") return communicator_.reduce_scatter(stream, values_, own_);
    if (operation == "all_gather") return communicator_.all_gather(stream, own_, values_);
    if (operation == "broadcast") return communicator_.broadcast(stream, values_, 0);
    if (operation == "exchange")
      return communicator_.exchange(stream, {Message::send(values_, next()), Message::receive(received_, previous())});
    if (operation == "barrier") return communicator_.barrier(stream);
    require(operation == "send_receive", "an operation '{}'", operation);
    if (group_.is_first()) return communicator_.send(stream, values_, size_ - 1);
    return group_.rank() == size_ - 1 ? communicator_.receive(stream, received_, 0) : Work();
  }

  int next() const { return (group_.rank() + 1) % size_; }
  int previous() const { return (group_.rank() + size_ - 1) % size_; }

  const ProcessGroup& group_;
  Communicator& communicator_;
  std::int64_t repeats_;
  int size_;
  Tensor whole_, other_;            // of the largest size; zeros, so that sums stay zero
  Tensor values_, received_, own_;  // of the current size: the operation's values, the received ones, this rank's part
};

void refuse_alone(const ProcessGroup& group) {
  if (group.is_alone())
    throw UserError(
        "furlong bench comm: expected several ranks, found world size 1; start it with furlong launch --processes 2 "
        "bench comm");
}

/// Rejects settings that furlong train rejects, and settings that are not measured here.
void check_training(const ProcessGroup& group, const Settings& settings) {
  const auto refuse = [&](const char* key, const std::string& value, const char* reason) {
    throw UserError("{}: {}: {}; change it with --set", key, value, reason);
  };
  if (settings.device != "auto" && settings.device != "cpu")
    refuse("device", settings.device, "bench comm trains on the CPU; expected cpu");
  if (settings.parallel.backend == "nccl")
    refuse("parallel.backend", settings.parallel.backend, "bench comm trains on CPUs; expected auto");
  if (settings.parallel.context_parallel_size > 1)
    refuse("parallel.context_parallel_size", fmt::to_string(settings.parallel.context_parallel_size),
           "bench comm does not measure context parallelism; expected 1");
  check_process_settings(
      settings,
      {group.size(), fmt::format("the launcher ({}) started {} processes", group.environment().launcher, group.size()),
       "start"});
}

/// Returns the recorded operations of a step that reduce gradients.
double seconds_reducing(const trace::Recording& recording) {
  std::int64_t nanoseconds = 0;
  for (const trace::Event& event : recording.events) {
    const bool reduces = std::string_view(event.category) == "operation" && event.kind == trace::Event::Kind::span &&
                         event.details.bucket >= 0 && !event.name.starts_with("all_gather");
    if (reduces) nanoseconds += event.end - event.begin;
  }
  return static_cast<double>(nanoseconds) * 1e-9;
}

std::vector<BenchCommReductions> of_all_ranks(const ProcessGroup& group, const BenchCommReductions& own) {
  const Tensor mine = Tensor::from(std::vector<double>{own.seconds, own.waited}, {2});
  const Tensor all = Tensor::empty({2 * group.size()}, DType::float64);
  group.communicator().all_gather(Stream{}, mine, all).wait();
  std::vector<BenchCommReductions> ranks(static_cast<std::size_t>(group.size()));
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    ranks[rank] = {all.data<double>()[2 * rank], all.data<double>()[2 * rank + 1]};
  return ranks;
}

}  // namespace

const std::vector<std::string>& bench_comm_operations() {
  static const std::vector<std::string> operations{"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                                   "exchange",   "send_receive",   "barrier"};
  return operations;
}

double algorithm_bandwidth(const BenchCommFigure& figure) {
  return static_cast<double>(figure.bytes) / figure.median_seconds;
}

double bus_bandwidth(const BenchCommFigure& figure, int world_size) {
  const double share = (world_size - 1.0) / world_size;
  const double factor = figure.operation == "all_reduce"                                           ? 2 * share
                        : figure.operation == "reduce_scatter" || figure.operation == "all_gather" ? share
                                                                                                   : 1;
  return factor * algorithm_bandwidth(figure);
}

std::vector<BenchCommFigure> bench_comm(const ProcessGroup& group, const BenchCommOptions& options) {
  refuse_alone(group);
  require(!options.bytes.empty() && options.repeats > 0, "nothing to measure");
  Measurement measurement(group, options);
  std::vector<BenchCommFigure> figures;
  for (const std::string& operation : bench_comm_operations()) {
    for (const std::int64_t bytes : options.bytes) {
      figures.push_back(measurement.figure(operation, bytes));
      if (operation == "barrier") break;
    }
  }
  return figures;
}

BenchCommTraining bench_comm_training(const ProcessGroup& group, const LoadedSettings& loaded, std::int64_t steps) {
  constexpr int warm_up = 3;
  refuse_alone(group);
  Settings settings = loaded.settings;
  check_training(group, settings);
  settings.trainer.max_steps = std::max<std::int64_t>(settings.trainer.max_steps, steps + warm_up);
  const int default_threads = group.default_threads();  // a collective: all ranks call it, even if `threads` is set
  set_thread_count(settings.threads > 0 ? static_cast<int>(settings.threads) : default_threads);
  const std::unique_ptr<Dataset> data = open_data(settings.data);
  check_agreement(group, settings, *data);
  check_against_data(loaded, *data);
  Trainer trainer(settings, *data, Device{}, std::nullopt, &group);
  for (int i = 0; i < warm_up; ++i) trainer.step();

  BenchCommTraining found;
  const GradientReducer& reducer = *trainer.reducer();
  found.parameters = trainer.model().store->trained_parameter_count();
  found.buckets = static_cast<std::int64_t>(reducer.bucket_bytes().size());
  for (const std::int64_t bytes : reducer.bucket_bytes()) found.bytes += bytes;
  BenchCommReductions own;
  for (std::int64_t i = 0; i < steps; ++i) {
    group.barrier();
    const double waited = reducer.seconds_waited();
    trace::start();
    const auto start = Clock::now();
    trainer.step();
    found.seconds.push_back(seconds_since(start));
    own.seconds += seconds_reducing(trace::stop());
    own.waited += reducer.seconds_waited() - waited;
    found.overlapped_buckets.push_back(static_cast<std::int64_t>(reducer.overlapped_buckets()));
  }
  found.seconds = slowest(group, found.seconds);
  found.median_seconds = median(found.seconds);
  found.ranks = of_all_ranks(group, own);
  for (const BenchCommReductions& rank : found.ranks) {
    found.all.seconds += rank.seconds;
    found.all.waited += rank.waited;
  }
  return found;
}

}  // namespace furlong
