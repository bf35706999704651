// furlong export: writes a model in Hugging Face's format.
#include "conversion/export.h"

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command_line.h"
#include "cli/common_options.h"
#include "cli/json_output.h"
#include "conversion/architecture.h"
#include "framework/io/interrupted_writes.h"
#include "trainers/train/signals.h"

namespace furlong::command_line {
namespace {

struct ExportArguments {
  std::filesystem::path source, directory;
  ExportOptions write;
  std::string weights = "ema";
  bool json = false;
};

/// Signals before the last file leave no output, and later ones end the program with status 0.
ExportReport export_completely(SourceModel& source, ExportDirectory& directory, const ExportOptions& options) {
  const StopRequests stop_requests;
  ExportReport report = export_model(source, directory, options);
  output_is_complete();
  return report;
}

void run(const ExportArguments& options) {
  ImportOptions read;
  read.weights = weights_named(options.weights);
  ExportDirectory directory(options.directory, options.write.overwrite);  // refuses a second export before reading
  SourceModel source = open_source_model(options.source, read);
  const ExportReport report = export_completely(source, directory, options.write);
  if (options.json) {
    print_json(report.json());
    return;
  }
  fmt::print("{}: {}, {} tensors", options.directory.string(), report.model_type, report.tensors);
  if (report.rounded > 0) fmt::print(", {} of them rounded to the storage type", report.rounded);
  fmt::print("\n");
  if (report.for_hugging_face) {
    fmt::print("  load it in transformers with from_pretrained(\"{}\")\n", options.directory.string());
  } else {
    fmt::print("  load it in transformers with from_pretrained(\"{}\", trust_remote_code=True)\n",
               options.directory.string());
    fmt::print("  written with its code: {}\n", report.reason);
  }
  if (!report.tokenizer_obstacle.empty())
    fmt::print("  AutoTokenizer does not give its ids: {}; furlong tokenize does\n", report.tokenizer_obstacle);
  for (const std::string& name : report.removed) fmt::print("  removed: {}, of the previous model\n", name);
  for (const std::string& name : report.left_out) fmt::print("  omitted: {}, which the source's format lacks\n", name);
}

}  // namespace

void add_export(Command program, int& /*status*/) {
  const Command command =
      program.add_subcommand("export", "Write a model as a Hugging Face directory: safetensors, config and tokenizer");
  command.footer(
      "A softmax model of a family that transformers supports (" + family_names() +
      ") gets that family's tensor names and config.json. Exporting an unchanged imported softmax model reproduces its "
      "tensors bit for bit.\n"
      "Any other model is written with its code, modeling_furlong.py, in plain PyTorch. AutoModel and "
      "AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSequenceClassification or "
      "AutoModelForTokenClassification load it in transformers 4.46 and later with trust_remote_code=True. furlong "
      "convert imports both forms, including models trained further in transformers. Adapters are merged into the "
      "weights.");
  command.examples({
      "furlong export runs/chat chat_performer",
      "furlong export runs/chat chat_performer --dtype bfloat16 --force",
  });
  const auto options = std::make_shared<ExportArguments>();
  command.add_option("source", options->source, checkpoint_description).required().value_name("CHECKPOINT|RUN");
  command.add_option("directory", options->directory, "Directory to write; created if it does not exist")
      .required()
      .value_name("DIR");
  command
      .add_option("--dtype", options->write.dtype,
                  "Storage type of tensors; original: that of each tensor at import, or float32")
      .shows_default()
      .one_of({"original", "float32", "bfloat16", "float16"});
  add_weights(command, options->weights);
  command.add_flag("--force", options->write.overwrite,
                   "Overwrite an existing model. Its shards and tokenizer files are removed, other files stay");
  add_json(command, options->json);
  command.action([options] { run(*options); });
}

}  // namespace furlong::command_line
