// furlong bench comm: measures collective operations between ranks, and how much of their time overlaps with backward.
#include "cli/bench_comm.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/attention_options.h"
#include "cli/common_options.h"
#include "cli/held_output.h"
#include "cli/in_job.h"
#include "cli/json_output.h"
#include "evaluation/bench/bench_comm.h"
#include "framework/core/error.h"
#include "framework/core/log.h"
#include "framework/core/machine.h"
#include "framework/core/parallel.h"
#include "framework/core/version.h"
#include "framework/io/atomic_file.h"
#include "trainers/train/data_checks.h"
#include "trainers/train/parallel/agreement.h"

namespace furlong::command_line {
namespace {

using Json = nlohmann::ordered_json;

struct BenchCommArguments {
  BenchCommOptions bench;
  std::string config, json;
  std::vector<std::string> overrides;
  std::int64_t steps = 10;
};

void print(const std::vector<BenchCommFigure>& figures, const ProcessGroup& group, std::int64_t repeats) {
  fmt::print("{} ranks ({}), medians of {}; 1 GB/s is 10^9 bytes per second\n\n", group.size(),
             group.communicator().engine(), repeats);
  fmt::print("{:<16}{:>12}{:>14}{:>12}{:>12}\n", "", "bytes", "microseconds", "GB/s", "bus GB/s");
  std::string operation;
  for (const BenchCommFigure& figure : figures) {
    const bool has_rate = figure.bytes > 0;
    fmt::print("{:<16}{:>12}{:>14.1f}{:>12}{:>12}\n", figure.operation == operation ? "" : figure.operation,
               figure.bytes, figure.median_seconds * 1e6,
               has_rate ? fmt::format("{:.4f}", algorithm_bandwidth(figure) * 1e-9) : "-",
               has_rate ? fmt::format("{:.4f}", bus_bandwidth(figure, group.size()) * 1e-9) : "-");
    operation = figure.operation;
  }
  std::fflush(stdout);
}

void print(const BenchCommTraining& training) {
  const auto steps = static_cast<double>(training.seconds.size()), ranks = static_cast<double>(training.ranks.size());
  std::int64_t overlapped = 0;
  for (const std::int64_t buckets : training.overlapped_buckets) overlapped += buckets;
  fmt::print(
      "\ntraining, {} steps of {:.1f} ms, {} parameters, {} buckets with {:.1f} MB in total:\n"
      "reducing gradients takes {:.1f} ms per step, training waits {:.1f} ms for it; {:.0f}% overlaps with backward\n"
      "({:.1f} buckets start before it finishes)\n",
      training.seconds.size(), training.median_seconds * 1e3, training.parameters, training.buckets,
      static_cast<double>(training.bytes) * 1e-6, training.all.seconds / steps / ranks * 1e3,
      training.all.waited / steps / ranks * 1e3, 100 * training.all.overlapped_fraction(),
      static_cast<double>(overlapped) / steps);
}

Json as_json(const BenchCommFigure& figure, int ranks) {
  Json object{{"operation", figure.operation},
              {"bytes", figure.bytes},
              {"operations_at_once", figure.at_once},
              {"median_seconds", figure.median_seconds},
              {"algorithm_bandwidth", algorithm_bandwidth(figure)},
              {"bus_bandwidth", bus_bandwidth(figure, ranks)},
              {"seconds", figure.seconds}};
  return object;
}

Json as_json(const BenchCommReductions& found) {
  return {{"reduction_seconds", found.seconds},
          {"waited_seconds", found.waited},
          {"overlapped_fraction", found.overlapped_fraction()}};
}

Json as_json(const BenchCommTraining& training) {
  Json object{{"parameters", training.parameters}, {"buckets", training.buckets},
              {"bytes", training.bytes},           {"median_seconds", training.median_seconds},
              {"seconds", training.seconds},       {"overlapped_buckets", training.overlapped_buckets},
              {"all", as_json(training.all)},      {"ranks", Json::array()}};
  for (const BenchCommReductions& rank : training.ranks) object["ranks"].push_back(as_json(rank));
  return object;
}

void measure(const BenchCommArguments& options, const ProcessGroup& group) {
  const std::optional<LoadedSettings> loaded =
      options.config.empty() ? std::nullopt : std::optional(load_settings(options.config, options.overrides));
  std::optional<AtomicFile> file;  // created before the work, so that a wrong path fails early
  if (group.is_first() && !options.json.empty()) {
    if (loaded) refuse_replacing_inputs(input_files(*loaded), options.json, "--json-file");
    refuse_replacing_data(options.json, "--json-file");
    file.emplace(options.json);
  }
  if (loaded && group.is_first()) log_warnings(*loaded);
  check_same_program(group);
  check_same(group, {{"--bytes", options.bench.bytes},
                     {"--repeats", options.bench.repeats},
                     {"--config", loaded.has_value()},
                     {"--steps", options.steps}});
  const std::vector<BenchCommFigure> figures = bench_comm(group, options.bench);
  if (group.is_first()) print(figures, group, options.bench.repeats);
  std::optional<BenchCommTraining> training;
  if (loaded) training = bench_comm_training(group, *loaded, options.steps);
  if (group.is_first() && training) print(*training);
  if (!file) return;
  const Machine machine = read_machine();
  Json object{{"furlong", {{"version", version()}, {"commit", commit()}}},
              {"machine", {{"cpu", machine.cpu.model}, {"kernel", machine.kernel}, {"threads", thread_count()}}},
              {"world_size", group.size()},
              {"local_world_size", group.environment().local_world_size},
              {"backend", group.communicator().engine()},
              {"repeats", options.bench.repeats},
              {"operations", Json::array()},
              {"training", training ? as_json(*training) : Json()}};
  for (const BenchCommFigure& figure : figures) object["operations"].push_back(as_json(figure, group.size()));
  file->write(json_text(object));
  file->commit();
}

void run(const BenchCommArguments& options) {
  ProcessGroup group(discover_launch(), ProcessGroup::Options());
  try {
    if (!group.is_first()) configure_logging("warning");
    measure(options, group);
    group.leave();
  } catch (const std::exception& error) {
    group.fail(error);
    throw;
  }
}

void check(BenchCommArguments& options, const Option& overrides, const Option& steps) {
  refuse_unless(!options.config.empty(), overrides, "--config");
  refuse_unless(!options.config.empty(), steps, "--config");
  for (const std::int64_t bytes : options.bench.bytes) {
    if (bytes < 1 || bytes > std::int64_t{1} << 40)
      throw UserError("--bytes {}: expected sizes from 1 byte to 1 TiB", bytes);
  }
  refuse_twice("--bytes", options.bench.bytes);
  std::sort(options.bench.bytes.begin(), options.bench.bytes.end());
}

constexpr const char* bench_comm_footer =
    "S bytes is the size of the largest tensor of a rank, in float32. With P ranks, and t seconds on the slowest rank, "
    "GB/s is S/t. Bus GB/s multiplies it, as nccl-tests do, by 2(P-1)/P for all_reduce, by (P-1)/P for reduce_scatter "
    "and all_gather, and by 1 for the others: the bandwidth of each link. In exchange, each rank sends S bytes to the "
    "next one; in send_receive, rank 0 sends to the last.\n"
    "Short operations are timed in groups.\n"
    "--config runs real training steps on the CPU and writes nothing. The time of reductions that training does not "
    "wait for overlaps with backward (overlapped_fraction in JSON).";

}  // namespace

void add_bench_comm(Command bench) {
  const Command command =
      bench.add_subcommand("comm", "Measure latency and bandwidth between ranks, and their overlap with training");
  command.footer(bench_comm_footer);
  command.examples({
      "furlong launch --processes 2 bench comm --bytes 64KiB,25MB",
      "furlong launch --processes 2 bench comm --config configs/quickstart.yaml --set data.batch_size=2 --steps 20",
  });
  const auto options = std::make_shared<BenchCommArguments>();
  command.add_option("--bytes", options->bench.bytes, "Sizes, with or without a unit: 64KiB, 25MB")
      .shows_default()
      .separated_by(',')
      .in_bytes()
      .value_name("BYTES,...");
  command.add_option("--repeats", options->bench.repeats, "Timed repetitions; the median is reported")
      .shows_default()
      .range(1, 100000);
  command.add_option("--config", options->config, "Also run training steps with this YAML config").value_name("CONFIG");
  const Option overrides = add_overrides(command, options->overrides, "data.batch_size=64");
  const Option steps = command.add_option("--steps", options->steps, "Training steps to measure, after 3 warm-up steps")
                           .shows_default()
                           .range(1, 100000);
  command
      .add_option("--json-file", options->json,
                  "Write all results, with the time of each repetition, to this file as JSON")
      .value_name("FILE")
      .common();
  command.action([=] {
    in_job([&] { check(*options, overrides, steps); });
    run(*options);
  });
}

}  // namespace furlong::command_line
