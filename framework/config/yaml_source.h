#pragma once
// A strictly parsed YAML text. Parser errors become one line with file, line, column and a remedy.
#include <yaml-cpp/yaml.h>

#include <filesystem>
#include <string>
#include <vector>

#include "framework/config/table.h"

namespace furlong::config {

/// A parsed text. Throws UserError if it is not UTF-8, is not YAML, or contains several documents. An empty text is an
/// empty map.
class YamlSource {
 public:
  /// Errors refer to the text as `name`. If `has_lines` is false (a command-line value), errors have no line numbers.
  YamlSource(std::string name, std::string text, bool has_lines = true);

  const YAML::Node& root() const { return root_; }
  const std::string& name() const { return name_; }
  Place at(const YAML::Mark& mark) const;

  /// Throws UserError if a quoted scalar does not end on its first line (in yaml-cpp an unclosed quotation mark
  /// swallows the rest of the file), or is not UTF-8 (yaml-cpp reads the escapes \N and \_ as single bytes).
  void check_quotes(const YAML::Node& scalar) const;

 private:
  [[noreturn]] void explain(const YAML::Exception& problem) const;

  std::string name_;
  std::vector<std::string> lines_;
  bool has_lines_;
  YAML::Node root_;
};

/// Returns the text of a file. Throws UserError if it cannot be read, is a directory, or exceeds the size limit of a
/// config (16 MiB). `from` (such as "a.yaml:1:10: include: ") starts the message.
std::string read_config_file(const std::filesystem::path& file, const std::string& from);

}  // namespace furlong::config
