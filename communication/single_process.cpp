#include <cstring>
#include <mutex>
#include <optional>

#include "communication/communicator.h"
#include "framework/core/error.h"
#include "framework/core/gpu_engine.h"

namespace furlong {
namespace {

class Refused final : public Work::State {
 public:
  explicit Refused(std::string reason) : reason_(std::move(reason)) {}
  void wait() override { throw MachineError("{}", reason_); }
  bool done() override { return true; }

 private:
  std::string reason_;
};

class SingleProcess final : public Communicator {
 public:
  SingleProcess() : Communicator(0, 1) {}
  const char* engine() const override { return "none"; }

  void abort(const std::string& reason) noexcept override {
    const std::lock_guard lock(mutex_);
    if (!aborted_) aborted_ = reason;
  }

 private:
  Work do_all_reduce(const Stream&, const Tensor&, Reduction) override { return nothing_to_do("all_reduce"); }
  Work do_reduce_scatter(const Stream& stream, const Tensor& input, const Tensor& output, Reduction) override {
    return copy("reduce_scatter", stream, input, output);
  }
  Work do_all_gather(const Stream& stream, const Tensor& input, const Tensor& output) override {
    return copy("all_gather", stream, input, output);
  }
  Work do_broadcast(const Stream&, const Tensor&, int) override { return nothing_to_do("broadcast"); }
  Work do_exchange(const Stream&, std::vector<Message>) override { return nothing_to_do("exchange"); }
  Work do_barrier(const Stream&) override { return nothing_to_do("barrier"); }

  Work copy(const char* operation, const Stream& stream, const Tensor& input, const Tensor& output) {
    if (input.bytes() > 0 && input.address() != output.address()) {
      if (stream.device.is_gpu()) {
        require_gpu_engine(stream.device.type).copy(stream, output.address(), input.address(), input.bytes());
      } else if (stream.device.is_cpu()) {
        std::memcpy(output.address(), input.address(), static_cast<std::size_t>(input.bytes()));
      }
    }
    return nothing_to_do(operation);
  }

  Work nothing_to_do(const char* operation) {
    const std::lock_guard lock(mutex_);
    return aborted_ ? Work(std::make_shared<Refused>(fmt::format("{} stopped: {}", operation, *aborted_))) : Work();
  }

  std::mutex mutex_;
  std::optional<std::string> aborted_;
};

}  // namespace

std::unique_ptr<Communicator> make_single_process() { return std::make_unique<SingleProcess>(); }

}  // namespace furlong
