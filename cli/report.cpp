// furlong report: one HTML page about training runs.
#include "evaluation/report/report.h"

#include <unistd.h>

#include <memory>
#include <optional>

#include "cli/analyze_report.h"
#include "cli/command_line.h"
#include "cli/common_options.h"
#include "datasets/prepare/text_stream.h"
#include "evaluation/generate.h"
#include "framework/core/log.h"
#include "framework/core/parallel.h"
#include "framework/io/atomic_file.h"
#include "trainers/train/signals.h"

namespace furlong::command_line {
namespace {

struct ReportArguments {
  std::vector<std::string> runs, prompts, lra;
  std::filesystem::path output = "report.html";
  std::int64_t samples = 0, sample_tokens = 200, threads = 0, interval = 10;
  std::string device = "auto";
  bool analyze = false, watch = false;
};

/// Adds text that the model of a run's best checkpoint generates. Encoders, and runs without a checkpoint, are left out
/// with a warning.
void add_samples(ReportRun& run, const ReportArguments& options, const Device& device) {
  std::vector<std::string> prompts = options.prompts;
  if (prompts.empty()) prompts.assign(1, "");
  GenerateOptions generation;
  generation.max_tokens = options.sample_tokens;
  generation.temperature = 0.8;
  generation.samples = options.samples;
  try {
    const CheckpointReader checkpoint = CheckpointReader::open(checkpoint_of(run.files.path.string()));
    Model model = load_model(checkpoint, device, Weights::ema_if_present);
    run.sampled_at = checkpoint.integer("step");
    for (const std::string& prompt : prompts) {
      try {
        const std::vector<std::int32_t> tokens = model.vocabulary.encode_prompt(prompt);
        if (const std::string warning = prompt_warning(model, prompt, tokens); !warning.empty())
          log_warn("{}: --prompt '{}': {}", run.name, prompt, warning);
        const Generated generated = generate(model, tokens, generation);
        for (const auto& sample : generated.samples)
          run.samples.push_back({prompt, continuation_text(model.vocabulary, tokens, sample)});
      } catch (const UserError& error) {
        if (!model.decoder) throw;
        log_warn("{}: no samples of the prompt '{}': {}", run.name, prompt, error.what());
      }
    }
  } catch (const UserError& error) {
    log_warn("{}: no samples: {}", run.name, error.what());
  }
}

void add_attention(ReportRun& run) {
  ModelAnalysisOptions analysis;
  analysis.run = run.files.path;
  run.attention = Json::array();
  try {
    analyze_model(
        analysis, [](const ModelAnalysis&) {},
        [&](const LayerAnalysis& layer) { run.attention.push_back(command_line::as_json(layer)); });
  } catch (const UserError& error) {
    log_warn("{}: attention is not analyzed: {}", run.name, error.what());
    run.attention = nullptr;
  }
}

/// Returns the number of runs, and whether one of them is active.
std::pair<std::size_t, bool> write(const ReportArguments& options, bool reloads) {
  const Device device = options.samples > 0 ? device_from_name(options.device) : Device{};
  AtomicFile file(options.output);  // before the reading: a second writer fails early
  std::vector<ReportRun> runs = open_runs(options.runs);
  refuse_replacing_inputs(options.lra, options.output);
  for (const ReportRun& run : runs) {
    const std::filesystem::path& path = run.files.path;
    refuse_replacing_inputs({path / "metrics.jsonl", path / "config.yaml"}, options.output);
    std::error_code missing;  // a run without checkpoints is left out later, with a warning
    for (const auto& entry : std::filesystem::directory_iterator(path / "checkpoints", missing))
      refuse_replacing_inputs({entry.path()}, options.output);
  }
  for (const std::string& directory : options.runs)
    refuse_replacing_inputs({directory + "/recovery.json"}, options.output);
  if (const std::string extension = options.output.extension().string(); extension != ".html" && extension != ".htm")
    throw UserError("--output: {} has the extension '{}'; expected .html", options.output.string(), extension);
  ReportTables tables;
  for (const std::string& file : options.lra) tables.lra.push_back(read_lra(file));
  bool running = false;
  for (ReportRun& run : runs) {
    running = running || run.files.state == RunState::running;
    for (const std::string& problem : run.files.problems) log_warn("{}", problem);
    if (options.samples > 0) add_samples(run, options, device);
    if (options.analyze) add_attention(run);
  }
  for (const std::string& directory : options.runs) {
    Json recovery = read_recovery(directory);
    if (!recovery.is_null()) tables.recoveries.push_back(std::move(recovery));
  }
  ReportOptions page;
  page.reload_seconds = reloads && running ? options.interval : 0;
  file.write(report_page(runs, tables, page));
  file.commit_last();
  return {runs.size(), running};
}

void run(const ReportArguments& options, int& status) {
  set_thread_count(static_cast<int>(options.threads));
  std::optional<StopRequests> stop;  // otherwise a signal ends the command at once
  if (options.watch) stop.emplace();
  const auto [count, running] = write(options, options.watch);
  fmt::print("{}: {} run{}\n", options.output.string(), count, count == 1 ? "" : "s");
  std::fflush(stdout);
  if (!options.watch) return;
  if (!running) log_warn("--watch: no run is active, so the page is final");
  for (bool active = running; active && !stop->received();) {
    for (std::int64_t i = 0; i < 10 * options.interval && !stop->received(); ++i) ::usleep(100'000);
    active = write(options, !stop->received()).second;
  }
  if (stop->received()) status = 3;
}

}  // namespace

void add_report(Command program, int& status) {
  const Command command = program.add_subcommand("report", "Write one HTML page about one or several training runs");
  const auto options = std::make_shared<ReportArguments>();
  command.add_option("runs", options->runs, "Run directories of furlong train, or of furlong finetune: all its stages")
      .required()
      .value_name("RUN...");
  command.add_option("-o,--output", options->output, "HTML file to write").shows_default().value_name("FILE");
  const Option watch =
      command.add_flag("--watch", options->watch,
                       "Rewrite the page every --interval seconds while a run is active; the page reloads itself");
  command.add_option("--interval", options->interval, "Seconds between two pages of --watch")
      .needs(watch)
      .shows_default()
      .range(1, 86400)
      .value_name("SECONDS");
  const Option samples =
      command.add_option("--samples", options->samples, "Add N generated texts of each run's best checkpoint")
          .excludes(watch)
          .range(1, 100)
          .value_name("N");
  command.add_option("--prompt", options->prompts, "Prompt of the samples. Repeatable: N samples of each")
      .needs(samples)
      .repeatable()
      .value_name("TEXT");
  command.add_option("--sample-tokens", options->sample_tokens, "Length of a sample")
      .needs(samples)
      .shows_default()
      .range(1, 100000)
      .value_name("N");
  command
      .add_flag("--analyze", options->analyze,
                "Add the errors of each layer's attention, measured on one validation batch with the best checkpoint")
      .excludes(watch);
  command
      .add_option("--lra", options->lra,
                  "Add the table of Long Range Arena in this file of furlong bench lra "
                  "--json-file. Repeatable")
      .repeatable()
      .value_name("FILE");
  add_device(command, options->device).needs(samples);
  add_threads(command, options->threads);
  command.footer(
      "The page has the curves of metrics.jsonl, the configurations and their differences, and for furlong finetune "
      "the table of recovery. It is a single file that needs no network. Samples use temperature 0.8.");
  command.examples({
      "furlong report runs/quickstart -o report.html",
      "furlong report runs/softmax runs/performer --samples 2 --prompt 'In the beginning' --analyze",
      "furlong report runs/lra/* --lra lra.json",
  });
  command.action([options, &status] { run(*options, status); });
}

}  // namespace furlong::command_line
