#pragma once
// Locks of files (flock), by which processes detect each other.
#include <filesystem>

namespace furlong {

/// Locks the open file `path`, without waiting, until its descriptor is closed. Returns false if another descriptor has
/// it locked. If the file system cannot lock, returns true; the first time in a process it also logs a warning with the
/// file's folder.
[[nodiscard]] bool lock_file(int descriptor, const std::filesystem::path& path);

/// Leaves the warning about files below `folder` to another process that uses it. Call once, before threads start.
void leave_lock_warning_to_others(const std::filesystem::path& folder);

}  // namespace furlong
