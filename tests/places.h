#pragma once
// Where tests find what they need: as built, or, in a bundle that was carried to another machine (scripts/bundle.sh),
// as the environment says.
#include <cstdlib>
#include <filesystem>
#include <string>

namespace furlong::testing {

/// The root of the sources: configs, docs, tests and their data below it.
inline std::filesystem::path source_directory() {
  const char* elsewhere = std::getenv("FURLONG_TEST_SOURCES");
  return elsewhere ? elsewhere : FURLONG_SOURCE_DIR;
}

/// The program under test.
inline std::string program_under_test() {
  const char* elsewhere = std::getenv("FURLONG_TEST_PROGRAM");
  return elsewhere ? elsewhere : FURLONG_BINARY;
}

}  // namespace furlong::testing
