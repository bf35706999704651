#include "framework/io/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <chrono>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>

#include "framework/core/error.h"
#include "framework/core/log.h"
#include "framework/io/file_lock.h"
#include "framework/io/interrupted_writes.h"

namespace furlong {

namespace fs = std::filesystem;

namespace {

fs::path folder_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

constexpr std::string_view partial_suffix = ".partial";
constexpr std::size_t random_digits = 12;

/// Returns the prefix of all partial files of `path`. Of a long name, a hash replaces the rest, so that the suffix
/// fits.
std::string partial_prefix(const fs::path& path) {
  constexpr std::size_t max_bytes = 200, kept = max_bytes - 16;
  const std::string name = path.filename().string();
  if (name.size() <= max_bytes) return "." + name + ".";
  return fmt::format(".{}{:016x}.", name.substr(0, kept), XXH3_64bits(name.data(), name.size()));
}

/// Returns the part of a partial file's name before its random digits, or an empty text for any other name.
std::string_view prefix_of_partial(std::string_view name) {
  if (name.size() < random_digits + partial_suffix.size() || !name.starts_with('.') || !name.ends_with(partial_suffix))
    return {};
  name.remove_suffix(partial_suffix.size());
  const std::string_view random = name.substr(name.size() - random_digits);
  if (random.find_first_not_of("0123456789abcdef") != std::string_view::npos) return {};
  name.remove_suffix(random_digits);
  return name.ends_with('.') ? name : std::string_view();
}

/// Returns the partial files in a folder whose prefix is accepted.
template <class Accepts>
std::vector<fs::path> partial_files_in(const fs::path& folder, const Accepts& accepts, std::error_code& failure) {
  std::vector<fs::path> found;
  for (fs::directory_iterator entry(folder, failure), end; !failure && entry != end; entry.increment(failure)) {
    const std::string name = entry->path().filename().string();
    const std::string_view prefix = prefix_of_partial(name);
    if (!prefix.empty() && accepts(prefix)) found.push_back(entry->path());
  }
  return found;
}

/// A file that stays open, and locked if the file system has locks, until destruction.
class Descriptor {
 public:
  Descriptor(const fs::path& path, int flags) : value_(::open(path.c_str(), flags | O_CLOEXEC)) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return value_; }
  /// Returns 0, or the errno of the failed lock.
  int lock(int kind) const { return ::flock(value_, kind | LOCK_NB) == 0 ? 0 : errno; }

 private:
  int value_;
};

/// Locks a folder while a writer registers itself and looks for others, so that of two simultaneous writers one is
/// first.
class FolderTurn {
 public:
  explicit FolderTurn(const fs::path& folder) : folder_(folder, O_RDONLY | O_DIRECTORY) {
    // The lock is held for less than a millisecond. Another program's lock on the folder must not block a writer
    // forever.
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    while (folder_.get() >= 0 && folder_.lock(LOCK_EX) == EWOULDBLOCK && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  Descriptor folder_;
};

/// Removes a partial file unless a process is writing it. Returns 0, or the errno of why it stays: EWOULDBLOCK if it
/// has a writer. The caller has a FolderTurn, so that no writer is between creating and locking its file.
int remove_if_abandoned(const fs::path& partial) {
  // NFS locks only files that are open for writing. Local file systems also lock another user's file, open for reading.
  const int access = ::access(partial.c_str(), W_OK) == 0 ? O_RDWR : O_RDONLY;
  const Descriptor file(partial, access | O_NOFOLLOW | O_NONBLOCK);
  if (file.get() < 0) return errno;
  if (const int failure = file.lock(LOCK_EX); failure != 0) return failure;
  return ::unlink(partial.c_str()) == 0 ? 0 : errno;
}

void warn_of_unchecked(const fs::path& folder, std::size_t files, int reason) {
  log_warn(
      "{}: partial files not removed: {}; it cannot be checked whether a process is writing them ({}); remove them if "
      "none is",
      folder.string(), files, std::generic_category().message(reason));
}

/// Whether another process, or another AtomicFile of this process, is writing. Removes what killed writers have left.
/// Warns about another user's files that may have a writer but cannot be locked.
bool has_other_writer(const fs::path& target, const fs::path& own) {
  std::size_t unchecked = 0;
  for (const fs::path& other : partial_files(target)) {
    const int failure = other == own ? 0 : remove_if_abandoned(other);
    if (failure == EWOULDBLOCK) return true;
    unchecked += failure == EACCES || failure == EBADF;
  }
  if (unchecked > 0) warn_of_unchecked(folder_of(target), unchecked, EACCES);
  return false;
}

[[noreturn]] void throw_taken(const fs::path& path) {
  throw UserError("{}: already exists; use --force to replace it, or choose another path", path.string());
}

/// Gives a written file its name. Returns 0 or an errno, EEXIST if it may not replace the file of that name.
int name_file(const fs::path& partial, const fs::path& target, bool overwrite) {
  if (!overwrite) {
    // Unlike rename(), link() fails if the name exists, also where there are no locks.
    if (::link(partial.c_str(), target.c_str()) == 0) {
      ::unlink(partial.c_str());
      return 0;
    }
    const int error = errno;
    std::error_code ignored;
    // NFS repeats a call whose answer is lost, and then finds the name that the first one has given.
    if (error == EEXIST && fs::equivalent(partial, target, ignored)) {
      ::unlink(partial.c_str());
      return 0;
    }
    if (error != EPERM && error != ENOTSUP && error != ENOSYS) return error;
    // FAT and some FUSE file systems have no links.
    if (fs::exists(target, ignored)) return EEXIST;
  }
  return ::rename(partial.c_str(), target.c_str()) == 0 ? 0 : errno;
}

/// Returns the target of `path` with symbolic links resolved. Throws UserError if it exists but is not a regular file.
fs::path place_of(const fs::path& path) {
  std::error_code ignored, failure;
  // Of what the path leads to: /dev/stdout is a link whose text may be no path (pipe:[N]).
  const fs::file_status status = fs::status(path, ignored);
  if (fs::is_directory(status)) throw_file_error(path, "write", EISDIR);
  if (fs::exists(status) && !fs::is_regular_file(status))
    throw UserError("{}: cannot write: it is a device, pipe or socket; give the path of a regular file", path.string());
  // Resolves link by link: fs::weakly_canonical() does not resolve a link to a file that does not exist yet.
  fs::path target = path;
  for (int links = 0; fs::is_symlink(target, ignored); ++links) {
    constexpr int max_links = 40;  // as in Linux
    if (links == max_links) throw_file_error(path, "write", ELOOP);
    const fs::path next = fs::read_symlink(target, failure);
    if (failure) throw_file_error(path, "write", failure.value());
    target = next.is_absolute() ? next : folder_of(target) / next;
  }
  return target;
}

}  // namespace

fs::path partial_path(const fs::path& path) {
  for (;;) {
    std::uint64_t random = 0;
    if (::getrandom(&random, sizeof(random), 0) != static_cast<ssize_t>(sizeof(random)))
      throw MachineError("cannot get random bytes from the system: {}", std::generic_category().message(errno));
    fs::path partial = folder_of(path) / fmt::format("{}{:012x}{}", partial_prefix(path), random >> 16, partial_suffix);
    std::error_code ignored;
    if (!fs::exists(fs::symlink_status(partial, ignored))) return partial;
  }
}

std::vector<fs::path> partial_files(const fs::path& path) {
  const std::string wanted = partial_prefix(path);
  std::error_code ignored;
  return partial_files_in(
      folder_of(path), [&](std::string_view prefix) { return prefix == wanted; }, ignored);
}

void remove_abandoned_partial_files(const fs::path& folder) {
  const FolderTurn turn(folder);
  std::error_code unreadable;
  const std::vector<fs::path> files = partial_files_in(
      folder, [](std::string_view) { return true; }, unreadable);
  if (unreadable) throw_file_error(folder, "list the directory", unreadable.value());
  std::size_t unchecked = 0;
  int reason = 0;
  for (const fs::path& file : files) {
    const int failure = remove_if_abandoned(file);
    // ELOOP: a symbolic link, which no writer creates.
    if (failure == 0 || failure == EWOULDBLOCK || failure == ENOENT || failure == ELOOP) continue;
    ++unchecked;
    reason = failure;
  }
  if (unchecked > 0) warn_of_unchecked(folder, unchecked, reason);
}

void refuse_replacing_inputs(const std::vector<std::string>& inputs, const fs::path& output, const char* option) {
  std::error_code ignored;
  for (const std::string& input : inputs) {
    if (input != "-" && fs::equivalent(input, output, ignored))
      throw UserError("{}: is both input and output; choose another {}", input, option);
  }
}

void refuse_existing(const fs::path& output, bool overwrite) {
  std::error_code ignored;
  if (!overwrite && fs::exists(output, ignored)) throw_taken(output);
}

int flush_descriptor(int descriptor) {
  while (::fsync(descriptor) != 0) {
    if (errno != EINTR) return errno;  // network file systems return it when a signal arrives
  }
  return 0;
}

void flush_directory(const fs::path& directory) {
  const int descriptor = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) throw_file_error(directory, "open the directory", errno);
  const int error = flush_descriptor(descriptor);
  ::close(descriptor);
  // Some network file systems cannot flush a folder and return EINVAL; they order renames themselves.
  if (error != 0 && error != EINVAL && error != ENOTSUP)
    throw MachineError("{}: cannot flush the directory: {}", fs::absolute(directory).lexically_normal().string(),
                       std::generic_category().message(error));
}

AtomicFile::AtomicFile(fs::path path, bool overwrite) : path_(std::move(path)), overwrite_(overwrite) {
  if (!path_.has_filename())
    throw UserError("{}: cannot write: found {}; expected the path of a file", path_.string(),
                    path_.empty() ? "an empty path" : "a directory");
  target_ = place_of(path_);
  const FolderTurn turn(folder_of(target_));
  // Without locks several processes may write; the last commit wins.
  const bool is_in_use = !create_partial() || has_other_writer(target_, partial_);
  std::error_code ignored;
  const bool is_taken = !overwrite_ && fs::exists(target_, ignored);  // with the lock, so no writer can finish now
  if (is_in_use || is_taken) discard();
  if (is_in_use)
    throw FileInUse("{}: another process is writing this file; wait for it or give another path", path_.string());
  if (is_taken) throw_taken(path_);
}

/// Creates and locks the partial file. Returns false if another process has it locked.
bool AtomicFile::create_partial() {
  for (int tries = 1;; ++tries) {
    partial_ = partial_path(target_);
    slot_ = detail::register_partial(fs::absolute(partial_).string());
    descriptor_ = ::open(partial_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode_of_partial());
    if (descriptor_ < 0) {
      const int error = errno;
      detail::release_partial(slot_);
      throw_file_error(path_, "write", error);
    }
    // Without a lock of the folder, as on NFS, another process can lock the file first and remove it as abandoned.
    const bool is_locked = lock_file(descriptor_, partial_);
    struct stat status {};
    const bool is_removed = ::fstat(descriptor_, &status) == 0 && status.st_nlink == 0;
    constexpr int max_tries = 5;
    if ((is_locked && !is_removed) || tries == max_tries) return is_locked;
    discard();
  }
}

/// Nobody may read the partial file who may not read the file that it replaces.
mode_t AtomicFile::mode_of_partial() const {
  struct stat earlier {};
  return ::stat(target_.c_str(), &earlier) == 0 ? (earlier.st_mode & 0666) | 0600 : 0666;
}

/// The new file has the permissions of this user's file that it replaces. Best effort: not all file systems have them.
void AtomicFile::keep_mode() const {
  struct stat earlier {};
  if (::stat(target_.c_str(), &earlier) != 0 || earlier.st_uid != ::geteuid()) return;
  [[maybe_unused]] const int failure = ::fchmod(descriptor_, earlier.st_mode & 0777);
}

/// Whether `path` is the file that this object writes, and not one that replaced it.
bool AtomicFile::is_written_file(const fs::path& path) const {
  struct stat own {};
  struct stat other {};
  return ::fstat(descriptor_, &own) == 0 && ::stat(path.c_str(), &other) == 0 && own.st_dev == other.st_dev &&
         own.st_ino == other.st_ino;
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() noexcept {
  if (descriptor_ < 0) return;
  ::close(std::exchange(descriptor_, -1));
  ::unlink(partial_.c_str());
  detail::release_partial(std::exchange(slot_, -1));
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  write_at(end_, data, bytes);
  end_ += bytes;
}

void AtomicFile::write_at(std::uint64_t offset, const void* data, std::size_t bytes) {
  require(descriptor_ >= 0, "{}: written to after commit or a failure", path_.string());
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done = ::pwrite(descriptor_, from, bytes, static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) {
      const int error = done < 0 ? errno : ENOSPC;
      discard();
      throw_file_error(path_, "write", error);
    }
    from += done;
    offset += static_cast<std::uint64_t>(done);
    bytes -= static_cast<std::size_t>(done);
  }
}

void AtomicFile::flush() {
  require(descriptor_ >= 0, "{}: flushed after commit or a failure", path_.string());
  const int error = flush_descriptor(descriptor_);
  if (error == 0) return;
  discard();
  throw_file_error(path_, "write", error);
}

void AtomicFile::commit() {
  require(descriptor_ >= 0, "{}: committed twice, or after a failure", path_.string());
  // fsync reports delayed write errors; the file must not be renamed after one.
  int error = flush_descriptor(descriptor_);
  if (error == 0) keep_mode();
  // Rename while locked: otherwise another writer would treat the partial file as a killed writer's.
  if (error == 0) error = name_file(partial_, target_, overwrite_);
  if (error == ENOENT && is_written_file(target_)) error = 0;  // NFS has repeated a rename() whose answer was lost
  const bool is_named = error == 0;
  std::exception_ptr unflushed;
  try {
    if (is_named) flush_directory(folder_of(target_));
  } catch (...) {
    unflushed = std::current_exception();
  }
  if (unflushed && !overwrite_ && is_written_file(target_)) ::unlink(target_.c_str());  // it would refuse the next try
  if (!is_named) ::unlink(partial_.c_str());
  ::close(std::exchange(descriptor_, -1));  // the data are on the disk
  detail::release_partial(std::exchange(slot_, -1));
  if (unflushed) std::rethrow_exception(unflushed);
  if (error == EEXIST) throw_taken(path_);
  if (error != 0) throw_file_error(path_, "write", error);
}

void AtomicFile::commit_last() {
  flush();
  const DelayedSignals delayed;
  commit();
  output_is_complete();
}

void write_file_atomically(const fs::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace furlong
