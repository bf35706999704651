// Memory use of distillation, and the arguments that it rejects.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "framework/core/arena.h"
#include "framework/ops/loss/distillation.h"
#include "framework/primitives/arithmetic.h"
#include "tests/reference/values.h"

namespace furlong {
namespace {

using namespace reference;

TEST(DistillationOnCpu, StoresOneChunkOfStudentAndTeacherLogitsAtATime) {
  constexpr std::int64_t rows = 4096, vocabulary = 8192, d = 8;  // all logits of student or teacher: 128 MiB
  const Variable hidden = Variable::leaf(normal_tensor({rows, d}, DType::float32, "hidden")),
                 weight(normal_tensor({vocabulary, d}, DType::float32, "weight"));
  const Tensor teacher_hidden = normal_tensor({rows, d}, DType::float32, "teacher"),
               targets = integer_tensor({rows}, 0, vocabulary, "targets");
  Tape tape{testing::stream()};
  Arena& memory = arena(Device{});
  const auto before = memory.counters().bytes_in_use;
  memory.reset_peak();
  const auto result =
      ops::distillation(tape, hidden, weight, nullptr, teacher_hidden, weight.value(), nullptr, targets);
  EXPECT_LE(memory.counters().peak_bytes - before, 18 << 20);
  EXPECT_LE(memory.counters().bytes_in_use - before, rows * d * 4 + 4096) << "only d_hidden is stored";
  tape.clear();
}

TEST(DistillationOnCpu, RejectsMismatchedArguments) {
  Tape tape{testing::stream()};
  const Tensor hidden = normal_tensor({2, 3}, DType::float32, "hidden"),
               weight = normal_tensor({4, 3}, DType::float32, "weight");
  const Tensor targets = Tensor::from(std::vector<std::int32_t>{0, 1}, {2});
  const auto with = [&](const Tensor& teacher_hidden, const Tensor& teacher_weight, const Tensor* teacher_bias,
                        const ops::DistillationOptions& options = {}) {
    ops::distillation(tape, Variable(hidden), Variable(weight), nullptr, teacher_hidden, teacher_weight, teacher_bias,
                      targets, options);
  };
  EXPECT_NO_THROW(with(hidden, weight, nullptr));
  EXPECT_THAT(
      [&] {
        with(hidden, normal_tensor({5, 3}, DType::float32, "larger"), nullptr);
      },
      ::testing::ThrowsMessage<ContractError>(
          ::testing::HasSubstr("vocabulary 4, float32; the teacher has 2 rows, vocabulary 5")));
  EXPECT_THROW(with(normal_tensor({3, 3}, DType::float32, "rows"), weight, nullptr), ContractError);
  EXPECT_THROW(with(hidden, normal_tensor({4, 2}, DType::float32, "narrow"), nullptr), ContractError);
  EXPECT_THROW(with(normal_tensor({2, 3}, DType::float64, "h"), normal_tensor({4, 3}, DType::float64, "w"), nullptr),
               ContractError);
  const Tensor bias = normal_tensor({3}, DType::float32, "bias");
  EXPECT_THROW(with(hidden, weight, &bias), ContractError);
  for (const double temperature : {0.0, -1.0, static_cast<double>(NAN), static_cast<double>(INFINITY)})
    EXPECT_THROW(with(hidden, weight, nullptr, {.temperature = temperature}), ContractError);
  EXPECT_THROW(with(hidden, weight, nullptr, {.normalizer = 0.0}), ContractError);
}

TEST(DistillationOnCpu, ShapeOnlyCountsTheSameMemory) {
  const auto bytes_on = [](const Device& device) {
    Tape tape{Stream{device}};
    const auto filled = [&](const Shape& shape) {
      const Tensor tensor = Tensor::empty(shape, DType::float32, device);
      ops::fill(tape.stream(), tensor, 0.5);
      return tensor;
    };
    const Variable hidden = Variable::leaf(filled({3000, 16})), weight = Variable::leaf(filled({1000, 16})),
                   bias = Variable::leaf(filled({1000}));
    const Tensor teacher_hidden = filled({3000, 8}), teacher_weight = filled({1000, 8}),
                 targets = Tensor::zeros({3000}, DType::int32, device);
    const auto before = arena(device).counters().bytes_in_use;
    const Variable loss =
        ops::distillation(tape, hidden, weight, &bias, teacher_hidden, teacher_weight, nullptr, targets);
    const auto kept = arena(device).counters().bytes_in_use - before;
    tape.backward(loss, 0.5);
    return kept;
  };
  EXPECT_EQ(bytes_on(Device{DeviceType::shape_only, 0}), bytes_on(Device{}));
}

}  // namespace
}  // namespace furlong
