// furlong generate: generates text with a trained model.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/command_line.h"
#include "cli/common_options.h"
#include "cli/json_output.h"
#include "cli/text_output.h"
#include "datasets/prepare/byte_source.h"
#include "datasets/prepare/text_stream.h"
#include "evaluation/generate.h"
#include "framework/core/device.h"
#include "framework/core/log.h"
#include "framework/core/parallel.h"
#include "framework/core/printable.h"
#include "framework/io/text_file.h"

namespace furlong::command_line {
namespace {

struct GenerateArguments {
  std::string run, prompt, prompt_file, device = "auto";
  std::vector<std::string> stop;
  GenerateOptions generate;
  std::vector<Option> of_sampling;  // without effect at temperature 0
  std::int64_t threads = 0;
  bool json = false, special = false;
};

void check_sampling(const GenerateArguments& options) {
  for (const Option& option : options.of_sampling)
    if (options.generate.temperature == 0 && option.is_given())
      throw UserError("{} has no effect with --temperature 0, which takes the most probable token; remove it",
                      option.name());
}

/// Returns the content of a file, or of standard input if `path` is "-", with its byte order mark.
std::string bytes_of_file(const std::string& path) {
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

std::string text_of_file(const std::string& path) {
  std::string text = bytes_of_file(path);
  if (text.starts_with(byte_order_mark)) text.erase(0, byte_order_mark.size());
  return text;
}

/// Warns if the tokenizer loses bytes of the prompt.
void check_encoding(const std::string& prompt, const Vocabulary& vocabulary) {
  const auto& tokenizer = vocabulary.tokenizer();
  if (tokenizer && !tokenizer->keeps_invalid_bytes() && !foreign::is_utf8(prompt))
    log_warn(
        "the prompt contains bytes that are not UTF-8, which the tokenizer reads as U+FFFD or leaves out; convert it "
        "(iconv -f latin1 -t utf8)");
}

std::vector<std::int32_t> tokens_of_prompt(const GenerateArguments& options, const Vocabulary& vocabulary) {
  if (!options.special) return vocabulary.encode_prompt(options.prompt);
  try {
    return vocabulary.encode_prompt(options.prompt, SpecialTokenMode::as_token);
  } catch (const UserError& error) {
    throw UserError("--parse-special: {}; remove the option", error.what());
  }
}

std::vector<std::int32_t> stopping_tokens(const GenerateArguments& options, const Vocabulary& vocabulary) {
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

/// Prints samples as text: one of them token by token, several with a heading each. The prompt is printed with the
/// first token, so that an error prints nothing before it. The prompt of a file is not printed.
class SampleOutput {
 public:
  SampleOutput(const GenerateArguments& options, const Vocabulary& vocabulary, const std::vector<std::int32_t>& prompt)
      : options_(options), vocabulary_(vocabulary), prompt_(prompt), stream_(vocabulary, prompt) {}

  void token(std::int32_t token) {
    begin();
    output_.write(stream_.next(token));
    std::fflush(stdout);
  }
  void sample(const std::vector<std::int32_t>& tokens) {
    begin();
    output_.write(
        (options_.generate.samples == 1 ? stream_.finish() : continuation_text(vocabulary_, prompt_, tokens)) + "\n");
    std::fflush(stdout);
    begun_ = false;
  }
  void finish() { output_.finish(); }

 private:
  void begin() {
    if (std::exchange(begun_, true)) return;
    if (options_.generate.samples > 1)
      output_.write(fmt::format("--- sample {} of {}\n", ++samples_, options_.generate.samples));
    if (options_.prompt_file.empty()) output_.write(options_.prompt);
  }

  const GenerateArguments& options_;
  const Vocabulary& vocabulary_;
  const std::vector<std::int32_t>& prompt_;
  TextStream stream_;
  TextOutput output_;
  std::int64_t samples_ = 0;
  bool begun_ = false;
};

void run(GenerateArguments& options) {
  check_sampling(options);
  set_thread_count(static_cast<int>(options.threads));
  if (!options.prompt_file.empty()) options.prompt = text_of_file(options.prompt_file);
  Model model = load_model(CheckpointReader::open(checkpoint_of(options.run)), device_from_name(options.device),
                           Weights::ema_if_present);
  check_encoding(options.prompt, model.vocabulary);
  const std::vector<std::int32_t> prompt = tokens_of_prompt(options, model.vocabulary);
  if (const std::string warning = prompt_warning(model, options.prompt, prompt); !warning.empty())
    log_warn("{}: {}", options.prompt_file.empty() ? "--prompt" : options.prompt_file, warning);
  options.generate.stop = stopping_tokens(options, model.vocabulary);
  SampleOutput output(options, model.vocabulary, prompt);
  GenerateEvents events;
  if (!options.json) {
    events.on_token = [&](std::int32_t token) { output.token(token); };
    events.on_sample = [&](const std::vector<std::int32_t>& sample) { output.sample(sample); };
  }
  const Generated generated = generate(model, prompt, options.generate, events);
  const double rate = generated.tokens_per_second();
  if (!options.json) {
    output.finish();  // before the line on standard error
    fmt::print(stderr, "{} tokens{}; prompt of {} tokens in {:.2f} s; attention state {:.1f} KiB\n", generated.tokens(),
               rate > 0 ? fmt::format(", {:.0f} tokens/s", rate) : "", prompt.size(), generated.prompt_seconds,
               static_cast<double>(generated.state_bytes) / 1024);
    return;
  }
  nlohmann::ordered_json samples = nlohmann::ordered_json::array();
  for (const auto& sample : generated.samples)
    samples.push_back({{"text", continuation_text(model.vocabulary, prompt, sample)}, {"tokens", sample}});
  const bool from_file = !options.prompt_file.empty();
  nlohmann::ordered_json object = origin_of(model);
  object.update(
      nlohmann::ordered_json{{"seed", options.generate.seed},
                             {"temperature", options.generate.temperature},
                             {"top_k", options.generate.top_k},
                             {"top_p", options.generate.top_p},
                             {"max_tokens", options.generate.max_tokens},
                             {from_file ? "prompt_file" : "prompt", from_file ? options.prompt_file : options.prompt},
                             {"prompt_tokens", prompt.size()},
                             {"samples", samples},
                             {"tokens_per_second", rate > 0 ? nlohmann::ordered_json(rate) : nlohmann::ordered_json()},
                             {"prompt_seconds", generated.prompt_seconds},
                             {"state_bytes", generated.state_bytes}});
  // Generated text can end inside a multi-byte character. Its bytes are replaced in `text`, and complete in `tokens`.
  print_json(object);
}

}  // namespace

void add_generate(Command program, int& /*status*/) {
  const Command command = program.add_subcommand("generate", "Generate text with a trained model");
  const auto options = std::make_shared<GenerateArguments>();
  command.add_option("run", options->run, checkpoint_description).required().value_name("RUN|CHECKPOINT");
  const Option prompt = command.add_option("--prompt", options->prompt, "Text to continue").value_name("TEXT");
  command
      .add_option("--prompt-file", options->prompt_file,
                  "File with the text to continue (-: standard input). Long documents are processed in pieces of 4096 "
                  "tokens. The prompt itself is not printed")
      .excludes(prompt)
      .value_name("FILE");
  command.add_option("--max-tokens", options->generate.max_tokens, "Number of tokens to generate")
      .shows_default()
      .range(1, 1000000000);
  command
      .add_option("--temperature", options->generate.temperature,
                  "Divides the logits; 0: always take the most probable token")
      .shows_default()
      .range(0.0, 100.0);
  options->of_sampling = {
      command.add_option("--top-k", options->generate.top_k, "Sample from the k most probable tokens; 0: from all")
          .shows_default()
          .range(0, 1000000000)
          .value_name("K"),
      command
          .add_option("--top-p", options->generate.top_p,
                      "Sample from the most probable tokens that together reach this probability")
          .shows_default()
          .range(1e-6, 1.0)
          .value_name("P")};
  command.add_option("--seed", options->generate.seed, "Seed of the sampling").shows_default();
  command
      .add_option("--samples", options->generate.samples,
                  "Number of texts. Each draws its own random numbers from the seed; the prompt is processed once")
      .shows_default()
      .range(1, 1000000);
  command
      .add_option("--batch-size", options->generate.batch_size,
                  "Samples computed at the same time, at most. Each has an attention state in memory")
      .shows_default()
      .range(1, 65536);
  command.add_option("--stop", options->stop, "Stop before this token, spelled as in the vocabulary. Repeatable")
      .repeatable()
      .value_name("TOKEN");
  command.add_flag("--parse-special", options->special,
                   "Parse special tokens in the prompt, such as <|im_start|> or [INST]. Otherwise they are plain text");
  add_device(command, options->device);
  add_threads(command, options->threads);
  add_json(command, options->json, "Print one JSON object at the end instead of text while it is generated");
  command.footer(
      "With linear attention, memory does not grow with the number of tokens.\n"
      "Chat templates are not applied: write the prompt in the template's format (tokenizer_config.json or "
      "chat_template.jinja of an exported model), with --parse-special.");
  command.examples({
      "furlong generate runs/quickstart --prompt 'In the beginning' --max-tokens 200",
      "furlong generate runs/quickstart --prompt-file book.txt --temperature 0.8 --top-p 0.95 --seed 7",
      "furlong generate runs/proteins --samples 100 --max-tokens 300 --json > proteins.json",
      "furlong generate chat.h5 --parse-special --stop '<|im_end|>' --prompt "
      "$'<|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n'",
  });
  command.action([options] { run(*options); });
}

}  // namespace furlong::command_line
