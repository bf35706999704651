// Queues other than the main stream, and events between them.
#include <memory>
#include <numeric>
#include <utility>

#include "framework/core/error.h"
#include "framework/core/gpu_recording.h"
#include "framework/core/tensor.h"
#include "tests/framework/engine_testing.h"

namespace furlong {
namespace {

using namespace furlong::testing;

class Queues : public EngineTest {
 protected:
  static GpuEngine& engine() { return require_gpu_engine(device().type); }
};
FURLONG_INSTANTIATE_GPUS(Queues);

TEST_P(Queues, CopiesKeepTheOrderOfTheirQueue) {
  const auto queue = engine().make_queue(0);
  EXPECT_EQ(queue->stream().device, device());
  EXPECT_NE(queue->stream().handle, nullptr);
  EXPECT_NE(engine().native_queue(queue->stream()), engine().native_queue(stream()));
  std::vector<std::int32_t> numbers(1000), found(1000, -1);
  std::iota(numbers.begin(), numbers.end(), 7);
  const Tensor first = Tensor::zeros({1000}, DType::int32, device()),
               second = Tensor::zeros({1000}, DType::int32, device());
  synchronize(stream());
  engine().copy(queue->stream(), first.address(), numbers.data(), 4000);
  engine().copy(queue->stream(), second.address(), first.address(), 4000);
  engine().fill_zero(queue->stream(), first.address(), 4000);
  engine().copy(queue->stream(), found.data(), second.address(), 4000);
  EXPECT_EQ(found, numbers);
  engine().synchronize(queue->stream());
  EXPECT_EQ(first.to_vector<std::int32_t>(), std::vector<std::int32_t>(1000, 0));
}

// A chain across queues. Without waiting, each link would read the zeros written before the previous link ran.
TEST_P(Queues, EventsPutQueuesInOrder) {
  constexpr std::int64_t n = 1 << 20;
  constexpr int links = 20;
  const auto left = engine().make_queue(0), right = engine().make_queue(0);
  const auto event = engine().make_event(0);
  std::vector<Tensor> chain{Tensor::from(std::vector<std::int32_t>(n, 5), {n}, device())};
  for (int i = 0; i < links; ++i) chain.push_back(Tensor::zeros({n}, DType::int32, device()));
  event->record(stream());
  for (std::size_t i = 1; i < chain.size(); ++i) {
    const Stream on = (i % 2 == 0 ? left : right)->stream();
    event->wait(on);
    engine().copy(on, chain[i].address(), chain[i - 1].address(), chain[i].bytes());
    event->record(on);
  }
  event->wait(stream());
  EXPECT_EQ(chain.back().to_vector<std::int32_t>(), std::vector<std::int32_t>(n, 5));
  EXPECT_TRUE(event->done());
}

TEST_P(Queues, UnrecordedEventDoesNotBlock) {
  const auto event = engine().make_event(0);
  EXPECT_TRUE(event->done());
  event->wait(stream());
  synchronize(stream());
}

TEST_P(Queues, EventsCannotBeRecordedInAGraph) {
  const auto event = engine().make_event(0);
  engine().begin_capture(stream());
  EXPECT_THROW(event->record(stream()), CaptureError);
  EXPECT_THROW(event->wait(stream()), CaptureError);
  engine().abandon_capture(stream());
}

// A copy on a second queue, which no graph may contain, between two recorded parts.
TEST_P(Queues, RecordingsCallTheHostBetweenTheirParts) {
  const auto queue = engine().make_queue(0);
  const auto event = engine().make_event(0);
  const auto numbers = [](std::int32_t value) { return std::vector<std::int32_t>(1000, value); };
  const Tensor first = Tensor::zeros({1000}, DType::int32, device()), second = first.clone(), third = first.clone();
  auto owner = std::make_shared<int>();
  const std::weak_ptr<int> watched = owner;
  int calls = 0;
  const auto call = [&] {
    ++calls;
    event->record(stream());
    event->wait(queue->stream());
    engine().copy(queue->stream(), second.address(), first.address(), first.bytes());
    event->record(queue->stream());
    event->wait(stream());
  };
  Tensor source = Tensor::from(numbers(7), {1000}, device());
  GpuRecording recording(device());
  recording.record([&] {
    EXPECT_EQ(GpuRecording::current(), &recording);
    first.copy_from(source);
    GpuRecording::current()->keep(std::exchange(owner, nullptr));
    GpuRecording::current()->add_call(call);
    GpuRecording::current()->add_call([&] { ++calls; });  // nothing is recorded before it
    EXPECT_FALSE(watched.expired());
    third.copy_from(second);
  });
  EXPECT_TRUE(watched.expired());
  EXPECT_EQ(GpuRecording::current(), nullptr);
  EXPECT_EQ(third.to_vector<std::int32_t>(), numbers(0)) << "recorded, not run";
  EXPECT_EQ(calls, 0);
  for (const std::int32_t value : {7, 9}) {
    source.copy_from(Tensor::from(numbers(value), {1000}));
    recording.replay();
    EXPECT_EQ(third.to_vector<std::int32_t>(), numbers(value));
  }
  EXPECT_EQ(calls, 4);
  EXPECT_THROW(recording.add_call(call), ContractError);
  EXPECT_THROW(recording.record([] {}), ContractError);
}

TEST_P(Queues, FailedRecordingIsDiscarded) {
  GpuRecording recording(device());
  EXPECT_THROW(recording.record([] {
    GpuRecording::current()->add_call([] {});
    throw MachineError("no memory");
  }),
               MachineError);
  EXPECT_EQ(GpuRecording::current(), nullptr);
  synchronize(stream());  // throws while work is being recorded
}

TEST_P(Queues, DeviceHasIdentity) { EXPECT_FALSE(engine().describe(0).identity.empty()); }

}  // namespace
}  // namespace furlong
