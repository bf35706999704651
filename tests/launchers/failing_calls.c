// Preloaded by tests/write_faults.py: counts the system calls that change files below a folder, and fails one of them,
// or that one and later ones, or sends the process a signal before one. Opening and closing count for writers only,
// removal for existing files.
//
// FURLONG_TEST_CALLS_FOLDER names the folder. FURLONG_TEST_CALLS_LOG names a file outside it that gets a line "NUMBER
// CALL PATH" for each call. FURLONG_TEST_CALLS_FAIL, if set, is "NUMBER ERRNO once", "NUMBER ERRNO onwards
// ,CALL,CALL,": then later calls of these names fail, too; or "NUMBER SIGNAL signal". FURLONG_TEST_CALLS_LOCK, if set,
// is the errno of flock().
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int calls = 0;

#define NEXT(name, type) ((type)dlsym(RTLD_NEXT, name))

static int is_below(const char* path) {
  const char* folder = getenv("FURLONG_TEST_CALLS_FOLDER");
  const size_t length = folder ? strlen(folder) : 0;
  return length > 0 && strncmp(path, folder, length) == 0 && (path[length] == '/' || path[length] == '\0');
}

// Returns whether this call must fail, with errno set.
static int fails(const char* call, const char* path) {
  int number = 0, value = 0, fail = 0, stop = 0;
  char when[16] = "", listed[128] = "", name[32], line[PATH_MAX + 64];
  snprintf(name, sizeof name, ",%s,", call);
  pthread_mutex_lock(&mutex);
  const int count = ++calls;
  const char* wanted = getenv("FURLONG_TEST_CALLS_FAIL");
  if (wanted && sscanf(wanted, "%d %d %15s %127s", &number, &value, when, listed) >= 3) {
    stop = count == number && strcmp(when, "signal") == 0;
    fail = !stop && (count == number || (count > number && strcmp(when, "onwards") == 0 && strstr(listed, name)));
  }
  const char* log = getenv("FURLONG_TEST_CALLS_LOG");
  const int flags = O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC;
  const int file = log ? NEXT("open", int (*)(const char*, int, ...))(log, flags, 0666) : -1;
  if (file >= 0) {
    const char* end = fail ? " fails" : stop ? " is signaled" : "";
    const int length = snprintf(line, sizeof line, "%d %s %s%s\n", count, call, path, end);
    if (NEXT("write", ssize_t(*)(int, const void*, size_t))(file, line, (size_t)length) != length) abort();
    NEXT("close", int (*)(int))(file);
  }
  pthread_mutex_unlock(&mutex);
  if (stop) raise(value);
  if (fail) errno = value;
  return fail;
}

static int descriptor_fails(const char* call, int descriptor) {
  char link[64], path[PATH_MAX];
  const int before = errno;
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  errno = before;
  if (length <= 0) return 0;
  path[length] = '\0';
  return is_below(path) && fails(call, path);
}

// The path may be relative and the file may not exist, so its folder is resolved.
static int path_fails(const char* call, const char* path) {
  char folder[PATH_MAX], whole[PATH_MAX];
  const int before = errno;
  const char* slash = strrchr(path, '/');
  snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
  const char* found = realpath(folder[0] ? folder : "/", whole);
  errno = before;
  if (!found || strlen(whole) + strlen(path) + 2 > sizeof whole) return 0;
  strcat(strcat(whole, "/"), slash ? slash + 1 : path);
  return is_below(whole) && fails(call, whole);
}

ssize_t write(int descriptor, const void* data, size_t bytes) {
  if (descriptor_fails("write", descriptor)) return -1;
  return NEXT("write", ssize_t(*)(int, const void*, size_t))(descriptor, data, bytes);
}
ssize_t writev(int descriptor, const struct iovec* parts, int count) {
  if (descriptor_fails("writev", descriptor)) return -1;
  return NEXT("writev", ssize_t(*)(int, const struct iovec*, int))(descriptor, parts, count);
}
ssize_t pwrite(int descriptor, const void* data, size_t bytes, off_t offset) {
  if (descriptor_fails("pwrite", descriptor)) return -1;
  return NEXT("pwrite", ssize_t(*)(int, const void*, size_t, off_t))(descriptor, data, bytes, offset);
}
ssize_t pwrite64(int descriptor, const void* data, size_t bytes, off64_t offset) {
  if (descriptor_fails("pwrite", descriptor)) return -1;
  return NEXT("pwrite64", ssize_t(*)(int, const void*, size_t, off64_t))(descriptor, data, bytes, offset);
}
int fsync(int descriptor) {
  if (descriptor_fails("fsync", descriptor)) return -1;
  return NEXT("fsync", int (*)(int))(descriptor);
}
int fdatasync(int descriptor) {
  if (descriptor_fails("fdatasync", descriptor)) return -1;
  return NEXT("fdatasync", int (*)(int))(descriptor);
}
int ftruncate(int descriptor, off_t bytes) {
  if (descriptor_fails("ftruncate", descriptor)) return -1;
  return NEXT("ftruncate", int (*)(int, off_t))(descriptor, bytes);
}
int ftruncate64(int descriptor, off64_t bytes) {
  if (descriptor_fails("ftruncate", descriptor)) return -1;
  return NEXT("ftruncate64", int (*)(int, off64_t))(descriptor, bytes);
}
int rename(const char* from, const char* to) {
  if (path_fails("rename", to)) return -1;
  return NEXT("rename", int (*)(const char*, const char*))(from, to);
}
int link(const char* from, const char* to) {
  if (path_fails("link", to)) return -1;
  return NEXT("link", int (*)(const char*, const char*))(from, to);
}
int linkat(int from_folder, const char* from, int to_folder, const char* to, int flags) {
  if (to_folder == AT_FDCWD && path_fails("link", to)) return -1;
  return NEXT("linkat", int (*)(int, const char*, int, const char*, int))(from_folder, from, to_folder, to, flags);
}
static int open_as(const char* name, const char* path, int flags, va_list more) {
  const mode_t mode = (flags & O_CREAT) ? va_arg(more, mode_t) : 0;
  if ((flags & (O_ACCMODE | O_CREAT)) != O_RDONLY && path_fails("open", path)) return -1;
  return NEXT(name, int (*)(const char*, int, ...))(path, flags, mode);
}
int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const int descriptor = open_as("open", path, flags, more);
  va_end(more);
  return descriptor;
}
int open64(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const int descriptor = open_as("open64", path, flags, more);
  va_end(more);
  return descriptor;
}
// As on Linux, the descriptor is closed even if this fails.
int close(int descriptor) {
  const int before = errno, flags = fcntl(descriptor, F_GETFL);
  errno = before;
  const int fail = flags >= 0 && (flags & O_ACCMODE) != O_RDONLY && descriptor_fails("close", descriptor);
  const int error = errno, status = NEXT("close", int (*)(int))(descriptor);
  if (!fail) return status;
  errno = error;
  return -1;
}
int mkdir(const char* path, mode_t mode) {
  if (path_fails("mkdir", path)) return -1;
  return NEXT("mkdir", int (*)(const char*, mode_t))(path, mode);
}
static int removal_fails(const char* path) {
  struct stat status;
  const int before = errno, exists = lstat(path, &status) == 0;
  errno = before;
  return exists && path_fails("remove", path);
}
int remove(const char* path) {
  if (removal_fails(path)) return -1;
  return NEXT("remove", int (*)(const char*))(path);
}
int unlink(const char* path) {
  if (removal_fails(path)) return -1;
  return NEXT("unlink", int (*)(const char*))(path);
}
int rmdir(const char* path) {
  if (removal_fails(path)) return -1;
  return NEXT("rmdir", int (*)(const char*))(path);
}
int flock(int descriptor, int kind) {
  const char* error = getenv("FURLONG_TEST_CALLS_LOCK");
  if (!error) return NEXT("flock", int (*)(int, int))(descriptor, kind);
  errno = atoi(error);
  return -1;
}
// The time of day is constant, so that files that contain it are comparable.
time_t time(time_t* result) {
  const time_t now = 1000000000;
  if (result) *result = now;
  return now;
}
int gettimeofday(struct timeval* restrict now, void* restrict zone) {
  (void)zone;
  now->tv_sec = time(NULL);
  now->tv_usec = 0;
  return 0;
}
