#include <cstring>

#include "framework/core/gpu_recording.h"
#include "tests/communication/communicator_testing.h"

namespace furlong {
namespace {

using namespace communicator_testing;
using testing::stream;

const std::vector<Reduction> reductions{Reduction::sum, Reduction::maximum, Reduction::minimum};
#ifdef FURLONG_SANITIZED
constexpr std::int64_t many = 20011;  // sanitizers slow the reference down tenfold
#else
constexpr std::int64_t many = 100003;
#endif

template <class T>
void check_all_reduce(Communicator& communicator, std::int64_t n) {
  for (const Reduction reduction : reductions) {
    const Tensor values = tensor<T>(1, communicator.rank(), n);
    communicator.all_reduce(stream(), values, reduction).wait();
    EXPECT_EQ(wrong_elements<T>(values, 1, communicator.size(), reduction), 0)
        << name_of(reduction) << " of " << n << " " << name_of(values.dtype()) << ", rank " << communicator.rank();
  }
}

template <class T>
void check_reduce_scatter(Communicator& communicator, std::int64_t n) {
  const int rank = communicator.rank(), size = communicator.size();
  for (const Reduction reduction : reductions) {
    const Tensor input = tensor<T>(2, rank, size * n), output = zeros(n, dtype_of<T>::value);
    communicator.reduce_scatter(stream(), input, output, reduction).wait();
    EXPECT_EQ(wrong_elements<T>(output, 2, size, reduction, rank * n), 0)
        << name_of(reduction) << " of " << n << " " << name_of(input.dtype()) << ", rank " << rank;
    EXPECT_EQ(foreign_elements<T>(input, 2, rank), 0) << "the input was written to";

    const Tensor part = input.narrow(0, rank * n, n);
    communicator.reduce_scatter(stream(), input, part, reduction).wait();
    EXPECT_EQ(wrong_elements<T>(part, 2, size, reduction, rank * n), 0)
        << "in place, of " << n << " " << name_of(input.dtype());
    EXPECT_EQ(foreign_elements<T>(input.narrow(0, 0, rank * n), 2, rank), 0) << "parts of other ranks were written to";
  }
}

template <class T>
void check_all_gather(Communicator& communicator, std::int64_t n) {
  const int rank = communicator.rank(), size = communicator.size();
  for (const bool in_place : {false, true}) {
    const Tensor output = zeros(size * n, dtype_of<T>::value);
    const Tensor input = in_place ? output.narrow(0, rank * n, n) : tensor<T>(3, rank, n);
    if (in_place) input.copy_from(tensor<T>(3, rank, n));
    communicator.all_gather(stream(), input, output).wait();
    for (int from = 0; from < size; ++from) {
      EXPECT_EQ(foreign_elements<T>(output.narrow(0, from * n, n), 3, from), 0)
          << n << " " << name_of(input.dtype()) << " of rank " << from;
    }
  }
}

template <class T>
void check_broadcast(Communicator& communicator, std::int64_t n) {
  for (int root = 0; root < communicator.size(); ++root) {
    const Tensor values = tensor<T>(4, communicator.rank(), n);
    communicator.broadcast(stream(), values, root).wait();
    EXPECT_EQ(foreign_elements<T>(values, 4, root), 0) << n << " " << name_of(values.dtype()) << " of rank " << root;
  }
}

// Each rank sends to the next one, in order. Then all ranks exchange with both neighbors at once.
template <class T>
void check_messages(Communicator& communicator, std::int64_t n) {
  const int rank = communicator.rank(), size = communicator.size(), next = (rank + 1) % size,
            previous = (rank + size - 1) % size;
  if (size == 1) return communicator.exchange(stream(), {}).wait();
  const Tensor arrived = zeros(n, dtype_of<T>::value);
  if (rank > 0) {
    communicator.receive(stream(), arrived, rank - 1).wait();
    EXPECT_EQ(foreign_elements<T>(arrived, 5, rank - 1), 0) << n << " " << name_of(arrived.dtype());
  }
  if (rank + 1 < size) communicator.send(stream(), tensor<T>(5, rank, n), rank + 1).wait();

  const Tensor from_next = zeros(n, dtype_of<T>::value), from_previous = zeros(n, dtype_of<T>::value);
  communicator
      .exchange(stream(), {Message::send(tensor<T>(6, rank, n), next), Message::send(tensor<T>(7, rank, n), previous),
                           Message::receive(from_previous, previous), Message::receive(from_next, next)})
      .wait();
  EXPECT_EQ(foreign_elements<T>(from_previous, 6, previous), 0) << n << " " << name_of(arrived.dtype());
  EXPECT_EQ(foreign_elements<T>(from_next, 7, next), 0) << n << " " << name_of(arrived.dtype());
}

template <class T>
void check_everything(Communicator& communicator) {
  for (const std::int64_t n : {std::int64_t{0}, std::int64_t{1}, std::int64_t{7}, std::int64_t{1000}, many}) {
    check_all_reduce<T>(communicator, n);
    check_reduce_scatter<T>(communicator, n);
    check_all_gather<T>(communicator, n);
    check_broadcast<T>(communicator, n);
    check_messages<T>(communicator, n);
  }
}

constexpr const char* calls_it[] = {"gloo", "nccl", "nccl"};

/// Runs a job of `size` ranks, or skips the test with the reason why it cannot run.
void run(Engine engine, int size, const std::function<void(Rank&, Communicator&)>& body) {
  if (const std::string reason = engine_missing(engine, size); !reason.empty()) GTEST_SKIP() << reason;
  run_job(size, body, {.engine = engine});
}

struct World {
  Engine engine;
  int size;
};
class CommunicatorWorlds : public ::testing::TestWithParam<World> {};

std::vector<World> worlds() {
  std::vector<World> all;
  for (const int size : {1, 2, 3, 4})
    for (const Engine engine : {Engine::gloo, Engine::nccl_stand_in, Engine::nccl}) all.push_back({engine, size});
  std::erase_if(all, [](const World& world) { return !engine_missing(world.engine, world.size).empty(); });
  return all;
}
INSTANTIATE_TEST_SUITE_P(Engines, CommunicatorWorlds, ::testing::ValuesIn(worlds()), [](const auto& info) {
  return name_of(info.param.engine) + "_" + std::to_string(info.param.size);
});

TEST_P(CommunicatorWorlds, OperationsMatchReferenceForAllDtypesAndSizes) {
  run(GetParam().engine, GetParam().size, [](Rank& self, Communicator& communicator) {
    EXPECT_STREQ(communicator.engine(), calls_it[static_cast<int>(self.engine)]);
    EXPECT_EQ(communicator.rank(), self.rank());
    EXPECT_EQ(communicator.size(), self.size());
    check_everything<float>(communicator);
    check_everything<double>(communicator);
    check_everything<bfloat16>(communicator);
    check_everything<std::int32_t>(communicator);
    check_everything<std::uint8_t>(communicator);
    communicator.check();
  });
}

class CommunicatorWorldsOfGpus : public CommunicatorWorlds {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CommunicatorWorldsOfGpus);
std::vector<World> worlds_of_gpus() {
  std::vector<World> all = worlds();
  std::erase_if(all, [](const World& world) { return world.engine == Engine::gloo; });
  return all;
}
INSTANTIATE_TEST_SUITE_P(Engines, CommunicatorWorldsOfGpus, ::testing::ValuesIn(worlds_of_gpus()),
                         [](const auto& info) {
                           return name_of(info.param.engine) + "_" + std::to_string(info.param.size);
                         });

// In recorded work, operations and waits for them are issued by each replay.
TEST_P(CommunicatorWorldsOfGpus, RecordedOperationsRunInEachReplay) {
  run(GetParam().engine, GetParam().size, [](Rank& self, Communicator& communicator) {
    constexpr std::int64_t n = 1000;
    const int size = self.size(), next = (self.rank() + 1) % size, last = (self.rank() + size - 1) % size;
    const Tensor input = zeros(n, DType::float32), sum = zeros(n, DType::float32), copy = zeros(n, DType::float32),
                 gathered = zeros(n * size, DType::float32), received = zeros(n, DType::float32),
                 none = zeros(0, DType::float32);
    Work outside;
    GpuRecording recording(testing::device());
    recording.record([&] {
      sum.copy_from(input);
      const Work reduced = communicator.all_reduce(stream(), sum),
                 all = communicator.all_gather(stream(), input, gathered);
      reduced.wait();
      reduced.wait();
      copy.copy_from(sum);
      communicator.all_reduce(stream(), none).wait();
      if (size > 1)
        communicator.exchange(stream(), {Message::send(copy, next), Message::receive(received, last)}).wait();
      all.wait();
      outside = all;
    });
    EXPECT_THROW(outside.wait(), ContractError);
    for (const int draw : {1, 2, 3}) {
      input.copy_from(tensor<float>(draw, self.rank(), n));
      recording.replay();
      EXPECT_EQ(wrong_elements<float>(copy, draw, size, Reduction::sum), 0);
      EXPECT_EQ(wrong_elements<float>(size > 1 ? received : copy, draw, size, Reduction::sum), 0);
      for (int rank = 0; rank < size; ++rank) {
        EXPECT_EQ(gathered.narrow(0, rank * n, n).clone().to_vector<float>(),
                  tensor<float>(draw, rank, n).to_vector<float>());
      }
    }
    communicator.check();
  });
}

class Communicators : public ::testing::TestWithParam<Engine> {};
/// Returns the available backends. run() skips jobs with more ranks than GPUs.
std::vector<Engine> engines() {
  std::vector<Engine> all{Engine::gloo, Engine::nccl_stand_in, Engine::nccl};
  std::erase_if(all, [](Engine engine) { return !engine_missing(engine, 1).empty(); });
  return all;
}
INSTANTIATE_TEST_SUITE_P(Engines, Communicators, ::testing::ValuesIn(engines()),
                         [](const auto& info) { return name_of(info.param); });

// More than the ring's two blocks of 1 MiB, with a short last block: data of one block must not leak into the next.
TEST_P(Communicators, ReducesLargePartsInBlocks) {
  run(GetParam(), 3, [](Rank& self, Communicator& communicator) {
    const std::int64_t n = 700001;
    const Tensor output = zeros(n, DType::float32);
    communicator.reduce_scatter(stream(), tensor<float>(1, self.rank(), 3 * n), output).wait();
    EXPECT_EQ(wrong_elements<float>(output, 1, 3, Reduction::sum, self.rank() * n), 0);
  });
}

// A NaN, which marks a step to skip, must reach every rank through every reduction, except NCCL's maximum and minimum.
TEST_P(Communicators, NaNReachesAllRanks) {
  run(GetParam(), 3, [](Rank& self, Communicator& communicator) {
    for (const Reduction reduction : reductions) {
      if (self.engine != Engine::gloo && reduction != Reduction::sum) continue;
      for (int bad = 0; bad < 3; ++bad) {
        std::vector<float> numbers{1, 2, 3};
        if (self.rank() == bad) numbers[1] = std::nanf("");
        const Tensor values = Tensor::from(numbers, {3}, testing::device());
        communicator.all_reduce(stream(), values, reduction).wait();
        numbers = values.to_vector<float>();
        EXPECT_TRUE(std::isnan(numbers[1])) << name_of(reduction) << ", bad rank " << bad;
        EXPECT_EQ(numbers[2], reduction == Reduction::sum ? 9 : 3);
      }
    }
  });
}

// Sixty operations of all kinds, issued without waiting; the last one is waited for first. In each round another rank
// is late.
TEST_P(Communicators, QueuedOperationsCompleteInOrder) {
  run(GetParam(), 3, [](Rank& self, Communicator& communicator) {
    const int rank = self.rank(), size = self.size();
    const std::int64_t n = 5000;
    std::vector<Work> works;
    std::vector<Tensor> reduced, scattered, gathered, received;
    for (int round = 0; round < 12; ++round) {
      if (rank == round % size) std::this_thread::sleep_for(2ms);
      reduced.push_back(tensor<float>(round, rank, n + round));
      works.push_back(communicator.all_reduce(stream(), reduced.back()));
      received.push_back(zeros(n, DType::float64));
      works.push_back(communicator.exchange(stream(), {Message::send(tensor<double>(round, rank, n), (rank + 1) % size),
                                                       Message::receive(received.back(), (rank + size - 1) % size)}));
      scattered.push_back(zeros(n, DType::float32));
      works.push_back(communicator.reduce_scatter(stream(), tensor<float>(round, rank, size * n), scattered.back()));
      gathered.push_back(zeros(size * n, DType::uint8));
      works.push_back(communicator.all_gather(stream(), tensor<std::uint8_t>(round, rank, n), gathered.back()));
      works.push_back(communicator.barrier(stream()));
    }
    works.back().wait();
    synchronize(stream());
    for (std::size_t i = 0; i < works.size(); ++i)
      EXPECT_TRUE(works[i].done()) << "operation " << i << " was overtaken";
    for (int round = 0; round < 12; ++round) {
      const auto i = static_cast<std::size_t>(round);
      EXPECT_EQ(wrong_elements<float>(reduced[i], round, size, Reduction::sum), 0) << round;
      EXPECT_EQ(foreign_elements<double>(received[i], round, (rank + size - 1) % size), 0) << round;
      EXPECT_EQ(wrong_elements<float>(scattered[i], round, size, Reduction::sum, rank * n), 0) << round;
      for (int from = 0; from < size; ++from) {
        EXPECT_EQ(foreign_elements<std::uint8_t>(gathered[i].narrow(0, from * n, n), round, from), 0) << round;
      }
    }
  });
}

// Operations progress without wait(), hold a tensor that the caller has dropped, and do not block the caller until the
// other rank has issued them.
TEST_P(Communicators, OperationsProgressWithoutWait) {
  run(GetParam(), 2, [](Rank& self, Communicator& communicator) {
    const std::int64_t n = 200000;
    const Tensor result = tensor<float>(2, self.rank(), n);
    if (self.rank() == 1) self.store().wait({"issued"}, 20s);
    const Work first =
        communicator.all_reduce(stream(), tensor<float>(1, self.rank(), n));  // only the operation holds this tensor
    const Work second = communicator.all_reduce(stream(), result);
    if (self.rank() == 0) {
      EXPECT_FALSE(second.done());
      self.store().set("issued", store_testing::bytes("yes"));
    }
    for (int i = 0; i < 20000 && !second.done(); ++i) std::this_thread::sleep_for(1ms);  // or computes
    EXPECT_TRUE(second.done()) << "nothing happened without a wait";
    EXPECT_TRUE(first.done());
    second.wait();
    EXPECT_EQ(wrong_elements<float>(result, 2, 2, Reduction::sum), 0);
  });
}

bool same_bits(const std::vector<float>& values, const float* others) {
  return std::memcmp(values.data(), others, values.size() * sizeof(float)) == 0;
}

TEST_P(Communicators, ResultsAreBitwiseDeterministic) {
  for (const int size : {3, 4}) {
    run(GetParam(), size, [](Rank& self, Communicator& communicator) {
      const int rank = self.rank(), size = self.size();
      const std::int64_t n = 100003;
      std::vector<float> reduced, scattered;
      for (int run = 0; run < 4; ++run) {
        std::this_thread::sleep_for(milliseconds((7 * run + 5 * rank * run) % 20));
        const Tensor values = tensor<float>(1, rank, n), part = zeros(n, DType::float32);
        const Work other = communicator.all_reduce(stream(), values);
        communicator.reduce_scatter(stream(), tensor<float>(2, rank, size * n), part).wait();
        other.wait();
        if (run == 0) {
          reduced = values.to_vector<float>();
          scattered = part.to_vector<float>();
        }
        EXPECT_TRUE(same_bits(values.to_vector<float>(), reduced.data())) << "run " << run;
        EXPECT_TRUE(same_bits(part.to_vector<float>(), scattered.data())) << "run " << run;
      }
      const Tensor everyones = zeros(size * n, DType::float32);
      communicator.all_gather(stream(), Tensor::from(reduced, {n}, testing::device()), everyones).wait();
      const std::vector<float> gathered = everyones.to_vector<float>();
      for (int other = 0; other < size; ++other)
        EXPECT_TRUE(same_bits(reduced, gathered.data() + other * n)) << "rank " << other;
    });
  }
}

// Bucket boundaries change only the order of the size - 1 additions. Each rounds a sum of magnitudes of at most 4.
TEST_P(Communicators, BucketBoundariesChangeOnlyRounding) {
  run(GetParam(), 4, [](Rank& self, Communicator& communicator) {
    const std::int64_t n = 70001;
    const Tensor whole = tensor<double>(1, self.rank(), n), cut = tensor<double>(1, self.rank(), n);
    std::vector<Work> works{communicator.all_reduce(stream(), whole)};
    std::int64_t begin = 0;
    for (const std::int64_t end : {1, 17, 4096, 4097, 50000, 70001}) {
      works.push_back(communicator.all_reduce(stream(), cut.narrow(0, begin, end - begin)));
      begin = end;
    }
    for (const Work& work : works) work.wait();
    const auto in_one = whole.to_vector<double>(), in_parts = cut.to_vector<double>();
    double largest = 0;
    for (std::size_t i = 0; i < in_one.size(); ++i) largest = std::max(largest, std::abs(in_one[i] - in_parts[i]));
    EXPECT_LE(largest, 2 * 3 * 0x1p-53 * 4);
  });
}

// Two communicators, each with its own connections and thread, do not block each other.
TEST_P(Communicators, CommunicatorsAreIndependent) {
  run(GetParam(), 2, [](Rank& self, Communicator& gradients) {
    const auto states = self.communicator("states");
    const int other = 1 - self.rank();
    const Tensor late = tensor<float>(1, self.rank(), 1000), soon = tensor<float>(2, self.rank(), 1000);
    Work waits;
    if (self.rank() == 0)
      waits = gradients.all_reduce(stream(), late);  // rank 1 joins only after the states were exchanged
    for (int round = 0; round < 20; ++round) {
      const Tensor from = zeros(1000, DType::float32);
      states->exchange(stream(), {Message::receive(from, other), Message::send(soon, other)}).wait();
      EXPECT_EQ(foreign_elements<float>(from, 2, other), 0);
    }
    if (self.rank() == 0) {
      EXPECT_FALSE(waits.done());
      self.store().set("around", store_testing::bytes("yes"));
    } else {
      self.store().wait({"around"}, 20s);
      waits = gradients.all_reduce(stream(), late);
    }
    waits.wait();
    EXPECT_EQ(wrong_elements<float>(late, 1, 2, Reduction::sum), 0);
    states->barrier(stream()).wait();
  });
}

}  // namespace
}  // namespace furlong
