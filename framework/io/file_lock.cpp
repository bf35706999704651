#include "framework/io/file_lock.h"

#include <sys/file.h>

#include <atomic>
#include <cerrno>
#include <string>
#include <system_error>

#include "framework/core/log.h"

namespace furlong {

namespace fs = std::filesystem;

namespace {

fs::path absolute_of(const fs::path& path) {
  std::error_code ignored;
  return fs::absolute(path, ignored).lexically_normal();
}

std::string& folder_of_others() {
  static std::string folder;
  return folder;
}

}  // namespace

void leave_lock_warning_to_others(const fs::path& folder) { folder_of_others() = absolute_of(folder).string(); }

bool lock_file(int descriptor, const fs::path& path) {
  if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) return true;
  const int error = errno;
  if (error == EWOULDBLOCK) return false;
  // File systems without locks differ in the error: ENOLCK, ENOSYS, EOPNOTSUPP and others.
  static std::atomic_flag warned;
  const std::string folder = absolute_of(path).parent_path().string();
  if (!folder_of_others().empty() && (folder + '/').starts_with(folder_of_others() + '/')) return true;
  if (!warned.test_and_set())
    log_warn(
        "{}: this file system cannot lock files ({}); two processes that write the same file or train in the same run "
        "directory do not detect each other; run one at a time",
        folder, std::generic_category().message(error));
  return true;
}

}  // namespace furlong
