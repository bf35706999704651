// furlong plan: estimates training on devices that need not exist.
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command_line.h"
#include "cli/common_options.h"
#include "cli/json_output.h"
#include "evaluation/plan/plan.h"
#include "evaluation/plan/plan_measure.h"
#include "framework/core/error.h"
#include "framework/core/machine.h"
#include "framework/core/parallel.h"
#include "trainers/model/objective.h"
#include "trainers/train/data_checks.h"

namespace furlong::command_line {
namespace {

using Json = nlohmann::ordered_json;

struct PlanArguments {
  std::string config, devices = "1", device = "cpu";
  std::vector<std::string> overrides;
  double utilization = 0;
  bool json = false;
};

/// Returns the vocabulary of the dataset. If the dataset does not exist, returns one of model.vocabulary_size tokens;
/// their meaning does not matter.
Vocabulary vocabulary_of(const LoadedSettings& loaded) {
  const Settings& settings = loaded.settings;
  const std::string missing = missing_data(settings.data);
  if (missing.empty()) {
    const std::unique_ptr<Dataset> data = open_data(settings.data);
    check_against_data(loaded, *data);
    return data->vocabulary();
  }
  return substitute_vocabulary(settings, missing);
}

/// Returns the number of threads of a rank that the config or the environment requests, or 0.
int wanted_threads(const Settings& settings) {
  if (settings.threads > 0) return static_cast<int>(settings.threads);
  const auto requested = requested_threads();
  return requested ? requested->count : 0;
}

/// Returns the number of threads of a rank on a host like this one. Scratch memory grows with it.
int threads_of_one(const Settings& settings, const PlanCluster& cluster) {
  const int wanted = wanted_threads(settings);
  return wanted > 0 ? wanted : std::max(1, read_machine().cpu.usable_cores() / cluster.per_host);
}

PlanDevice device_of(const PlanArguments& options, const Settings& settings, const PlanCluster& cluster) {
  const DType dtype = settings.model.dtype;
  const std::size_t comma = std::min(options.device.find(','), options.device.size());
  const std::string first = options.device.substr(0, comma);
  const bool is_named = first.find('=') == std::string::npos;
  PlanDevice device;
  if (!is_named) {
    device.assumed = {"reached", "utilization", "overlap"};
  } else if (first == "cpu") {
    device = measure_plan_device(dtype, cluster, wanted_threads(settings));
  } else {
    device = plan_device(first, dtype, settings.tf32);
  }
  if (!is_named) set_plan_numbers(device, options.device);
  if (is_named && comma < options.device.size()) set_plan_numbers(device, options.device.substr(comma + 1));
  if (options.utilization > 0) set_plan_numbers(device, fmt::format("utilization={}", options.utilization));
  return device;
}

Json as_json(const PlanSegments& segments) {
  if (segments.ranks == 1) return {};
  return {{"context_parallel_size", segments.ranks},  {"tokens", segments.tokens},
          {"exchanges_per_step", segments.exchanges}, {"state_bytes", segments.state_bytes},
          {"bytes_per_step", segments.bytes},         {"seconds_forward", segments.forward},
          {"seconds_backward", segments.backward}};
}

bool has_one_memory(const PlanReport& report) { return report.device.kind == PlanDeviceKind::cpu; }

Json copy_as_json(const PlanReport& report) {
  if (report.checkpoint_copy == 0) return {};
  Json object{{"bytes", report.checkpoint_copy}, {"bytes_of_host", report.checkpoint_copy_of_host}};
  for (const Plan& plan : report.plans)
    object[plan.sharing == PlanSharing::zero_1 ? "fits_with_zero_1" : "fits_with_data_parallel"] =
        has_one_memory(report) ? Json(plan.fits_with(report.checkpoint_copy)) : Json();
  return object;
}

Json as_json(const Plan& plan) {
  const PlanMemory& memory = plan.memory;
  Json bytes{{"parameters", memory.parameters},   {"gradients", memory.gradients},
             {"exchange", memory.exchange},       {"optimizer", memory.optimizer},
             {"activations", memory.activations}, {"total", memory.total()},
             {"available", plan.available},       {"missing", plan.fits() ? 0 : memory.total() - plan.available}};
  return {{"fits", plan.fits()},
          {"would_fit", plan.would_fit},
          {"memory_bytes", bytes},
          {"seconds",
           {{"step", plan.step},
            {"forward", plan.forward},
            {"backward", plan.backward},
            {"optimizer", plan.optimizer},
            {"communication", plan.exchange.busy},
            {"communication_overlapped", plan.exchange.overlapped},
            {"communication_waited", plan.waited()},
            {"communication_states", plan.exchange.states}}},
          {"tokens_per_second", plan.tokens_per_second},
          {"communication_share", plan.communication_share()}};
}

Json as_json(const PlanReport& report) {
  const PlanDevice& device = report.device;
  Json numbers = Json::object();
  for (const auto& [key, number] : plan_numbers(device)) numbers[key] = number;
  Json object{
      {"hosts", report.cluster.hosts},
      {"devices_per_host", report.cluster.per_host},
      {"device", {{"name", device.name}, {"source", device.source}, {"numbers", numbers}, {"assumed", device.assumed}}},
      {"parameters", report.parameters},
      {"trained_parameters", report.trained},
      {"samples_per_device", report.samples},
      {"tokens_per_step", report.tokens},
      {"flops_per_step", report.flops},
      {"step_seconds_alone", report.alone},
      {"buckets", report.n_buckets},
      {"largest_bucket_bytes", report.bucket_bytes},
      {"segments", as_json(report.segments)},
      {"checkpoint_copy", copy_as_json(report)}};
  for (const Plan& plan : report.plans)
    object[plan.sharing == PlanSharing::zero_1 ? "zero_1" : "data_parallel"] = as_json(plan);
  object["assumptions"] = report.assumptions;
  return object;
}

std::string text_of_seconds(double seconds) {
  if (seconds >= 10) return fmt::format("{:.1f} s", seconds);
  return seconds >= 1 ? fmt::format("{:.2f} s", seconds) : fmt::format("{:.3g} ms", seconds * 1e3);
}

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

template <class Text>
void print_row(const PlanReport& report, const char* name, const Text& text) {
  fmt::print("{:<40}", name);
  for (const Plan& plan : report.plans) fmt::print("{:>18}", text(plan));
  fmt::print("\n");
}

void print_rows(const PlanReport& report) {
  const auto row = [&](const char* name, const auto& text) { print_row(report, name, text); };
  row("", [](const Plan& plan) { return std::string(name_of(plan.sharing)); });
  row("memory per device", [](const Plan& plan) { return in_binary_units(plan.memory.total()); });
  row("  parameters", [](const Plan& plan) { return in_binary_units(plan.memory.parameters); });
  row("  gradients", [](const Plan& plan) { return in_binary_units(plan.memory.gradients); });
  if (report.plans[0].memory.exchange > 0)
    row("  gradients in transfer", [](const Plan& plan) { return in_binary_units(plan.memory.exchange); });
  row("  optimizer", [](const Plan& plan) { return in_binary_units(plan.memory.optimizer); });
  row("  activations", [](const Plan& plan) { return in_binary_units(plan.memory.activations); });
  row("  available", [](const Plan& plan) { return in_binary_units(plan.available); });
  row("step", [](const Plan& plan) { return text_of_seconds(plan.step); });
  row("  forward", [](const Plan& plan) { return text_of_seconds(plan.forward); });
  row("  backward", [](const Plan& plan) { return text_of_seconds(plan.backward); });
  row("  optimizer", [](const Plan& plan) { return text_of_seconds(plan.optimizer); });
  row("  exposed communication", [](const Plan& plan) { return text_of_seconds(plan.waited()); });
  row("total communication", [](const Plan& plan) { return text_of_seconds(plan.exchange.busy); });
  row("  of which overlapped", [](const Plan& plan) { return text_of_seconds(plan.exchange.overlapped); });
  if (report.segments.ranks > 1)
    row("  of which context-parallel states", [](const Plan& plan) { return text_of_seconds(plan.exchange.states); });
  row("exposed communication / step", [](const Plan& plan) { return percent(plan.communication_share()); });
  row("tokens per second", [](const Plan& plan) { return with_prefix(plan.tokens_per_second, ""); });
  row("speed compared with no waiting", [&](const Plan& plan) { return percent(report.alone / plan.step); });
}

void print_numbers(const PlanDevice& device, const PlanCluster& cluster) {
  const auto mark = [&](const char* key) {
    return std::find(device.assumed.begin(), device.assumed.end(), key) == device.assumed.end() ? "" : " (assumed)";
  };
  fmt::print("{}: {}\n", device.name, device.source);
  fmt::print("  matrix products {}, in attention {}; memory {} at {}\n", with_prefix(device.flops, "FLOP/s"),
             with_prefix(device.attention_flops, "FLOP/s"), with_prefix(device.memory, "B"),
             with_prefix(device.bandwidth, "B/s"));
  if (cluster.per_host > 1)
    fmt::print("  between devices of a host {}{}, {:.3g} us{}\n", with_prefix(device.link, "B/s"), mark("link"),
               device.link_latency * 1e6, mark("link_latency"));
  if (cluster.hosts > 1)
    fmt::print("  between hosts {}{}, {:.3g} us{}\n", with_prefix(device.network, "B/s"), mark("network"),
               device.network_latency * 1e6, mark("network_latency"));
}

void print_segments(const PlanReport& report) {
  const PlanSegments& segments = report.segments;
  if (segments.ranks == 1) return;
  fmt::print(
      "context parallelism: {} ranks share each sequence, {} tokens each; {} times per step, each sends the others a "
      "state of {}: {} in forward, {} in backward\n",
      segments.ranks, segments.tokens, segments.exchanges, with_prefix(segments.state_bytes, "B"),
      text_of_seconds(segments.forward), text_of_seconds(segments.backward));
}

/// Prints the memory of a checkpoint's copy. On CPUs, the host's memory is also the device's.
void print_copy(const PlanReport& report) {
  if (report.checkpoint_copy == 0) return;
  fmt::print(
      "copy of a checkpoint while it is written (checkpoint.async): up to {} of the host's memory per rank{}\n",
      in_binary_units(report.checkpoint_copy),
      report.cluster.per_host > 1 ? fmt::format(", {} per host", in_binary_units(report.checkpoint_copy_of_host)) : "");
  for (const Plan& plan : report.plans) {
    if (has_one_memory(report) && plan.fits() && !plan.fits_with(report.checkpoint_copy))
      fmt::print("  {}: the copy does not fit in addition to the step; training waits while checkpoints are written\n",
                 name_of(plan.sharing));
  }
}

void print(const PlanReport& report) {
  const PlanCluster& cluster = report.cluster;
  fmt::print(
      "{} host{} with {} {}{}: {} parameters ({} trained), {} sample{} per device, {} tokens and {} per step{}\n\n",
      cluster.hosts, cluster.hosts == 1 ? "" : "s", cluster.per_host, report.device.name,
      cluster.hosts == 1 ? "" : " each", with_prefix(static_cast<double>(report.parameters), ""),
      with_prefix(static_cast<double>(report.trained), ""), report.samples, report.samples == 1 ? "" : "s",
      report.tokens, with_prefix(report.flops, "FLOP"),
      report.n_buckets > 0 ? fmt::format(", gradients in {} bucket{} of up to {}", report.n_buckets,
                                         report.n_buckets == 1 ? "" : "s", with_prefix(report.bucket_bytes, "B"))
                           : "");
  print_rows(report);
  for (const Plan& plan : report.plans) {
    if (plan.fits()) continue;
    const double missing = plan.memory.total() - plan.available;
    fmt::print("\n{}: does not fit{}. What would fit: {}\n", name_of(plan.sharing),
               std::isfinite(missing) ? fmt::format(" by {}", in_binary_units(missing)) : "",
               fmt::join(plan.would_fit, "; or "));
  }
  fmt::print("\n");
  print_segments(report);
  print_copy(report);
  print_numbers(report.device, cluster);
  fmt::print("estimated, not measured:\n");
  for (const std::string& assumption : report.assumptions) fmt::print("  - {}\n", assumption);
}

void run(const PlanArguments& options) {
  const PlanCluster cluster = plan_cluster(options.devices);
  const LoadedSettings loaded = load_settings(options.config, options.overrides);
  log_warnings(loaded);
  const Vocabulary vocabulary = vocabulary_of(loaded);
  const PlanDevice device = device_of(options, loaded.settings, cluster);
  set_thread_count(threads_of_one(loaded.settings, cluster));
  const PlanReport report = make_plan(loaded.settings, vocabulary, cluster, device);
  if (options.json) {
    print_json(as_json(report));
  } else {
    print(report);
  }
}

constexpr const char* plan_footer =
    "plan trains nothing and needs none of the devices. Memory is from a simulated training step that allocates "
    "nothing. Time is the number of operations and bytes divided by the device's rates. Gradients are exchanged in the "
    "buckets of furlong train. The dataset need not exist if model.vocabulary_size is set. docs/scaling.md describes "
    "the model and the sources of all numbers.\n"
    "--device takes a name, KEY=NUMBER pairs, or both: h100,network=25e9. Keys:\n"
    "  flops, attention_flops  operations per second\n"
    "  memory, reserve         bytes\n"
    "  bandwidth, link, network  bytes per second: of memory, between devices of a host, between hosts (per device)\n"
    "  link_latency, network_latency  seconds\n"
    "  reached                 fraction of peak bandwidth\n"
    "  utilization             fraction of peak operations per second\n"
    "  overlap                 fraction of communication that overlaps with backward\n"
    "Without a name, flops, memory and bandwidth are required, and link and network if they are used.";

}  // namespace

void add_plan(Command program, int&) {
  const Command command =
      program.add_subcommand("plan", "Estimate memory, time and communication of training on other devices");
  const auto options = std::make_shared<PlanArguments>();
  command.add_option("config", options->config, "YAML file").required().value_name("CONFIG");
  std::string names;
  for (const std::string& name : plan_device_names()) names += name + ", ";
  command
      .add_option("--device", options->device,
                  names +
                      "or cpu (hosts like this one, which is measured for a few seconds), and KEY=NUMBER pairs that "
                      "override the device's numbers, see below")
      .shows_default()
      .value_name("NAME[,KEY=NUMBER...]");
  command.add_option("--devices", options->devices, "Number of devices, or hosts x devices per host, for example 8x8")
      .shows_default()
      .value_name("N|HxD");
  add_overrides(command, options->overrides, "data.batch_size=64");
  command
      .add_option(
          "--utilization", options->utilization,
          "Fraction of the peak that matrix products of a step reach, 0.35 on GPUs and 0.8 on cpu if not given; "
          "the same as --device NAME,utilization=X")
      .range(1e-6, 1.0)
      .value_name("X");
  add_json(command, options->json, "Print the result as JSON, in bytes and seconds");
  command.footer(plan_footer);
  command.examples({
      "furlong plan configs/quickstart.yaml --device h100 --devices 8x8 --set data.batch_size=64",
      "furlong plan configs/quickstart.yaml --device h100,network=25e9 --devices 4 --set data.batch_size=64 --json",
  });
  command.action([options] { run(*options); });
}

}  // namespace furlong::command_line
