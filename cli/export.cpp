// furlong export: a model of ours for those who use Hugging Face's formats.
#include "conversion/export.h"

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command_line.h"

namespace furlong::command_line {
namespace {

struct Options {
  std::filesystem::path source, directory;
  ExportOptions write;
  bool json = false;
};

void run(const Options& options) {
  SourceModel source = open_source_model(options.source);
  const ExportReport report = export_model(source, options.directory, options.write);
  if (options.json) {
    fmt::print("{}\n", report.json().dump(2));
    return;
  }
  fmt::print("{}: {}, {} tensors", options.directory.string(), report.model_type, report.tensors);
  if (report.rounded > 0) fmt::print(", {} of them rounded to the type that they are stored in", report.rounded);
  fmt::print("\n");
  if (report.for_hugging_face) {
    fmt::print("  transformers loads it with from_pretrained(\"{}\")\n", options.directory.string());
  } else {
    fmt::print("  only Furlong computes it: {}\n", report.reason);
  }
  for (const std::string& name : report.removed) fmt::print("  removed: {}, of the model that was there\n", name);
  for (const std::string& name : report.left_out)
    fmt::print("  left out: {}, for which the source has no place\n", name);
}

}  // namespace

void add_export(Command program, int& /*status*/) {
  const Command command = program.add_subcommand(
      "export", "Write a model as a Hugging Face directory: safetensors, config.json, tokenizer files");
  command.footer(
      "A softmax model of a family that transformers has (gpt2, llama, bert, albert) gets that family's names and "
      "config.json; one that was\n"
      "imported goes back bit for bit. A model with other attention keeps the names of the tensors that it shares with "
      "its source, has its own\n"
      "ones as furlong.NAME, and a config.json of model_type furlong_performer, which furlong convert reads. Adapters "
      "are added to the weights.\n"
      "  furlong export runs/chat/3_task chat_performer");
  const auto options = std::make_shared<Options>();
  command
      .add_option("source", options->source,
                  "A checkpoint, or a run directory (its best one, or the newest where there is no best; of "
                  "furlong\nfinetune, of the last stage)")
      .required()
      .value_name("CHECKPOINT|RUN");
  command.add_option("directory", options->directory, "The directory to write, made where it is missing")
      .required()
      .value_name("DIR");
  command
      .add_option("--dtype", options->write.dtype,
                  "original: of each tensor as it was imported (float32 where it has none)")
      .shows_default()
      .one_of({"original", "float32", "bfloat16", "float16"});
  command.add_flag("--force", options->write.overwrite,
                   "Write over a model that is there; its tokenizer's files and shards are removed, other files stay");
  command.add_flag("--json", options->json, "Print JSON");
  command.action([options] { run(*options); });
}

}  // namespace furlong::command_line
