#include "trainers/train/run/run_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <random>
#include <thread>
#include <utility>

#include "communication/job_store/socket.h"
#include "framework/core/error.h"
#include "framework/core/log.h"
#include "framework/io/atomic_file.h"
#include "framework/io/file_lock.h"

namespace furlong {

namespace fs = std::filesystem;

namespace {

/// Ranks on one host share its cache of the file system. Another host of a network file system can take longer to see a
/// new file: an NFS client remembers for 30 s, by default, that a file is missing.
constexpr std::chrono::seconds patience_on_one_host{3}, patience_between_hosts{60};
constexpr std::chrono::seconds notice_after{3};

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::chrono::seconds patience_of(const ProcessGroup& group) {
  const bool one_host = group.environment().local_world_size == group.size();
  return one_host ? patience_on_one_host : patience_between_hosts;
}

bool appears(const fs::path& path, const std::string& line, std::chrono::seconds patience) {
  const auto begin = std::chrono::steady_clock::now();
  for (bool noticed = false;;) {
    if (first_line(path) == line) return true;
    const auto waited = std::chrono::steady_clock::now() - begin;
    if (waited >= patience) return false;
    if (!noticed && waited >= notice_after) {
      log_warn(
          "{}: rank 0 has written this file, but this rank does not see it yet; waiting up to {} s for the file "
          "system",
          path.string(), patience.count());
      noticed = true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

/// Checks that all ranks see rank 0's folder: rank 0 writes a file with random content, and the others look for it.
void check_shared(const fs::path& folder, const ProcessGroup& group, std::chrono::seconds patience) {
  if (group.is_alone()) return;
  const fs::path file = folder / ".shared";
  std::random_device random;
  const std::string token = fmt::format("{:08x}{:08x}", random(), random());
  if (group.is_first()) write_file_atomically(file, token + '\n');
  if (!appears(file, group.broadcast_text(token), patience))
    throw UserError(
        "run_directory: {}: not the directory that rank 0 uses; expected one directory for all ranks: put it on a file "
        "system that all hosts mount, and pass the same --run-dir to all ranks",
        folder.string());
  if (!group.is_first()) {
    leave_lock_warning_to_others(folder);
    AtomicFile(folder / fmt::format(".rank_{}", group.rank())).discard();  // it will write shards
  }
  group.barrier();
  std::error_code ignored;
  if (group.is_first()) fs::remove(file, ignored);
}

/// Opens the lock file. A link to another file, or anything that is no file, is refused: RunLock replaces the content.
int open_lock(const fs::path& path) {
  const int descriptor = open(path.c_str(), O_CREAT | O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
  if (descriptor < 0 && errno != ELOOP) throw_file_error(path, "write", errno);
  struct stat found {};
  if (descriptor >= 0 && fstat(descriptor, &found) == 0 && S_ISREG(found.st_mode)) return descriptor;
  if (descriptor >= 0) close(descriptor);
  throw UserError("{}: is not a regular file; remove it", path.string());
}

}  // namespace

RunLock::RunLock(const fs::path& directory) : descriptor_(open_lock(directory / ".lock")) {
  if (!lock_file(descriptor_, directory / ".lock")) {
    close(descriptor_);
    throw RunDirectoryInUse("{}: another training uses this run directory; stop it, or pass a different --run-dir",
                            directory.string());
  }
  directory_ = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  // This host's name: furlong runs takes a run whose lock file is not empty for one that may be running.
  const std::string host = host_name() + '\n';
  [[maybe_unused]] const bool written =
      ftruncate(descriptor_, 0) == 0 && write(descriptor_, host.data(), host.size()) > 0;
}

RunLock::~RunLock() {
  [[maybe_unused]] const int emptied = ftruncate(descriptor_, 0);
  if (directory_ >= 0) close(directory_);
  close(descriptor_);
}

bool RunLock::is_at(const fs::path& path) const {
  struct stat locked {
  }, there{};
  if (directory_ < 0) return true;
  if (fstat(directory_, &locked) != 0) return errno != ESTALE;  // removed by another client of a network file system
  if (stat(path.c_str(), &there) != 0) return errno != ENOENT && errno != ENOTDIR;  // another failure tells nothing
  return locked.st_dev == there.st_dev && locked.st_ino == there.st_ino;
}

RunDirectory::RunDirectory(fs::path path, const ProcessGroup& group)
    : RunDirectory(std::move(path), group, patience_of(group)) {}

RunDirectory::RunDirectory(fs::path path, const ProcessGroup& group, std::chrono::seconds patience)
    : path_(std::move(path)) {
  if (group.is_first()) {
    std::error_code failure;
    fs::create_directories(path_, failure);
    if (failure) throw_file_error(path_, "create the directory", failure.value());
    lock_ = std::make_unique<RunLock>(path_);
  }
  check_shared(path_, group, patience);
}

RunDirectory::~RunDirectory() = default;

void RunDirectory::check_in_place() const {
  if (lock_ && !lock_->is_at(path_)) throw_moved();
}

void RunDirectory::check_in_place(const ProcessGroup& group) const {
  const bool is_moved = lock_ && !lock_->is_at(path_);
  if (!group.broadcast_text(is_moved ? "moved" : "").empty()) throw_moved();
}

void RunDirectory::throw_moved() const {
  throw UserError(
      "{}: this run directory was moved or replaced during the training, which ends, so that files of two runs do not "
      "mix; continue the run where its checkpoints are now",
      path_.string());
}

void refuse_file_of_run(const fs::path& run, const fs::path& output, const char* option) {
  const auto place = [](const fs::path& path) {
    std::error_code unknown;
    const fs::path found = fs::weakly_canonical(fs::absolute(path), unknown);
    return found.has_filename() ? found : found.parent_path();  // ends in / if it does not exist yet
  };
  const fs::path file = place(output), folder = file.parent_path(), directory = place(run);
  for (const char* name : {"config.yaml", "metrics.jsonl", "resume_id", ".lock", "checkpoints", "tensorboard"})
    if (file == directory / name || folder == place(directory / name))
      throw UserError("{} {}: training writes its own files there; choose another path", option, output.string());
}

}  // namespace furlong
