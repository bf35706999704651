#include "communication/gloo/gloo_communicator.h"
#include <fmt/format.h>
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/common/error.h>
#include <gloo/types.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

#include "communication/gloo/gloo_mesh.h"
#include "communication/gloo/ring.h"
#include "communication/job_store/wait_notice.h"
#include "communication/operation_queue.h"
#include "communication/reduction.h"
#include "framework/core/error.h"
#include "framework/core/gpu_engine.h"

namespace furlong {

using gloo::transport::UnboundBuffer;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

std::string text_of(const char* operation, const Tensor& tensor) {
  return fmt::format("{} of {} {}", operation, name_of(tensor.dtype()), tensor.shape().text());
}

class GlooCommunicator final : public Communicator {
 public:
  GlooCommunicator(StoreClient& store, const GlooOptions& options)
      : Communicator(options.rank, options.size),
        options_(options),
        store_(store),
        mesh_(store, options),
        ring_(mesh_.context()),
        notice_(store, {options.rank, options.size, options.name, options.notice_after, options.notice_every},
                [this](int rank) { return mesh_.name_of_rank(rank); }),
        sent_(static_cast<std::size_t>(size())),
        received_(sent_.size()),
        queue_({[this](std::uint64_t operation, const std::string& name) { return watch(operation, name); },
                [this] { mesh_.interrupt(); }, [this](const std::exception& error) { return explain(error); }}) {
    queue_.submit("connecting the ranks", [this] { mesh_.connect(); }).wait();
    notice_.connected();
  }

  const char* engine() const override { return "gloo"; }
  void abort(const std::string& reason) noexcept override { queue_.abort(reason); }

 private:
  Work do_all_reduce(const Stream& stream, const Tensor& values, Reduction reduction) override {
    return collective(stream, text_of("all_reduce", values), values.elements() > 0,
                      [this, values, reduction](std::uint32_t tag) {
                        gloo::AllreduceOptions call(mesh_.context());
                        call.setTag(tag);
                        call.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
                        call.setReduceFunction(reduction_function(values.dtype(), reduction));
                        set_elements(call, values);
                        gloo::allreduce(call);
                      });
  }

  Work do_reduce_scatter(const Stream& stream, const Tensor& input, const Tensor& output,
                         Reduction reduction) override {
    return collective(stream, text_of("reduce_scatter", input), input.elements() > 0,
                      [this, input, output, reduction](std::uint32_t tag) {
                        if (size() == 1) {
                          std::memmove(output.address(), input.address(), static_cast<std::size_t>(input.bytes()));
                        } else {
                          ring_.run(input.dtype(), reduction, input.address(), output.address(),
                                    static_cast<std::size_t>(output.elements()), tag, options_.operation_timeout);
                        }
                      });
  }

  Work do_all_gather(const Stream& stream, const Tensor& input, const Tensor& output) override {
    return collective(stream, text_of("all_gather", output), output.elements() > 0,
                      [this, input, output](std::uint32_t tag) {
                        auto* own = static_cast<char*>(output.address()) + rank() * input.bytes();
                        if (own != input.address())
                          std::memcpy(own, input.address(), static_cast<std::size_t>(input.bytes()));
                        gloo::AllgatherOptions call(mesh_.context());
                        call.setTag(tag);
                        call.setOutput(static_cast<char*>(output.address()), static_cast<std::size_t>(output.bytes()));
                        gloo::allgather(call);
                      });
  }

  Work do_broadcast(const Stream& stream, const Tensor& values, int root) override {
    return collective(stream, text_of("broadcast", values), values.elements() > 0,
                      [this, values, root](std::uint32_t tag) {
                        gloo::BroadcastOptions call(mesh_.context());
                        call.setTag(tag);
                        call.setRoot(root);
                        call.setOutput(static_cast<char*>(values.address()), static_cast<std::size_t>(values.bytes()));
                        gloo::broadcast(call);
                      });
  }

  Work do_barrier(const Stream& stream) override {
    return collective(stream, "barrier", true, [this](std::uint32_t tag) {
      gloo::BarrierOptions call(mesh_.context());
      call.setTag(tag);
      gloo::barrier(call);
    });
  }

  Work do_exchange(const Stream& stream, std::vector<Message> messages) override {
    check_host_memory(stream);
    std::string name =
        messages.size() == 1 ? message_text(messages.front()) : fmt::format("exchange of {} messages", messages.size());
    return queue_.submit(std::move(name), [this, messages = std::move(messages)] {
      running_collective_ = 0;
      std::vector<std::unique_ptr<UnboundBuffer>> buffers;
      for (const Message& message : messages) buffers.push_back(begin(message));
      for (std::size_t i = 0; i < messages.size(); ++i) {
        if (!buffers[i]) continue;
        if (messages[i].direction == Message::Direction::send) {
          buffers[i]->waitSend(options_.operation_timeout);
        } else {
          buffers[i]->waitRecv(options_.operation_timeout);
        }
      }
    });
  }

  // Messages between two ranks are numbered per direction, and the number is their Gloo slot. So they match in order,
  // independent of other operations.
  std::unique_ptr<UnboundBuffer> begin(const Message& message) {
    const bool sends = message.direction == Message::Direction::send;
    const std::uint32_t number = (sends ? sent_ : received_)[static_cast<std::size_t>(message.peer)]++;
    if (message.values.elements() == 0) return nullptr;
    const auto bytes = static_cast<std::size_t>(message.values.bytes());
    auto buffer = mesh_.context()->createUnboundBuffer(message.values.address(), bytes);
    const std::uint64_t slot = gloo::Slot::build(message_slot, number);
    sends ? buffer->send(message.peer, slot, 0, bytes) : buffer->recv(message.peer, slot, 0, bytes);
    return buffer;
  }

  std::string message_text(const Message& message) const {
    const bool sends = message.direction == Message::Direction::send;
    return fmt::format("{} {} {}", text_of(sends ? "send" : "receive", message.values), sends ? "to" : "from",
                       mesh_.name_of_rank(message.peer));
  }

  // Each collective has its own tag, so that ranks in different collectives do not mix their data.
  template <class Action>
  Work collective(const Stream& stream, std::string name, bool has_elements, Action action) {
    check_host_memory(stream);
    return queue_.submit(std::move(name), [this, has_elements, action = std::move(action)] {
      const std::uint32_t tag = collectives_++;
      running_collective_ = std::uint64_t{tag} + 1;
      if (has_elements) action(tag);
    });
  }

  static void check_host_memory(const Stream& stream) {
    require(stream.device.has_host_memory(), "Gloo needs tensors in host memory, but they are on {}",
            stream.device.text());
    synchronize(stream);
  }

  /// Sets the output. Gloo uses the element type only for its size.
  void set_elements(gloo::AllreduceOptions& call, const Tensor& values) {
    auto buffer = mesh_.context()->createUnboundBuffer(values.address(), static_cast<std::size_t>(values.bytes()));
    switch (size_of(values.dtype())) {
      case 1:
        return call.setOutput<std::uint8_t>(std::move(buffer));
      case 2:
        return call.setOutput<std::uint16_t>(std::move(buffer));
      case 4:
        return call.setOutput<std::uint32_t>(std::move(buffer));
      default:
        return call.setOutput<std::uint64_t>(std::move(buffer));
    }
  }

  // Runs in the watcher's thread. Gloo does not wake a half-finished transfer when its connection breaks. A rank that
  // has left in order looks the same while others finish the operation, so a lost connection counts only after
  // fault_patience.
  std::optional<std::string> watch(std::uint64_t operation, const std::string& name) {
    if (const auto fault = store_.fault()) return fault->message();
    notice_.update({operation, name, running_collective_, mesh_.unconnected()});
    const auto lost = mesh_.lost_peer();
    if (!lost) {
      lost_during_.reset();
    } else if (lost_during_ != operation) {
      lost_during_ = operation;
      lost_since_ = steady_clock::now();
    } else if (steady_clock::now() - lost_since_ > options_.fault_patience) {
      return lost_text(*lost);
    }
    return {};
  }

  // Runs in the runner's thread. The rank whose connection broke may have ended because of another rank's failure. The
  // store knows which rank failed first.
  std::string explain(const std::exception& error) {
    if (dynamic_cast<const TimedOut*>(&error) != nullptr) {
      return fmt::format(
          "{} while all ranks were alive; the ranks wait for each other, perhaps in different operations",
          error.what());
    }
    const bool by_network = dynamic_cast<const gloo::IoException*>(&error) != nullptr ||
                            dynamic_cast<const Interrupted*>(&error) != nullptr ||
                            dynamic_cast<const MachineError*>(&error) != nullptr;
    if (by_network) {
      if (const auto reason = queue_.wait_for_abort(options_.fault_patience)) return *reason;
      if (const auto lost = mesh_.lost_peer()) return lost_text(*lost);
    }
    return gloo_message(error);
  }

  std::string lost_text(const GlooMesh::Lost& lost) const {
    return fmt::format("the connection to {} broke: {}", mesh_.name_of_rank(lost.rank), lost.reason);
  }

  const GlooOptions options_;
  StoreClient& store_;
  GlooMesh mesh_;
  ReduceScatterRing ring_;
  std::optional<std::uint64_t> lost_during_;  ///< watcher only
  steady_clock::time_point lost_since_;
  WaitNotice notice_;  ///< watcher only, except connected()
  /// Number of the running collective, from 1; 0 for point-to-point messages and while connecting.
  std::atomic<std::uint64_t> running_collective_ = 0;
  std::uint32_t collectives_ = 0;               ///< runner only
  std::vector<std::uint32_t> sent_, received_;  ///< runner only
  OperationQueue queue_;                        ///< last member: its threads use the others
};

}  // namespace

std::unique_ptr<Communicator> make_gloo_communicator(StoreClient& store, const GlooOptions& options) {
  return std::make_unique<GlooCommunicator>(store, options);
}

std::vector<SocketAddress> addresses_to_try(std::vector<SocketAddress> addresses, bool one_host) {
  const auto is_loopback = [](const SocketAddress& address) { return address.is_loopback(); };
  if (!one_host && !std::all_of(addresses.begin(), addresses.end(), is_loopback)) std::erase_if(addresses, is_loopback);
  std::stable_partition(addresses.begin(), addresses.end(),
                        [](const SocketAddress& a) { return a.storage.ss_family == AF_INET; });
  return addresses;
}

std::string own_address_toward(const std::string& host, bool one_host) {
  constexpr std::uint16_t any_port = 9;  // no packet is sent
  std::string problem;
  const std::vector<SocketAddress> addresses = addresses_to_try(resolve(host, any_port, problem), one_host);
  if (addresses.empty())
    throw UserError("MASTER_ADDR: '{}' cannot be resolved: {}; set it to rank 0's host name or address", host, problem);
  for (const SocketAddress& address : addresses) {
    const Socket socket(::socket(address.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (socket &&
        ::connect(socket.descriptor(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) == 0) {
      return own_address(socket).host();
    }
    problem = error_text(errno);
  }
  throw MachineError("MASTER_ADDR: no route from this host to '{}': {}; set it to an address that all hosts reach",
                     host, problem);
}

}  // namespace furlong
