#include "framework/io/file_lock.h"

#include <sys/file.h>

#include <atomic>
#include <cerrno>
#include <system_error>

#include "framework/core/log.h"

namespace furlong {

namespace {
std::atomic_flag warned;
}  // namespace

void leave_lock_warning_to_others() { warned.test_and_set(); }

bool lock_file(int descriptor, const std::filesystem::path& path) {
  if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) return true;
  const int error = errno;
  if (error == EWOULDBLOCK) return false;
  // File systems without locks differ in the error: ENOLCK, ENOSYS, EOPNOTSUPP and others.
  if (!warned.test_and_set()) {
    std::error_code ignored;
    log_warn(
        "{}: this file system cannot lock files ({}); two processes that write the same file or train in the same run "
        "directory do not detect each other; run one at a time",
        std::filesystem::absolute(path, ignored).lexically_normal().parent_path().string(),
        std::generic_category().message(error));
  }
  return true;
}

}  // namespace furlong
