// furlong convert: imports a model, or replaces its attention, and writes a checkpoint.
#include "conversion/convert.h"

#include <fmt/ranges.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/attention_options.h"
#include "cli/command_line.h"
#include "cli/common_options.h"
#include "cli/json_output.h"
#include "framework/core/parallel.h"
#include "framework/io/interrupted_writes.h"

namespace furlong::command_line {
namespace {

struct ConvertArguments {
  ConvertOptions convert;
  ObservedBatches data;
  std::string split = "validation";
  std::int64_t threads = 0;
  bool json = false;
};

struct Given {
  Option data, target_error, max_features;
  std::vector<Option> of_data;
};

constexpr const char* convert_footer =
    "SRC is a Hugging Face directory (config.json with model_type gpt2, llama, mistral, qwen2, qwen3, bert, roberta, "
    "albert or esm; safetensors or pytorch_model.bin), a GGUF file (llama, qwen2, qwen3), a directory that furlong "
    "export wrote, or a checkpoint or run directory of Furlong. If a tensor is missing, unexpected or misshapen, "
    "nothing is written.\n"
    "Without --attention, convert imports the model unchanged. With --attention, it replaces the attention and keeps "
    "the weights. New parameters start from initial values and are listed; furlong finetune trains them.\n"
    "With --data, convert measures the error of each head against exact softmax and sets constants of feature maps "
    "that depend on data (centers, scales, the constant of oprf, Likhosherstov et al. 2022).\n"
    "--attention auto chooses, for the whole model, the cheapest feature map, number of random features m, centering "
    "and scaling that reaches --target-error on --data. Heads that do not reach it keep softmax.\n"
    "--fold-scaling multiplies queries by the factors of SADERF (Likhosherstov et al. 2023) and divides keys by them, "
    "in the weights. Softmax is unchanged, and random features have less variance. With rotary positions, each pair of "
    "dimensions has one factor.";

void run(ConvertArguments& options, const Given& given) {
  set_thread_count(static_cast<int>(options.threads));
  for (const Option& option : given.of_data) refuse_unless(given.data.is_given(), option, "--data");
  for (const Option& option : {given.target_error, given.max_features})
    refuse_unless(options.convert.attention == "auto", option, "--attention auto");
  if (options.convert.attention == "auto" && !given.target_error.is_given())
    throw UserError(
        "--attention auto requires the largest error of a head's attention that is allowed; add --target-error E, for "
        "example --target-error 0.1");
  options.convert.limits_polynomials = given.max_features.is_given();
  if (given.data.is_given()) {
    options.data.split = split_from_name(options.split);
    options.convert.data = options.data;
  }
  // The report goes to standard error before the one-line error.
  options.convert.import.on_fault = [](const TensorReport& report) { fmt::print(stderr, "{}", report.text()); };
  options.convert.completed = output_is_complete;
  const ConversionResult result = convert(options.convert);
  if (options.json) {
    nlohmann::ordered_json object = result.json();
    object["checkpoint"] = options.convert.destination.string();
    print_json(object);
    return;
  }
  fmt::print("{}wrote {}\n", result.text(), options.convert.destination.string());
}

void add_converted_attention(Command command, ConvertArguments& options, Given& given) {
  ConvertOptions& convert = options.convert;
  command
      .add_option(
          "--attention", convert.attention,
          fmt::format("softmax, auto, windowed:W, windowed:W+MAP, linformer:R, or linear attention with a feature "
                      "map: MAP[:ORDER][+centering][+saderf], MAP one of {} (default: that of SRC)",
                      fmt::join(feature_map_names(), ", ")))
      .value_name("ATTENTION");
  command.add_option("--features", convert.features, "Random features per head (default: twice the head dimension)")
      .range(1, 65536)
      .value_name("M");
  command.add_option("--layers", convert.layers, "Layers to convert, from 0 (default: all)").value_name("0,1,5-7");
  command
      .add_option("--heads-keep-softmax", convert.heads_keep_softmax, "Heads that keep softmax, for example 0:3,2:1-2")
      .value_name("LAYER:HEAD,...");
  given.target_error = command
                           .add_option("--target-error", convert.target_error,
                                       "Required with --attention auto: maximum relative error per head, |output - "
                                       "softmax output| / |softmax output|, on --data: with random features, the "
                                       "median of three draws. The model draws its own, which the report measures")
                           .range(1e-12, 1e3)
                           .value_name("E");
  given.max_features =
      command
          .add_option("--search-limit", convert.max_features,
                      "With --attention auto: largest number of random features to try; if given, it also "
                      "bounds the features of polynomials")
          .shows_default()
          .range(2, 1 << 20)
          .value_name("M");
  command.add_flag("--fold-scaling", convert.fold_scaling,
                   "With --data: multiply the measured scaling of queries and keys into their weights");
  command
      .add_option("--max-sequence-length", convert.max_sequence_length,
                  "Maximum sequence length of the new model (default: SRC's). Additional learned positions are copies "
                  "of SRC's")
      .range(1, 1 << 30)
      .value_name("N");
  command
      .add_option("--set", convert.overrides,
                  "Override seed or a key below model, for example --set model.attention.random_projection=iid. "
                  "Repeatable")
      .repeatable()
      .value_name("KEY=VALUE");
}

void add_data(Command command, ConvertArguments& options, Given& given) {
  ObservedBatches& data = options.data;
  given.data = command.add_option("--data", data.store, "Tokenized dataset with SRC's vocabulary, to measure errors on")
                   .value_name("DATASET");
  given.of_data = {
      add_split(command, options.split, "With --data: part of the dataset"),
      command
          .add_option("--batches", data.batches,
                      "With --data: number of batches: the first ones, or random ones of documents with labels")
          .shows_default()
          .range(1, 1000000),
      command.add_option("--batch-size", data.batch_size, "With --data: rows in a batch")
          .shows_default()
          .range(1, 1000000),
      command
          .add_option("--sequence-length", data.sequence_length,
                      "With --data: tokens in a row (default: that of SRC's config)")
          .range(1, 1000000000)};
  command
      .add_option(
          "--cost-at", options.convert.cost_at,
          "Sequence length at which costs are compared and reported (default: that of --data, or the model's longest)")
      .range(1, 1 << 30)
      .value_name("N");
}

}  // namespace

void add_convert(Command program, int& /*status*/) {
  const Command command =
      program.add_subcommand("convert", "Import a model, or replace a model's attention and keep its weights");
  command.footer(convert_footer);
  command.examples({
      "furlong convert models/antiberty teacher.h5",
      "furlong convert models/antiberty student.h5 --attention favor_positive --features 256 --data data/proteins.h5",
      "furlong convert SmolLM2-135M.gguf hybrid.h5 --attention windowed:64+hedgehog --layers 1-28",
      "furlong convert runs/teacher auto.h5 --attention auto --target-error 0.1 --data data/kjv.h5 --cost-at 65536",
  });
  const auto options = std::make_shared<ConvertArguments>();
  const auto given = std::make_shared<Given>();
  ConvertOptions& convert = options->convert;
  command.add_option("source", convert.source, "Model to read").required().value_name("SRC");
  command.add_option("destination", convert.destination, "Checkpoint to write").required().value_name("DST.h5");
  add_converted_attention(command, *options, *given);
  add_data(command, *options, *given);
  command.add_option("--tokenizer", convert.import.tokenizer, "Tokenizer (default: the one stored with the model)")
      .value_name("PATH");
  command
      .add_option("--architecture", convert.import.architecture,
                  "model_type of SRC, if its config.json has none, as in older directories")
      .value_name("NAME");
  command.add_flag("--allow-missing", convert.import.allow_missing,
                   "Initialize tensors missing from SRC instead of failing");
  command.add_flag("--allow-unexpected", convert.import.allow_unexpected,
                   "Ignore tensors that the new model does not use. Those that Furlong has no parameter for stay in "
                   "DST.h5 for furlong export; parameters that --set removes are dropped");
  command.add_flag("--force", convert.overwrite, "Overwrite DST.h5");
  add_threads(command, options->threads);
  add_json(command, options->json);
  command.action([=] { run(*options, *given); });
}

}  // namespace furlong::command_line
