// furlong launch: one job of several processes on this host.
#include "communication/launch/launcher.h"

#include <algorithm>
#include <memory>

#include "cli/command_line.h"
#include "framework/config/nearest.h"
#include "framework/core/error.h"

namespace furlong::command_line {
namespace {

constexpr const char* one_process = "it runs in one process, with threads, and every copy would do the same work again";
constexpr const char* one_writer = "every copy would write the same files";

/// Why a subcommand is not for several processes, and what to do instead.
struct Refusal {
  const char* command;
  const char* reason;
  const char* hint;
};

constexpr Refusal refusals[] = {
    {"prepare", one_writer, "run it once, before the job"},
    {"tokenize", one_process, "run it as it is"},
    {"plan", "it foretells what many devices would do, on one", "run it as it is"},
    {"convert", one_writer, "run it once, and train the result in the job"},
    {"finetune", "its stages train in one process",
     "run it as it is; furlong train takes a model's weights with model.weights"},
    {"evaluate", one_process, "run it as it is"},
    {"generate", one_process, "run it as it is"},
    {"export", one_writer, "run it once, behind the job"},
    {"logits", one_process, "run it as it is"},
    {"attend", one_process, "run it as it is"},
    {"bench", "copies that share the cores would measure one another", "run it as it is (bench comm is for several)"},
    {"analyze", one_process, "run it as it is"},
    {"config", "it computes nothing", "run it as it is"},
    {"doctor", "it examines the machine, once for all", "run it as it is"},
    {"launch", "a job within a job", "give the command itself"},
};

/// What is left behind the command may begin with an option of our own, misspelt, whose value it took for the
/// command.
void check_command(const Command& program, const Command& launcher, const std::vector<std::string>& words) {
  const std::string& command = words[0];
  if (command == "train" || (command == "bench" && words.size() > 1 && words[1] == "comm")) return;
  for (const Refusal& refusal : refusals) {
    if (command == refusal.command)
      throw UserError("furlong launch {}: {}; expected train, the subcommand that works in several processes; {}",
                      command, refusal.reason, refusal.hint);
  }
  if (words.size() > 1 && words[1].starts_with("--")) {
    std::vector<std::string> known;
    for (const Option& option : launcher.options()) known.push_back(option.name());
    const std::string option = words[1].substr(0, words[1].find('='));
    const std::string near = config::nearest(option, known);
    throw UserError("furlong launch has no option {}; {}its own options come first, then the subcommand with its own",
                    option, near.empty() ? "" : "did you mean " + near + "? ");
  }
  std::vector<std::string> known;
  for (const Command& subcommand : program.subcommands()) known.push_back(subcommand.name());
  const std::string near = config::nearest(command, known);
  throw UserError("furlong launch {}: there is no such subcommand; {}", command,
                  near.empty() ? std::string("expected train, as in furlong launch --processes 2 train c.yaml")
                               : "did you mean " + near + "?");
}

}  // namespace

void add_launch(Command program, int& status) {
  const Command launcher =
      program.add_subcommand("launch", "Start a command in several processes on this host, as one job");
  const auto options = std::make_shared<LaunchOptions>();
  const auto command = std::make_shared<std::string>();
  launcher.add_option("--processes,-n", options->processes, "How many: one for each GPU, or for each group of cores")
      .required()
      .value_name("N");
  launcher
      .add_option(
          "--timeout", options->timeout,
          "When a process has failed: how long the others may take to end by themselves\nbefore they are killed")
      .shows_default()
      .value_name("SECONDS");
  launcher.add_option("--master-port", options->master_port, "Where rank 0 is met on 127.0.0.1 (default: a free port)")
      .value_name("PORT");
  launcher.add_option("command", *command, "train or bench comm, with its own options and arguments behind it")
      .value_name("COMMAND ...");
  launcher.ends_at_first_word();
  launcher.footer(
      "  furlong launch --processes 2 train configs/quickstart.yaml --set trainer.max_steps=100\n"
      "A -- before the command keeps options right behind it, such as --help, from being taken for launch's own.\n"
      "Rank 0 writes as if it were alone; lines of the others go to standard error behind [rank K]. The cores are "
      "shared out, unless\n"
      "OMP_NUM_THREADS is set: then each process has that many threads, and cores of its own only where they suffice.\n"
      "SIGTERM, SIGINT (Ctrl-C) and SIGUSR1 are passed on to all; a second Ctrl-C kills them, Ctrl-Z suspends them. "
      "When a process\n"
      "fails, the others are killed after the timeout, and the last line names the first at fault. No process outlives "
      "this one.\n"
      "Exit status: 0 or 3 (stopped by a signal, saved) where all ended so; otherwise that of the first at fault, 128 "
      "+ its signal\n"
      "where one ended it. Several hosts: srun, mpirun or torchrun start furlong train directly.");
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
