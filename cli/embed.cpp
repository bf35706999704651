// furlong embed: embeddings of sequences or tokens.
#include "evaluation/embed.h"

#include "cli/sequence_options.h"
#include "framework/core/clock.h"
#include "framework/core/log.h"
#include "framework/io/atomic_file.h"

namespace furlong::command_line {
namespace {

struct EmbedArguments {
  SequenceOptions shared;
  std::filesystem::path output;
  EmbedOptions embed;
};

void run(EmbedArguments& options) {
  refuse_input_as_output(options.shared, options.output);
  auto output = std::make_unique<AtomicFile>(options.output);  // of two writers the second is refused before it reads
  Model model = open_model(options.shared);
  options.embed.model = options.shared.model;
  EmbedReport report;
  const auto start = Clock::now();
  {
    SequenceProgress progress("embed", options.shared.input.paths);
    options.embed.progress = std::ref(progress);
    report = embed(model, options.shared.input, std::move(output), options.embed);
  }
  report_reading(report.read, options.output.extension() == ".npy" ? "rows of NaN in the output" : "left out");
  const double seconds = seconds_since(start);
  fmt::print("{}: {} sequences, {} tokens, vectors of {} numbers from layer {}; {:.0f} tokens/s\n",
             options.output.string(), report.read.sequences, report.read.tokens, report.width, report.layer,
             static_cast<double>(report.read.tokens) / std::max(seconds, 1e-9));
}

}  // namespace

void add_embed(Command program, int& /*status*/) {
  const Command command = program.add_subcommand("embed", "Compute embeddings of sequences or tokens, from any layer");
  const auto options = std::make_shared<EmbedArguments>();
  using Pooling = EmbedOptions::Pooling;
  add_model_and_inputs(command, options->shared);
  command.add_option("-o,--output", options->output, "File to write, atomically: .h5 or .tsv, with ids, or .npy")
      .required()
      .value_name("OUT");
  command.add_choice(
      "--pooling", {"mean", "class", "last", "none"}, "mean",
      [options](const std::string& word) {
        options->embed.pooling = word == "class"  ? Pooling::class_token
                                 : word == "last" ? Pooling::last
                                 : word == "none" ? Pooling::none
                                                  : Pooling::mean;
      },
      "mean: over all tokens; class: the [CLS] or <class> token; last: the last token; none: one vector per token");
  command
      .add_option("--layer", options->embed.layer,
                  "Layer: 1 is the first, 0 the embeddings, -1 the last, -2 the one before it")
      .shows_default()
      .value_name("N");
  command.add_flag("--normalize", options->embed.normalize, "Scale each vector to unit L2 norm");
  command.add_flag("--skip-special", options->embed.skip_special,
                   "Exclude the special tokens around a sequence ([CLS], [SEP], <document>)");
  command
      .add_option("--batch-tokens", options->embed.batch_tokens,
                  "Tokens in a batch, including padding. Decoders process longer sequences in pieces of this size")
      .shows_default()
      .range(1, 1000000000)
      .value_name("N");
  add_reading_options(command, options->shared);
  command.footer("docs/embed.md describes the files.");
  command.examples({
      "furlong embed runs/antibody sequences.fasta -o vectors.h5",
      "furlong embed models/minilm sentences.txt -o vectors.npy --normalize",
  });
  command.action([options] { run(*options); });
}

}  // namespace furlong::command_line
