#pragma once
// Fibres: stacks that one thread of the host runs in turn, and what the sanitizers must be told about them. Compiled
// without ThreadSanitizer, for whose eyes each fibre is a thread of its own.
#include <cstddef>
#include <cstdint>
#include <memory>

#if !defined(__x86_64__) || defined(FURLONG_SIMULATOR_UCONTEXT)
#define FURLONG_SIMULATOR_UCONTEXT 1
#include <ucontext.h>
#endif

namespace furlong::simulator {

/// Whether this program is linked with AddressSanitizer or ThreadSanitizer.
bool under_address_sanitizer();
bool under_thread_sanitizer();

/// AddressSanitizer: accesses to the range are errors, or allowed again. Nothing without it.
void poison(void* memory, std::size_t bytes);
void unpoison(void* memory, std::size_t bytes);
/// ThreadSanitizer: what was done before a release of `token` is ordered before what is done after an acquire of it.
/// Nothing without it.
void acquire(void* token);
void release(void* token);

/// ThreadSanitizer: what this thread does in the scope, allocations included, is not looked at. For what the simulator
/// keeps between threads.
class Unseen {
 public:
  Unseen();
  ~Unseen();
  Unseen(const Unseen&) = delete;
  Unseen& operator=(const Unseen&) = delete;
};

/// Memory of whole pages, zero to begin with, backed as it is touched. Throws MachineError.
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

/// One stack and where on it to go on.
class Fibre {
 public:
  Fibre() = default;
  Fibre(const Fibre&) = delete;
  Fibre& operator=(const Fibre&) = delete;

  /// Makes the fibre start in entry() on this stack when it is first switched to; entry must not return. What ran on it
  /// before is forgotten. `colour` shifts the stack's top, so that the tops of many stacks do not fall into one set of
  /// the cache.
  void prepare(char* stack, std::size_t bytes, unsigned colour, void (*entry)());
  /// Makes the fibre stand for the calling thread as it is.
  void adopt_thread();

  /// Leaves `from`, on which the caller runs, and goes on on `to`. Returns when someone switches back to `from`.
  static void switch_to(Fibre& from, Fibre& to);
  /// The first call that a fibre's entry makes.
  static void begin();

  /// ThreadSanitizer: makes the thread that this fibre is in its eyes; ends it, ordered before all that the caller
  /// does.
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
