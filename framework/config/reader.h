#pragma once
// From YAML files to the settings that a table is bound to. Order: defaults, included files, the file itself, then the
// command line's overrides; what comes later wins, key by key (a list is replaced whole).
#include <filesystem>
#include <string>
#include <vector>

#include "framework/config/table.h"

namespace furlong::config {

/// What reading found out beside the values.
struct Reading {
  Origins origins;                           ///< place of each key that was set
  std::vector<std::filesystem::path> files;  ///< every file read, the one named by the user first
  std::vector<std::string> renamed;          ///< "place: old name is now new name", for each old name (Table::renamed)
};

/// Reads `file`, what it includes, and `overrides` ("a.b=c", the value parsed as YAML) into the settings that `table`
/// is bound to, which hold defaults before. Paths stay relative to the current directory; an `include:` is relative to
/// the including file. Throws UserError (one line: place, key, found, expected, hint) for anything that the table does
/// not allow.
Reading read_settings(const Table& table, const std::filesystem::path& file,
                      const std::vector<std::string>& overrides = {});

/// The same from a text, which cannot include files; errors call it `name`.
Reading read_settings_text(const Table& table, const std::string& text, const std::string& name,
                           const std::vector<std::string>& overrides = {});

}  // namespace furlong::config
