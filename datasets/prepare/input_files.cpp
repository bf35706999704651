#include "datasets/prepare/input_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <utility>

#include "framework/core/error.h"
#include "framework/core/printable.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;

struct Found {
  std::string path;
  bool is_link = false;
};

bool is_hidden(const fs::path& path) { return path.filename().native().starts_with('.'); }

std::vector<Found> walk(const std::string& folder) {
  std::vector<Found> found;
  std::error_code failure;
  fs::recursive_directory_iterator entry(folder, failure);
  for (const fs::recursive_directory_iterator end; !failure && entry != end; entry.increment(failure)) {
    if (is_hidden(entry->path())) {
      entry.disable_recursion_pending();
    } else if (std::error_code dangling; entry->is_regular_file(dangling)) {
      found.push_back({entry->path().native(), entry->is_symlink(dangling)});
    }
  }
  if (failure) throw UserError("{}: the folder cannot be read: {}", folder, failure.message());
  return found;
}

/// A document that several names lead to must not be read twice: its copies would be in several splits.
std::vector<std::string> files_in(const std::string& folder) {
  std::vector<Found> found = walk(folder);
  std::sort(found.begin(), found.end(),
            [](const Found& a, const Found& b) { return std::pair(a.is_link, a.path) < std::pair(b.is_link, b.path); });
  std::set<std::pair<dev_t, ino_t>> seen;
  std::vector<std::string> files;
  for (Found& one : found) {
    struct stat status {};
    if (::stat(one.path.c_str(), &status) == 0 && seen.emplace(status.st_dev, status.st_ino).second)
      files.push_back(std::move(one.path));
  }
  if (files.empty()) throw UserError("{}: the folder has no files", folder);
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::vector<std::string> files_of(const std::vector<std::string>& inputs) {
  std::vector<std::string> files;
  for (const std::string& input : inputs) {
    std::error_code ignored;
    if (!fs::is_directory(input, ignored)) {
      files.push_back(input);
      continue;
    }
    std::vector<std::string> inside = files_in(input);
    files.insert(files.end(), std::make_move_iterator(inside.begin()), std::make_move_iterator(inside.end()));
  }
  return files;
}

std::string folder_of(const std::string& path) {
  std::string folder = fs::absolute(path).lexically_normal().parent_path().filename().string();
  if (folder.empty()) throw UserError("{}: the file is in no folder, whose name would be its label", path);
  if (!foreign::is_utf8(folder))
    throw UserError("{}: the name of its folder, the label, is not valid UTF-8; rename it", foreign::printable(path));
  return folder;
}

}  // namespace furlong
