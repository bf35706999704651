#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <new>

#include "cli/command_line.h"
#include "communication/process_group.h"
#include "framework/config/nearest.h"
#include "framework/core/error.h"
#include "framework/core/log.h"
#include "framework/core/version.h"
#include "framework/io/interrupted_writes.h"

namespace {

/// Help and version as CLI11 prints them; anything else in one line, naming the nearest subcommand where a word in its
/// place is none.
int answer(const CLI::App& program, const CLI::ParseError& error, int argc, char** argv) {
  if (error.get_exit_code() == 0) return program.exit(error);
  std::string message = error.what();
  const CLI::App* innermost = &program;
  std::string command = "furlong";
  int place = 1;  // of the word behind it
  for (; !innermost->get_subcommands().empty(); ++place) {
    innermost = innermost->get_subcommands()[0];
    command += " " + innermost->get_name();
  }
  std::string hint = "; see " + command + " --help";
  std::vector<std::string> known;
  for (const CLI::App* subcommand : innermost->get_subcommands({})) known.push_back(subcommand->get_name());
  if (!known.empty() && argc > place && argv[place][0] != '-') {
    message = (place == 1 ? "there is no subcommand '" : command + " has no subcommand '") + argv[place] + "'";
    const std::string near = furlong::config::nearest(argv[place], known);
    if (!near.empty()) hint = "; did you mean " + near + "? The others are in " + command + " --help";
  }
  for (char& letter : message) letter = letter == '\n' ? ' ' : letter;
  std::fprintf(stderr, "error: %s%s\n", message.c_str(), hint.c_str());
  return 2;
}

/// libgomp's threads wait for each other spinning, by default for milliseconds; on a machine that does anything else
/// that takes the cores from the very threads they wait for (measured: a training step four times slower beside two
/// compilers). It reads its settings before main begins, so the program starts itself once more with a short spin,
/// unless the user has chosen.
void limit_spinning([[maybe_unused]] char** argv) {
#ifndef FURLONG_THREAD_POOL
  if (std::getenv("GOMP_SPINCOUNT") || std::getenv("OMP_WAIT_POLICY")) return;
  std::error_code failure;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe", failure).string();
  if (failure) return;
  setenv("GOMP_SPINCOUNT", "3000", 1);
  execv(self.c_str(), argv);  // returns only where it failed, and then this process goes on
#endif
}

/// A program that is started without standard streams would open its files under their numbers, and messages would go
/// into them.
void occupy_standard_streams() {
  for (int stream = 0; stream <= 2; ++stream) {
    if (fcntl(stream, F_GETFD) == -1) open("/dev/null", stream == 0 ? O_RDONLY : O_WRONLY);
  }
}

}  // namespace

int main(int argc, char** argv) {
  // A file that would become longer than the limit (ulimit -f) is an error to report and clean up behind, not the end.
  std::signal(SIGXFSZ, SIG_IGN);
  occupy_standard_streams();
  limit_spinning(argv);
  using namespace furlong;
  end_cleanly_on_signals();
  CLI::App program(
      "Furlong trains transformers on long sequences, with linear-time attention beside exact softmax, from YAML "
      "files.",
      "furlong");
  program.set_version_flag("--version", version() + " (" + commit() + ")");
  program.require_subcommand(1);
  program.footer(
      "Every subcommand has --help. Exit status: 0 done, 1 the machine failed, 2 a mistake to mend, 3 stopped by a "
      "signal, with nothing left half written.");
  int status = 0;
  command_line::add_prepare(program, status);
  command_line::add_tokenize(program, status);
  command_line::add_train(program, status);
  command_line::add_launch(program, status);
  command_line::add_convert(program, status);
  command_line::add_finetune(program, status);
  command_line::add_evaluate(program, status);
  command_line::add_generate(program, status);
  command_line::add_export(program, status);
  command_line::add_logits(program, status);
  command_line::add_attend(program, status);
  command_line::add_bench(program, status);
  command_line::add_plan(program, status);
  command_line::add_analyze(program, status);
  command_line::add_config(program, status);
  command_line::add_doctor(program, status);
  try {
    configure_logging("info");
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return answer(program, error, argc, argv);
  } catch (const PeerError& error) {
    if (error.is_told_here()) std::fprintf(stderr, "error: %s\n", error.what());
    return error.exit_status();
  } catch (const Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return error.exit_status();
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "error: out of memory\n");
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  // Results that did not reach their file are no results.
  if (std::fflush(stdout) != 0 || std::ferror(stdout)) {
    std::fprintf(stderr, "error: cannot write to standard output: %s\n", std::strerror(errno));
    return 1;
  }
  return status;
}
