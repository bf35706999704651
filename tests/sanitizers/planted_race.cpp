// A data race on purpose, in the threads that all loops of Furlong run on: a ThreadSanitizer build must report it, or
// its silence about the tests means nothing. Four tasks wait for one another, so that the run ends only if four threads
// are really there.
#include <atomic>
#include <cstdio>
#include <thread>

#include "framework/core/parallel.h"

int main() {
  constexpr int threads = 4;
  furlong::set_thread_count(threads);
  std::atomic<int> started{0};
  int unprotected = 0;
  furlong::parallel_tasks(threads, [&](std::int64_t) {
    started.fetch_add(
        1, std::memory_order_relaxed);  // relaxed orders nothing, so that the sanitizer sees the race behind it
    while (started.load(std::memory_order_relaxed) < threads) std::this_thread::yield();
    ++unprotected;
  });
  std::printf("%d increments\n", unprotected);
}
