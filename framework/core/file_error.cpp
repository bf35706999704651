#include "framework/core/file_error.h"

#include <cerrno>
#include <system_error>

#include "framework/core/error.h"

namespace furlong {

namespace fs = std::filesystem;

namespace {

const char* hint_for(int error) {
  switch (error) {
    case ENOENT:
      return "check the path";
    case EACCES:
    case EPERM:
      return "check its permissions";
    case EISDIR:
      return "give the path of a file";
    case ENOTDIR:
      return "a part of the path is a file";
    case ELOOP:
      return "its symbolic links form a loop";
    default:
      return "give a shorter path";
  }
}

}  // namespace

void throw_missing(const fs::path& path, std::string_view expected) {
  throw UserError("{}: does not exist; expected {}; check the path", path.string(), expected);
}

void throw_file_error(const fs::path& path, std::string_view action, int error) {
  if (error == ENOENT && action == "read") throw_missing(path, "a file");
  const std::string reason = std::generic_category().message(error);
  switch (error) {
    case ENOENT:
      throw UserError("{}: cannot {}: {}; {}", path.string(), action, reason, hint_for(error));
    case EACCES:
    case EPERM:
    case EISDIR:
    case ENOTDIR:
    case ENAMETOOLONG:
    case ELOOP:
      throw UnusableFile("{}: cannot {}: {}; {}", path.string(), action, reason, hint_for(error));
    case EFBIG:
      throw MachineError("{}: cannot {}: {}; raise the file size limit (ulimit -f), or write to another file system",
                         path.string(), action, reason);
    case EMFILE:
      throw MachineError("{}: cannot {}: {}; raise the limit of open files (ulimit -n)", path.string(), action, reason);
    case ENOSPC:
    case EDQUOT:
      throw MachineError("{}: cannot {}: {}; free some space and try again", path.string(), action, reason);
    default:
      throw MachineError("{}: cannot {}: {}", path.string(), action, reason);
  }
}

}  // namespace furlong
