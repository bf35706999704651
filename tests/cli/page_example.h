#pragma once
// Runs the first example of a page of docs/.
#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cli/program.h"
#include "tests/places.h"

namespace furlong::testing {

/// The lines of a page's example in a language: the first, or that after `skipped` others.
inline std::vector<std::string> example_of(const std::string& page, const std::string& language = "sh",
                                           int skipped = 0) {
  std::ifstream lines(source_directory() / "docs" / page);
  std::vector<std::string> found;
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    if (line == "```" && inside && skipped-- == 0) break;
    if (line == "```" && inside) found.clear(), inside = false;
    if (inside) found.push_back(line);
    inside = inside || line == "```" + language;
  }
  return found;
}

/// Runs a line of a page in `folder`. Appends its output to the files stdout and stderr there.
inline void run_line(const std::filesystem::path& folder, const std::string& line) {
  const std::string command = fmt::format("cd '{}' && furlong() {{ '{}' \"$@\"; }} && {} >>stdout 2>>stderr",
                                          folder.string(), program_under_test(), line);
  const int status = std::system(command.c_str());
  std::ifstream errors(folder / "stderr");
  EXPECT_EQ(status, 0) << line << "\n" << std::string(std::istreambuf_iterator<char>(errors), {});
}

/// Runs a page's example of `lines` lines in `folder`: the first, or that after `skipped` others.
inline void run_example(const std::filesystem::path& folder, const std::string& page, std::size_t lines,
                        int skipped = 0) {
  const std::vector<std::string> example = example_of(page, "sh", skipped);
  ASSERT_EQ(example.size(), lines) << page;
  for (const std::string& line : example) run_line(folder, line);
}

/// Checks a page's first config with furlong config check, in `folder`.
inline void check_config(const std::filesystem::path& folder, const std::string& page) {
  std::ofstream config(folder / "page.yaml");
  const std::vector<std::string> lines = example_of(page, "yaml");
  ASSERT_FALSE(lines.empty()) << page;
  for (const std::string& line : lines) config << line << '\n';
  config.close();
  run_line(folder, "furlong config check page.yaml");
}

}  // namespace furlong::testing
