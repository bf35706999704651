// furlong bench: measures attention, models and communication on this machine, and models on Long Range Arena.
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/attention_options.h"
#include "cli/bench_comm.h"
#include "cli/bench_lra.h"
#include "cli/bench_model.h"
#include "cli/command_line.h"
#include "cli/common_options.h"
#include "cli/held_output.h"
#include "cli/json_output.h"
#include "evaluation/bench/bench_attention.h"
#include "framework/core/device.h"
#include "framework/core/machine.h"
#include "framework/core/parallel.h"
#include "framework/core/version.h"
#include "framework/io/atomic_file.h"

namespace furlong::command_line {
namespace {

using Json = nlohmann::ordered_json;

struct BenchArguments {
  BenchAttentionOptions bench;
  std::vector<std::string> mechanisms{layers::linear_attention}, feature_maps{"favor_positive"};
  AttentionOptionValues attention;
  std::string dtype = "float32", device = "auto", json;
  std::int64_t threads = 0;
  bool causal = false, bidirectional = false;
};

/// Returns one case for each mechanism, or for each of its feature maps.
std::vector<BenchAttentionOptions> cases_of(const BenchArguments& options) {
  std::vector<BenchAttentionOptions> cases;
  for (const std::string& mechanism : options.mechanisms) {
    BenchAttentionOptions one = options.bench;
    one.config.mechanism = mechanism;
    const layers::MechanismInfo& info = layers::mechanism_info(mechanism);
    options.attention.settle(one.config);
    one.config.causal = !options.bidirectional && (options.causal || info.can_be_causal);
    if (!info.has_features) {
      cases.push_back(one);
      continue;
    }
    for (const std::string& map : options.feature_maps) {
      one.config.feature_map = map;
      cases.push_back(one);
    }
  }
  for (const BenchAttentionOptions& one : cases) {
    check_attention(one.config);
    for (const std::int64_t n : one.lengths)
      attention_flops(one, n);  // throws if m does not fit the feature map, before anything is timed
  }
  return cases;
}

std::string title(const BenchAttentionOptions& one, const BenchAttentionResult& result) {
  const layers::AttentionConfig& config = one.config;
  const layers::MechanismInfo& mechanism = layers::mechanism_info(config.mechanism);
  std::string text = mechanism.name;
  if (mechanism.has_features) text += fmt::format(", {} with {} features", config.feature_map, result.features);
  if (mechanism.projects_sequence) text += std::string(", ") + name_of(config.projection);
  if (const std::int64_t window = mechanism.window_in(config); window > 0) text += fmt::format(", window {}", window);
  return text + (config.causal ? ", causal" : ", bidirectional");
}

/// Returns nothing if the peak is unknown (0), or so disturbed by other programs that attention exceeds it.
std::optional<double> fraction_of_peak(const BenchAttentionLength& length, double peak) {
  const double rate = length.flops / length.median_seconds;
  return rate <= peak ? std::optional(rate / peak) : std::nullopt;
}

/// `peak` is in operations per second; 0: unknown.
void print(const BenchAttentionOptions& one, const BenchAttentionResult& result, double peak) {
  const bool projects = layers::mechanism_info(one.config.mechanism).projects_sequence;
  fmt::print("\n{}\n{:>9} {:>12} {:>12} {:>10} {:>8} {:>11}{}\n", title(one, result), "n", "median ms", "tokens/s",
             "GFLOP/s", "of peak", "extra MiB", projects ? "     rows" : "");
  bool exceeded = false;
  for (const BenchAttentionLength& length : result.lengths) {
    const double rate = length.flops / length.median_seconds;
    const std::optional<double> fraction = fraction_of_peak(length, peak);
    exceeded = exceeded || !fraction;
    fmt::print("{:>9} {:>12.3f} {:>12.0f} {:>10.2f} {:>8} {:>11.2f}{}\n", length.n, length.median_seconds * 1e3,
               static_cast<double>(one.batch * length.n) / length.median_seconds, rate * 1e-9,
               fraction ? fmt::format("{:.1f}%", 100 * *fraction) : "-",
               static_cast<double>(length.peak_bytes) / (1 << 20),
               projects ? fmt::format(" {:>8}", length.projected_length) : "");
  }
  if (result.exponent) fmt::print("time grows as n^{:.3f}\n", *result.exponent);
  if (peak > 0)
    fmt::print(
        "peak {:.1f} GFLOP/s: a large {} matrix product, best of all measurements{}\n", peak * 1e-9, name_of(one.dtype),
        exceeded ? ";\nattention exceeds it, so other programs have slowed it down: run again on an idle machine" : "");
}

Json as_json(const BenchAttentionOptions& one, const BenchAttentionResult& result, double peak) {
  const layers::AttentionConfig& config = one.config;
  const layers::MechanismInfo& mechanism = layers::mechanism_info(config.mechanism);
  Json object{{"mechanism", mechanism.name}, {"causal", config.causal}, {"window", mechanism.window_in(config)}};
  if (mechanism.has_features) {
    const ops::FeatureMapInfo& map = ops::feature_map_info(config.feature_map);
    object["feature_map"] = map.name;
    object["m"] = result.features;
    object["chunk_size"] = config.chunk_size;
    object["normalizer"] = name_of(config.normalizer);
    if (map.highest_order > 0) object["order"] = config.map_options.order;
    if (map.uses_kernel_epsilon) object["kernel_epsilon"] = config.map_options.kernel_epsilon;
    if (map.can_cancel && config.normalizer == ops::Normalizer::sum)
      object["denominator_guard"] = config.denominator_guard;
  }
  if (mechanism.projects_sequence) {
    object["projection"] = name_of(config.projection);
    object["projected_length"] = config.projected_length;
  }
  object["peak_flops_per_second"] = peak > 0 ? Json(peak) : Json();
  object["lengths"] = Json::array();
  for (const BenchAttentionLength& length : result.lengths) {
    const std::optional<double> fraction = fraction_of_peak(length, peak);
    object["lengths"].push_back(
        {{"n", length.n},
         {"median_seconds", length.median_seconds},
         {"seconds", length.seconds},
         {"tokens_per_second", static_cast<double>(one.batch * length.n) / length.median_seconds},
         {"flops", length.flops},
         {"flops_per_second", length.flops / length.median_seconds},
         {"fraction_of_peak", fraction ? Json(*fraction) : Json()},
         {"peak_bytes", length.peak_bytes}});
    if (mechanism.projects_sequence) object["lengths"].back()["projected_length"] = length.projected_length;
  }
  object["exponent"] = result.exponent ? Json(*result.exponent) : Json();
  return object;
}

/// Throws UserError if inputs, outputs and gradients of one run cannot fit in memory.
void check_memory(const BenchAttentionOptions& bench, const Machine& machine) {
  if (bench.device.type != DeviceType::cpu) return;
  const std::int64_t longest = *std::max_element(bench.lengths.begin(), bench.lengths.end());
  const double element = static_cast<double>(size_of(bench.dtype)), tensors = bench.train ? 8 : 4;
  const double bytes = tensors * element * static_cast<double>(bench.batch) * static_cast<double>(longest) *
                       static_cast<double>(bench.config.n_heads) * static_cast<double>(bench.config.d_head);
  const double usable = static_cast<double>(machine.memory.usable());
  if (usable == 0 ? bytes < 0x1p50 : bytes <= usable) return;
  throw UserError(
      "--lengths {}: query, key, value, output{} take at least {:.0f} bytes ({:.1f} GiB), but only {:.1f} GiB are "
      "usable; reduce --lengths, --heads or --batch",
      longest, bench.train ? " and their gradients" : "", bytes, bytes * 0x1p-30, usable * 0x1p-30);
}

void run(BenchArguments& options) {
  set_thread_count(static_cast<int>(options.threads));
  BenchAttentionOptions& bench = options.bench;
  bench.dtype = dtype_from_name(options.dtype);
  bench.device = device_from_name(options.device);
  const Machine machine = read_machine();
  check_memory(bench, machine);
  const std::vector<BenchAttentionOptions> cases = cases_of(options);
  std::optional<AtomicFile> file;  // created before the work, so that a wrong path fails early
  if (!options.json.empty()) {
    refuse_replacing_data(options.json, "--json-file");
    file.emplace(options.json);
  }
  std::optional<PeakRate> peak;
  if (bench.dtype != DType::float64) peak.emplace(bench.dtype, bench.device);
  fmt::print("{} head{} of {}, batch {}, {}, {}; {} thread{}\n", bench.config.n_heads,
             bench.config.n_heads == 1 ? "" : "s", bench.config.d_head, bench.batch, options.dtype,
             bench.train ? "forward and backward" : "forward", thread_count(), thread_count() == 1 ? "" : "s");
  if (!peak)
    fmt::print("no fraction of peak: large float64 products are optimized for accuracy, their rate is not a peak\n");
  Json results = Json::array();
  for (const BenchAttentionOptions& one : cases) {
    const BenchAttentionResult result = bench_attention(one, peak ? &*peak : nullptr);
    const double best = peak ? peak->flops_per_second() : 0;
    print(one, result, best);
    std::fflush(stdout);
    results.push_back(as_json(one, result, best));
  }
  const Roofline roofline = measure_roofline(bench.device, machine.memory.usable());
  fmt::print("\n{}\n", roofline.text());
  if (!file) return;
  const Json object{{"furlong", {{"version", version()}, {"commit", commit()}}},
                    {"machine", {{"cpu", machine.cpu.model}, {"kernel", machine.kernel}, {"threads", thread_count()}}},
                    {"device", bench.device.text()},
                    {"peak_flops_per_second", peak ? Json(peak->flops_per_second()) : Json()},
                    {"roofline", roofline.to_json()},
                    {"batch", bench.batch},
                    {"n_heads", bench.config.n_heads},
                    {"d", bench.config.d_head},
                    {"dtype", options.dtype},
                    {"train", bench.train},
                    {"repeat", bench.repeat},
                    {"attention", results}};
  file->write(json_text(object));
  file->commit();
}

constexpr const char* bench_footer =
    "GFLOP/s counts matrix products, a multiply-add as two operations, without exponentials and divisions. Operations "
    "of one head, with p pairs of tokens that attend to each other, head dimension d, m features from a random "
    "projection of D rows, chunks of c tokens, r projected rows:\n"
    "  softmax    forward 4pd; backward 10pd, which recomputes the scores\n"
    "  linear     the products of the algorithm; backward includes those that it recomputes instead of storing them\n"
    "             bidirectional: forward 4nDd + 4nmd; backward 12nDd + 10nmd\n"
    "             causal, in blocks of 16 queries: forward 4nDd + 4nmd + n(c+16)(m+d); backward 14nDd + 10nmd + "
    "n(c+16)(3m+2d)\n"
    "             with --window, each product of the definition once: forward 4nDd + 2p(m+d); backward 8nDd + "
    "2p(3m+2d)\n"
    "  linformer  forward 8nrd; backward 18nrd (pooling and convolution: 4nrd; 10nrd)\n"
    "  windowed   softmax over the pairs in the window, plus linear without --window (bidirectional: twice the causal "
    "one)\n"
    "The peak is the rate of a large matrix product, the best of measurements before, between and after the runs. If "
    "attention exceeds it, no fraction is given. There is none for float64.\n"
    "The last line has rates of the machine on all threads: large matrix products, and bytes read and written when one "
    "large tensor is added to another. plain and packed: a bfloat16 product of few rows reads its weights as they are "
    "stored; one of many rows first packs them for the CPU's matrix instructions.\n"
    "Extra MiB is the peak memory in addition to the inputs: output, gradients, scratch.";

void check(const BenchArguments& options, const Option& maps, const Option& features, const Option& rows) {
  const auto any = [&](bool layers::MechanismInfo::*capability) {
    return std::any_of(options.mechanisms.begin(), options.mechanisms.end(),
                       [&](const std::string& name) { return layers::mechanism_info(name).*capability; });
  };
  const bool by_features = any(&layers::MechanismInfo::has_features);
  const bool random_features =
      by_features && std::any_of(options.feature_maps.begin(), options.feature_maps.end(),
                                 [](const auto& map) { return ops::feature_map_info(map).needs_random_projection; });
  const std::string with_features = mechanisms_with(&layers::MechanismInfo::has_features);
  refuse_unless(by_features, maps, with_features);
  refuse_unless(random_features, features, with_features + ", with a feature map of random features");
  refuse_unless(any(&layers::MechanismInfo::projects_sequence), rows,
                mechanisms_with(&layers::MechanismInfo::projects_sequence));
  options.attention.check(options.mechanisms, options.feature_maps);
  const BenchAttentionOptions& bench = options.bench;
  for (const std::int64_t n : bench.lengths) {
    if (n < 1) throw UserError("--lengths {}: expected at least 1", n);
  }
  refuse_twice("--lengths", bench.lengths);
  refuse_twice("--mechanism", options.mechanisms);
  refuse_twice("--feature-map", options.feature_maps);
}

void add_bench_attention(Command bench_command) {
  const Command command = bench_command.add_subcommand(
      "attention", "Measure time, arithmetic and memory of attention, and how time grows with length");
  command.footer(bench_footer);
  command.examples({
      "furlong bench attention --lengths 4096,16384,65536 --mechanism softmax,linear",
      "furlong bench attention --feature-map elu1,favor_positive --train --dtype bfloat16 --json-file attention.json",
  });
  const auto options = std::make_shared<BenchArguments>();
  BenchAttentionOptions& bench = options->bench;
  bench.config.n_features = 256;
  bench.lengths = {4096, 16384};
  command
      .add_option("--mechanism", options->mechanisms, fmt::format("Mechanisms: {}", fmt::join(mechanism_names(), ", ")))
      .shows_default()
      .separated_by(',')
      .one_of(mechanism_names())
      .value_name("NAME,...");
  const Option maps = command.add_option("--feature-map", options->feature_maps, "Feature maps of linear and windowed")
                          .shows_default()
                          .separated_by(',')
                          .one_of(feature_map_names())
                          .value_name("NAME,...");
  command.add_option("--lengths", bench.lengths, "Sequence lengths n, such as 4k,16k (k: 1,024)")
      .shows_default()
      .separated_by(',')
      .in_tokens()
      .value_name("N,...");
  const Option features = command.add_option("--features", bench.config.n_features, "Number m of random features")
                              .shows_default()
                              .range(1, 1 << 24)
                              .value_name("M");
  command.add_option("--heads", bench.config.n_heads, "Number of heads").shows_default().range(1, 1 << 16);
  command.add_option("--head-dim", bench.config.d_head, "Head dimension d")
      .shows_default()
      .range(1, 1 << 16)
      .value_name("D");
  command.add_option("--batch", bench.batch, "Number of sequences").shows_default().range(1, 1 << 24);
  command.add_flag("--train", bench.train,
                   "Run forward and backward (otherwise forward only, without saving activations)");
  const Option causal = command.add_flag(
      "--causal", options->causal, "A query attends to itself and earlier tokens (default, except for linformer)");
  command.add_flag("--bidirectional", options->bidirectional, "A query attends to all tokens").excludes(causal);
  options->attention.add(command, bench.config, true);
  const Option rows = command
                          .add_option("--projected-length", bench.config.projected_length,
                                      "With --mechanism linformer: number r of projected rows")
                          .shows_default()
                          .range(1, 1 << 24)
                          .value_name("R");
  command.add_option("--dtype", options->dtype, "Storage type of query, key and value")
      .shows_default()
      .one_of({"float32", "bfloat16", "float64"});
  command.add_option("--repeats", bench.repeat, "Timed runs of each length; the median is reported")
      .shows_default()
      .range(1, 100000);
  add_device(command, options->device);
  add_threads(command, options->threads);
  command.add_option("--json-file", options->json, "Write all results, with the time of each run, to this file as JSON")
      .value_name("FILE")
      .common();
  command.action([=] {
    check(*options, maps, features, rows);
    run(*options);
  });
}

}  // namespace

void add_bench(Command program, int& status) {
  const Command bench = program.add_subcommand("bench", "Measure speed, memory and accuracy on this machine");
  bench.require_subcommand();
  bench.examples({
      "furlong bench attention --lengths 4096,16384",
      "furlong bench model configs/quickstart.yaml --set model.vocabulary_size=2048",
      "furlong launch --processes 2 bench comm --bytes 64KiB,25MB",
      "furlong bench lra --tasks listops --mechanisms softmax,favor_positive",
  });
  add_bench_attention(bench);
  add_bench_comm(bench);
  add_bench_lra(bench, status);
  add_bench_model(bench);
}

}  // namespace furlong::command_line
