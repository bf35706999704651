// Linear attention with fewer heads than threads, such as one long head: each sequence is split into segments that are
// computed like sequences of their own. A segment starts from the joined sums over the keys of other segments, and
// backward also from those over their queries. docs/internals/performance.md ("Few heads") counts the cost.
#include <algorithm>

#include "framework/core/parallel.h"
#include "framework/ops/attention/linear/linear_attention_arguments.h"

namespace furlong::ops {
namespace {

using Arguments = LinearAttentionArguments;

/// The sums are gathered over halves of segments, so that two threads share the work for the first of two segments.
constexpr std::int64_t pieces_per_segment = 2;

/// Returns whether sequences follow one another at equal distances, as split_sequences() requires.
bool is_even(const Tensor& tensor) {
  return tensor.extent(0) == 1 || tensor.strides()[0] == tensor.extent(1) * tensor.strides()[1];
}

/// Returns the number of segments: 1 if there are enough heads, or if the call has a state, a window, documents or
/// rotations, which segments would have to share. The result depends on the number of threads, so float64, which is
/// bitwise equal with any number of threads, has one segment.
std::int64_t segments_of(const Arguments& arguments) {
  const LinearAttentionOptions& options = arguments.options;
  const std::int64_t n = arguments.query.extent(1), tasks = arguments.query.extent(0) * options.n_heads;
  if (arguments.state || arguments.start_sum.defined() || arguments.mask.documents.defined() || options.window > 0 ||
      options.softmax_window > 0 || arguments.sizes.rotates || arguments.query_offset > 0 ||
      arguments.key.extent(1) != n || accumulate_dtype(arguments.query.dtype()) == DType::float64 || tasks == 0 ||
      !is_even(arguments.query) || !is_even(arguments.key) || !is_even(arguments.value))
    return 1;
  const std::int64_t shortest = 16 * arguments.sizes.chunk;  // joining sums must cost little
  for (std::int64_t segments = std::min(thread_count() / tasks, n / shortest); segments > 1; --segments) {
    if (n % (segments * pieces_per_segment) == 0) return segments;
  }
  return 1;
}

/// Returns the arguments for [batch · parts] sequences of n / parts tokens. Rows of `top`, `inverse_denominator`,
/// `denominators` and the sums are the caller's to fit.
Arguments split(const Arguments& arguments, std::int64_t parts) {
  Arguments result = arguments;
  result.segments = 1;
  for (Tensor* tensor : {&result.query, &result.key, &result.value, &result.output, &result.mask.keys}) {
    if (tensor->defined()) *tensor = tensor->split_sequences(parts);
  }
  return result;
}
LinearAttentionGradients split(const LinearAttentionGradients& gradients, std::int64_t parts) {
  LinearAttentionGradients result = gradients;
  result.d_output = gradients.d_output.split_sequences(parts);
  for (GradientTarget* target : {&result.d_query, &result.d_key, &result.d_value}) {
    if (target->wanted()) target->tensor = target->tensor.split_sequences(parts);
  }
  return result;
}
void narrow(Arguments& arguments, std::int64_t first, std::int64_t count) {
  for (Tensor* tensor : {&arguments.query, &arguments.key, &arguments.value, &arguments.output, &arguments.mask.keys,
                         &arguments.top, &arguments.inverse_denominator}) {
    if (tensor->defined()) *tensor = tensor->narrow(0, first, count);
  }
}

LinearAttentionState empty_state(const Arguments& arguments, std::int64_t rows) {
  return empty_linear_attention_state(arguments.options, rows, arguments.features, arguments.value.extent(3),
                                      arguments.query.dtype(), arguments.query.device());
}
/// A view of rows [first, first + count) of a state.
LinearAttentionState rows_of(const LinearAttentionState& state, std::int64_t first, std::int64_t count) {
  LinearAttentionState rows;
  rows.sum = state.sum.narrow(0, first, count);
  rows.normalizer = state.normalizer.narrow(0, first, count);
  rows.maximum = state.maximum.narrow(0, first, count);
  rows.magnitude = state.magnitude.narrow(0, first, count);
  return rows;
}

/// Which sums a segment starts from.
enum class Others : std::uint8_t { earlier, later, all };

/// Adds to each segment's row the sums of all segments before it, or after it if `backward`.
void join_running(const LinearAttentionState& pieces, const LinearAttentionState& segments, std::int64_t sequence,
                  std::int64_t count, bool backward) {
  LinearAttentionState running = empty_like(Stream{}, rows_of(segments, 0, 1));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t row = sequence * count + (backward ? count - 1 - i : i);
    LinearAttentionState target = rows_of(segments, row, 1);
    join(target, running);
    for (std::int64_t piece = 0; piece < pieces_per_segment && i + 1 < count; ++piece)
      join(running, rows_of(pieces, row * pieces_per_segment + piece, 1));
  }
}

/// Returns the joined sums of the other segments for each segment, from the sums of all pieces.
LinearAttentionState join_others(const LinearAttentionState& pieces, const Arguments& arguments, Others others) {
  const std::int64_t batch = arguments.query.extent(0);
  const LinearAttentionState result = empty_state(arguments, batch * arguments.segments);
  for (std::int64_t sequence = 0; sequence < batch; ++sequence) {
    if (others != Others::later) join_running(pieces, result, sequence, arguments.segments, false);
    if (others != Others::earlier) join_running(pieces, result, sequence, arguments.segments, true);
  }
  return result;
}

/// Returns a copy of numbers per query for pieces, [batch · pieces, heads, n / pieces]. Memory of `per_query`, [batch,
/// heads, n], has the order [batch · segments, heads, n / segments].
Tensor of_pieces(const Tensor& per_query, std::int64_t segments) {
  const std::int64_t rows = per_query.extent(0) * segments, heads = per_query.extent(1),
                     n = per_query.extent(2) / segments / pieces_per_segment;
  const Tensor result = Tensor::empty({rows * pieces_per_segment, heads, n}, per_query.dtype(), per_query.device());
  for (std::int64_t row = 0; row < rows * heads; ++row) {
    for (std::int64_t piece = 0; piece < pieces_per_segment; ++piece) {
      const std::int64_t to = ((row / heads * pieces_per_segment + piece) * heads + row % heads) * n;
      std::copy_n(per_query.data<float>() + (row * pieces_per_segment + piece) * n, n, result.data<float>() + to);
    }
  }
  return result;
}

/// Calls gather(arguments of some pieces, their first row, their number), for the pieces whose sums other segments
/// need. Returns the sums of all pieces; those of the others are empty.
template <class Gather>
LinearAttentionState gather_pieces(const Arguments& arguments, Others others, const Gather& gather) {
  const std::int64_t batch = arguments.query.extent(0), pieces = arguments.segments * pieces_per_segment,
                     skipped = others == Others::all ? 0 : pieces_per_segment;
  LinearAttentionState sums = empty_state(arguments, batch * pieces);
  Arguments all = split(arguments, pieces);
  if (all.top.defined()) {
    all.top = of_pieces(arguments.top, arguments.segments);
    all.inverse_denominator = of_pieces(arguments.inverse_denominator, arguments.segments);
  }
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t first = b * pieces + (others == Others::later ? skipped : 0), count = pieces - skipped;
    Arguments some = all;
    narrow(some, first, count);
    LinearAttentionState target = rows_of(sums, first, count);
    some.gathered = &target;
    gather(some, first, count);
  }
  return sums;
}

}  // namespace

void start_segments_cpu(Arguments& arguments) {
  arguments.segments = segments_of(arguments);
  if (arguments.segments == 1) return;
  const Others others = arguments.options.causal ? Others::earlier : Others::all;
  Arguments without_results = arguments;
  without_results.top = without_results.inverse_denominator = without_results.denominators = Tensor{};
  const LinearAttentionState pieces =
      gather_pieces(without_results, others,
                    [](const Arguments& some, std::int64_t, std::int64_t) { linear_attention_forward_cpu(some); });
  const LinearAttentionState start = join_others(pieces, arguments, others);
  arguments.start_sum = start.sum;
  arguments.start_normalizer = start.normalizer;
  arguments.start_maximum = start.maximum;
  arguments.start_magnitude = start.magnitude;
}

void end_segments_cpu(Arguments& arguments, const LinearAttentionGradients& gradients) {
  const Others others = arguments.options.causal ? Others::later : Others::all;
  Arguments empty = arguments;
  empty.start_sum = empty.start_normalizer = empty.start_maximum = empty.start_magnitude = Tensor{};
  const std::int64_t all_pieces = arguments.segments * pieces_per_segment;
  const LinearAttentionState pieces =
      gather_pieces(empty, others, [&](const Arguments& some, std::int64_t first, std::int64_t count) {
        LinearAttentionGradients part = split(gradients, all_pieces);
        part.d_output = part.d_output.narrow(0, first, count);
        linear_attention_backward_cpu(some, part);
      });
  const LinearAttentionState end = join_others(pieces, arguments, others);
  arguments.end_sum = end.sum;
  arguments.end_normalizer = end.normalizer;
  arguments.end_maximum = end.maximum;
  arguments.end_magnitude = end.magnitude;
}

void linear_attention_forward_of_segments(const Arguments& arguments) {
  Arguments split_arguments = split(arguments, arguments.segments);
  const Tensor& report = arguments.denominators;  // [batch, n_heads, 2]
  if (report.defined()) {
    split_arguments.denominators =
        Tensor::empty({report.extent(0) * arguments.segments, report.extent(1), 2}, report.dtype(), report.device());
  }
  linear_attention_forward_cpu(split_arguments);
  if (!report.defined()) return;
  for (std::int64_t row = 0; row < report.extent(0) * report.extent(1); ++row) {
    const std::int64_t b = row / report.extent(1), head = row % report.extent(1);
    float* target = report.data<float>() + 2 * row;
    target[0] = 0;
    target[1] = 1;
    for (std::int64_t segment = 0; segment < arguments.segments; ++segment) {
      const float* source = split_arguments.denominators.data<float>() +
                            2 * ((b * arguments.segments + segment) * report.extent(1) + head);
      target[0] += source[0];
      target[1] = std::min(target[1], source[1]);
    }
  }
}

void linear_attention_backward_of_segments(const Arguments& arguments, const LinearAttentionGradients& gradients) {
  linear_attention_backward_cpu(split(arguments, arguments.segments), split(gradients, arguments.segments));
}

}  // namespace furlong::ops
