// Preloaded by tests/write_faults.py: the time of day jumps forwards and back by a day every few calls. Monotonic
// clocks are unchanged. FURLONG_TEST_CLOCK_LOG, if set, names a file that is created when the clock is read.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long jump(void) {
  static atomic_int calls;
  const int count = atomic_fetch_add(&calls, 1);
  const char* log = getenv("FURLONG_TEST_CLOCK_LOG");
  if (count == 0 && log) close(open(log, O_CREAT | O_WRONLY | O_CLOEXEC, 0666));
  return count / 3 % 3 == 0 ? 0 : count / 3 % 3 == 1 ? 86400 : -86400;
}

#define NEXT(name, type) ((type)dlsym(RTLD_NEXT, name))

int clock_gettime(clockid_t clock, struct timespec* now) {
  const int status = NEXT("clock_gettime", int (*)(clockid_t, struct timespec*))(clock, now);
  if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += jump();
  return status;
}
int gettimeofday(struct timeval* restrict now, void* restrict zone) {
  const int status = NEXT("gettimeofday", int (*)(struct timeval*, void*))(now, zone);
  if (status == 0) now->tv_sec += jump();
  return status;
}
time_t time(time_t* result) {
  const time_t now = NEXT("time", time_t(*)(time_t*))(NULL) + jump();
  if (result) *result = now;
  return now;
}
