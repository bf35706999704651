#include "trainers/model/input_queue.h"

#include "framework/core/arena.h"
#include "tests/framework/engine_testing.h"

namespace furlong {
namespace {

using namespace furlong::testing;

class InputQueueTest : public EngineTest {};
FURLONG_INSTANTIATE_GPUS(InputQueueTest);

/// Two tensors of a step and their values.
struct Input {
  Input(std::int32_t first, std::int64_t rows, std::int64_t n, std::int64_t n_labels)
      : tokens(static_cast<std::size_t>(rows * n), first),
        labels(static_cast<std::size_t>(n_labels), -first),
        shape{rows, n} {
    if (!tokens.empty()) tokens.back() = first + 1;
  }
  std::vector<InputPart> parts(Tensor& token_tensor, Tensor& label_tensor) const {
    return {{&tokens, shape, &token_tensor}, {&labels, {static_cast<std::int64_t>(labels.size())}, &label_tensor}};
  }
  std::vector<std::int32_t> tokens, labels;
  Shape shape;
};

void expect_holds(const Tensor& tensor, const std::vector<std::int32_t>& values) {
  if (values.empty()) {
    EXPECT_FALSE(tensor.defined());
  } else {
    EXPECT_EQ(tensor.to_vector<std::int32_t>(), values);
  }
}

TEST_P(InputQueueTest, StepReadsItsOwnInput) {
  InputQueue queue(device());
  Tensor tokens, labels;
  const std::vector<Input> steps{{1, 2, 33, 2}, {3, 2, 33, 2},   {5, 2, 33, 0},
                                 {7, 1, 5, 3},  {9, 4, 1000, 1}, {11, 4, 1000, 1}};
  queue.send(steps[0].parts(tokens, labels));
  for (std::size_t step = 0; step < steps.size(); ++step) {
    const void* before = tokens.address();
    queue.receive(steps[step].parts(tokens, labels));
    if (step == 1 || step == 5) {
      EXPECT_EQ(tokens.address(), before) << "a recorded step expects this address";
    }
    // As while the device works on the step.
    if (step + 1 < steps.size()) queue.send(steps[step + 1].parts(tokens, labels));
    expect_holds(tokens, steps[step].tokens);
    expect_holds(labels, steps[step].labels);
    EXPECT_EQ(tokens.shape(), steps[step].shape);
  }
}

TEST_P(InputQueueTest, DiscardsInputThatWasNotReceived) {
  InputQueue queue(device());
  Tensor tokens, labels;
  const Input early(1, 2, 40, 1), late(2, 2, 400, 1);  // the second needs more memory
  queue.send(early.parts(tokens, labels));
  queue.send(late.parts(tokens, labels));
  // The memory of the first copy must not be written to any more.
  const Tensor other = Tensor::zeros({128 + 64}, DType::int32, device());
  queue.receive(late.parts(tokens, labels));
  expect_holds(tokens, late.tokens);
  expect_holds(labels, late.labels);
  EXPECT_EQ(other.to_vector<std::int32_t>(), std::vector<std::int32_t>(128 + 64, 0));
  EXPECT_THROW(queue.receive(late.parts(tokens, labels)), ContractError) << "the input was already received";
}

TEST_P(InputQueueTest, AllocatesOnce) {
  const std::int64_t before = arena(device()).counters().bytes_in_use;
  {
    InputQueue queue(device());
    Tensor tokens, labels;
    const Input input(1, 3, 50, 3);
    std::int64_t steady = 0;
    for (int step = 0; step < 4; ++step) {
      queue.send(input.parts(tokens, labels));
      queue.receive(input.parts(tokens, labels));
      const std::int64_t now = arena(device()).counters().bytes_in_use;
      if (step > 0) {
        EXPECT_EQ(now, steady);
      }
      steady = now;
    }
  }
  EXPECT_EQ(arena(device()).counters().bytes_in_use, before);
}

}  // namespace
}  // namespace furlong
