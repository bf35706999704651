#include "framework/ops/attention/softmax/softmax_attention.h"

#include <cmath>

#include "framework/core/parallel.h"
#include "framework/ops/attention/softmax/softmax_attention_arguments.h"
#include "framework/primitives/cpu_isa.h"
#include "framework/primitives/dispatch.h"

namespace furlong::ops {
namespace {

constexpr const char* softmax_op = "softmax_attention";
using Sizes = SoftmaxAttentionSizes;

void check_reach(const AttentionShape& shape, const SoftmaxAttentionOptions& options, const AttentionMask& mask) {
  mask.check(shape.batch, shape.n_query, shape.n_key, softmax_op);
  require(!mask.documents.defined() || options.first_query_position == 0,
          "{}: first_query_position is {}, expected 0 with a document mask", softmax_op, options.first_query_position);
  require(options.window >= 0, "{}: window is {}, expected at least 0", softmax_op, options.window);
  require(options.window == 0 || options.causal || shape.n_query == shape.n_key || options.first_query_position > 0,
          "{}: {} keys and {} queries with a window, expected as many queries as keys or a first_query_position",
          softmax_op, shape.n_key, shape.n_query);
}

SoftmaxAttentionArguments check(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& output,
                                const Tensor& log_sum_exp, const SoftmaxAttentionOptions& options,
                                const AttentionMask& mask) {
  SoftmaxAttentionArguments arguments;
  arguments.shape = AttentionShape::of(query, key, value, softmax_op);
  const AttentionShape& shape = arguments.shape;
  require(shape.n_heads == options.n_heads && shape.n_kv_heads == options.n_kv_heads,
          "{}: views have {} and {} heads, but options are for {} and {}", softmax_op, shape.n_heads, shape.n_kv_heads,
          options.n_heads, options.n_kv_heads);
  require(options.first_query_position >= 0, "{}: first_query_position is {}, expected at least 0", softmax_op,
          options.first_query_position);
  require(std::isfinite(options.scale), "{}: scale is {}, expected a finite number", softmax_op, options.scale);
  require(output.shape() == shape.output() && output.dtype() == query.dtype() && output.has_contiguous_rows(),
          "{}: output is {} {}, expected {} {}", softmax_op, name_of(output.dtype()), output.shape().text(),
          name_of(query.dtype()), shape.output().text());
  if (log_sum_exp.defined()) {
    require(log_sum_exp.shape() == Shape({shape.batch, shape.n_heads, shape.n_query}) && log_sum_exp.is_contiguous() &&
                log_sum_exp.dtype() == accumulate_dtype(query.dtype()),
            "{}: log_sum_exp is {} {}, expected {} {}", softmax_op, name_of(log_sum_exp.dtype()),
            log_sum_exp.shape().text(), name_of(accumulate_dtype(query.dtype())),
            Shape({shape.batch, shape.n_heads, shape.n_query}).text());
  }
  check_reach(shape, options, mask);
  if (query.device().is_gpu() && std::max(shape.d_key, shape.d_value) > max_gpu_head_width) {
    throw UserError(
        "{}: heads are {} wide on {}, but the CUDA kernels support at most {}: use more heads, or device: cpu",
        softmax_op, std::max(shape.d_key, shape.d_value), query.device().text(), max_gpu_head_width);
  }
  const std::int64_t reach = options.window > 0 ? std::min(options.window - 1, SoftmaxAttentionArguments::unbounded)
                                                : SoftmaxAttentionArguments::unbounded;
  arguments.causal = options.causal;
  arguments.first_query_position = options.first_query_position;
  arguments.behind = reach;
  arguments.ahead = options.causal ? 0 : reach;
  arguments.scale = options.scale != 0 ? options.scale : 1.0 / std::sqrt(static_cast<double>(shape.d_key));
  arguments.query = query;
  arguments.key = key;
  arguments.value = value;
  arguments.output = output;
  arguments.log_sum_exp = log_sum_exp;
  arguments.mask = mask;
  if (query.dtype() == DType::bfloat16 && !query.device().is_gpu()) arguments.bfloat16 = bfloat16_products();
  if (mask.documents.defined()) {
    const Shape boundaries = query.device().is_gpu() ? Shape({2, shape.batch, shape.n_query})
                                                     : Shape({shape.batch, Sizes::query_blocks(shape), 2});
    arguments.boundaries = Tensor::empty(boundaries, DType::int32, query.device());
  }
  return arguments;
}

Tensor rows_of(std::int64_t rows, std::int64_t elements, const Tensor& like) {
  return Tensor::empty({rows, (elements + 63) / 64 * 64}, accumulate_dtype(like.dtype()), like.device());
}
/// Returns the scratch of all threads. A CPU with bfloat16 kernels may still run those for float32, if its instruction
/// sets are limited later.
Tensor thread_scratch(const SoftmaxAttentionArguments& arguments, std::int64_t elements,
                      std::int64_t bfloat16_elements) {
  if (arguments.bfloat16) elements = std::max(elements, bfloat16_elements);
  return rows_of(thread_count(), elements, arguments.query);
}

enum class SavedSoftmax : std::uint8_t { query, key, value, output, log_sum_exp, mask_keys, mask_documents };

void softmax_backward(BackwardContext& context, const SoftmaxAttentionOptions& options) {
  const Tensor query = split_heads(context.saved(SavedSoftmax::query), options.n_heads, softmax_op, "query"),
               key = split_heads(context.saved(SavedSoftmax::key), options.n_kv_heads, softmax_op, "key"),
               value = split_heads(context.saved(SavedSoftmax::value), options.n_kv_heads, softmax_op, "value"),
               output = split_heads(context.saved(SavedSoftmax::output), options.n_heads, softmax_op, "output");
  const auto target = [&](std::size_t input, const Tensor& like) {
    GradientTarget gradient = context.d_input(input);
    if (gradient.wanted()) gradient.tensor = gradient.tensor.split_last(like.extent(3));
    return gradient;
  };
  const GradientTarget d_query = target(0, query), d_key = target(1, key), d_value = target(2, value);
  softmax_attention_backward(context.stream(), query, key, value, output, context.saved(SavedSoftmax::log_sum_exp),
                             context.d_output().split_last(output.extent(3)), d_query, d_key, d_value, options,
                             {context.saved(SavedSoftmax::mask_keys), context.saved(SavedSoftmax::mask_documents)});
}

}  // namespace

void softmax_attention_forward(const Stream& stream, const Tensor& query, const Tensor& key, const Tensor& value,
                               const Tensor& output, const Tensor& log_sum_exp, const SoftmaxAttentionOptions& options,
                               const AttentionMask& mask) {
  SoftmaxAttentionArguments arguments = check(query, key, value, output, log_sum_exp, options, mask);
  if (!stream.device.is_gpu()) {
    arguments.group = Sizes::bfloat16_forward_group(arguments.shape, thread_count());
    arguments.scratch = thread_scratch(arguments, Sizes::forward_elements(arguments.shape),
                                       Sizes::bfloat16_forward_elements(arguments.shape, arguments.group));
  }
  dispatch_kernel(stream, softmax_attention_forward_cpu, softmax_attention_forward_gpu, arguments);
}

void softmax_attention_backward(const Stream& stream, const Tensor& query, const Tensor& key, const Tensor& value,
                                const Tensor& output, const Tensor& log_sum_exp, const Tensor& d_output,
                                const GradientTarget& d_query, const GradientTarget& d_key,
                                const GradientTarget& d_value, const SoftmaxAttentionOptions& options,
                                const AttentionMask& mask) {
  require(log_sum_exp.defined(), "{}: backward needs the log_sum_exp that forward writes", softmax_op);
  SoftmaxAttentionArguments arguments = check(query, key, value, output, log_sum_exp, options, mask);
  const AttentionShape& shape = arguments.shape;
  require(d_output.shape() == shape.output() && d_output.dtype() == query.dtype() && d_output.has_contiguous_rows(),
          "{}: d_output is {} {}, expected {} {}", softmax_op, name_of(d_output.dtype()), d_output.shape().text(),
          name_of(query.dtype()), shape.output().text());
  const auto fits = [](const GradientTarget& target, const Shape& expected) {
    return !target.wanted() || (target.tensor.shape() == expected && target.tensor.has_contiguous_rows());
  };
  require(fits(d_query, shape.query()) && fits(d_key, shape.key()) && fits(d_value, shape.value()),
          "{}: the shapes of gradients differ from those of their inputs", softmax_op);
  if (!d_query.wanted() && !d_key.wanted() && !d_value.wanted()) return;

  SoftmaxAttentionGradients gradients{d_output, d_query, d_key, d_value, 1, {}, {}};
  if (stream.device.is_gpu()) {
    gradients.row_dots = Tensor::empty(log_sum_exp.shape(), log_sum_exp.dtype(), query.device());
  } else {
    gradients.segments = Sizes::segments(shape);
    arguments.group = Sizes::bfloat16_backward_group(shape);
    arguments.scratch = thread_scratch(arguments, Sizes::backward_elements(shape),
                                       Sizes::bfloat16_backward_elements(shape, arguments.group));
    if (d_key.wanted() || d_value.wanted()) {
      const std::int64_t slots =
          gradients.segments == 1 ? thread_count() : shape.batch * shape.n_kv_heads * gradients.segments;
      gradients.sums = rows_of(slots, Sizes::sums_elements(shape), query);
    }
  }
  dispatch_kernel(stream, softmax_attention_backward_cpu, softmax_attention_backward_gpu, arguments, gradients);
}

Variable softmax_attention(Tape& tape, const Variable& query, const Variable& key, const Variable& value,
                           const SoftmaxAttentionOptions& options, const AttentionMask& mask) {
  const Tensor heads_query = split_heads(query.value(), options.n_heads, softmax_op, "query"),
               heads_key = split_heads(key.value(), options.n_kv_heads, softmax_op, "key"),
               heads_value = split_heads(value.value(), options.n_kv_heads, softmax_op, "value");
  const std::int64_t batch = query.extent(0), n = query.extent(1);
  const Tensor output =
      Tensor::empty({batch, n, options.n_heads * heads_value.extent(3)}, query.dtype(), tape.device());
  Tensor log_sum_exp;
  if (tape.records({&query, &key, &value})) {
    log_sum_exp = Tensor::empty({batch, options.n_heads, n}, accumulate_dtype(query.dtype()), tape.device());
  }
  softmax_attention_forward(tape.stream(), heads_query, heads_key, heads_value,
                            output.split_last(heads_value.extent(3)), log_sum_exp, options, mask);
  return tape.record_one(softmax_op, {query, key, value}, output,
                         saved_by_name<SavedSoftmax>({{SavedSoftmax::query, query.value()},
                                                      {SavedSoftmax::key, key.value()},
                                                      {SavedSoftmax::value, value.value()},
                                                      {SavedSoftmax::output, output},
                                                      {SavedSoftmax::log_sum_exp, log_sum_exp},
                                                      {SavedSoftmax::mask_keys, mask.keys},
                                                      {SavedSoftmax::mask_documents, mask.documents}}),
                         [options](BackwardContext& context) { softmax_backward(context, options); });
}

}  // namespace furlong::ops
