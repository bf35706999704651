#include "framework/ops/loss/distillation.h"

#include <algorithm>
#include <cmath>

#include "framework/ops/loss/classifier_gradients.h"
#include "framework/ops/loss/cross_entropy_rows.h"
#include "framework/ops/loss/distillation_kernels.h"
#include "framework/primitives/gemm.h"

namespace furlong::ops {
namespace {

/// hidden, weight and bias of the student or the teacher.
struct Classifier {
  const Tensor& hidden;
  const Tensor& weight;
  const Tensor* bias;
};

void check_classifier(const char* role, const Classifier& side) {
  require(
      side.hidden.shape().rank() >= 1 && side.hidden.is_contiguous() && side.weight.shape().rank() == 2 &&
          side.weight.extent(1) == side.hidden.extent(-1) && side.weight.has_contiguous_rows() &&
          side.weight.dtype() == side.hidden.dtype(),
      "distillation: the {}'s hidden is {} {} and weight is {} {}, expected [rows, d] and [vocabulary, d] of one dtype",
      role, name_of(side.hidden.dtype()), side.hidden.shape().text(), name_of(side.weight.dtype()),
      side.weight.shape().text());
  require(!side.bias || (side.bias->shape() == Shape{side.weight.extent(0)} && side.bias->is_contiguous()),
          "distillation: the {}'s bias is {}, expected [{}]", role, side.bias ? side.bias->shape().text() : "",
          side.weight.extent(0));
}

void check(const Classifier& student, const Classifier& teacher, const Tensor& targets,
           const DistillationOptions& options) {
  check_classifier("student", student);
  check_classifier("teacher", teacher);
  require(student.weight.extent(0) == teacher.weight.extent(0) &&
              student.hidden.shape().rows() == teacher.hidden.shape().rows() &&
              accumulate_dtype(student.hidden.dtype()) == accumulate_dtype(teacher.hidden.dtype()),
          "distillation: the student has {} rows, vocabulary {}, {}; the teacher has {} rows, vocabulary {}, {}",
          student.hidden.shape().rows(), student.weight.extent(0), name_of(student.hidden.dtype()),
          teacher.hidden.shape().rows(), teacher.weight.extent(0), name_of(teacher.hidden.dtype()));
  require(targets.dtype() == DType::int32 && targets.elements() == student.hidden.shape().rows() &&
              targets.has_contiguous_rows(),
          "distillation: targets are {} {} for hidden {}, expected int32 with one target per row",
          name_of(targets.dtype()), targets.shape().text(), student.hidden.shape().text());
  require(options.temperature > 0 && std::isfinite(options.temperature),
          "distillation: temperature {}, expected a positive number", options.temperature);
  require(!options.normalizer || *options.normalizer > 0, "distillation: normalizer {}, expected a positive number",
          options.normalizer.value_or(1));
  const Tensor& given = options.device_normalizer;
  require(!given.defined() || (given.dtype() == DType::float64 && given.elements() == 1),
          "distillation: device_normalizer is {} {}, expected float64 [1]", name_of(given.dtype()),
          given.shape().text());
}

/// Computes the logits of the student or the teacher for one chunk of rows at a time, always in the same memory.
class ChunkLogits {
 public:
  ChunkLogits(const Stream& stream, const Classifier& side, const CountedRows& rows, std::int64_t chunk_rows)
      : rows_(rows),
        hidden_(side.hidden.reshape({side.hidden.shape().rows(), side.hidden.extent(-1)})),
        weight_(side.weight) {
    const DType dtype = accumulate_dtype(side.hidden.dtype());
    if (side.bias) bias_ = in_dtype(stream, *side.bias, dtype);
    logits_ = logits_chunk(stream.device, chunk_rows, side.weight.extent(0), dtype);
  }
  Tensor hidden(std::int64_t first_row, std::int64_t count) const { return rows_.gather(hidden_, first_row, count); }
  Tensor logits(const Stream& stream, const Tensor& hidden) const {
    const Tensor logits = logits_.narrow(0, 0, hidden.extent(0));
    gemm(stream, hidden, false, weight_, true, logits, GradientMode::overwrite,
         {.bias = bias_.defined() ? &bias_ : nullptr});
    return logits;
  }

 private:
  const CountedRows& rows_;
  Tensor hidden_, weight_, bias_, logits_;
};

}  // namespace

Variable distillation(Tape& tape, const Variable& hidden, const Variable& weight, const Variable* bias,
                      const Tensor& teacher_hidden, const Tensor& teacher_weight, const Tensor* teacher_bias,
                      const Tensor& targets, const DistillationOptions& options) {
  const Classifier student{hidden.value(), weight.value(), bias ? &bias->value() : nullptr},
      teacher{teacher_hidden, teacher_weight, teacher_bias};
  check(student, teacher, targets, options);
  const Stream& stream = tape.stream();
  const Device& device = tape.device();
  const DType dtype = hidden.dtype(), sum_dtype = accumulate_dtype(dtype);
  const std::int64_t vocabulary = weight.extent(0);

  const auto [counts, inverse_normalizer] =
      count_targets(stream, targets, vocabulary, options.normalizer, options.device_normalizer, sum_dtype);
  const CountedRows counted(targets, hidden.extent(-1) + teacher_hidden.extent(-1), vocabulary);
  const Tensor counted_targets = counted.targets(targets);
  const std::int64_t rows = counted.count();
  const Tensor row_losses = Tensor::empty({rows}, sum_dtype, device);

  ClassifierGradients gradients(tape, hidden, weight, bias, counted);
  {
    const std::int64_t chunk_rows = logits_chunk_rows(device, rows, vocabulary);
    const ChunkLogits students(stream, student, counted, chunk_rows), teachers(stream, teacher, counted, chunk_rows);
    Tensor chunk_d_logits;  // separate 16-bit memory if the products need 16 bits
    if (gradients.any() && dtype != sum_dtype) chunk_d_logits = logits_chunk(device, chunk_rows, vocabulary, dtype);
    for (std::int64_t first_row = 0; first_row < rows; first_row += chunk_rows) {
      const std::int64_t count = std::min(chunk_rows, rows - first_row);
      const Tensor student_hidden = students.hidden(first_row, count);
      const Tensor student_logits = students.logits(stream, student_hidden),
                   teacher_logits = teachers.logits(stream, teachers.hidden(first_row, count));
      Tensor d_logits;
      if (gradients.any()) d_logits = chunk_d_logits.defined() ? chunk_d_logits.narrow(0, 0, count) : student_logits;
      dispatch_kernel(stream, distillation_rows_cpu, distillation_rows_gpu,
                      DistillationRows{student_logits, teacher_logits, counted_targets, first_row, options.temperature,
                                       inverse_normalizer, row_losses, d_logits});
      if (gradients.any()) gradients.add_chunk(stream, d_logits, student_hidden, weight.value(), first_row);
    }
  }
  const Tensor loss = Tensor::empty(Shape{}, sum_dtype, device);
  dispatch_kernel(stream, sum_rows_cpu, sum_rows_gpu, row_losses, Tensor{}, inverse_normalizer, loss, counts);
  return gradients.record(tape, "distillation", hidden, weight, bias, loss);
}

}  // namespace furlong::ops
