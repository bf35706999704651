// furlong bench model: measures training steps, evaluation and generation of a model on this machine.
#include "cli/bench_model.h"

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/attention_options.h"
#include "cli/common_options.h"
#include "cli/held_output.h"
#include "cli/json_output.h"
#include "evaluation/bench/bench_attention.h"
#include "evaluation/bench/bench_model.h"
#include "evaluation/plan/plan.h"
#include "framework/core/device.h"
#include "framework/core/log.h"
#include "framework/core/machine.h"
#include "framework/core/parallel.h"
#include "framework/core/version.h"
#include "framework/io/atomic_file.h"
#include "trainers/model/objective.h"
#include "trainers/train/data_checks.h"

namespace furlong::command_line {
namespace {

using Json = nlohmann::ordered_json;

struct BenchModelArguments {
  BenchModelOptions bench;
  std::string model, dtype, device, json;
  std::vector<std::string> overrides;
  std::vector<std::int64_t> lengths;
  std::int64_t batch = 0, threads = 0;
};

/// The settings of the model to measure, and the vocabulary of its data.
struct BenchModelSubject {
  Settings settings;
  Vocabulary vocabulary;
  std::vector<std::string> inputs{};  ///< files that it is read from
};

/// Returns whether the path is a run directory or a checkpoint, rather than a config.
bool names_model(const std::filesystem::path& path) {
  return std::filesystem::is_directory(path) || path.extension() == ".h5";
}

BenchModelSubject subject_of(const BenchModelArguments& arguments) {
  std::vector<std::string> overrides = arguments.overrides;
  if (!arguments.dtype.empty()) overrides.push_back("model.dtype=" + arguments.dtype);
  if (arguments.batch > 0) overrides.push_back(fmt::format("data.batch_size={}", arguments.batch));
  if (names_model(arguments.model)) {
    const CheckpointReader checkpoint = CheckpointReader::open(checkpoint_of(arguments.model));
    const std::string origin = checkpoint.path().string();
    Settings settings = from_checkpoint_text(checkpoint.text("config"), origin + " (config)", overrides).settings;
    settings.teacher = {};  // a student trains on its own
    settings.finetune = {};
    return {settings, Vocabulary::from_json(checkpoint.text("vocabulary"), origin), files_of_run(arguments.model)};
  }
  const LoadedSettings loaded = load_settings(arguments.model, overrides);
  log_warnings(loaded);
  std::vector<std::string> inputs = input_files(loaded);
  const std::string missing = missing_data(loaded.settings.data);
  if (!missing.empty()) return {loaded.settings, substitute_vocabulary(loaded.settings, missing), std::move(inputs)};
  const std::unique_ptr<Dataset> data = open_data(loaded.settings.data);
  check_against_data(loaded, *data);
  return {loaded.settings, data->vocabulary(), std::move(inputs)};
}

/// Returns nothing if other programs have disturbed the measurement of the peak so much that `rate` exceeds it, or if
/// what is read stays in the caches.
std::optional<double> share_of(double rate, double peak) {
  return rate <= peak ? std::optional(rate / peak) : std::nullopt;
}

double tokens_per_second(const BenchGeneration& one) {
  return static_cast<double>(one.batch) / one.steps.median_seconds();
}

struct BenchModelRow {
  std::string part;
  std::int64_t batch = 1;
  double seconds = 0, tokens_per_second = 0;
  std::string rate{}, memory{};
  std::optional<double> share{};
};

void print(std::int64_t n, const BenchModelRow& row) {
  std::string line = fmt::format("{:>8}  {:<27}{:>6}{:>12.3f}{:>12.0f}", n, row.part, row.batch, row.seconds * 1e3,
                                 row.tokens_per_second);
  if (!row.rate.empty())
    line += fmt::format("{:>16}{:>9}{:>17}", row.rate, row.share ? fmt::format("{:.1f}%", 100 * *row.share) : "-",
                        row.memory);
  fmt::print("{}\n", line);
}

void print(const BenchModelLength& length, const Settings& settings, const Roofline& roofline) {
  const std::int64_t batch = settings.data.batch_size;
  const double step = length.step.median_seconds(), forward = length.forward.median_seconds(),
               flops = length.step_flops / step;
  print(length.n, {.part = "training step",
                   .batch = batch,
                   .seconds = step,
                   .tokens_per_second = static_cast<double>(length.step_tokens) / step,
                   .rate = fmt::format("{:.1f} GFLOP/s", flops * 1e-9),
                   .memory = in_binary_units(static_cast<double>(length.peak_bytes)),
                   .share = share_of(flops, roofline.flops(settings.model.dtype))});
  print(length.n, {.part = "forward",
                   .batch = batch,
                   .seconds = forward,
                   .tokens_per_second = static_cast<double>(length.forward_tokens) / forward});
  for (const BenchGeneration& one : length.generation) {
    const double prompt = one.prompt.median_seconds(), rate = one.bytes_per_second();
    print(length.n, {.part = fmt::format("prompt of {}", one.prompt_tokens),
                     .batch = one.batch,
                     .seconds = prompt,
                     .tokens_per_second = static_cast<double>(one.batch * one.prompt_tokens) / prompt});
    print(length.n,
          {.part = fmt::format("generation of {}{}", one.tokens, one.threads < thread_count() ? ", 1 thread" : ""),
           .batch = one.batch,
           .seconds = one.steps.median_seconds(),
           .tokens_per_second = tokens_per_second(one),
           .rate = fmt::format("{:.2f} GB/s", rate * 1e-9),
           .memory = in_binary_units(static_cast<double>(one.weight_bytes + one.state_bytes) /
                                     static_cast<double>(one.batch)),
           .share = share_of(rate, roofline.memory_bytes)});
  }
}

Json json_of_share(double rate, double peak) {
  const std::optional<double> share = share_of(rate, peak);
  return share ? Json(*share) : Json();
}

Json json_of(const BenchRuns& runs, std::int64_t tokens) {
  return {{"seconds", runs.seconds},
          {"median_seconds", runs.median_seconds()},
          {"tokens", tokens},
          {"tokens_per_second", static_cast<double>(tokens) / runs.median_seconds()}};
}

Json json_of(const BenchModelLength& length, const Settings& settings, const Roofline& roofline) {
  Json step = json_of(length.step, length.step_tokens), generations = Json::array();
  const double rate = length.step_flops / length.step.median_seconds();
  step["flops"] = length.step_flops;
  step["flops_per_second"] = rate;
  step["fraction_of_peak"] = json_of_share(rate, roofline.flops(settings.model.dtype));
  step["peak_bytes"] = length.peak_bytes;
  for (const BenchGeneration& one : length.generation) {
    Json generation{{"batch", one.batch},
                    {"prompt", json_of(one.prompt, one.batch * one.prompt_tokens)},
                    {"threads", one.threads},
                    {"steps", one.tokens},
                    {"step", json_of(one.steps, one.batch)}};
    generation["weight_bytes"] = one.weight_bytes;
    generation["state_bytes"] = one.state_bytes;
    generation["bytes_per_second"] = one.bytes_per_second();
    generation["fraction_of_peak"] = json_of_share(one.bytes_per_second(), roofline.memory_bytes);
    generations.push_back(generation);
  }
  return {{"n", length.n},
          {"training_step", step},
          {"forward", json_of(length.forward, length.forward_tokens)},
          {"generation", generations},
          {"no_generation", length.no_generation.empty() ? Json() : Json(length.no_generation)}};
}

void print_head(const BenchModelArguments& arguments, const Settings& settings, const Device& device,
                std::int64_t parameters) {
  fmt::print("{}: {}, {} parameters, {}; {}, {} thread{}; medians of {}\n\n", arguments.model,
             name_of(settings.model.architecture), parameters, name_of(settings.model.dtype), device.text(),
             thread_count(), thread_count() == 1 ? "" : "s", arguments.bench.repeat);
  fmt::print("{:>8}  {:<27}{:>6}{:>12}{:>12}{:>16}{:>9}{:>17}\n", "n", "", "batch", "median ms", "tokens/s", "rate",
             "of peak", "memory");
}

void run(BenchModelArguments& arguments) {
  BenchModelSubject subject = subject_of(arguments);
  Settings& whole = subject.settings;
  set_thread_count(static_cast<int>(arguments.threads > 0 ? arguments.threads : whole.threads));
  if (!arguments.device.empty()) whole.device = arguments.device;
  const Device device = arguments.bench.device = device_from_name(whole.device);
  if (arguments.lengths.empty()) arguments.lengths = {whole.data.sequence_length};
  std::vector<Settings> settings;  // all are checked while the memory is still free
  for (const std::int64_t n : arguments.lengths)
    settings.push_back(bench_model_settings(whole, n, subject.vocabulary, device));
  std::optional<AtomicFile> file;  // created before the work, so that a wrong path fails early
  if (!arguments.json.empty()) {
    refuse_replacing_inputs(subject.inputs, arguments.json, "--json-file");
    refuse_replacing_data(arguments.json, "--json-file");
    file.emplace(arguments.json);
  }
  const Machine machine = read_machine();
  Roofline roofline;
  const auto measure = [&] {
    roofline.improve(measure_roofline(device, machine.memory.usable(), {.tf32 = whole.tf32}));
  };
  measure();
  std::vector<BenchModelLength> lengths;
  for (const Settings& one : settings) {
    lengths.push_back(bench_model(one, subject.vocabulary, arguments.bench));
    measure();
    log_info("n = {}: {:.3f} ms for a training step", lengths.back().n, lengths.back().step.median_seconds() * 1e3);
  }
  // The shares are those of the best measurement of the roofline.
  print_head(arguments, settings.front(), device, lengths.front().parameters);
  for (std::size_t i = 0; i < lengths.size(); ++i) print(lengths[i], settings[i], roofline);
  if (const std::string& why = lengths.front().no_generation; !why.empty()) fmt::print("no generation: {}\n", why);
  fmt::print("\n{}\n", roofline.text());
  if (!file) return;
  Json object{{"furlong", {{"version", version()}, {"commit", commit()}}},
              {"machine", {{"cpu", machine.cpu.model}, {"kernel", machine.kernel}, {"threads", thread_count()}}},
              {"device", device.text()},
              {"roofline", roofline.to_json()},
              {"model", arguments.model},
              {"config", to_json(whole)},
              {"parameters", lengths.front().parameters},
              {"dtype", name_of(whole.model.dtype)},
              {"batch", whole.data.batch_size},
              {"repeat", arguments.bench.repeat},
              {"lengths", Json::array()}};
  for (std::size_t i = 0; i < lengths.size(); ++i)
    object["lengths"].push_back(json_of(lengths[i], settings[i], roofline));
  file->write(json_text(object));
  file->commit();
}

constexpr const char* bench_model_footer =
    "Tokens are random and weights are new, because neither changes the speed. Of the dataset, only the vocabulary is "
    "read; if it does not exist, add --set model.vocabulary_size=N. Settings are those of furlong train.\n"
    "  training step  forward, backward, gradient clipping and optimizer, with all accumulated batches. Rate: "
    "operations as furlong plan counts them (on the CPU without logits of tokens that are not masked), compared with "
    "the better roofline of the dtype. Memory: the peak of all tensors\n"
    "  forward        one batch, with its loss, without gradients\n"
    "  prompt         a prompt that leaves room for the generated tokens in n, processed in parallel\n"
    "  generation     one token at a time, the most probable one; time is per step of the whole batch, with the choice "
    "of the tokens. Small models decode one sequence in one thread. Rate: bytes of weights and state that a step "
    "reads, each once, compared with the memory roofline. Memory: these bytes per generated token\n"
    "The roofline has rates of this machine on all threads, the best of measurements before the first and after each "
    "length: large matrix products, and bytes read and written when one large tensor is added to another. plain and "
    "packed: a bfloat16 product of few rows reads its weights as they are stored; one of many rows first packs them "
    "for the CPU's matrix instructions. No fraction is given above the roofline: other programs have slowed it down, "
    "or weights and state stay in the caches.";

}  // namespace

void add_bench_model(Command bench_command) {
  const Command command =
      bench_command.add_subcommand("model", "Measure training steps, evaluation and generation of a model");
  command.footer(bench_model_footer);
  command.examples({
      "furlong bench model configs/quickstart.yaml --set model.vocabulary_size=2048",
      "furlong bench model runs/quickstart --lengths 1k,4k --batch 4 --dtype float32 --json-file model.json",
  });
  const auto arguments = std::make_shared<BenchModelArguments>();
  command
      .add_option("model", arguments->model,
                  "YAML file for furlong train, or a run directory or checkpoint, of which the settings are used")
      .required()
      .value_name("CONFIG|RUN|CHECKPOINT");
  add_overrides(command, arguments->overrides, "model.n_layers=2");
  command
      .add_option("--lengths", arguments->lengths,
                  "Sequence lengths n, such as 1k,4k (k: 1,024) (default: data.sequence_length)")
      .separated_by(',')
      .in_tokens()
      .value_name("N,...");
  command
      .add_option("--batch", arguments->batch,
                  "Sequences of a batch, also for generation after that of one sequence (default: data.batch_size)")
      .range(1, 1000000);
  command.add_option("--max-tokens", arguments->bench.max_tokens, "Tokens to generate, at most half of n")
      .shows_default()
      .range(1, 1 << 24);
  command.add_option("--dtype", arguments->dtype, "Type of weights and activations (default: model.dtype)")
      .one_of({"float32", "bfloat16"});
  command.add_option("--repeats", arguments->bench.repeat, "Timed runs of each part; the median is reported")
      .shows_default()
      .range(1, 100000);
  command.add_option("--device", arguments->device, "auto, cpu, cuda or cuda:N (default: device of the config)")
      .value_name("DEVICE")
      .common();
  add_threads(command, arguments->threads);
  command
      .add_option("--json-file", arguments->json, "Write all results, with the time of each run, to this file as JSON")
      .value_name("FILE")
      .common();
  command.action([arguments] {
    refuse_twice("--lengths", arguments->lengths);
    run(*arguments);
  });
}

}  // namespace furlong::command_line
