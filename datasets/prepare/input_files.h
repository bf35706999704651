#pragma once
// Which files `furlong prepare` reads.
#include <string>
#include <vector>

namespace furlong {

/// Replaces each folder by the files in it and in its subfolders, in order of their paths. Hidden files and folders,
/// and links to folders, are left out; of several links to a file in one folder only the file itself is taken. Other
/// inputs stay as they are. Throws UserError if a folder has no files or cannot be read.
std::vector<std::string> files_of(const std::vector<std::string>& inputs);

/// Returns the name of the folder that a file is in, which is its label. Throws UserError if that is not UTF-8, or if
/// the file is in the root folder.
std::string folder_of(const std::string& path);

}  // namespace furlong
