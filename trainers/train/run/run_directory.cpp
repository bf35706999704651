#include "trainers/train/run/run_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <random>
#include <thread>
#include <utility>

#include "framework/core/error.h"
#include "framework/core/log.h"
#include "framework/io/atomic_file.h"

namespace furlong {

namespace fs = std::filesystem;

namespace {

/// What another host has just written may take some seconds to show on a network file system.
constexpr std::chrono::seconds patience{3};

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

bool appears(const fs::path& path, const std::string& line) {
  for (const auto end = std::chrono::steady_clock::now() + patience;;) {
    if (first_line(path) == line) return true;
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

/// That all processes have the folder of rank 0, by a file in it whose content none of them can guess.
void check_shared(const fs::path& folder, const ProcessGroup& group) {
  if (group.is_alone()) return;
  const fs::path file = folder / ".shared";
  std::random_device random;
  const std::string token = fmt::format("{:08x}{:08x}", random(), random());
  if (group.is_first()) write_file_atomically(file, token + '\n');
  if (!appears(file, group.from_first(token)))
    throw UserError(
        "run_directory: {}: not the folder that rank 0 trains in; expected one that all processes share: put it on a "
        "file system of all hosts, and give all the same --run-dir",
        folder.string());
  group.barrier();
  std::error_code ignored;
  if (group.is_first()) fs::remove(file, ignored);
}

}  // namespace

class RunDirectory::Lock {
 public:
  explicit Lock(const fs::path& directory)
      : descriptor_(open((directory / ".lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666)) {
    if (descriptor_ < 0) throw_file_error(directory / ".lock", "create", errno);
    if (flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return;
    const int failure = errno;
    if (failure == ENOLCK || failure == ENOTSUP || failure == ENOSYS) {
      log_warn("{}: this file system has no locks; nothing stops a second training in this run directory",
               directory.string());
      return;
    }
    close(descriptor_);
    if (failure != EWOULDBLOCK) throw_file_error(directory / ".lock", "lock", failure);
    throw UserError("{}: another furlong train is running in this run directory; choose another with --run-dir",
                    directory.string());
  }
  ~Lock() { close(descriptor_); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  int descriptor_;
};

RunDirectory::RunDirectory(fs::path path, const ProcessGroup& group) : path_(std::move(path)) {
  if (group.is_first()) {
    std::error_code failure;
    fs::create_directories(path_, failure);
    if (failure) throw UserError("run_directory: cannot create {}: {}", path_.string(), failure.message());
    lock_ = std::make_unique<Lock>(path_);
  }
  check_shared(path_, group);
}

RunDirectory::~RunDirectory() = default;

}  // namespace furlong
