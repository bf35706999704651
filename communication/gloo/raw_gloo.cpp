#include "communication/gloo/raw_gloo.h"

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/context.h>
#include <gloo/math.h>
#include <gloo/transport/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <gloo/types.h>

#include <chrono>
#include <cstring>
#include <exception>
#include <thread>
#include <vector>

#include "communication/gloo/adopted_pairs.h"
#include "communication/gloo/gloo_communicator.h"
#include "communication/gloo/gloo_mesh.h"
#include "communication/gloo/rank_links.h"
#include "communication/job_store/socket.h"
#include "communication/job_store/store_protocol.h"
#include "framework/core/clock.h"

namespace furlong {
namespace {

constexpr std::chrono::seconds timeout{30};  // of one operation; both contexts need it

}  // namespace

/// Connects like the Gloo communicator, but exchanges the addresses over the group's communicator instead of the store.
class RawGloo::Context final : public gloo::Context {
 public:
  explicit Context(const ProcessGroup& group) : gloo::Context(group.rank(), group.size()) {
    const SignalsBlocked blocked;  // inherited by the thread that Gloo starts
    const std::string address = own_address_toward(group.environment().master_address);
    device_ = gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr(address.c_str()));
    transportContext_ = make_adopting_context(device_, rank, size);
    setTimeout(timeout);
    transportContext_->setTimeout(timeout);
    std::string problem;
    const std::vector<SocketAddress> here = resolve(address, 0, problem);
    if (here.empty()) throw std::runtime_error(problem);
    const Socket listener = listen_on(here.front());
    const std::vector<LinkedRank> ranks = exchange(group, own_address(listener));
    std::vector<Socket> links =
        link_ranks(listener, rank, ranks, std::chrono::steady_clock::now() + timeout, [] { return false; });
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      transportContext_->createPair(peer);
      adopt(*transportContext_, peer, std::move(links[static_cast<std::size_t>(peer)]));
    }
  }

 private:
  /// Gathers the address and token of every rank.
  static std::vector<LinkedRank> exchange(const ProcessGroup& group, const SocketAddress& address) {
    constexpr auto bytes = static_cast<std::int64_t>(sizeof address + link_token_bytes);
    const Tensor own = Tensor::empty({bytes}, DType::uint8), all = Tensor::empty({group.size() * bytes}, DType::uint8);
    std::memcpy(own.data<std::uint8_t>(), &address, sizeof address);
    store::fill_random({reinterpret_cast<char*>(own.data<std::uint8_t>()) + sizeof address, link_token_bytes});
    group.communicator().all_gather(Stream{}, own, all).wait();
    std::vector<LinkedRank> ranks(static_cast<std::size_t>(group.size()));
    const auto* from = reinterpret_cast<const char*>(all.data<std::uint8_t>());
    for (LinkedRank& each : ranks) {
      std::memcpy(&each.address, from, sizeof address);
      each.token.assign(from + sizeof address, from + bytes);
      from += bytes;
    }
    return ranks;
  }
};

RawGloo::RawGloo(const ProcessGroup& group) {
  try {
    context_ = std::make_shared<Context>(group);
  } catch (const Error&) {
    throw;
  } catch (const LinkFailure& failure) {
    throw MachineError("cannot connect raw Gloo to rank {}: {}", failure.rank, failure.reason);
  } catch (const std::exception& error) {
    throw MachineError("cannot connect raw Gloo: {}", gloo_message(error));
  }
}

RawGloo::~RawGloo() = default;

double RawGloo::time(std::int64_t times, const std::function<void()>& action) {
  double seconds = 0;
  std::exception_ptr failure;
  const auto run = [&] {
    try {
      barrier();
      const auto start = Clock::now();
      for (std::int64_t i = 0; i < times; ++i) action();
      seconds = seconds_since(start);
    } catch (const std::exception& error) {
      failure = std::make_exception_ptr(MachineError("raw Gloo failed: {}", gloo_message(error)));
    }
  };
  std::thread thread;
  {
    const SignalsBlocked blocked;  // in particular SIGPIPE, if a peer has closed a connection
    thread = std::thread(run);
  }
  thread.join();
  if (failure) std::rethrow_exception(failure);
  return seconds;
}

void RawGloo::all_reduce(const Tensor& values) {
  gloo::AllreduceOptions call(context_);
  call.setTag(operations_++);
  call.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
  call.setReduceFunction(
      [](void* out, const void* a, const void* b, std::size_t n) { gloo::sum<float>(out, a, b, n); });
  call.setOutput(values.data<float>(), static_cast<std::size_t>(values.elements()));
  gloo::allreduce(call);
}

void RawGloo::all_gather(const Tensor& output) {
  gloo::AllgatherOptions call(context_);
  call.setTag(operations_++);
  call.setOutput(static_cast<char*>(output.address()), static_cast<std::size_t>(output.bytes()));
  gloo::allgather(call);
}

void RawGloo::broadcast(const Tensor& values, int root) {
  gloo::BroadcastOptions call(context_);
  call.setTag(operations_++);
  call.setRoot(root);
  call.setOutput(static_cast<char*>(values.address()), static_cast<std::size_t>(values.bytes()));
  gloo::broadcast(call);
}

void RawGloo::barrier() {
  gloo::BarrierOptions call(context_);
  call.setTag(operations_++);
  gloo::barrier(call);
}

void RawGloo::exchange(const Tensor& sent, int to, const Tensor& received, int from) {
  const std::uint64_t slot = gloo::Slot::build(message_slot, operations_++);
  std::unique_ptr<gloo::transport::UnboundBuffer> out, in;
  if (from >= 0) {
    in = context_->createUnboundBuffer(received.address(), static_cast<std::size_t>(received.bytes()));
    in->recv(from, slot);
  }
  if (to >= 0) {
    out = context_->createUnboundBuffer(sent.address(), static_cast<std::size_t>(sent.bytes()));
    out->send(to, slot);
  }
  if (out) out->waitSend();
  if (in) in->waitRecv();
}

}  // namespace furlong
