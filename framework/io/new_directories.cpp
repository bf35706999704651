#include "framework/io/new_directories.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "framework/core/file_error.h"
#include "framework/io/interrupted_writes.h"

namespace furlong {

namespace fs = std::filesystem;

NewDirectories::~NewDirectories() {
  for (; !created_.empty(); created_.pop_back()) {
    ::rmdir(created_.back().path.c_str());
    detail::release_partial(created_.back().slot);
  }
}

void NewDirectories::create(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return;
  const fs::path parent = path.parent_path();
  if (!parent.empty() && parent != path) create(parent);
  const DelayedSignals delayed;  // a new directory is registered before a signal ends the program
  if (::mkdir(path.c_str(), 0777) == 0) {
    created_.push_back({path, detail::register_directory(fs::absolute(path, ignored).string())});
    return;
  }
  const int error = errno;
  if (error == EEXIST && fs::is_directory(path, ignored)) return;  // by another process, or "PARENT/"
  throw_file_error(path, "create the directory", error == EEXIST ? ENOTDIR : error);
}

}  // namespace furlong
