#include "datasets/prepare/input_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "framework/core/error.h"
#include "framework/core/log.h"
#include "framework/core/printable.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;

struct Found {
  std::string path;
  bool is_link = false;
};

bool is_hidden(const fs::path& path) { return path.filename().native().starts_with('.'); }

using Place = std::pair<dev_t, ino_t>;

std::optional<Place> place_of(const fs::path& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? std::optional(Place(status.st_dev, status.st_ino)) : std::nullopt;
}

void warn_of_second_name(const std::string& folder) {
  log_warn("{}: the folder has another name here; its files are read once, under that name", folder);
}

/// Appends the files in a folder, then those in the folders that links lead to. Reads a folder once.
void walk(const std::string& folder, bool is_link, std::set<Place>& visited, std::vector<Found>& found) {
  std::vector<std::string> links;
  std::error_code failure;
  if (const auto place = place_of(folder)) visited.insert(*place);
  fs::recursive_directory_iterator entry(folder, failure);
  for (const fs::recursive_directory_iterator end; !failure && entry != end; entry.increment(failure)) {
    std::error_code dangling;
    const bool links_here = entry->is_symlink(dangling);
    if (is_hidden(entry->path())) {
      entry.disable_recursion_pending();
    } else if (entry->is_regular_file(dangling)) {
      found.push_back({entry->path().native(), is_link || links_here});
    } else if (entry->is_directory(dangling)) {
      const std::optional<Place> place = place_of(entry->path());
      if (links_here) {
        links.push_back(entry->path().native());
      } else if (place && !visited.insert(*place).second) {
        warn_of_second_name(entry->path().native());
        entry.disable_recursion_pending();
      }
    }
  }
  if (failure) throw UserError("{}: the folder cannot be read: {}", folder, failure.message());
  std::sort(links.begin(), links.end());
  for (const std::string& link : links) {
    const std::optional<Place> place = place_of(link);
    if (place && visited.contains(*place))
      warn_of_second_name(link);
    else if (place)
      walk(link, true, visited, found);
  }
}

/// A document that several names lead to must not be read twice: its copies would be in several splits.
std::vector<std::string> files_in(const std::string& folder) {
  std::vector<Found> found;
  std::set<Place> visited;
  walk(folder, false, visited, found);
  std::sort(found.begin(), found.end(),
            [](const Found& a, const Found& b) { return std::pair(a.is_link, a.path) < std::pair(b.is_link, b.path); });
  std::set<Place> seen;
  std::vector<std::string> files;
  for (Found& one : found) {
    const std::optional<Place> place = place_of(one.path);
    if (place && seen.insert(*place).second) files.push_back(std::move(one.path));
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
