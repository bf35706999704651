// furlong generate: text from a trained model.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/command_line.h"
#include "cli/text_output.h"
#include "datasets/prepare/text_stream.h"
#include "evaluation/generate.h"
#include "framework/core/device.h"
#include "framework/core/parallel.h"
#include "framework/io/text_file.h"

namespace furlong::command_line {
namespace {

struct Options {
  std::string run, prompt, prompt_file, device = "auto";
  std::vector<std::string> stop;
  GenerateOptions generate;
  std::int64_t threads = 0;
  bool json = false, special = false;
};

/// All of a file, or of the standard input where it is called "-".
std::string text_of_file(const std::string& path) {
  if (path == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
  if (std::filesystem::is_fifo(path)) {  // <(command)
    std::ifstream pipe(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(pipe), {}};
  }
  try {
    return read_text_file(path, std::uint64_t{1} << 32);
  } catch (const UserError& error) {
    throw UserError("--prompt-file: {}", error.what());
  }
}

std::vector<std::int32_t> tokens_of_prompt(const Options& options, const Vocabulary& vocabulary) {
  if (!options.special) return vocabulary.encode_prompt(options.prompt);
  try {
    return vocabulary.encode_prompt(options.prompt, SpecialSpelling::is_token);
  } catch (const UserError& error) {
    throw UserError("--special: {}; leave it out", error.what());
  }
}

std::vector<std::int32_t> stopping_tokens(const Options& options, const Vocabulary& vocabulary) {
  std::vector<std::int32_t> ids;
  for (const std::string& token : options.stop) {
    try {
      ids.push_back(vocabulary.id_of(token));
    } catch (const UserError& error) {
      throw UserError("--stop: {}", error.what());
    }
  }
  return ids;
}

void run(Options& options) {
  set_thread_count(static_cast<int>(options.threads));
  if (!options.prompt_file.empty()) options.prompt = text_of_file(options.prompt_file);
  Model model = load_model(CheckpointReader::open(checkpoint_of(options.run)), device_from_name(options.device),
                           Weights::averaged_if_present);
  const std::vector<std::int32_t> prompt = tokens_of_prompt(options, model.vocabulary);
  options.generate.stop = stopping_tokens(options, model.vocabulary);
  TextStream stream(model.vocabulary, prompt);
  TextOutput output;
  std::function<void(std::int32_t)> print;
  // The prompt comes with the first token: a model or a prompt that is refused has printed nothing. A file's is known
  // to whoever named it.
  auto print_prompt = [&, begun = !options.prompt_file.empty()]() mutable {
    if (!std::exchange(begun, true)) output.write(options.prompt);
  };
  if (!options.json) {
    print = [&](std::int32_t token) {
      print_prompt();
      output.write(stream.next(token));
      std::fflush(stdout);
    };
  }
  const Generated generated = generate(model, prompt, options.generate, print);
  const double rate = static_cast<double>(generated.tokens.size()) / std::max(generated.seconds, 1e-9);
  if (!options.json) {
    print_prompt();
    output.write(stream.finish() + "\n");
    output.finish();  // before the line below, wherever the two go
    fmt::print(stderr, "{} tokens, {:.0f} a second after a prompt of {} in {:.2f} s; the past takes {:.1f} KiB\n",
               generated.tokens.size(), rate, prompt.size(), generated.prompt_seconds,
               static_cast<double>(generated.state_bytes) / 1024);
    return;
  }
  const bool from_file = !options.prompt_file.empty();
  const nlohmann::ordered_json object{
      {from_file ? "prompt_file" : "prompt", from_file ? options.prompt_file : options.prompt},
      {"prompt_tokens", prompt.size()},
      {"text", text_behind(model.vocabulary, prompt, generated.tokens)},
      {"tokens", generated.tokens},
      {"tokens_per_second", rate},
      {"prompt_seconds", generated.prompt_seconds},
      {"state_bytes", generated.state_bytes}};
  // A sample may end inside a multi-byte character: such bytes are replaced in the text, and stand in `tokens` as they
  // are.
  fmt::print("{}\n", object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace

void add_generate(Command program, int& /*status*/) {
  const Command command = program.add_subcommand(
      "generate", "Sample from a trained model; with linear attention memory does not grow with the length");
  const auto options = std::make_shared<Options>();
  command
      .add_option("run", options->run,
                  "A run directory (its best checkpoint, or the newest where there is no best; of furlong finetune, "
                  "of the\nlast stage) or one checkpoint")
      .required()
      .value_name("RUN|CHECKPOINT");
  const Option prompt = command.add_option("--prompt", options->prompt, "What to go on from").value_name("TEXT");
  command
      .add_option("--prompt-file", options->prompt_file,
                  "The same from a file (-: the standard input), which may be a long document: it goes through "
                  "the\nmodel in pieces of 4096 tokens, and only what follows it is printed")
      .excludes(prompt)
      .value_name("FILE");
  command.add_flag("--special", options->special,
                   "Special tokens spelled in the prompt (<|im_start|>, [INST]) are those tokens, as in a chat; "
                   "otherwise\nthey are text as any other");
  command
      .add_option("--stop", options->stop,
                  "End where this token comes, spelled as the vocabulary has it; may be repeated")
      .repeatable()
      .value_name("TOKEN");
  command.add_option("--max-tokens", options->generate.max_tokens, "Tokens to generate")
      .shows_default()
      .range(1, 1000000000);
  command
      .add_option("--temperature", options->generate.temperature,
                  "Logits are divided by it; 0 takes the most probable token always")
      .shows_default()
      .range(0.0, 100.0);
  command.add_option("--top-k", options->generate.top_k, "Only the k most probable tokens; 0: all")
      .shows_default()
      .range(0, 1000000000);
  command
      .add_option("--top-p", options->generate.top_p,
                  "Only the most probable tokens that together reach this probability")
      .shows_default()
      .range(1e-6, 1.0);
  command.add_option("--seed", options->generate.seed, "The same seed gives the same text").shows_default();
  command.add_option("--device", options->device, "auto, cpu, cuda or cuda:N").shows_default();
  command.add_option("--threads", options->threads, "Threads; 0: all cores").shows_default().range(0, 4096);
  command.add_flag("--json", options->json, "Print JSON at the end instead of text as it comes");
  command.footer(
      "A chat is written as the model's chat template would (tokenizer_config.json or chat_template.jinja of its "
      "exported directory):\n"
      "  furlong generate chat.h5 --special --stop '<|im_end|>' --prompt "
      "$'<|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n'");
  command.action([options] { run(*options); });
}

}  // namespace furlong::command_line
