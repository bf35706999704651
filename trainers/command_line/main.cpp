#include <cstdio>
#include <exception>
#include <new>

#include "framework/core/error.h"
#include "framework/core/log.h"
#include "framework/core/version.h"
#include "trainers/command_line/command_line.h"

int main(int argc, char** argv) {
  using namespace furlong;
  CLI::App program("Furlong trains transformers on long sequences, with linear-time attention beside exact softmax, from YAML files.", "furlong");
  program.set_version_flag("--version", version() + " (" + commit() + ")");
  program.require_subcommand(1);
  program.footer("Every subcommand has --help. Exit status: 0 done, 1 the machine failed, 2 a mistake to mend, 3 stopped by a signal after saving.");
  int status = 0;
  command_line::add_prepare(program, status);
  command_line::add_train(program, status);
  command_line::add_evaluate(program, status);
  command_line::add_generate(program, status);
  command_line::add_config(program, status);
  command_line::add_doctor(program, status);
  try {
    configure_logging("info");
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return program.exit(error) == 0 ? 0 : 2;
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
  return status;
}
