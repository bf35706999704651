// Linear attention on GPUs: dispatch between the fused and the general kernels, and launches of the general kernels.
#include "framework/cuda/kernels/kernel.h"
//
#include "framework/ops/attention/linear/cuda/fused.h"
#include "framework/ops/attention/linear/cuda/general_states.cuh"
#include "framework/ops/attention/linear/cuda/general_walk.cuh"

namespace furlong::ops {
namespace FURLONG_GPU {
namespace {

constexpr const char* op = "linear_attention";

/// One call of the general kernels. T is float or double.
template <class T>
class GeneralLaunch {
 public:
  /// `near`: number of keys that a chunk of queries meets pair by pair at a time.
  GeneralLaunch(const Stream& stream, const LinearAttentionArguments& arguments, std::int64_t near)
      : stream_(stream), in_(arguments) {
    describe(near);
    choose_segments();
    prepare_constants();
    a_.program = GeneralProgram::of(feature_map_info(a_.map).needs_random_projection, a_.sizes.logarithms,
                                    a_.sizes.softmax_pairs, a_.sizes.rotates);
  }

  void forward() {
    a_.top = gpu_data<T>(in_.top);
    a_.inverse_denominator = gpu_data<T>(in_.inverse_denominator);
    if (in_.state != nullptr && a_.has_state_keys()) {
      a_.end_sum = gpu_data<T>(in_.state->sum);
      a_.end_normalizer = gpu_data<T>(in_.state->normalizer);
      a_.end_maximum = gpu_data<T>(in_.state->maximum);
      a_.end_magnitude = gpu_data<T>(in_.state->magnitude);
    }
    Tensor swept;
    if (in_.sizes.two_sweeps) {
      swept = Tensor::empty(Shape({heads(), a_.n_query, in_.sizes.d_value + 3}), accumulate_dtype(in_.query.dtype()),
                            stream_.device);
      a_.swept = gpu_data<T>(swept);
      outputs();
      reverse();
    }
    Tensor reports;
    if (in_.denominators.defined()) {
      reports =
          Tensor::empty(Shape({heads(), a_.query_segments, 2}), accumulate_dtype(in_.query.dtype()), stream_.device);
      a_.report = gpu_data<T>(reports);
    }
    outputs();
    if (reports.defined()) {
      launch(stream_, linear_attention_report_kernel<T>, grid_blocks(heads(), 256), 256, 0, a_.report, heads(),
             a_.query_segments, gpu_data<T>(in_.denominators));
    }
  }

  void backward(const LinearAttentionGradients& gradients) {
    a_.whole_chunks = true;
    a_.top = gpu_data<T>(in_.top);
    a_.inverse_denominator = gpu_data<T>(in_.inverse_denominator);
    a_.d_output = rows(gradients.d_output);
    if (gradients.d_query.wanted() || gradients.d_gate.defined()) d_query(gradients);
    if (gradients.d_key.wanted() || gradients.d_value.wanted()) d_key(gradients);
  }

 private:
  const Stream& stream_;
  const LinearAttentionArguments& in_;
  GeneralArguments<T> a_{};
  Tensor norms_, rotation_, document_first_, document_end_;

  std::int64_t heads() const { return a_.batch * a_.n_heads; }
  void outputs() {
    const Tensor slots = states();
    run(GeneralPhase::outputs, a_.query_segments);
  }

  /// Switches between the walk over the tokens in reverse order and the walk in order.
  void reverse() {
    a_.reversed = !a_.reversed;
    for (GeneralRows* view :
         {&a_.query, &a_.key, &a_.value, &a_.output, &a_.d_output, &a_.d_query, &a_.d_key, &a_.d_value}) {
      if (!view->data || a_.n_query == 0) continue;
      const std::int64_t bytes = view->bfloat16 ? 2 : std::int64_t{sizeof(T)};
      view->data = static_cast<char*>(view->data) + (a_.n_query - 1) * view->row * bytes;
      view->row = -view->row;
    }
    for (GeneralRows* view : {&a_.d_query, &a_.d_key, &a_.d_value})
      view->accumulates = a_.reversed;  // adds to what the first sweep wrote
  }
  std::int64_t sweeps() const { return in_.sizes.two_sweeps ? 2 : 1; }
  /// Runs both sweeps, if there are two. Given the stabiliser and the denominator over all visible keys, each key's
  /// part of the gradients is independent of other keys.
  template <class Walk>
  void for_sweeps(const Walk& walk) {
    walk(0);
    if (!in_.sizes.two_sweeps) return;
    reverse();
    walk(1);
    reverse();
  }

  static GeneralRows rows(const Tensor& tensor, bool accumulates = false) {
    return {tensor.address(),
            tensor.strides()[0],
            tensor.strides()[1],
            tensor.strides()[2],
            tensor.dtype() == DType::bfloat16,
            accumulates};
  }

  void describe(std::int64_t near) {
    const LinearAttentionOptions& options = in_.options;
    const auto narrow = [](std::int64_t extent) {
      require(extent < (std::int64_t{1} << 30), "{}: a tile has {} rows or columns, expected fewer than 2^30", op,
              extent);
      return static_cast<int>(extent);
    };
    const FeatureMapInfo& info = feature_map_info(options.feature_map);
    a_.sizes = {narrow(in_.sizes.chunk),
                narrow(near),
                narrow(in_.sizes.d),
                narrow(in_.sizes.d_value),
                narrow(in_.features),
                info.form == FeatureForm::logarithms,
                in_.sizes.softmax_pairs,
                in_.sizes.compensated,
                in_.sizes.rotates && in_.features > 1};  // a single feature is not rotated
    require(static_cast<std::int64_t>(a_.sizes.chunk) * gpu_max(a_.sizes.ld_n(), a_.sizes.ld_m()) <
                    (std::int64_t{1} << 31) &&
                near * a_.sizes.ld_m() < (std::int64_t{1} << 31) &&
                in_.features * a_.sizes.ld_v() < (std::int64_t{1} << 31),
            "{}: {} features of {} near keys do not fit in a tile", op, in_.features, near);
    a_.map = options.feature_map;
    a_.mean_over = features_in_mean(info, in_.features, in_.n_projections);
    a_.map_options = options.map_options;
    a_.causal = options.causal || in_.sizes.two_sweeps;
    a_.rms = options.normalizer == Normalizer::rms;
    a_.guarded = in_.guarded;
    a_.weighted = in_.mask.keys.defined() || in_.constants.query_center.defined();
    a_.three_parts = in_.query.dtype() == DType::float32;
    a_.batch = in_.query.extent(0);
    a_.n_query = in_.query.extent(1);
    a_.n_key = in_.key.extent(1);
    a_.n_heads = options.n_heads;
    a_.n_kv_heads = options.n_kv_heads;
    a_.window = options.window;
    a_.softmax_window = options.softmax_window;
    a_.query_offset = in_.query_offset;
    a_.first_position = in_.first_position;
    a_.guard = static_cast<T>(options.denominator_guard);
    const T scale = static_cast<T>(1 / std::sqrt(std::sqrt(static_cast<double>(in_.sizes.d))));
    a_.score_scale = scale * scale;
    a_.query = rows(in_.query);
    a_.key = rows(in_.key);
    a_.value = rows(in_.value);
    a_.output = rows(in_.output);
    a_.gate = in_.gate.defined() ? in_.gate.address() : nullptr;
    a_.gate_dtype = in_.gate.defined() ? in_.gate.dtype() : DType::float32;
    a_.query_center = gpu_data<T>(in_.constants.query_center);
    a_.key_center = gpu_data<T>(in_.constants.key_center);
    a_.scaling = gpu_data<T>(in_.constants.scaling);
    a_.oprf_a = info.needs_oprf_a ? gpu_data<T>(in_.constants.oprf_a) : nullptr;
    a_.mask = gpu_data<std::int32_t>(in_.mask.keys);
    a_.start_sum = gpu_data<T>(in_.start_sum);
    a_.start_normalizer = gpu_data<T>(in_.start_normalizer);
    a_.start_maximum = gpu_data<T>(in_.start_maximum);
    a_.start_magnitude = gpu_data<T>(in_.start_magnitude);
  }

  /// Chooses as many segments as fill the device, at most four per multiprocessor in total, each of several chunks. The
  /// choice depends only on shapes and the device.
  void choose_segments() {
    const std::int64_t asked = in_.options.gpu.segments,
                       slot_bytes = GeneralSlot<T>::elements(a_.sizes) * std::int64_t{sizeof(T)};
    const std::int64_t fitting =
        asked > 0 ? asked : gpu_multiprocessors(stream_) * std::int64_t{4} / gpu_max(heads(), std::int64_t{1});
    constexpr std::int64_t most_slot_bytes = std::int64_t{1} << 29;
    const std::int64_t most =
        gpu_max(std::int64_t{1}, gpu_min(fitting, most_slot_bytes / (slot_bytes * gpu_max(heads(), std::int64_t{1}))));
    const auto divide = [&](std::int64_t n, std::int64_t& length, std::int64_t& segments) {
      const std::int64_t chunk = a_.sizes.chunk, chunks = ceil_div(n, chunk);
      constexpr std::int64_t min_chunks = 4;  // per segment: its state costs about as much as a chunk
      const std::int64_t wanted = gpu_min(most, asked > 0 ? chunks : ceil_div(chunks, min_chunks));
      length = gpu_max(std::int64_t{1}, ceil_div(chunks, gpu_max(wanted, std::int64_t{1}))) * chunk;
      segments = ceil_div(n, length);
    };
    divide(a_.n_query, a_.query_length, a_.query_segments);
    divide(a_.n_key, a_.key_length, a_.key_segments);
  }

  void prepare_constants() {
    const Tensor& random_projection = in_.constants.random_projection;
    a_.n_projections = in_.n_projections;
    if (random_projection.defined()) {
      a_.random_projection = gpu_data<T>(random_projection);
      a_.direction_sets = random_projection.shape().rank() == 3 ? random_projection.extent(0) : 1;
      const std::int64_t count = a_.direction_sets * a_.n_projections;
      if (feature_map_info(a_.map).needs_oprf_a && count > 0) {
        norms_ = Tensor::empty(Shape({count}), random_projection.dtype(), stream_.device);
        launch(stream_, linear_attention_norms_kernel<T>, grid_blocks(count, 8, 4096), 256, 0, a_.random_projection,
               count, a_.sizes.d, gpu_data<T>(norms_));
        a_.direction_norms = gpu_data<T>(norms_);
      }
    }
    if (a_.sizes.rotates) {
      const std::int64_t last = gpu_max(a_.query_offset + a_.n_query, a_.n_key) - 1;
      std::int64_t powers = 0;
      for (std::int64_t rest = gpu_max(last, std::int64_t{0}); rest > 0; rest >>= 1) ++powers;
      rotation_ = Tensor::empty(Shape({1 + powers, 2, a_.sizes.half()}), DType::float64, stream_.device);
      launch(stream_, linear_attention_rotations_kernel<double>, grid_blocks((1 + powers) * a_.sizes.half(), 256), 256,
             0, std::log(in_.options.rotary_base), a_.sizes.m, a_.first_position, powers, gpu_data<double>(rotation_));
      a_.rotation = gpu_data<double>(rotation_);
    }
    if (in_.mask.documents.defined() && a_.batch > 0) {
      document_first_ = Tensor::empty(Shape({a_.batch, a_.n_key}), DType::int32, stream_.device);
      document_end_ = Tensor::empty(Shape({a_.batch, a_.n_key}), DType::int32, stream_.device);
      launch(stream_, linear_attention_documents_kernel<std::int32_t>, static_cast<unsigned>(a_.batch),
             a_.n_key > 512 ? 256 : 32, 0, gpu_data<std::int32_t>(in_.mask.documents), a_.n_key,
             gpu_data<std::int32_t>(document_first_), gpu_data<std::int32_t>(document_end_));
      a_.document_first = gpu_data<std::int32_t>(document_first_);
      a_.document_end = gpu_data<std::int32_t>(document_end_);
    }
  }

  /// Runs all segments of all heads through one phase.
  void run(GeneralPhase phase, std::int64_t segments) {
    const std::int64_t tasks = heads() * segments;
    if (tasks <= 0) return;
    const std::int64_t blocks = gpu_min(tasks, std::int64_t{4} * gpu_multiprocessors(stream_));
    // The shared memory of a block that remains after the tile itself, limited so that two blocks fit on a
    // multiprocessor.
    constexpr std::size_t of_walk =
        gpu_max(sizeof(GeneralWalk<T, GeneralValues<T>>), sizeof(GeneralWalk<T, GeneralLogarithms<T>>));
    const auto limit = static_cast<std::int64_t>(gpu_shared_limit(stream_)) - static_cast<std::int64_t>(of_walk + 1024);
    a_.phase = phase;
    a_.shared_bytes = gpu_min(in_.options.gpu.shared_bytes, limit);
    GeneralTile<T> counted;
    GeneralPlacement place{nullptr, nullptr, a_.shared_bytes};
    place_tile(counted, a_.sizes, phase, place);
    const std::int64_t shared = a_.shared_bytes - place.shared_left;
    a_.scratch_bytes = (place.scratch_bytes + 255) / 256 * 256;
    const Tensor scratch = Tensor::empty(Shape({blocks, a_.scratch_bytes}), DType::uint8, stream_.device);
    a_.scratch = static_cast<char*>(scratch.address());
    const auto kernel = a_.sizes.logarithms ? linear_attention_general_kernel<T, FeatureForm::logarithms>
                                            : linear_attention_general_kernel<T, FeatureForm::values>;
    launch(stream_, kernel, static_cast<unsigned>(blocks), threads(), static_cast<std::size_t>(shared), a_, segments);
  }
  /// Small tiles have too few rows for eight warps.
  unsigned threads() const { return a_.sizes.chunk * (a_.sizes.m + a_.sizes.d) >= 2048 ? 256 : 64; }

  void scan(GeneralScan kind) {
    const std::int64_t elements = static_cast<std::int64_t>(a_.sizes.m) * (a_.sizes.d_value + 1);
    launch(stream_, linear_attention_scan_kernel<T>,
           dim3(grid_blocks(elements, 256), static_cast<unsigned>(gpu_min(heads(), std::int64_t{65535}))), 256, 0, a_,
           kind);
  }
  Tensor make_slots(std::int64_t slots_a_head) {
    a_.slots_a_head = slots_a_head;
    const Tensor slots = Tensor::empty(Shape({heads(), slots_a_head, GeneralSlot<T>::elements(a_.sizes)}),
                                       accumulate_dtype(in_.query.dtype()), stream_.device);
    a_.slots = gpu_data<T>(slots);
    return slots;
  }
  /// Computes the states at the starts of query segments, or the state of all keys; undefined if not needed.
  Tensor states() {
    if (!a_.has_state_keys() || heads() == 0) return {};
    if (a_.causal ? a_.query_segments <= 1 : a_.document_first != nullptr) return {};
    const Tensor slots = make_slots(a_.causal ? a_.query_segments : a_.key_segments + 1);
    run(GeneralPhase::local_states, a_.causal ? a_.query_segments - 1 : a_.key_segments);
    scan(a_.causal ? GeneralScan::after : GeneralScan::total);
    return slots;
  }
  /// Computes the sums over later queries at the ends of key segments, or over all queries; undefined if not needed.
  Tensor gathered() {
    if (!a_.has_state_keys() || heads() == 0) return {};
    if (a_.causal ? a_.key_segments <= 1 : a_.document_first != nullptr) return {};
    const Tensor slots = make_slots(a_.causal ? a_.key_segments : a_.query_segments + 1);
    run(GeneralPhase::local_gather, a_.causal ? a_.key_segments - 1 : a_.query_segments);
    scan(a_.causal ? GeneralScan::before : GeneralScan::total);
    return slots;
  }

  /// Destination of one input's gradient: its target, or one part per query head in the compute type; parts are added
  /// up afterwards.
  struct Part {
    const GradientTarget& target;
    std::int64_t n_heads, group;
    int width;
    Tensor parts{};
  };
  GeneralRows open(Part& part) const {
    if (!part.target.wanted()) return {};
    if (part.group == 1 && !in_.sizes.two_sweeps) return rows(part.target.tensor, part.target.accumulates());
    part.parts = Tensor::empty(Shape({a_.batch, part.target.tensor.extent(1), part.n_heads * part.group, part.width}),
                               accumulate_dtype(in_.query.dtype()), stream_.device);
    return rows(part.parts);
  }
  void close(const Part& part) {
    if (!part.parts.defined() || part.parts.elements() == 0) return;
    const std::int64_t n = part.parts.extent(1), elements = a_.batch * n * part.n_heads * part.width;
    launch(stream_, linear_attention_group_kernel<T>, grid_blocks(elements, 256, 65536), 256, 0,
           gpu_data<T>(part.parts), rows(part.target.tensor, part.target.accumulates()), a_.batch * n, n,
           static_cast<int>(part.n_heads), static_cast<int>(part.group), part.width);
  }

  void d_query(const LinearAttentionGradients& gradients) {
    Part part{gradients.d_query, a_.n_heads, 1, a_.sizes.d};
    a_.d_query = open(part);
    Tensor gates;
    if (gradients.d_gate.defined())
      gates = Tensor::empty(Shape({sweeps(), heads(), a_.query_segments}), DType::float64, stream_.device);
    for_sweeps([&](std::int64_t sweep) {
      if (gates.defined()) a_.d_gate = gpu_data<double>(gates) + sweep * heads() * a_.query_segments;
      const Tensor slots = states();
      run(GeneralPhase::d_query, a_.query_segments);
    });
    close(part);
    if (gates.defined() && heads() > 0) {
      launch(stream_, linear_attention_d_gate_kernel<T>, grid_blocks(heads(), 256), 256, 0, gpu_data<double>(gates),
             sweeps(), heads(), a_.query_segments, gpu_data<T>(gradients.d_gate));
    }
  }

  void d_key(const LinearAttentionGradients& gradients) {
    const std::int64_t group = a_.n_heads / a_.n_kv_heads;
    Part key{gradients.d_key, a_.n_kv_heads, group, a_.sizes.d},
        value{gradients.d_value, a_.n_kv_heads, group, a_.sizes.d_value};
    a_.d_key = open(key);
    a_.d_value = open(value);
    for_sweeps([&](std::int64_t) {
      const Tensor slots = gathered();
      run(GeneralPhase::d_key, a_.key_segments);
    });
    close(key);
    close(value);
  }
};

template <class Run>
void with_compute_type(const LinearAttentionArguments& arguments, const Run& run) {
  if (accumulate_dtype(arguments.query.dtype()) == DType::float64) {
    run(std::type_identity<double>{});
  } else {
    run(std::type_identity<float>{});
  }
}

void forward(const Stream& stream, const LinearAttentionArguments& arguments) {
  if (!arguments.options.gpu.general_kernels && linear_attention_fused_supports(stream, arguments)) {
    linear_attention_fused_forward(stream, arguments);
    return;
  }
  with_compute_type(arguments, [&]<class T>(std::type_identity<T>) {
    GeneralLaunch<T>(stream, arguments, arguments.sizes.near).forward();
  });
}

void backward(const Stream& stream, const LinearAttentionArguments& arguments,
              const LinearAttentionGradients& gradients) {
  if (!arguments.options.gpu.general_kernels && linear_attention_fused_supports(stream, arguments)) {
    linear_attention_fused_backward(stream, arguments, gradients);
    return;
  }
  with_compute_type(arguments, [&]<class T>(std::type_identity<T>) {
    GeneralLaunch<T>(stream, arguments, arguments.sizes.chunk).backward(gradients);
  });
}

const GpuKernelRegistration forward_registration{linear_attention_forward_gpu, &forward};
const GpuKernelRegistration backward_registration{linear_attention_backward_gpu, &backward};

}  // namespace
}  // namespace FURLONG_GPU
}  // namespace furlong::ops
