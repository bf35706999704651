// furlong predict: labels of sequences.
#include "evaluation/predict.h"

#include "cli/held_output.h"
#include "cli/sequence_options.h"

namespace furlong::command_line {
namespace {

struct PredictArguments {
  SequenceOptions shared;
  std::filesystem::path output;
  bool json = false;
  PredictOptions predict;
};

void run(PredictArguments& options) {
  const bool json_lines = options.output.empty() ? options.json : writes_json_lines(options.output, "--output");
  refuse_input_as_output(options.shared, options.output);
  HeldOutput output(options.output);  // of two writers the second is refused before it reads
  Model model = open_model(options.shared);
  PredictionRows rows(json_lines, [&](std::string_view text) { output.write(text); });
  ReadSummary summary;
  const auto start = Clock::now();
  {
    SequenceProgress progress("predict", options.shared.input.paths);
    options.predict.progress = std::ref(progress);
    summary = predict(model, options.shared.input, rows, options.predict);
  }
  output.finish();
  report_reading(summary);
  if (!options.output.empty()) print_throughput(options.output, summary, start);
}

}  // namespace

void add_predict(Command program, int& /*status*/) {
  const Command command =
      program.add_subcommand("predict", "Predict labels of sequences: classes, numbers, sets, labels of tokens");
  const auto options = std::make_shared<PredictArguments>();
  add_model_and_inputs(command, options->shared);
  const Option output =
      command
          .add_option("-o,--output", options->output, "File to write, .tsv or .jsonl (default: TSV on standard output)")
          .value_name("OUT");
  command.add_flag("--json", options->json, "Print JSON lines instead of TSV").excludes(output);
  command
      .add_option("--sequence-length", options->predict.sequence_length,
                  "Tokens of the longest sequence; longer ones are cut (default: as in training)")
      .range(1, 1000000000);
  command.add_option("--batch-tokens", options->predict.batch_tokens, "Tokens in a batch, including padding")
      .shows_default()
      .range(1, 1000000000)
      .value_name("N");
  add_reading_options(command, options->shared);
  command.footer(
      "MODEL has learned labels of single texts. Each row has the id of the sequence and the columns of furlong "
      "evaluate --predictions. docs/labels.md describes them.");
  command.examples({
      "furlong predict runs/promoters unlabeled.fasta -o classes.tsv",
      "furlong predict runs/stability variants.csv --text-field 2 --id-field 1",
  });
  command.action([options] { run(*options); });
}

}  // namespace furlong::command_line
