// furlong logits: what a model makes of given tokens, for comparing it with others.
#include "evaluation/logits.h"

#include <memory>

#include "cli/command_line.h"
#include "framework/core/parallel.h"

namespace furlong::command_line {
namespace {

struct Options {
  std::filesystem::path run, input, output;
  std::string device = "auto", weights = "averaged", dtype = "own";
  std::int64_t threads = 0;
  LogitsOptions logits;
};

void run(const Options& options) {
  set_thread_count(static_cast<int>(options.threads));
  const CheckpointReader checkpoint = CheckpointReader::open(checkpoint_of(options.run));
  Model model = load_model(checkpoint, device_from_name(options.device),
                           options.weights == "raw" ? Weights::raw : Weights::averaged_if_present,
                           [](const Parameter&) { return true; });
  if (options.dtype == "float64") {
    if (!model.store->device().is_cpu()) throw UserError("--dtype float64: is computed on the CPU; add --device cpu");
    model = in_float64(model);
  }
  model.stream.products.short_sums = true;
  const TokenRows rows = read_token_rows(options.input, model.store->find("token_embedding.weight").shape()[0]);
  write_logits(model, rows, options.output, options.logits);
  fmt::print("{}: {} of {} row{} of up to {} tokens\n", options.output.string(),
             options.logits.hidden ? "hidden states" : "logits", rows.rows(), rows.rows() == 1 ? "" : "s", rows.n);
}

}  // namespace

void add_logits(Command program, int& /*status*/) {
  const Command command =
      program.add_subcommand("logits", "Logits or hidden states that a model gives for token ids, into an HDF5 file");
  command.footer(
      "INPUT is a text file with the token ids of one row on each line (furlong tokenize writes such lines), or HDF5 "
      "with `tokens`, integers\n"
      "[rows, n], and where they are wanted `lengths` [rows] (what follows is padding) and `segments` [rows, n] "
      "(BERT's token types).\n"
      "The output holds `logits` [rows, n, vocabulary] or `hidden` [rows, n, d_model], float32 (float64 with --dtype "
      "float64), zero at padding,\nand `lengths`. On the CPU float32 products are summed in chains of 256 terms, for "
      "no more rounding than in training, on AVX-512 for half.\n"
      "  furlong logits teacher.h5 ids.txt --output logits.h5");
  const auto options = std::make_shared<Options>();
  command
      .add_option("checkpoint", options->run,
                  "A checkpoint, or a run directory (its best one, or the newest where there is no best; of "
                  "furlong\nfinetune, of the last stage)")
      .required()
      .value_name("CHECKPOINT|RUN");
  command.add_option("input", options->input, "Token ids").required().value_name("INPUT.h5|ids.txt");
  command.add_option("--output,-o", options->output, "The file to write").required().value_name("OUT.h5");
  command.add_flag("--hidden", options->logits.hidden, "Write the final hidden states instead of logits");
  command.add_option("--batch-size", options->logits.batch_size, "Rows at once").shows_default().range(1, 1000000);
  command
      .add_option("--weights", options->weights,
                  "averaged: the moving average where the checkpoint has one; raw: the weights that were trained")
      .shows_default()
      .one_of({"averaged", "raw"});
  command
      .add_option("--dtype", options->dtype,
                  "own: what the model computes in; float64: on the CPU, to tell rounding from meaning")
      .shows_default()
      .one_of({"own", "float64"});
  command.add_option("--device", options->device, "auto, cpu, cuda or cuda:N").shows_default();
  command.add_option("--threads", options->threads, "Threads; 0: all cores").shows_default().range(0, 4096);
  command.action([options] { run(*options); });
}

}  // namespace furlong::command_line
