#include "communication/nccl/nccl_link.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "communication/job_store/socket.h"
#include "framework/core/gpu_engine.h"

namespace furlong {

using std::chrono::milliseconds;

namespace {

std::string one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' '; }, ' ');
  while (text.ends_with(' ')) text.pop_back();
  return text;
}

std::string seconds_of(milliseconds time) { return fmt::format("{:.1f} s", static_cast<double>(time.count()) / 1000); }

/// Waits longer each time, because most NCCL calls complete within microseconds.
class Pause {
 public:
  void operator()() {
    if (++count_ < 50) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(count_ < 1000 ? 20 : 2000));
    }
  }

 private:
  int count_ = 0;
};

}  // namespace

std::string nccl_missing() {
  const nccl::Table& table = nccl::table();
  return table.loaded() ? "" : table.library.problem;
}

NcclLink::NcclLink(StoreClient& store, const NcclOptions& options, const Stream& queue)
    : store_(store), options_(options), queue_(queue) {
  connect(wait_for_ranks());
}

NcclLink::~NcclLink() { abort(); }

/// Waits until all ranks have arrived. Returns NCCL's unique id, which rank 0 creates.
nccl::UniqueId NcclLink::wait_for_ranks() {
  const std::string prefix = "nccl/" + options_.name + "/";
  const auto key_of = [&](int rank) { return fmt::format("{}here/{}", prefix, rank); };
  nccl::UniqueId id{};
  if (options_.rank == 0) {
    const nccl::Result result = nccl::table().get_unique_id(&id);
    if (result != nccl::success) throw MachineError("NCCL cannot start on rank 0: {}", text_of(result, nullptr));
    store_.set(prefix + "id", std::span<const char>(id.internal));
  }
  const char here = 1;
  store_.set(key_of(options_.rank), std::span(&here, 1));
  std::vector<std::string> keys;
  for (int rank = 0; rank < options_.size; ++rank) keys.push_back(key_of(rank));
  try {
    store_.wait(keys, options_.connect_timeout);
  } catch (const MachineError&) {
    if (store_.fault()) throw;
    for (int rank = 0; rank < options_.size; ++rank)
      if (!store_.check({key_of(rank)}))
        throw MachineError("rank {} did not arrive to connect NCCL within {}", rank,
                           seconds_of(options_.connect_timeout));
    throw;
  }
  const std::vector<char> bytes = store_.get(prefix + "id", options_.connect_timeout);
  require(bytes.size() == sizeof id.internal, "NCCL's unique id in the job store has {} bytes", bytes.size());
  std::memcpy(id.internal, bytes.data(), sizeof id.internal);
  return id;
}

void NcclLink::check_connecting(Clock::time_point end) {
  if (const auto fault = store_.fault()) throw MachineError("{}", fault->message());
  if (Clock::now() < end) return;
  throw MachineError(
      "NCCL did not connect the {} ranks within {}, although all had arrived; set NCCL_DEBUG=INFO to log what it does, "
      "and NCCL_SOCKET_IFNAME to choose the network interface",
      options_.size, seconds_of(options_.connect_timeout));
}

/// A lost rank can also cause the failure: waits for the store to report it.
void NcclLink::fail_connecting(const std::string& text) {
  for (const auto end = Clock::now() + options_.fault_patience; options_.size > 1 && Clock::now() < end;) {
    if (const auto fault = store_.fault()) throw MachineError("{}", fault->message());
    std::this_thread::sleep_for(milliseconds(20));
  }
  throw MachineError("NCCL cannot connect rank {} on {} to the other ranks: {}", options_.rank, options_.device.text(),
                     text);
}

void NcclLink::connect(const nccl::UniqueId& id) {
  const auto end = Clock::now() + options_.connect_timeout;
  require_gpu_engine(queue_.device.type).native_queue(queue_);  // NCCL uses the thread's current device
  nccl::Config config;
  Handle handle = nullptr;
  nccl::Result result = nccl::table().comm_init_rank_config(&handle, options_.size, id, options_.rank, &config);
  handle_ = handle;
  try {
    for (Pause pause; result == nccl::in_progress; pause()) {
      check_connecting(end);
      result = state_now(handle);
    }
    if (result != nccl::success) fail_connecting(text_of(result, handle));
  } catch (...) {
    abort();
    throw;
  }
}

/// Returns NCCL's state: success, in_progress or an error.
nccl::Result NcclLink::state_now(Handle handle) {
  nccl::Result state = nccl::success;
  const nccl::Result asked = nccl::table().comm_get_async_error(handle, &state);
  return asked != nccl::success ? asked : state;
}

std::string NcclLink::text_of(nccl::Result result, Handle handle) const {
  const nccl::Table& table = nccl::table();
  std::string text = one_line(table.get_error_string(result));
  const char* last = table.get_last_error(handle);
  if (last != nullptr && *last != '\0') text += fmt::format(" ({})", one_line(last));
  return text;
}

nccl::Result NcclLink::grouped(const std::function<nccl::Result()>& calls) {
  const nccl::Table& table = nccl::table();
  if (const nccl::Result begun = table.group_start(); begun != nccl::success) return begun;
  const nccl::Result made = calls();
  const nccl::Result ended = table.group_end();  // always, otherwise the next calls would belong to the group
  return made != nccl::success && made != nccl::in_progress ? made : ended;
}

void NcclLink::run(const std::function<nccl::Result(Handle)>& calls) {
  std::unique_lock lock(mutex_);
  const auto handle = [&] {
    const Handle now = handle_;
    if (now == nullptr) throw NcclError("it was aborted");
    return now;
  };
  nccl::Result result = calls(handle());
  for (Pause pause; result == nccl::in_progress;) {
    lock.unlock();
    pause();
    lock.lock();
    result = state_now(handle());
  }
  if (result != nccl::success) throw NcclError(text_of(result, handle()));
}

std::optional<std::string> NcclLink::problem() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  const Handle handle = handle_;
  if (!lock || handle == nullptr) return {};  // the thread that uses NCCL now detects errors itself
  const nccl::Result state = state_now(handle);
  if (state == nccl::success || state == nccl::in_progress) return {};
  return text_of(state, handle);
}

void NcclLink::abort() noexcept {
  std::unique_lock lock(mutex_, std::defer_lock);
  const auto end = Clock::now() + milliseconds(5000);
  for (Pause pause; !lock.try_lock() && Clock::now() < end;) pause();
  if (const Handle handle = handle_.exchange(nullptr); handle != nullptr) nccl::table().comm_abort(handle);
}

void NcclLink::close(milliseconds patience) noexcept {
  const nccl::Table& table = nccl::table();
  const std::unique_lock lock(mutex_);
  const Handle handle = handle_.exchange(nullptr);
  if (handle == nullptr) return;
  nccl::Result result = table.comm_finalize(handle);
  const auto end = Clock::now() + patience;
  for (Pause pause; result == nccl::in_progress && Clock::now() < end && !store_.fault(); pause())
    result = state_now(handle);
  if (result == nccl::success) {
    table.comm_destroy(handle);
  } else {
    table.comm_abort(handle);
  }
}

}  // namespace furlong
