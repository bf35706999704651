#pragma once
// Fibers: stacks that one host thread runs alternately, and the sanitizer annotations that they need. This code is
// compiled without ThreadSanitizer instrumentation, because ThreadSanitizer treats each fiber as a separate thread.
#include <cstddef>
#include <cstdint>
#include <memory>

#if !defined(__x86_64__) || defined(FURLONG_SIMULATOR_UCONTEXT)
#define FURLONG_SIMULATOR_UCONTEXT 1
#include <ucontext.h>
#endif

namespace furlong::simulator {

/// Returns whether this program is linked with AddressSanitizer or ThreadSanitizer.
bool under_address_sanitizer();
bool under_thread_sanitizer();

/// AddressSanitizer: marks the range so that accesses are errors (poison) or allowed again (unpoison). Does nothing
/// without AddressSanitizer.
void poison(void* memory, std::size_t bytes);
void unpoison(void* memory, std::size_t bytes);
/// ThreadSanitizer: orders everything before a release of `token` before everything after an acquire of it. Does
/// nothing without ThreadSanitizer.
void acquire(void* token);
void release(void* token);

/// ThreadSanitizer: ignores this thread's accesses and allocations during the scope. For data that the simulator shares
/// between threads.
class TsanIgnore {
 public:
  TsanIgnore();
  ~TsanIgnore();
  TsanIgnore(const TsanIgnore&) = delete;
  TsanIgnore& operator=(const TsanIgnore&) = delete;
};

/// Memory in whole pages, initially zero, committed on first access. Throws MachineError if it cannot be mapped.
class Pages {
 public:
  Pages() = default;
  explicit Pages(std::size_t bytes);
  ~Pages();
  Pages(Pages&& other) noexcept;
  Pages& operator=(Pages&& other) noexcept;
  char* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  char* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// One stack, and the place on it at which execution resumes.
class Fiber {
 public:
  Fiber() = default;
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Prepares the fiber to start in entry() on this stack when it is first switched to; entry must not return. Discards
  /// what ran on the fiber before. `color` shifts the top of the stack, so that many stacks do not map to one cache
  /// set.
  void prepare(char* stack, std::size_t bytes, unsigned color, void (*entry)());
  /// Makes the fiber represent the calling thread.
  void adopt_thread();

  /// Suspends `from`, which must be the caller's fiber, and resumes `to`. Returns when another fiber switches to
  /// `from`.
  static void switch_to(Fiber& from, Fiber& to);
  /// Must be the first call in a fiber's entry.
  static void begin();

  /// ThreadSanitizer: creates the thread that represents this fiber, and destroys it, ordered before everything that
  /// the caller does afterwards.
  void make_identity();
  void destroy_identity();

 private:
  void arrive();

#if !defined(FURLONG_SIMULATOR_UCONTEXT)
  void* stack_pointer_ = nullptr;
#else
  ucontext_t context_ = {};
#endif
  const void* bottom_ = nullptr;
  std::size_t bytes_ = 0;
  void* fake_stack_ = nullptr;
  void* tsan_ = nullptr;
};

}  // namespace furlong::simulator
