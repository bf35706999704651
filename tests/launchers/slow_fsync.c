// Preloaded by tests/faults.py: makes fsync() behave as on a disk that is slow, hangs, or is full.
//
// FURLONG_TEST_FSYNC names a file FILE. Once FILE exists it contains "WORD SECONDS ERROR": fsync() of a file with WORD
// in its path takes SECONDS and fails with ERROR (0: succeeds). FILE.inside exists while such a call is in progress.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void sleep_for(double seconds) {
  struct timespec left = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
  while (nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

static int is_meant(int descriptor, const char* word) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = '\0';
  return strstr(path, word) != NULL;
}

int fsync(int descriptor) {
  int (*system_fsync)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
  const char* name = getenv("FURLONG_TEST_FSYNC");
  FILE* file = name ? fopen(name, "r") : NULL;
  if (!file) return system_fsync(descriptor);
  char word[256] = "", inside[4096];
  double seconds = 0;
  int error = 0;
  const int found = fscanf(file, "%255s %lf %d", word, &seconds, &error);
  fclose(file);
  if (found != 3 || !is_meant(descriptor, word)) return system_fsync(descriptor);
  snprintf(inside, sizeof inside, "%s.inside", name);
  close(open(inside, O_CREAT | O_WRONLY | O_CLOEXEC, 0666));
  sleep_for(seconds);
  if (error == 0) return system_fsync(descriptor);
  errno = error;
  return -1;
}
