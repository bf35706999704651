// furlong convert: somebody's checkpoint, or one of ours, as a checkpoint of ours with the attention that is asked for.
#include "conversion/convert.h"

#include <fmt/ranges.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/attention_options.h"
#include "cli/command_line.h"
#include "framework/core/parallel.h"

namespace furlong::command_line {
namespace {

struct Options {
  ConvertOptions convert;
  ObservedBatches data;
  std::string split = "validation";
  std::int64_t threads = 0;
  bool json = false;
};

struct Given {
  Option data, target_error, most_features;
  std::vector<Option> of_data;
};

constexpr const char* footer =
    "SRC is a Hugging Face directory (config.json of model_type gpt2, llama, bert or albert; safetensors or "
    "pytorch_model.bin), a GGUF file\n"
    "(llama), what furlong export wrote, or a checkpoint or run directory of Furlong's. Every tensor is accounted for: "
    "with one missing, left\n"
    "over or misshapen nothing is written.\n"
    "Without --attention the model stays as it is: an import. With it the weights stay and the attention changes, "
    "which is then to be trained\n"
    "(furlong finetune): parameters that it has for itself begin with initial values and are listed.\n"
    "With --data each head's error against exact softmax is measured, beside that of uniform attention, and constants "
    "that maps take from\n"
    "data (centres, scales, oprf's) are set.\n"
    "--attention auto --data STORE --target-error E measures which heads reach E with which feature map and m, and "
    "takes the map, m, centring\n"
    "and scaling, one for the model, with which the whole is cheapest; heads that do not reach E keep softmax.\n"
    "--fold-scaling multiplies queries by SADERF's factors and divides keys by them, in the weights: softmax is the "
    "same, and random\n"
    "features have less variance. With rotary positions factors are one for each pair of dimensions.\n"
    "  furlong convert models/antiberty teacher.h5\n"
    "  furlong convert models/antiberty student.h5 --attention favor_positive --features 256 --data data/proteins.h5\n"
    "  furlong convert SmolLM2-135M.gguf hybrid.h5 --attention windowed:64+hedgehog --layers 1-28\n"
    "  furlong convert runs/teacher auto.h5 --attention auto --target-error 0.1 --data data/kjv.h5 --cost-at 65536";

void run(Options& options, const Given& given) {
  set_thread_count(static_cast<int>(options.threads));
  for (const Option& option : given.of_data) refuse_unless(given.data.is_given(), option, "--data");
  for (const Option& option : {given.target_error, given.most_features})
    refuse_unless(options.convert.attention == "auto", option, "--attention auto");
  if (options.convert.attention == "auto" && !given.target_error.is_given())
    throw UserError("--attention auto: which error is wanted? Add --target-error E, for instance 0.1");
  options.convert.bounds_polynomials = given.most_features.is_given();
  if (given.data.is_given()) {
    options.data.split = split_from_name(options.split);
    options.convert.data = options.data;
  }
  // On standard error, so that the one line that follows is not all that there is to see.
  options.convert.import.on_fault = [](const TensorReport& report) { fmt::print(stderr, "{}", report.text()); };
  const ConversionResult result = convert(options.convert);
  if (options.json) {
    nlohmann::ordered_json object = result.json();
    object["checkpoint"] = options.convert.destination.string();
    fmt::print("{}\n", object.dump(2));
    return;
  }
  fmt::print("{}wrote {}\n", result.text(), options.convert.destination.string());
}

void add_attention(Command command, Options& options, Given& given) {
  ConvertOptions& convert = options.convert;
  command
      .add_option(
          "--attention", convert.attention,
          fmt::format(
              "softmax, auto, windowed:W, windowed:W+MAP, linformer:R, or linear attention with a feature map:\n"
              "NAME[:ORDER][+centering][+saderf], NAME one of {}\n(default: what SRC has)",
              fmt::join(feature_map_names(), ", ")))
      .value_name("ATTENTION");
  command.add_option("--features", convert.features, "Random features m of a head (default: twice its width)")
      .range(1, 65536)
      .value_name("M");
  command.add_option("--layers", convert.layers, "Layers that change, from 0 (default: all)").value_name("0,1,5-7");
  command.add_option("--heads-keep-softmax", convert.heads_keep_softmax, "Heads of these layers that keep softmax")
      .value_name("LAYER:HEAD,...");
  given.target_error =
      command.add_option("--target-error", convert.target_error, "auto: the largest error that a head may have")
          .range(1e-12, 1e3)
          .value_name("E");
  given.most_features =
      command
          .add_option("--max-features", convert.most_features,
                      "auto: no map with more features is tried (where it is not given, polynomials may have more)")
          .shows_default()
          .range(2, 1 << 20)
          .value_name("M");
  command.add_flag("--fold-scaling", convert.fold_scaling,
                   "Multiply measured scaling of queries and keys into their weights; needs --data");
  command
      .add_option("--max-sequence-length", convert.max_sequence_length,
                  "The longest sequence that the model is for; learned positions beyond the source's begin as p modulo "
                  "their number")
      .range(1, 1 << 30)
      .value_name("N");
  command
      .add_option("--set", convert.overrides,
                  "A key below model, such as model.attention.directions=iid, or seed, of new directions and "
                  "weights;\nmay be repeated")
      .one_argument()
      .value_name("KEY=VALUE");
}

void add_data(Command command, Options& options, Given& given) {
  ObservedBatches& data = options.data;
  given.data = command.add_option("--data", data.store, "A token store of the source's vocabulary, to measure on")
                   .value_name("STORE");
  given.of_data = {
      command.add_option("--split", options.split, "Which part of it")
          .shows_default()
          .one_of({"train", "validation", "test"}),
      command.add_option("--batches", data.batches, "Batches from the split's beginning")
          .shows_default()
          .range(1, 1000000),
      command.add_option("--batch-size", data.batch_size, "Rows at once").shows_default().range(1, 1000000),
      command
          .add_option("--sequence-length", data.sequence_length,
                      "Tokens in a row (default: as the source's config says)")
          .range(1, 1000000000)};
  command
      .add_option("--cost-at", options.convert.cost_at,
                  "Tell costs for sequences of so many tokens (default: the data's, or the longest)")
      .range(1, 1 << 30)
      .value_name("N");
}

}  // namespace

void add_convert(Command program, int& /*status*/) {
  const Command command = program.add_subcommand(
      "convert", "Import a model from elsewhere, and change the attention of any model, keeping its weights");
  command.footer(footer);
  const auto options = std::make_shared<Options>();
  const auto given = std::make_shared<Given>();
  ConvertOptions& convert = options->convert;
  command.add_option("source", convert.source, "The model").required().value_name("SRC");
  command.add_option("destination", convert.destination, "The checkpoint to write").required().value_name("DST.h5");
  add_attention(command, *options, *given);
  add_data(command, *options, *given);
  command.add_option("--tokenizer", convert.import.tokenizer, "Where the tokenizer is (default: with the model)")
      .value_name("PATH");
  command.add_flag("--allow-missing", convert.import.allow_missing, "Tensors that SRC lacks begin with initial values");
  command.add_flag("--allow-unexpected", convert.import.allow_unexpected,
                   "Tensors that belong nowhere are carried along, or left behind");
  command.add_flag("--force", convert.overwrite, "Write over DST.h5");
  command.add_option("--threads", options->threads, "Threads; 0: all cores").shows_default().range(0, 4096);
  command.add_flag("--json", options->json, "Print JSON");
  command.action([=] { run(*options, *given); });
}

}  // namespace furlong::command_line
