// furlong score: how probable a model finds sequences and mutations.
#include "evaluation/score.h"

#include "cli/held_output.h"
#include "cli/sequence_options.h"
#include "evaluation/mutations.h"
#include "framework/io/atomic_file.h"

namespace furlong::command_line {
namespace {

struct ScoreArguments {
  SequenceOptions shared;
  std::filesystem::path output, mutations;
  bool json = false;
  ScoreOptions score;
};

bool writes_json(const ScoreArguments& options) {
  if (options.output.empty()) return options.json;
  const std::string extension = options.output.extension().string();
  if (extension != ".tsv" && extension != ".json")
    throw UserError("--output: {} has the extension '{}'; expected .tsv or .json", options.output.string(), extension);
  return extension == ".json";
}

void run(ScoreArguments& options) {
  const bool json = writes_json(options);
  refuse_input_as_output(options.shared, options.output);
  refuse_replacing_inputs({options.mutations.string()}, options.output);
  HeldOutput output(options.output);  // of two writers the second is refused before it reads
  Model model = open_model(options.shared);
  ScoreFile file(json, options.score.positions, [&](std::string_view text) { output.write(text); });
  ReadSummary summary;
  const auto start = Clock::now();
  {
    SequenceProgress progress("score", options.shared.input.paths);
    options.score.progress = std::ref(progress);
    summary = options.mutations.empty() ? score(model, options.shared.input, file, options.score)
                                        : score_mutations(model, options.shared.input, options.mutations, file,
                                                          options.score, std::ref(progress));
  }
  output.finish();
  report_reading(summary);
  if (options.output.empty()) return;
  if (!options.mutations.empty()) {
    fmt::print("{}: mutations of {}\n", options.output.string(), options.mutations.string());
    return;
  }
  print_throughput(options.output, summary, start);
}

}  // namespace

void add_score(Command program, int& /*status*/) {
  const Command command =
      program.add_subcommand("score", "Compute log-likelihoods and perplexities of sequences, and scores of mutations");
  const auto options = std::make_shared<ScoreArguments>();
  add_model_and_inputs(command, options->shared);
  const Option output =
      command
          .add_option("-o,--output", options->output, "File to write, .tsv or .json (default: TSV on standard output)")
          .value_name("OUT");
  const Option positions =
      command.add_flag("--positions", options->score.positions, "Add the log-probability of each position, in nats");
  command
      .add_option("--mutations", options->mutations,
                  "Score the mutations in this file, one per line, such as A23V or A23V:G45D, with positions "
                  "from 1; INPUT is the wild type")
      .excludes(positions)
      .value_name("FILE");
  command.add_flag("--json", options->json, "Print JSON instead of TSV").excludes(output);
  command
      .add_option(
          "--start", options->score.start,
          "For causal models whose tokenizer adds no BOS token: BOS token to prepend, or none. auto: the document "
          "token if training crossed document boundaries")
      .shows_default()
      .value_name("TOKEN");
  command
      .add_option("--batch-tokens", options->score.batch_tokens,
                  "Tokens in a batch, including padding. Causal models process longer sequences in pieces of this size")
      .shows_default()
      .range(1, 1000000000)
      .value_name("N");
  add_reading_options(command, options->shared);
  command.footer(
      "Causal models give exact log-likelihoods. Masked models give pseudo-log-likelihoods: each token is predicted "
      "with only that token masked. docs/score.md describes the scores.");
  command.examples({
      "furlong score runs/genome contigs.fasta -o scores.tsv",
      "furlong score models/antiberty wild_type.fasta --mutations mutations.txt",
  });
  command.action([options] { run(*options); });
}

}  // namespace furlong::command_line
