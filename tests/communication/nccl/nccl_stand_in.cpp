// A library with NCCL's functions for tests on machines without GPUs. It works on the memory and streams of the
// simulated device, between processes of one machine, through shared memory. Like NCCL's, its calls return before they
// are done. It checks the order of calls strictly. FURLONG_NCCL_STAND_IN_FAULT selects a fault:
//
//   init hangs            ncclCommInitRankConfig never ends
//   init fails            it ends with ncclRemoteError
//   call N fails          the N-th operation (from 1) is refused with ncclInvalidArgument
//   operation N hangs     the N-th operation never ends
//   operation N breaks    the same, and the communicator's state becomes ncclRemoteError
//   operation N is slow   the operation takes 0.3 s longer
//
// Reductions add in rank order and round to the element type each time. Maximum and minimum ignore NaN, like NCCL's.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "framework/core/dtype.h"
#include "framework/simulator/simulated_queue_handle.h"
#include "tests/communication/nccl/nccl_stand_in.h"

namespace furlong::nccl {
namespace {

/// Rejects two threads in one communicator at a time, which is undefined behavior in NCCL.
class Call {
 public:
  explicit Call(Communicator* communicator)
      : communicator_(communicator), is_alone_(!communicator->in_call.exchange(true)) {}
  ~Call() {
    if (is_alone_) communicator_->in_call = false;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  bool is_alone() const { return is_alone_; }

 private:
  Communicator* communicator_;
  bool is_alone_;
};

std::size_t size_of_type(DataType type) {
  switch (type) {
    case DataType::int8:
    case DataType::uint8:
      return 1;
    case DataType::bfloat16:
      return 2;
    case DataType::int32:
    case DataType::float32:
      return 4;
    case DataType::float64:
      return 8;
  }
  return 0;
}

template <class T>
void reduce_into(char* target, const char* values, std::size_t count, Reduction reduction) {
  for (std::size_t i = 0; i < count; ++i) {
    T a, b, out;
    std::memcpy(&a, target + i * sizeof(T), sizeof(T));
    std::memcpy(&b, values + i * sizeof(T), sizeof(T));
    if constexpr (std::is_integral_v<T>) {
      using Unsigned = std::make_unsigned_t<T>;
      out = reduction == Reduction::sum
                ? static_cast<T>(static_cast<Unsigned>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b)))
            : reduction == Reduction::maximum ? std::max(a, b)
                                              : std::min(a, b);
    } else {
      using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
      const auto x = static_cast<Wide>(a), y = static_cast<Wide>(b);
      out = T(reduction == Reduction::sum       ? x + y
              : reduction == Reduction::maximum ? std::fmax(x, y)
                                                : std::fmin(x, y));
    }
    std::memcpy(target + i * sizeof(T), &out, sizeof(T));
  }
}

void reduce_into(char* target, const char* values, std::size_t count, DataType type, Reduction reduction) {
  switch (type) {
    case DataType::int8:
      return reduce_into<std::int8_t>(target, values, count, reduction);
    case DataType::uint8:
      return reduce_into<std::uint8_t>(target, values, count, reduction);
    case DataType::int32:
      return reduce_into<std::int32_t>(target, values, count, reduction);
    case DataType::float32:
      return reduce_into<float>(target, values, count, reduction);
    case DataType::float64:
      return reduce_into<double>(target, values, count, reduction);
    case DataType::bfloat16:
      return reduce_into<bfloat16>(target, values, count, reduction);
  }
}

/// The current group of this thread.
struct Group {
  int depth = 0;
  Communicator* communicator = nullptr;
  SimulatedQueueHandle* queue = nullptr;
  std::vector<std::function<void()>> operations;  // at most one per group, except messages
  struct Message {
    bool sends;
    char* address;
    std::size_t bytes, done;
    int peer;
  };
  std::vector<Message> messages;
};
thread_local Group group;

void run_messages(Communicator* c, std::vector<Group::Message> messages) {
  std::size_t open = messages.size();
  for (Pause pause; open > 0; pause()) {
    if (c->aborted) throw Aborted{};
    bool seen[2][most_ranks] = {};  // messages to the same rank are sent in order
    for (Group::Message& message : messages) {
      if (message.done == message.bytes || std::exchange(seen[message.sends][message.peer], true)) continue;
      auto& box =
          message.sends ? c->shared->mailboxes[c->rank][message.peer] : c->shared->mailboxes[message.peer][c->rank];
      std::uint64_t& count = (message.sends ? c->sent : c->received)[static_cast<std::size_t>(message.peer)];
      const std::size_t bytes = std::min(message_bytes, message.bytes - message.done);
      if (message.sends ? box.read < count : box.written <= count) continue;
      message.sends ? std::memcpy(box.bytes, message.address + message.done, bytes)
                    : std::memcpy(message.address + message.done, box.bytes, bytes);
      ++count;
      (message.sends ? box.written : box.read) = count;
      message.done += bytes;
      if (message.done == message.bytes) --open;
    }
  }
}

/// Lets a later query of the state enqueue the work on its stream.
Result submit(Communicator* c, SimulatedQueueHandle* queue, std::function<void()> work) {
  const int number = ++c->operations;
  if (c->fault.is("call", "fails", number)) return invalid_argument;
  struct Enqueued {
    Communicator* communicator;
    std::function<void()> work;
    int number;
  };
  ++c->under_way;
  c->to_enqueue = [c, queue, number, work = std::move(work)] {
    queue->enqueue(
        queue,
        [](void* argument) {
          const std::unique_ptr<Enqueued> self(static_cast<Enqueued*>(argument));
          Communicator* const c = self->communicator;
          try {
            if (c->fault.is("operation", "is slow", self->number))
              std::this_thread::sleep_for(std::chrono::milliseconds(300));
            const bool breaks = c->fault.is("operation", "breaks", self->number);
            if (breaks) c->broken = true;
            if (breaks || c->fault.is("operation", "hangs", self->number)) c->wait_until([] { return false; });
            self->work();
          } catch (const Aborted&) {
          }
          --c->under_way;
        },
        new Enqueued{c, work, number});
  };
  c->asked = 0;
  return in_progress;
}

/// Adds an operation: on its own, or to the current group.
Result add(Communicator* c, void* stream, std::function<void()> work) {
  const Call call(c);
  if (!call.is_alone()) return internal_error;
  if (c->aborted || c->finalized || !c->connected || c->to_enqueue) return invalid_usage;
  auto* const queue = static_cast<SimulatedQueueHandle*>(stream);
  if (group.depth == 0) return submit(c, queue, std::move(work));
  group.communicator = c;
  group.queue = queue;
  group.operations.push_back(std::move(work));
  return success;
}

Result add_message(Communicator* c, void* stream, const Group::Message& message) {
  if (group.depth == 0) return add(c, stream, [c, message] { run_messages(c, {message}); });
  group.communicator = c;
  group.queue = static_cast<SimulatedQueueHandle*>(stream);
  group.messages.push_back(message);
  return success;
}

Shared* attach(const UniqueId& id) {
  const int descriptor = open(id.internal, O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return nullptr;
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  close(descriptor);
  return memory == MAP_FAILED ? nullptr : static_cast<Shared*>(memory);
}

bool all_have_come(Communicator* c) {
  if (c->connected) return true;
  if (c->fault.is("init", "hangs") || c->shared->attached < c->size) return false;
  c->connected = true;
  return true;
}

void destroy(Communicator* c) {
  munmap(c->shared, sizeof(Shared));
  delete c;
}

}  // namespace
}  // namespace furlong::nccl

using namespace furlong::nccl;

extern "C" {

Result ncclGetVersion(int* version) {
  *version = 22703;
  return success;
}

const char* ncclGetErrorString(Result result) {
  const char* texts[] = {"no error",
                         "unhandled cuda error",
                         "unhandled system error",
                         "internal error",
                         "invalid argument",
                         "invalid usage",
                         "remote process exited or there was a network error",
                         "NCCL operation in progress"};
  return texts[result];
}

Result ncclGetUniqueId(UniqueId* id) {
  // An anonymous file, which is deleted with its last user. Other ranks open it through this process's /proc entry.
  const int descriptor = memfd_create("NCCL's stand-in", MFD_CLOEXEC);
  if (descriptor < 0 || ftruncate(descriptor, sizeof(Shared)) != 0) return system_error;
  std::snprintf(id->internal, sizeof id->internal, "/proc/%d/fd/%d", getpid(), descriptor);
  return success;
}

Result ncclCommGetAsyncError(Communicator* c, Result* state) {
  const Call call(c);
  if (!call.is_alone()) return internal_error;
  if (c->to_enqueue && ++c->asked > 1) {
    c->to_enqueue();
    c->to_enqueue = nullptr;
  }
  *state = c->broken ? remote_error : c->to_enqueue || !all_have_come(c) ? in_progress : success;
  return success;
}

Result ncclCommInitRankConfig(Communicator** out, int size, UniqueId id, int rank, Config* config) {
  if (config->magic != 0xcafebeef || config->size != 24 || config->blocking != 0) return invalid_argument;
  *out = nullptr;
  if (size > most_ranks || rank < 0 || rank >= size) return invalid_argument;
  auto c = std::make_unique<Communicator>();
  c->rank = rank;
  c->size = size;
  c->shared = attach(id);
  if (c->shared == nullptr) return system_error;
  ++c->shared->attached;
  c->broken = c->fault.is("init", "fails");
  *out = c.release();
  return in_progress;
}

Result ncclCommFinalize(Communicator* c) {
  const Call call(c);
  if (!call.is_alone()) return internal_error;
  if (c->finalized || c->to_enqueue) return invalid_usage;
  c->finalized = true;
  return in_progress;
}

const char* ncclGetLastError(Communicator*) { return "the stand-in's\nwords"; }

Result ncclCommDestroy(Communicator* c) {
  if (!c->finalized) return invalid_usage;
  if (c->under_way > 0) return invalid_usage;
  destroy(c);
  return success;
}

Result ncclCommAbort(Communicator* c) {
  c->aborted = true;
  if (c->to_enqueue) --c->under_way;
  for (Pause pause; c->under_way > 0;) pause();
  destroy(c);
  return success;
}

Result ncclAllReduce(const void* input, void* output, std::size_t count, DataType type, Reduction reduction,
                     Communicator* c, void* stream) {
  return add(c, stream, [=] {
    const std::size_t width = size_of_type(type), most = slot_bytes / width;
    for (std::size_t first = 0; first < count; first += most) {
      const std::size_t part = std::min(most, count - first);
      std::vector<char> sum(part * width);
      c->exchange(static_cast<const char*>(input) + first * width, part * width, [&](int rank, const char* values) {
        rank == 0 ? static_cast<void>(std::memcpy(sum.data(), values, sum.size()))
                  : reduce_into(sum.data(), values, part, type, reduction);
      });
      std::memcpy(static_cast<char*>(output) + first * width, sum.data(), sum.size());
    }
  });
}

Result ncclReduceScatter(const void* input, void* output, std::size_t count, DataType type, Reduction reduction,
                         Communicator* c, void* stream) {
  return add(c, stream, [=] {
    const std::size_t width = size_of_type(type), most = slot_bytes / width;
    const std::size_t begin = static_cast<std::size_t>(c->rank) * count, end = begin + count,
                      all = static_cast<std::size_t>(c->size) * count;
    std::vector<char> result(count * width);
    for (std::size_t first = 0; first < all; first += most) {
      const std::size_t last = std::min(first + most, all), from = std::max(first, begin), to = std::min(last, end);
      c->exchange(static_cast<const char*>(input) + first * width, (last - first) * width,
                  [&](int rank, const char* values) {
                    if (from >= to) return;
                    char* const sum = result.data() + (from - begin) * width;
                    const char* const part = values + (from - first) * width;
                    rank == 0 ? static_cast<void>(std::memcpy(sum, part, (to - from) * width))
                              : reduce_into(sum, part, to - from, type, reduction);
                  });
    }
    std::memcpy(output, result.data(), result.size());
  });
}

Result ncclAllGather(const void* input, void* output, std::size_t count, DataType type, Communicator* c, void* stream) {
  return add(c, stream, [=] {
    const std::size_t bytes = count * size_of_type(type);
    for (std::size_t first = 0; first < bytes; first += slot_bytes) {
      const std::size_t part = std::min(slot_bytes, bytes - first);
      c->exchange(static_cast<const char*>(input) + first, part, [&](int rank, const char* values) {
        std::memcpy(static_cast<char*>(output) + static_cast<std::size_t>(rank) * bytes + first, values, part);
      });
    }
  });
}

Result ncclBroadcast(const void* input, void* output, std::size_t count, DataType type, int root, Communicator* c,
                     void* stream) {
  return add(c, stream, [=] {
    const std::size_t bytes = count * size_of_type(type);
    for (std::size_t first = 0; first < bytes; first += slot_bytes) {
      const std::size_t part = std::min(slot_bytes, bytes - first);
      c->exchange(static_cast<const char*>(input) + first, part, [&](int rank, const char* values) {
        if (rank == root) std::memcpy(static_cast<char*>(output) + first, values, part);
      });
    }
  });
}

Result ncclSend(const void* values, std::size_t count, DataType type, int peer, Communicator* c, void* stream) {
  return add_message(c, stream,
                     {true, static_cast<char*>(const_cast<void*>(values)), count * size_of_type(type), 0, peer});
}

Result ncclRecv(void* values, std::size_t count, DataType type, int peer, Communicator* c, void* stream) {
  return add_message(c, stream, {false, static_cast<char*>(values), count * size_of_type(type), 0, peer});
}

Result ncclGroupStart() {
  ++group.depth;
  return success;
}

Result ncclGroupEnd() {
  if (group.depth == 0) return invalid_usage;
  if (--group.depth > 0) return success;
  Group all = std::exchange(group, Group{});
  if (all.communicator == nullptr) return success;
  return add(all.communicator, all.queue, [c = all.communicator, all] {
    for (const auto& operation : all.operations) operation();
    run_messages(c, all.messages);
  });
}

}  // extern "C"
