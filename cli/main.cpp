#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dnnl.hpp>
#include <exception>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <string_view>
#include <system_error>

#include "cli/command_line.h"
#include "communication/process_group.h"
#include "framework/core/error.h"
#include "framework/core/log.h"
#include "framework/core/printable.h"
#include "framework/core/version.h"
#include "framework/io/atomic_file.h"
#include "framework/io/interrupted_writes.h"
#include "framework/primitives/cpu_isa.h"

namespace {

/// Prints an error as one line without control characters, which names out of files may hold; returns the status.
int report(std::string_view message, int status) {
  std::fprintf(stderr, "error: %s\n", furlong::foreign::single_line(message, furlong::longest_message).c_str());
  return status;
}

/// A path that the system refuses (a loop of links, a long name), in the words and with the status of other files.
int report(const std::filesystem::filesystem_error& error) {
  try {
    furlong::throw_file_error(error.path1(), "access", error.code().value());
  } catch (const furlong::Error& translated) {
    return report(translated.what(), translated.exit_status());
  }
}

/// Says what the exception means that is being handled, in our words where a library has thrown it; returns the status.
int report_exception() {
  constexpr const char* no_memory = "out of memory; free some, raise its limit (ulimit -v), or choose smaller sizes";
  try {
    throw;
  } catch (const furlong::PeerError& error) {
    return error.is_told_here() ? report(error.what(), error.exit_status()) : error.exit_status();
  } catch (const furlong::Error& error) {
    return report(error.what(), error.exit_status());
  } catch (const std::filesystem::filesystem_error& error) {
    return report(error);
  } catch (const std::system_error& error) {
    const int code = error.code().value();
    if (code != EAGAIN && code != ENOMEM && code != EMFILE && code != ENFILE) return report(error.what(), 1);
    return report(fmt::format("the system refuses a thread or another resource: {}; free some, or raise its limits "
                              "(ulimit -u, -v, -n)",
                              error.code().message()),
                  1);
  } catch (const dnnl::error& error) {
    return report(error.status == dnnl_out_of_memory ? no_memory : fmt::format("oneDNN failed: {}", error.what()), 1);
  } catch (const std::bad_alloc&) {
    return report(no_memory, 1);
  } catch (const std::length_error&) {
    return report(no_memory, 1);  // of containers: more elements than memory can have
  } catch (const std::exception& error) {
    return report(error.what(), 1);
  } catch (...) {
    return report("an exception of an unknown kind", 1);
  }
}

/// An exception that nobody catches, in whatever thread, ends the program with its message, too.
[[noreturn]] void end_with_message() {
  if (!std::current_exception()) std::abort();
  const int status = report_exception();
  try {
    throw;
  } catch (const furlong::ContractError&) {  // a defect of this program: leaves a core where there is a limit for one
    std::abort();
  } catch (...) {
    _exit(status);
  }
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
  std::set_terminate(end_with_message);
  using namespace furlong;
  end_cleanly_on_signals();
  const command_line::Program program(
      "furlong",
      "Furlong trains transformers on long sequences, with linear-time attention beside exact softmax, from YAML "
      "files.");
  program.version(version() + " (" + commit() + ")");
  program.require_subcommand();
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
    ops::limit_cpu_isa();
    program.run({argv + 1, argv + argc});
  } catch (...) {
    return report_exception();
  }
  // Results that did not reach their file are no results.
  if (std::fflush(stdout) != 0 || std::ferror(stdout)) {
    std::fprintf(stderr, "error: cannot write to standard output: %s\n", std::strerror(errno));
    return 1;
  }
  return status;
}
