#pragma once
// One YAML text, parsed strictly: its parser's complaints become one line with file, line, column and what to do about
// it.
#include <yaml-cpp/yaml.h>

#include <filesystem>
#include <string>
#include <vector>

#include "framework/config/table.h"

namespace furlong::config {

/// A parsed text. Throws UserError when it is not UTF-8, not YAML, or holds several documents; an empty text is an
/// empty map.
class YamlSource {
 public:
  /// `name` is what errors call the text. With `has_lines` false (a value from the command line) errors give no line
  /// numbers.
  YamlSource(std::string name, std::string text, bool has_lines = true);

  const YAML::Node& root() const { return root_; }
  const std::string& name() const { return name_; }
  Place at(const YAML::Mark& mark) const;

  /// Throws UserError when a quoted scalar does not end on the line on which it starts. (yaml-cpp lets a quotation mark
  /// that is never closed swallow the rest of the file.)
  void check_quotes(const YAML::Node& scalar) const;

 private:
  [[noreturn]] void explain(const YAML::Exception& problem) const;

  std::string name_;
  std::vector<std::string> lines_;
  bool has_lines_;
  YAML::Node root_;
};

/// The text of a file. Throws UserError when it cannot be read, is a directory, or is too large for a config (16 MiB);
/// `from` (such as "a.yaml:1:10: include: ") starts the message.
std::string read_config_file(const std::filesystem::path& file, const std::string& from);

}  // namespace furlong::config
