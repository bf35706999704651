#include "framework/simulator/simulator_fiber.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "framework/core/error.h"

// The sanitizers' interfaces (sanitizer/common_interface_defs.h, asan_interface.h, tsan_interface.h); null in programs
// without them.
extern "C" {
[[gnu::weak]] void __sanitizer_start_switch_fiber(void** fake_stack_save, const void* bottom, std::size_t size);
[[gnu::weak]] void __sanitizer_finish_switch_fiber(void* fake_stack_save, const void** bottom_old,
                                                   std::size_t* size_old);
[[gnu::weak]] void __asan_poison_memory_region(const volatile void* address, std::size_t size);
[[gnu::weak]] void __asan_unpoison_memory_region(const volatile void* address, std::size_t size);
[[gnu::weak]] void* __tsan_get_current_fiber();
[[gnu::weak]] void* __tsan_create_fiber(unsigned flags);
[[gnu::weak]] void __tsan_destroy_fiber(void* fiber);
[[gnu::weak]] void __tsan_switch_to_fiber(void* fiber, unsigned flags);
[[gnu::weak]] void __tsan_acquire(void* address);
[[gnu::weak]] void __tsan_release(void* address);
[[gnu::weak]] void AnnotateIgnoreReadsBegin(const char* file, int line);
[[gnu::weak]] void AnnotateIgnoreReadsEnd(const char* file, int line);
[[gnu::weak]] void AnnotateIgnoreWritesBegin(const char* file, int line);
[[gnu::weak]] void AnnotateIgnoreWritesEnd(const char* file, int line);

#if !defined(FURLONG_SIMULATOR_UCONTEXT)
/// Saves the callee-saved registers (System V ABI), stores the stack pointer in *save and resumes at `to`.
void furlong_simulator_switch(void** save, void* to);
#endif
}

#if !defined(FURLONG_SIMULATOR_UCONTEXT)
asm(R"(
.text
.globl furlong_simulator_switch
.hidden furlong_simulator_switch
.type furlong_simulator_switch, @function
furlong_simulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size furlong_simulator_switch, .-furlong_simulator_switch
)");
#endif

namespace furlong::simulator {
namespace {

constexpr unsigned no_ordering = 1;  // __tsan_switch_to_fiber_no_sync: only barriers order simulated threads

Fiber* arriving = nullptr;  // the fiber being switched to
Fiber* leaving = nullptr;

}  // namespace

bool under_address_sanitizer() { return __asan_poison_memory_region != nullptr; }
bool under_thread_sanitizer() { return __tsan_create_fiber != nullptr; }

void poison(void* memory, std::size_t bytes) {
  if (__asan_poison_memory_region != nullptr) __asan_poison_memory_region(memory, bytes);
}
void unpoison(void* memory, std::size_t bytes) {
  if (__asan_unpoison_memory_region != nullptr) __asan_unpoison_memory_region(memory, bytes);
}
void acquire(void* token) {
  if (__tsan_acquire != nullptr) __tsan_acquire(token);
}
void release(void* token) {
  if (__tsan_release != nullptr) __tsan_release(token);
}

TsanIgnore::TsanIgnore() {
  if (AnnotateIgnoreReadsBegin != nullptr) AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  if (AnnotateIgnoreWritesBegin != nullptr) AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
}
TsanIgnore::~TsanIgnore() {
  if (AnnotateIgnoreWritesEnd != nullptr) AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  if (AnnotateIgnoreReadsEnd != nullptr) AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
}

Pages::Pages(std::size_t bytes) : bytes_(bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    throw MachineError("the simulator cannot allocate {} KiB for stacks: {}", bytes >> 10, std::strerror(errno));
  data_ = static_cast<char*>(memory);
}
Pages::~Pages() {
  if (data_ == nullptr) return;
  unpoison(data_, bytes_);  // the addresses may be reused
  munmap(data_, bytes_);
}
Pages::Pages(Pages&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
Pages& Pages::operator=(Pages&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void Fiber::prepare(char* stack, std::size_t bytes, unsigned color, void (*entry)()) {
  bottom_ = stack;
  bytes_ = bytes;
  fake_stack_ = nullptr;
  unpoison(stack, bytes);
#if !defined(FURLONG_SIMULATOR_UCONTEXT)
  // At entry the stack must look as after a call: the slot of the return address is 8 past a multiple of 16.
  char* top = stack + bytes - 64 - color % 12 * 320;
  void** frame = reinterpret_cast<void**>(top - reinterpret_cast<std::uintptr_t>(top) % 16);
  *--frame = nullptr;
  *--frame = reinterpret_cast<void*>(entry);
  for (int saved_register = 0; saved_register < 6; ++saved_register) *--frame = nullptr;
  stack_pointer_ = frame;
#else
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack;
  context_.uc_stack.ss_size = bytes - color % 12 * 320;
  context_.uc_link = nullptr;
  makecontext(&context_, entry, 0);
#endif
}

void Fiber::adopt_thread() {
  if (__tsan_get_current_fiber != nullptr) tsan_ = __tsan_get_current_fiber();
}

void Fiber::make_identity() { tsan_ = __tsan_create_fiber(0); }

void Fiber::destroy_identity() {
  // Switches there and back for ThreadSanitizer, so that everything the fiber has done is ordered before what the
  // caller does from now on.
  void* const caller = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(tsan_, 0);
  __tsan_switch_to_fiber(caller, 0);
  __tsan_destroy_fiber(tsan_);
}

void Fiber::switch_to(Fiber& from, Fiber& to) {
  leaving = &from;
  arriving = &to;
  if (__sanitizer_start_switch_fiber != nullptr && under_address_sanitizer()) {
    __sanitizer_start_switch_fiber(&from.fake_stack_, to.bottom_, to.bytes_);
  }
  if (__tsan_switch_to_fiber != nullptr) __tsan_switch_to_fiber(to.tsan_, no_ordering);
#if !defined(FURLONG_SIMULATOR_UCONTEXT)
  furlong_simulator_switch(&from.stack_pointer_, to.stack_pointer_);
#else
  swapcontext(&from.context_, &to.context_);
#endif
  from.arrive();
}

void Fiber::begin() { arriving->arrive(); }

void Fiber::arrive() {
  if (__sanitizer_finish_switch_fiber == nullptr || !under_address_sanitizer()) return;
  // The bounds of a host thread's own stack become known when it is first left.
  const bool learn = leaving->bytes_ == 0;
  __sanitizer_finish_switch_fiber(fake_stack_, learn ? &leaving->bottom_ : nullptr, learn ? &leaving->bytes_ : nullptr);
}

}  // namespace furlong::simulator
