// furlong generate: text from a trained model.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "datasets/text_stream.h"
#include "framework/core/device.h"
#include "framework/core/parallel.h"
#include "trainers/command_line/command_line.h"
#include "trainers/generate.h"

namespace furlong::command_line {
namespace {

struct Options {
  std::string run, prompt, device = "auto";
  GenerateOptions generate;
  std::int64_t threads = 0;
  bool json = false;
};

void run(const Options& options) {
  set_thread_count(static_cast<int>(options.threads));
  Model model =
      load_model(CheckpointReader::open(checkpoint_of(options.run)), device_from_name(options.device), Weights::averaged_if_present);
  const std::vector<std::int32_t> prompt = model.vocabulary.encode_prompt(options.prompt);
  TextStream stream(model.vocabulary, prompt);
  std::function<void(std::int32_t)> print;
  if (!options.json) {
    // The prompt comes with the first token: a model or a prompt that is refused has printed nothing.
    print = [&, begun = false](std::int32_t token) mutable {
      if (!std::exchange(begun, true)) std::fwrite(options.prompt.data(), 1, options.prompt.size(), stdout);
      const std::string text = stream.next(token);
      std::fwrite(text.data(), 1, text.size(), stdout);
      std::fflush(stdout);
    };
  }
  const Generated generated = generate(model, prompt, options.generate, print);
  const double rate = static_cast<double>(generated.tokens.size()) / std::max(generated.seconds, 1e-9);
  if (!options.json) {
    fmt::print("{}\n", stream.finish());
    std::fflush(stdout);  // before the line below, wherever the two go
    fmt::print(stderr, "{} tokens, {:.0f} a second after a prompt of {} in {:.2f} s; the past takes {:.1f} KiB\n", generated.tokens.size(),
               rate, prompt.size(), generated.prompt_seconds, static_cast<double>(generated.state_bytes) / 1024);
    return;
  }
  const nlohmann::ordered_json object{{"prompt", options.prompt},
                                      {"text", text_behind(model.vocabulary, prompt, generated.tokens)},
                                      {"tokens", generated.tokens},
                                      {"tokens_per_second", rate},
                                      {"prompt_seconds", generated.prompt_seconds},
                                      {"state_bytes", generated.state_bytes}};
  // A sample may end inside a multi-byte character: such bytes are replaced in the text, and stand in `tokens` as they are.
  fmt::print("{}\n", object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace

void add_generate(CLI::App& program, int& /*status*/) {
  auto* command =
      program.add_subcommand("generate", "Sample from a trained model; with linear attention memory does not grow with the length");
  const auto options = std::make_shared<Options>();
  command->add_option("run", options->run, "A run directory (its best checkpoint, or the newest where there is no best) or one checkpoint")
      ->required()
      ->type_name("RUN|CHECKPOINT");
  command->add_option("--prompt", options->prompt, "What to go on from")->type_name("TEXT");
  command->add_option("--max-tokens", options->generate.max_tokens, "Tokens to generate")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000000));
  command->add_option("--temperature", options->generate.temperature, "Logits are divided by it; 0 takes the most probable token always")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 100.0));
  command->add_option("--top-k", options->generate.top_k, "Only the k most probable tokens; 0: all")
      ->capture_default_str()
      ->check(CLI::Range(0, 1000000000));
  command->add_option("--top-p", options->generate.top_p, "Only the most probable tokens that together reach this probability")
      ->capture_default_str()
      ->check(CLI::Range(1e-6, 1.0));
  command->add_option("--seed", options->generate.seed, "The same seed gives the same text")->capture_default_str();
  command->add_option("--device", options->device, "auto, cpu, cuda or cuda:N")->capture_default_str();
  command->add_option("--threads", options->threads, "Threads; 0: all cores")->capture_default_str()->check(CLI::Range(0, 4096));
  command->add_flag("--json", options->json, "Print JSON at the end instead of text as it comes");
  command->callback([options] { run(*options); });
}

}  // namespace furlong::command_line
