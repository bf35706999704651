#pragma once
// Reads YAML files into the settings that a table is bound to. Order: defaults, included files, the file itself,
// command-line overrides. Later values win key by key; a list is replaced as a whole.
#include <filesystem>
#include <string>
#include <vector>

#include "framework/config/table.h"

namespace furlong::config {

/// Results of reading besides the values.
struct Reading {
  Origins origins;                           ///< place of each key that is set
  std::vector<std::filesystem::path> files;  ///< every file read, the one named by the user first
  std::vector<std::string> renamed;          ///< "place: old name is now new name", for each old name (Table::renamed)
};

/// Reads `file`, its included files, and `overrides` ("a.b=c", the value parsed as YAML) into the settings bound to
/// `table`, which must hold defaults. Paths stay relative to the current directory; an `include:` is relative to the
/// including file. Throws UserError (one line: place, key, found, expected, hint) for anything that the table does not
/// allow.
Reading read_settings(const Table& table, const std::filesystem::path& file,
                      const std::vector<std::string>& overrides = {});

/// Returns the path of the key that has this name here or in other programs, such as optimizer.learning_rate for "lr";
/// the least nested if several have it, "" if none has.
std::string path_of_key(const Table& table, const std::string& name);

/// Whether paths in a text may have environment variables and ~: not in the settings of somebody's checkpoint.
enum class PathExpansion { on, off };

/// As read_settings(), from a text without includes; errors refer to it as `name`. Paths in `overrides` are always
/// expanded.
Reading read_settings_text(const Table& table, const std::string& text, const std::string& name,
                           const std::vector<std::string>& overrides = {}, PathExpansion expansion = PathExpansion::on);

}  // namespace furlong::config
