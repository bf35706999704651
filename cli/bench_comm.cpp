// furlong bench comm: what operations between processes cost, and how much of that training hides.
#include "cli/bench_comm.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/attention_options.h"
#include "evaluation/bench/bench_comm.h"
#include "framework/core/error.h"
#include "framework/core/log.h"
#include "framework/core/machine.h"
#include "framework/core/parallel.h"
#include "framework/core/version.h"
#include "framework/io/atomic_file.h"
#include "trainers/train/parallel/agreement.h"

namespace furlong::command_line {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  BenchCommOptions bench;
  std::string config, json;
  std::vector<std::string> overrides;
  std::int64_t steps = 10;
};

double raw_share(const BenchCommFigure& figure) { return figure.median_seconds / figure.raw_median_seconds; }

void print(const std::vector<BenchCommFigure>& figures, const ProcessGroup& group, std::int64_t repeats) {
  fmt::print("{} processes ({}), medians of {}; GB/s of 10^9 bytes\n\n", group.size(), group.communicator().engine(),
             repeats);
  fmt::print("{:<16}{:>12}{:>14}{:>12}{:>12}{:>14}{:>12}\n", "", "bytes", "microseconds", "GB/s", "bus GB/s",
             "engine alone", "times");
  std::string operation;
  for (const BenchCommFigure& figure : figures) {
    const double seconds = figure.median_seconds;
    const bool has_rate = figure.bytes > 0;
    fmt::print("{:<16}{:>12}{:>14.1f}{:>12}{:>12}", figure.operation == operation ? "" : figure.operation, figure.bytes,
               seconds * 1e6, has_rate ? fmt::format("{:.4f}", algorithm_bandwidth(figure, seconds) * 1e-9) : "-",
               has_rate ? fmt::format("{:.4f}", bus_bandwidth(figure, seconds, group.size()) * 1e-9) : "-");
    if (std::isfinite(figure.raw_median_seconds)) {
      fmt::print("{:>14.1f}{:>12.2f}\n", figure.raw_median_seconds * 1e6, raw_share(figure));
    } else {
      fmt::print("{:>14}{:>12}\n", "-", "-");
    }
    operation = figure.operation;
  }
  std::fflush(stdout);
}

void print(const BenchCommTraining& training) {
  const auto steps = static_cast<double>(training.seconds.size()), ranks = static_cast<double>(training.ranks.size());
  std::int64_t hidden = 0;
  for (const std::int64_t buckets : training.buckets_hidden) hidden += buckets;
  fmt::print(
      "\ntraining, {} steps of {:.1f} ms, {} parameters, {} buckets of {:.1f} MB together:\n"
      "reducing gradients takes {:.1f} ms a step, of which training waits {:.1f} ms; {:.0f}% is hidden behind backward "
      "({:.1f} buckets\n"
      "begin before it ends)\n",
      training.seconds.size(), training.median_seconds * 1e3, training.parameters, training.buckets,
      static_cast<double>(training.bytes) * 1e-6, training.all.seconds / steps / ranks * 1e3,
      training.all.waited / steps / ranks * 1e3, 100 * training.all.hidden_share(),
      static_cast<double>(hidden) / steps);
}

Json number_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(); }

Json as_json(const BenchCommFigure& figure, int processes) {
  Json object{{"operation", figure.operation},
              {"bytes", figure.bytes},
              {"operations_at_once", figure.at_once},
              {"median_seconds", figure.median_seconds},
              {"algorithm_bandwidth", algorithm_bandwidth(figure, figure.median_seconds)},
              {"bus_bandwidth", bus_bandwidth(figure, figure.median_seconds, processes)},
              {"seconds", figure.seconds},
              {"engine_median_seconds", number_or_null(figure.raw_median_seconds)},
              {"engine_algorithm_bandwidth", number_or_null(algorithm_bandwidth(figure, figure.raw_median_seconds))},
              {"engine_bus_bandwidth", number_or_null(bus_bandwidth(figure, figure.raw_median_seconds, processes))},
              {"engine_seconds", figure.raw}};
  return object;
}

Json as_json(const BenchCommReductions& found) {
  return {
      {"reduction_seconds", found.seconds}, {"waited_seconds", found.waited}, {"hidden_share", found.hidden_share()}};
}

Json as_json(const BenchCommTraining& training) {
  Json object{{"parameters", training.parameters}, {"buckets", training.buckets},
              {"bytes", training.bytes},           {"median_seconds", training.median_seconds},
              {"seconds", training.seconds},       {"buckets_hidden", training.buckets_hidden},
              {"all", as_json(training.all)},      {"ranks", Json::array()}};
  for (const BenchCommReductions& rank : training.ranks) object["ranks"].push_back(as_json(rank));
  return object;
}

void measure(const Options& options, const ProcessGroup& group) {
  std::optional<AtomicFile> file;  // before the work, so that a wrong place is told at once
  if (group.is_first() && !options.json.empty()) file.emplace(options.json);
  const std::optional<LoadedSettings> loaded =
      options.config.empty() ? std::nullopt : std::optional(load_settings(options.config, options.overrides));
  if (loaded && group.is_first()) log_warnings(*loaded);
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
              {"processes", group.size()},
              {"processes_of_first_host", group.environment().local_world_size},
              {"engine", group.communicator().engine()},
              {"repeats", options.bench.repeats},
              {"operations", Json::array()},
              {"training", training ? as_json(*training) : Json()}};
  for (const BenchCommFigure& figure : figures) object["operations"].push_back(as_json(figure, group.size()));
  file->write(object.dump(2) + "\n");
  file->commit();
}

void run(const Options& options) {
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

void check(Options& options, const Option& overrides, const Option& steps) {
  refuse_unless(!options.config.empty(), overrides, "--config");
  refuse_unless(!options.config.empty(), steps, "--config");
  for (const std::int64_t bytes : options.bench.bytes) {
    if (bytes < 1 || bytes > std::int64_t{1} << 40)
      throw UserError("--bytes {}: expected sizes from 1 byte to 1 TiB", bytes);
  }
  refuse_twice("--bytes", options.bench.bytes);
  std::sort(options.bench.bytes.begin(), options.bench.bytes.end());
}

constexpr const char* footer =
    "  furlong launch --processes 2 bench comm --config configs/quickstart.yaml\n"
    "Bytes S are those of the largest tensor of a process, of float32. P processes, one operation takes the slowest of "
    "them t seconds:\n"
    "GB/s is S/t; bus GB/s is that times 2(P-1)/P of all_reduce, (P-1)/P of reduce_scatter and all_gather, 1 of the "
    "others (the\n"
    "definitions of nccl-tests): what each link carries. exchange: each sends S bytes to the next one; send_receive: "
    "rank 0 to the last.\n"
    "\"engine alone\" is the engine's own function called directly on connections of its own, by turns with ours in "
    "the same run, and\n"
    "\"times\" ours over it. Gloo has no function for reduce_scatter. Short operations are measured several at a "
    "time.\n"
    "--config takes real training steps on the CPU; nothing is written. Hidden is what of the reductions' time "
    "training did not wait for.";

}  // namespace

void add_bench_comm(Command bench) {
  const Command command = bench.add_subcommand(
      "comm", "Latency and bandwidth between the processes of a job, and what training hides of it");
  command.footer(footer);
  const auto options = std::make_shared<Options>();
  command.add_option("--bytes", options->bench.bytes, "Sizes, between commas; 64KiB and 25MB are understood")
      .shows_default()
      .separated_by(',')
      .in_bytes()
      .value_name("BYTES,...");
  command.add_option("--repeats", options->bench.repeats, "Timed repetitions of each, of which the median counts")
      .shows_default()
      .range(1, 100000);
  command.add_option("--config", options->config, "Take training steps with this YAML file, too").value_name("CONFIG");
  const Option overrides =
      command.add_option("--set", options->overrides, "Set a key on top of the file; may be repeated")
          .value_name("KEY=VALUE")
          .repeatable();
  const Option steps =
      command.add_option("--steps", options->steps, "Training steps to measure, behind three to warm up")
          .shows_default()
          .range(1, 100000);
  command.add_option("--json", options->json, "Write everything, each repetition's time too, to this file as JSON")
      .value_name("FILE");
  command.action([=] {
    check(*options, overrides, steps);
    run(*options);
  });
}

}  // namespace furlong::command_line
