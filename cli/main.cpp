#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
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
#include "framework/core/standard_streams.h"
#include "framework/core/version.h"
#include "framework/io/atomic_file.h"
#include "framework/io/interrupted_writes.h"
#include "framework/primitives/cpu_isa.h"

namespace {

/// Prints an error as one line, without control characters (names from files can contain them). Returns the status.
int report(std::string_view message, int status) {
  const std::string line = furlong::foreign::single_line(message, furlong::max_message_bytes);
  furlong::write_message(STDERR_FILENO, "error: " + line + "\n");
  return status;
}

/// Reports a path that the system rejects (a loop of links, a long name) like other file errors.
int report(const std::filesystem::filesystem_error& error) {
  try {
    furlong::throw_file_error(error.path1(), "access", error.code().value());
  } catch (const furlong::Error& translated) {
    return report(translated.what(), translated.exit_status());
  }
}

/// Whether this is a rank of furlong launch other than 0. All have the same arguments, and rank 0 reports invalid ones.
bool is_other_launched_rank() {
  const char* const rank = std::getenv("RANK");
  return std::getenv("FURLONG_LAUNCHER") && rank && std::string_view(rank) != "0";
}

/// `error`: a value of errno; 0: unknown.
std::string lost_output(int error) {
  return fmt::format("cannot write to standard output{}{}", error != 0 ? fmt::format(": {}", std::strerror(error)) : "",
                     furlong::is_output_complete() ? "; the output is complete" : "");
}

/// Reports the exception that is being handled, and translates exceptions of libraries. Returns the exit status.
int report_exception() {
  constexpr const char* no_memory = "out of memory; free memory, raise the limit (ulimit -v), or choose smaller sizes";
  try {
    throw;
  } catch (const furlong::PeerError& error) {
    return error.is_reported_here() ? report(error.what(), error.exit_status()) : error.exit_status();
  } catch (const furlong::command_line::ArgumentError& error) {
    return is_other_launched_rank() ? error.exit_status() : report(error.what(), error.exit_status());
  } catch (const furlong::Error& error) {
    return report(error.what(), error.exit_status());
  } catch (const std::filesystem::filesystem_error& error) {
    return report(error);
  } catch (const std::system_error& error) {
    const int code = error.code().value();
    if (std::ferror(stdout)) return report(lost_output(code), 1);  // fmt::print throws
    if (code != EAGAIN && code != ENOMEM && code != EMFILE && code != ENFILE) return report(error.what(), 1);
    return report(fmt::format("the system denies a thread or another resource: {}; free resources, or raise the limits "
                              "(ulimit -u, -v, -n)",
                              error.code().message()),
                  1);
  } catch (const dnnl::error& error) {
    return report(error.status == dnnl_out_of_memory ? no_memory : fmt::format("oneDNN failed: {}", error.what()), 1);
  } catch (const std::bad_alloc&) {
    return report(no_memory, 1);
  } catch (const std::length_error&) {
    return report(no_memory, 1);  // a container with more elements than memory can hold
  } catch (const std::exception& error) {
    return report(error.what(), 1);
  } catch (...) {
    return report("unknown exception", 1);
  }
}

/// Reports an uncaught exception of any thread and exits.
[[noreturn]] void end_with_message() {
  if (!std::current_exception()) std::abort();
  const int status = report_exception();
  try {
    throw;
  } catch (const furlong::ContractError&) {  // a bug in this program: leave a core dump
    std::abort();
  } catch (...) {
    _exit(status);
  }
}

/// Restarts the program with a short spin time of libgomp, unless the user has set one. By default, threads of libgomp
/// spin for milliseconds while they wait. If other programs run, spinning takes cores from the threads that work: next
/// to two compilers, a training step took four times as long. libgomp reads its settings before main starts.
void limit_spinning([[maybe_unused]] char** argv) {
#ifndef FURLONG_THREAD_POOL
  if (std::getenv("GOMP_SPINCOUNT") || std::getenv("OMP_WAIT_POLICY")) return;
  std::error_code failure;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe", failure).string();
  if (failure) return;
  setenv("GOMP_SPINCOUNT", "3000", 1);
  execv(self.c_str(), argv);  // returns only on failure; then this process continues
#endif
}

/// Opens missing standard streams. Otherwise, a file could get the number of a standard stream, and messages would be
/// written to it. Writing to them fails, so that a lost result is an error.
void occupy_standard_streams() {
  for (int stream = 0; stream <= 2; ++stream) {
    if (fcntl(stream, F_GETFD) == -1) open("/dev/null", O_RDONLY);
  }
}

/// Rank 0 has a few connections to each other rank, and a sharded checkpoint one file for each: more than the usual
/// soft limit of 1,024.
void raise_limit_of_open_files() {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= files.rlim_max) return;
  files.rlim_cur = std::max(files.rlim_cur, std::min<rlim_t>(files.rlim_max, 1 << 17));
  setrlimit(RLIMIT_NOFILE, &files);
}

/// Warns about messages that nobody has read: standard error may have a reader again.
void report_lost_messages(int status) {
  const bool is_whole = status == 0 || status == 3;
  if (const std::int64_t lost = furlong::lost_messages(); lost > 0)
    furlong::log_warn("messages lost: {}; standard output or standard error was closed, full or not read{}", lost,
                      is_whole ? "; files are complete" : "");
}

}  // namespace

int main(int argc, char** argv) {
  // A file beyond the size limit (ulimit -f) is a reported error, not a fatal signal.
  std::signal(SIGXFSZ, SIG_IGN);
  occupy_standard_streams();
  raise_limit_of_open_files();
  limit_spinning(argv);
  std::set_terminate(end_with_message);
  using namespace furlong;
  end_cleanly_on_signals();
  const command_line::Program program(
      "furlong", "Train transformers on long sequences, with linear-time or exact softmax attention.");
  program.version("furlong " + version() + " (" + commit() + ")");
  program.require_subcommand();
  program.footer(
      "furlong SUBCOMMAND --help describes a subcommand. Exit status: 0 success, 1 system error (I/O, memory, GPU, "
      "network), 2 user error, 3 stopped by a signal; no partial file is left, and training saves first.");
  program.examples({
      "furlong prepare text book.txt --output book.h5",
      "furlong train configs/quickstart.yaml",
      "furlong evaluate runs/quickstart",
  });
  int status = 0;
  command_line::add_prepare(program, status);
  command_line::add_tokenize(program, status);
  command_line::add_train(program, status);
  command_line::add_sweep(program, status);
  command_line::add_launch(program, status);
  command_line::add_convert(program, status);
  command_line::add_finetune(program, status);
  command_line::add_evaluate(program, status);
  command_line::add_generate(program, status);
  command_line::add_embed(program, status);
  command_line::add_score(program, status);
  command_line::add_predict(program, status);
  command_line::add_export(program, status);
  command_line::add_logits(program, status);
  command_line::add_attend(program, status);
  command_line::add_bench(program, status);
  command_line::add_plan(program, status);
  command_line::add_analyze(program, status);
  command_line::add_report(program, status);
  command_line::add_runs(program, status);
  command_line::add_config(program, status);
  command_line::add_doctor(program, status);
  command_line::add_completion(program, status);
  try {
    configure_logging("info");
    ops::limit_cpu_isa();
    program.run({argv + 1, argv + argc});
  } catch (...) {
    status = report_exception();
    report_lost_messages(status);
    return status;
  }
  // Results that were not written are an error. Those of training are files; sweep and bench lra check their tables.
  const int reason = std::fflush(stdout) != 0 ? errno : 0;  // 0: an earlier write failed, whose reason is lost
  if (reason != 0 || std::ferror(stdout)) status = std::max(status, report(lost_output(reason), 1));
  report_lost_messages(status);
  return status;
}
