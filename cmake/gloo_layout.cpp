// Exits with 0 if the connections that libgloo creates are as large as its headers state. communication/gloo derives
// from their class, and one of the headers is a replacement (communication/gloo/missing).
#include <gloo/transport/tcp/attr.h>
#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/pair.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <new>

namespace {

/// Sizes of this thread's allocations while it records.
struct Allocations {
  bool recording = false;
  std::size_t count = 0;
  std::array<std::size_t, 1000> sizes{};
};
thread_local Allocations allocations;

/// Returns whether `action` allocates an object of this size.
template <class Action>
bool allocates(std::size_t size, const Action& action) {
  allocations.count = 0;
  allocations.recording = true;
  action();
  allocations.recording = false;
  const std::size_t* const begin = allocations.sizes.data();
  const std::size_t* const end = begin + allocations.count;
  return std::find(begin, end, size) != end;
}

}  // namespace

void* operator new(std::size_t size) {
  if (allocations.recording && allocations.count < allocations.sizes.size())
    allocations.sizes[allocations.count++] = size;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

int main() {
  namespace tcp = gloo::transport::tcp;
  const auto device = std::dynamic_pointer_cast<tcp::Device>(tcp::CreateDevice(tcp::attr("127.0.0.1")));
  const auto context = std::make_shared<tcp::Context>(device, 0, 2);
  return allocates(sizeof(tcp::Pair), [&] { context->createPair(1); }) ? 0 : 1;
}
