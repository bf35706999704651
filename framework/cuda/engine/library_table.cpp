#include "framework/cuda/engine/library_table.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

namespace furlong {
namespace {

namespace fs = std::filesystem;

/// One place to search. An empty folder means the loader's search path.
struct Place {
  fs::path folder;
  std::string text;  ///< for the message
};

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

/// Returns the folders of `parent` whose names start with `prefix`, highest version first (cuda-13.0 before cuda-12.4,
/// python3.12 before python3.11).
std::vector<fs::path> folders_like(const fs::path& parent, const std::string& prefix) {
  std::vector<fs::path> found;
  std::error_code failed;
  for (fs::directory_iterator entry(parent, failed), end; !failed && entry != end; entry.increment(failed)) {
    std::error_code unreadable;
    if (entry->path().filename().string().starts_with(prefix) && entry->is_directory(unreadable))
      found.push_back(entry->path());
  }
  std::sort(found.begin(), found.end(), [](const fs::path& a, const fs::path& b) {
    const std::string left = a.filename().string(), right = b.filename().string();
    return left.size() != right.size() ? left.size() > right.size() : left > right;
  });
  return found;
}

void add_if_exists(std::vector<Place>& places, const fs::path& folder) {
  std::error_code failed;
  const bool exists = !folder.empty() && fs::is_directory(folder, failed);
  const auto same = [&](const Place& place) { return place.folder == folder; };
  if (exists && std::none_of(places.begin(), places.end(), same)) places.push_back({folder, folder.string()});
}

void add_packages(std::vector<Place>& places, const fs::path& prefix, const std::vector<std::string>& pip_folders) {
  for (const fs::path& python : folders_like(prefix, "python3")) {
    for (const char* packages : {"site-packages", "dist-packages"}) {
      for (const std::string& folder : pip_folders) add_if_exists(places, python / packages / folder);
    }
  }
}

std::vector<Place> places_of(const LibraryWanted& wanted) {
  std::vector<Place> places;
  const std::string own = environment("FURLONG_CUDA_LIBDIR");
  if (!own.empty()) places.push_back({own, "$FURLONG_CUDA_LIBDIR (" + own + ")"});
  std::error_code failed;
  const fs::path program = fs::read_symlink("/proc/self/exe", failed);
  if (!failed) {
    const fs::path sibling = (program.parent_path().parent_path() / "lib").lexically_normal();
    places.push_back({sibling, sibling.string()});
  }
  places.push_back({"", "the loader's search path"});
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    const std::string toolkit = environment(variable);
    if (!toolkit.empty()) add_if_exists(places, fs::path(toolkit) / "lib64");
  }
  add_if_exists(places, "/usr/local/cuda/lib64");
  for (const fs::path& toolkit : folders_like("/usr/local", "cuda-")) add_if_exists(places, toolkit / "lib64");
  const std::string virtual_environment = environment("VIRTUAL_ENV"), conda = environment("CONDA_PREFIX"),
                    home = environment("HOME");
  if (!virtual_environment.empty()) add_packages(places, fs::path(virtual_environment) / "lib", wanted.pip_folders);
  if (!conda.empty()) {
    add_if_exists(places, fs::path(conda) / "lib");
    add_packages(places, fs::path(conda) / "lib", wanted.pip_folders);
  }
  if (!home.empty()) add_packages(places, fs::path(home) / ".local/lib", wanted.pip_folders);
  for (const char* prefix : {"/usr/local/lib", "/usr/lib"}) add_packages(places, prefix, wanted.pip_folders);
  return places;
}

std::string path_of(void* handle, const std::string& requested) {
  link_map* map = nullptr;
  return dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr && map->l_name != nullptr && *map->l_name
             ? map->l_name
             : requested;
}

/// Returns dlerror() without line breaks.
std::string loader_error() {
  const char* error = dlerror();
  std::string text = error ? error : "unknown error";
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace

Library load_library(const LibraryWanted& wanted) {
  Library library;
  std::vector<std::string> tried, faults;
  for (const Place& place : places_of(wanted)) {
    tried.push_back(place.text);
    for (const std::string& name : wanted.file_names) {
      const std::string file = place.folder.empty() ? name : (place.folder / name).string();
      std::error_code failed;
      if (!place.folder.empty() && !fs::exists(file, failed)) continue;
      void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (handle == nullptr) {
        const std::string error = loader_error();
        // The loader reports the same error if a file is not on its path at all, which is not a fault.
        if (!place.folder.empty() || error.find(name + ": cannot open shared object file") == std::string::npos)
          faults.push_back(error);
        continue;
      }
      std::vector<std::string> missing;
      for (const std::string& function : wanted.functions) {
        if (dlsym(handle, function.c_str()) == nullptr) missing.push_back(function);
      }
      if (missing.empty()) {
        library.handle = handle;
        library.path = path_of(handle, file);
        return library;
      }
      faults.push_back(fmt::format("{} lacks {}", path_of(handle, file), fmt::join(missing, ", ")));
      dlclose(handle);
    }
  }
  library.problem =
      fmt::format("{} cannot be loaded: {} {} searched for in {}", wanted.title, fmt::join(wanted.file_names, ", "),
                  wanted.file_names.size() == 1 ? "was" : "were", fmt::join(tried, ", "));
  if (!faults.empty()) library.problem += fmt::format(" ({})", fmt::join(faults, "; "));
  if (environment("FURLONG_CUDA_LIBDIR").empty())
    library.problem += "; set FURLONG_CUDA_LIBDIR to search another directory";
  return library;
}

void* library_symbol(const Library& library, const char* name) { return dlsym(library.handle, name); }

}  // namespace furlong
