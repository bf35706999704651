// furlong logits: writes logits or hidden states, for comparison with other implementations.
#include "evaluation/logits.h"

#include <memory>

#include "cli/command_line.h"
#include "cli/common_options.h"
#include "cli/held_output.h"
#include "framework/core/parallel.h"
#include "framework/io/atomic_file.h"
#include "framework/io/hdf5.h"

namespace furlong::command_line {
namespace {

struct LogitsArguments {
  std::filesystem::path run, input, output;
  std::string device = "auto", weights = "ema", dtype = "model";
  std::int64_t threads = 0;
  LogitsOptions logits;
};

void run(const LogitsArguments& options) {
  set_thread_count(static_cast<int>(options.threads));
  const std::filesystem::path path = checkpoint_of(options.run);
  refuse_replacing_inputs(files_of_run(options.run), options.output);
  refuse_replacing_inputs({options.input.string()}, options.output);
  refuse_replacing_data(options.output);
  hdf5::File::check_output_name(options.output);
  AtomicFile output(options.output);  // of two writers the second is refused before it reads
  const CheckpointReader checkpoint = CheckpointReader::open(path);
  Model model = load_model(checkpoint, device_from_name(options.device), weights_named(options.weights),
                           [](const Parameter&) { return true; });
  if (options.dtype == "float64") {
    if (!model.store->device().is_cpu()) throw UserError("--dtype float64 runs only on the CPU; add --device cpu");
    model = copy_of(model, Device{}, DType::float64);
  }
  model.stream.products.short_sums = true;
  const TokenRows rows = read_token_rows(options.input, model.store->find("token_embedding.weight").shape()[0]);
  write_logits(model, rows, output, options.logits);
  fmt::print("{}: {} of {} row{} of up to {} tokens\n", options.output.string(),
             options.logits.hidden ? "hidden states" : "logits", rows.rows(), rows.rows() == 1 ? "" : "s", rows.n);
}

}  // namespace

void add_logits(Command program, int& /*status*/) {
  const Command command =
      program.add_subcommand("logits", "Write a model's logits or hidden states for given token ids");
  command.footer(
      "INPUT is a text file with the token ids of one row per line, as furlong tokenize prints them, or an HDF5 file "
      "with `tokens`, integers [rows, n]. Optional: `lengths` [rows], tokens beyond which are padding, and `segments` "
      "[rows, n], the token types of BERT.\n"
      "The output holds `lengths`, and `logits` [rows, n, vocabulary] or `hidden` [rows, n, d_model], in float32 "
      "(float64 with --dtype float64), zero at padding.");
  command.examples({
      "furlong logits teacher.h5 ids.txt --output logits.h5",
      "furlong logits runs/quickstart ids.txt -o hidden.h5 --hidden --dtype float64 --device cpu",
  });
  const auto options = std::make_shared<LogitsArguments>();
  command.add_option("checkpoint", options->run, checkpoint_description).required().value_name("CHECKPOINT|RUN");
  command.add_option("input", options->input, "Token ids").required().value_name("INPUT.h5|ids.txt");
  command.add_option("--output,-o", options->output, "HDF5 file to write").required().value_name("OUT.h5");
  command.add_flag("--hidden", options->logits.hidden, "Write the final hidden states instead of logits");
  command.add_option("--batch-size", options->logits.batch_size, "Rows in a batch").shows_default().range(1, 1000000);
  add_weights(command, options->weights);
  command
      .add_option("--dtype", options->dtype,
                  "model: the model's own; float64 (CPU only): shows whether a difference is rounding error")
      .shows_default()
      .one_of({"model", "float64"});
  add_device(command, options->device);
  add_threads(command, options->threads);
  command.action([options] { run(*options); });
}

}  // namespace furlong::command_line
