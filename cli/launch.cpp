// furlong launch: starts the ranks of one job on this host.
#include "communication/launch/launcher.h"

#include <memory>

#include "cli/command_line.h"
#include "framework/config/nearest.h"
#include "framework/core/error.h"

namespace furlong::command_line {
namespace {

constexpr const char* one_process = "it runs on one rank, and each rank would repeat the same work";
constexpr const char* one_writer = "each rank would write the same files";

/// Why a subcommand cannot run on several ranks, and what to do instead.
struct Refusal {
  const char* command;
  const char* reason;
  const char* hint;
};

constexpr Refusal refusals[] = {
    {"prepare", one_writer, "run it once, before the job"},
    {"tokenize", one_process, "run it without launch"},
    {"plan", "it estimates a run on many devices, on one rank", "run it without launch"},
    {"convert", one_writer, "run it once, and train the result in the job"},
    {"finetune", "its stages train on one rank",
     "run it without launch; furlong train takes a model's weights with model.weights"},
    {"evaluate", one_process, "run it without launch"},
    {"generate", one_process, "run it without launch"},
    {"export", one_writer, "run it once, after the job"},
    {"logits", one_process, "run it without launch"},
    {"embed", one_process, "run it without launch"},
    {"predict", one_process, "run it without launch"},
    {"report", one_process, "run it without launch"},
    {"runs", one_process, "run it without launch"},
    {"score", one_process, "run it without launch"},
    {"attend", one_process, "run it without launch"},
    {"bench", "ranks that share the cores would disturb each other's measurements",
     "run it without launch (only bench comm runs on several ranks)"},
    {"analyze", one_process, "run it without launch"},
    {"config", "it only reads configs", "run it without launch"},
    {"doctor", "it examines the machine, not a rank", "run it without launch"},
    {"completion", "it only describes commands", "run it without launch"},
    {"launch", "a job cannot start another job", "name the command itself"},
};

/// Throws UserError if the command cannot run on several ranks. The cause can be a misspelled option of launch, whose
/// value was taken for the command.
void check_command(const Command& program, const Command& launcher, const std::vector<std::string>& words) {
  const std::string& command = words[0];
  if (command == "train" || command == "sweep" || (command == "bench" && words.size() > 1 && words[1] == "comm"))
    return;
  for (const Refusal& refusal : refusals) {
    if (command == refusal.command)
      throw UserError("furlong launch {}: {}; expected train, sweep --index or bench comm; {}", command, refusal.reason,
                      refusal.hint);
  }
  if (words.size() > 1 && words[1].starts_with("--")) {
    std::vector<std::string> known;
    for (const Option& option : launcher.options()) known.push_back(option.name());
    const std::string option = words[1].substr(0, words[1].find('='));
    const std::string near = config::nearest(option, known);
    throw UserError("furlong launch: unknown option {}; {}options of launch come before the command", option,
                    near.empty() ? "" : "did you mean " + near + "? ");
  }
  std::vector<std::string> known;
  for (const Command& subcommand : program.subcommands()) known.push_back(subcommand.name());
  const std::string near = config::nearest(command, known);
  throw UserError(
      "furlong launch {}: unknown subcommand; {}", command,
      near.empty()
          ? std::string(
                "expected train, sweep --index or bench comm, for example furlong launch -n 2 train config.yaml")
          : "did you mean " + near + "?");
}

}  // namespace

void add_launch(Command program, int& status) {
  const Command launcher = program.add_subcommand("launch", "Start training on several ranks of this host");
  const auto options = std::make_shared<LaunchOptions>();
  const auto command = std::make_shared<std::string>();
  launcher
      .add_option("--processes,-n", options->processes,
                  "Number of ranks, one process each: one per GPU, or per group of CPU cores")
      .required()
      .value_name("N");
  launcher
      .add_option("--timeout", options->timeout,
                  "Seconds from the failure of one rank until all ranks that still run are killed. It does not limit "
                  "collectives: launch waits for slow ranks")
      .shows_default()
      .value_name("SECONDS");
  launcher.add_option("--master-port", options->master_port, "Port of rank 0 on 127.0.0.1 (default: a free port)")
      .value_name("PORT");
  launcher.add_option("command", *command, "train, sweep --index or bench comm, followed by its options and arguments")
      .value_name("COMMAND ...");
  launcher.ends_at_first_word();
  launcher.footer(
      "Options of launch come before the command. With -- before the command, all options after it belong to the "
      "command, for example --help.\n"
      "Output of rank 0 is unchanged; output lines of other ranks go to standard error, with the prefix [rank K]. The "
      "CPU cores are divided among the ranks. If OMP_NUM_THREADS is set, each rank has that many threads, and its own "
      "cores only if there are enough.\n"
      "SIGTERM, SIGINT (Ctrl-C), SIGUSR1 and SIGHUP are forwarded to all ranks. If a rank fails, the others are killed "
      "after the timeout, and the last line names the first rank that failed, unless that rank reported a user error "
      "(status 2). Ranks that still run 60 s, or --timeout if longer, after another has ended with status 3 (stopped "
      "by a signal) are killed. Exit status: 0, 3 (stopped by a signal, saved), or that of the first rank that "
      "failed.\n"
      "For several hosts, start furlong train with srun, mpirun or torchrun. docs/cluster.md describes this, signals "
      "and exit statuses.");
  launcher.examples({
      "furlong launch --processes 2 train configs/quickstart.yaml --set data.batch_size=2 --set trainer.max_steps=100",
      "furlong launch -n 4 bench comm --bytes 64KiB,25MB",
  });
  launcher.action([=, &status] {
    options->arguments.clear();
    if (!command->empty()) {
      options->arguments = launcher.rest();
      if (!options->arguments.empty() && options->arguments[0] == "--")
        options->arguments.erase(options->arguments.begin());
      options->arguments.insert(options->arguments.begin(), *command);
      check_command(program, launcher, options->arguments);
    }
    status = launch(*options);
  });
}

}  // namespace furlong::command_line
