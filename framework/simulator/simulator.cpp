#include "framework/simulator/simulator.h"

#include <charconv>
#include <cstdlib>
#include <vector>

#include "framework/simulator/simulator_machine.h"

namespace furlong::simulator {

void set_order(Options& options, std::string_view name) {
  constexpr std::string_view seeded = "random:";
  if (name == "forward") {
    options.order = Order::forward;
  } else if (name == "reverse") {
    options.order = Order::reverse;
  } else if (name == "warp_first") {
    options.order = Order::warp_first;
  } else if (name == "random") {
    options.order = Order::random;
  } else {
    std::uint64_t seed = 0;
    const std::string_view digits = name.starts_with(seeded) ? name.substr(seeded.size()) : "";
    const auto [end, status] = std::from_chars(digits.data(), digits.data() + digits.size(), seed);
    if (digits.empty() || status != std::errc{} || end != digits.data() + digits.size()) {
      throw UserError("FURLONG_SIMULATOR_ORDER is '{}'; expected forward, reverse, random, random:SEED or warp_first",
                      name);
    }
    options.order = Order::random;
    options.seed = seed;
  }
}

Options& options() {
  static Options current = [] {
    Options initial;
    const auto set = [](const char* variable) {
      const char* text = std::getenv(variable);
      return std::string_view(text != nullptr ? text : "");
    };
    if (const auto name = set("FURLONG_SIMULATOR_ORDER"); !name.empty()) set_order(initial, name);
    if (const auto name = set("FURLONG_SIMULATOR_TENSOR_CORES"); !name.empty()) {
      if (name != "sm_80" && name != "sm_90")
        throw UserError("FURLONG_SIMULATOR_TENSOR_CORES is '{}'; expected sm_80 or sm_90", name);
      initial.tensor_cores = name == "sm_80" ? TensorCores::sm_80 : TensorCores::sm_90;
    }
    return initial;
  }();
  return current;
}

const Statistics& statistics() { return machine().statistics; }

void run(dim3 grid, dim3 block, std::size_t dynamic_shared_bytes, const Site& launch_site, void (*body)(void*),
         void* context) {
  machine().run(grid, block, dynamic_shared_bytes, launch_site, body, context);
}

void fault(const std::string& what, const Site& site) { machine().fault(fmt::format("{} at {}", what, text(site))); }

void* shared_variable(const void* key, std::size_t bytes, const char* name) {
  std::string error;
  void* memory = machine().shared().variable(key, bytes, name, error);
  if (memory == nullptr) machine().fault(error);
  return memory;
}
void* dynamic_shared() { return machine().shared().dynamic(); }

bool block_barrier(bool predicate, const char* operation, const Site& site) {
  return machine().barrier(predicate, operation, site);
}
const LaneData* exchange(std::uint32_t mask, const char* operation, const void* data, std::size_t bytes,
                         void (*combine)(LaneData*), const Site& site) {
  return machine().exchange(mask, operation, data, bytes, combine, site);
}
void warp_barrier(std::uint32_t mask, const Site& site) { machine().warp_barrier(mask, site); }

// ---- cp.async ----

namespace {

// Uses memcpy and memset, so that the sanitizers check the accesses for the thread that copies.
void perform(const AsyncCopy& copy) {
  std::memcpy(copy.shared, copy.global, copy.source_bytes);
  std::memset(static_cast<char*>(copy.shared) + copy.source_bytes, 0, copy.bytes - copy.source_bytes);
}

}  // namespace

void async_copy(void* shared, const void* global, std::size_t bytes, std::size_t source_bytes, const Site& site) {
  if ((reinterpret_cast<std::uintptr_t>(shared) | reinterpret_cast<std::uintptr_t>(global)) % bytes != 0) {
    fault(fmt::format("cp.async of {} bytes with an address that is not a multiple of this size", bytes), site);
  }
  if (source_bytes > bytes) fault(fmt::format("cp.async of {} bytes reads {} bytes", bytes, source_bytes), site);
  if (!machine().shared().holds(shared, bytes)) fault("cp.async to an address outside the block's shared memory", site);
  Thread& self = machine().current();
  const AsyncCopy copy{shared, global, bytes, source_bytes, self.groups};
  if (options().async_copies == AsyncCopies::eager) {
    perform(copy);
    return;
  }
  std::memset(shared, 0xff, bytes);  // the old contents are invalid from now on
  const TsanIgnore ignore;
  self.copies.push_back(copy);
}

void async_commit() { ++machine().current().groups; }

void async_wait(int groups_left) {
  Thread& self = machine().current();
  const auto waited_for = [&](const AsyncCopy& copy) {
    return copy.group + static_cast<unsigned>(groups_left) < self.groups;
  };
  for (const AsyncCopy& copy : self.copies) {
    if (waited_for(copy)) perform(copy);
  }
  std::erase_if(self.copies, waited_for);
}

}  // namespace furlong::simulator
