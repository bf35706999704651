#include "framework/ops/dense/feed_forward.h"

#include "framework/ops/dense/linear.h"
#include "framework/primitives/gemm_simulated.h"
#include "tests/framework/ops/op_testing.h"
#include "tests/reference/activation.h"
#include "tests/reference/gemm.h"

namespace furlong {
namespace {

using namespace furlong::testing;
using ops::ActivationKind;
using ops::FusedEpilogue;

class FeedForward : public EngineTest {};
FURLONG_INSTANTIATE_ENGINES(FeedForward);

/// Disables GELU and gradients in the epilogues of the simulator's library during its lifetime.
class WithoutEpilogues {
 public:
  WithoutEpilogues() { ops::simulated_gemm_library().has_all = false; }
  ~WithoutEpilogues() { ops::simulated_gemm_library().has_all = true; }
  WithoutEpilogues(const WithoutEpilogues&) = delete;
  WithoutEpilogues& operator=(const WithoutEpilogues&) = delete;
};

/// Sizes of one feed-forward map, and which of its inputs exist.
struct Layout {
  Shape x;
  std::int64_t hidden, outer;
  bool input_bias = true, output_bias = true;
};

/// x, input weight, output weight, then the existing biases.
std::vector<Tensor> inputs_of(const Layout& layout, DType dtype) {
  const std::int64_t inner = layout.x[-1];
  std::vector<Tensor> inputs{
      tensor_of(normal_values(layout.x.elements(), "x"), layout.x, dtype),
      tensor_of(normal_values(layout.hidden * inner, "in", 0.6), {layout.hidden, inner}, dtype),
      tensor_of(normal_values(layout.outer * layout.hidden, "out", 0.4), {layout.outer, layout.hidden}, dtype)};
  if (layout.input_bias) inputs.push_back(tensor_of(normal_values(layout.hidden, "bias in"), {layout.hidden}, dtype));
  if (layout.output_bias) inputs.push_back(tensor_of(normal_values(layout.outer, "bias out"), {layout.outer}, dtype));
  return inputs;
}

Variable fused(Tape& tape, const Layout& layout, const std::vector<Variable>& in, ActivationKind kind) {
  return ops::feed_forward(tape, in[0], in[1], layout.input_bias ? &in[3] : nullptr, in[2],
                           layout.output_bias ? &in.back() : nullptr, kind);
}
Variable separate(Tape& tape, const Layout& layout, const std::vector<Variable>& in, ActivationKind kind) {
  const Variable before = ops::linear(tape, in[0], in[1], layout.input_bias ? &in[3] : nullptr);
  return ops::linear(tape, ops::activation(tape, before, kind), in[2], layout.output_bias ? &in.back() : nullptr);
}

/// Returns the output, then the gradients of all inputs. Gradients of parameters are in float32, as in the store, or in
/// double.
template <class Map>
std::vector<Tensor> run(const Map& map, const Layout& layout, DType dtype, ActivationKind kind, bool rematerialize) {
  Tape tape(stream());
  tape.set_recomputes_values(rematerialize);
  std::vector<Variable> in;
  for (const Tensor& value : inputs_of(layout, dtype)) in.push_back(Variable::leaf(value));
  for (std::size_t i = 1; i < in.size(); ++i) in[i].slot()->dtype = accumulate_dtype(dtype);
  const Variable y = map(tape, layout, in, kind);
  const Tensor d_y = tensor_of(normal_values(y.shape().elements(), "d_y"), y.shape(), dtype);
  std::vector<Tensor> results{y.value().clone()};
  tape.backward({y}, {d_y});
  for (const Variable& one : in) results.push_back(one.gradient());
  return results;
}

const Layout layouts[] = {{{1}, 1, 1},
                          {{7}, 16, 3},
                          {{5, 9}, 24, 6, false, false},
                          {{2, 3, 8}, 13, 8, true, false},
                          {{33, 16}, 64, 16, false}};

TEST_P(FeedForward, MatchesSeparateOpsBitForBit) {
  const WithoutEpilogues all_in_steps;
  for (const auto& [kind, name] : ops::activation_names) {
    for (DType dtype : float_dtypes) {
      // cuBLASLt's GELU differs from ours.
      if (device().type == DeviceType::cuda && kind == ActivationKind::gelu_tanh && dtype == DType::bfloat16) continue;
      for (const Layout& layout : layouts) {
        for (bool rematerialize : {false, true}) {
          if (on_simulator() && rematerialize != (layout.outer == 6)) continue;
          const auto found = run(fused, layout, dtype, kind, rematerialize),
                     expected = run(separate, layout, dtype, kind, rematerialize);
          ASSERT_EQ(found.size(), expected.size());
          for (std::size_t i = 0; i < found.size(); ++i) {
            EXPECT_TRUE(same_bits(found[i], expected[i]))
                << name << " " << name_of(dtype) << " " << layout.x.text() << (rematerialize ? ", recomputed: " : ": ")
                << "result " << i;
          }
        }
      }
    }
  }
}

TEST_P(FeedForward, ValuesMatchTheReference) {
  for (const auto& [kind, name] : ops::activation_names) {
    for (DType dtype : float_dtypes) {
      for (const Layout& layout : layouts) {
        const auto in = inputs_of(layout, dtype);
        const std::int64_t rows = layout.x.rows(), inner = layout.x[-1];
        auto hidden =
            reference::product(values_of(in[0]), false, values_of(in[1]), true, rows, layout.hidden, inner).value;
        const auto add_bias = [](std::vector<double>& values, const Tensor& bias) {
          const auto added = values_of(bias);
          for (std::size_t i = 0; i < values.size(); ++i) values[i] += added[i % added.size()];
        };
        if (layout.input_bias) add_bias(hidden, in[3]);
        for (double& value : hidden) value = static_cast<double>(reference::activation(kind, value));
        auto y = reference::product(hidden, false, values_of(in[2]), true, rows, layout.outer, layout.hidden).value;
        if (layout.output_bias) add_bias(y, in.back());
        // Each of up to 64 terms has the rounding of its two stores in bfloat16, which mostly cancel. In wider types
        // the rounding of the sums dominates.
        const double tolerance = dtype == DType::bfloat16 ? 4 * rounding_unit(dtype) : 64 * rounding_unit(dtype);
        EXPECT_LE(relative_error(values_of(run(fused, layout, dtype, kind, true)[0]), y), tolerance)
            << name << " " << layout.x.text();
        // Without recording, a library may compute the activation.
        Tape tape(stream());
        const Tape::NoGradient guard(tape);
        std::vector<Variable> constants(in.begin(), in.end());
        EXPECT_LE(relative_error(values_of(fused(tape, layout, constants, kind).value()), y),
                  std::max(tolerance, dtype == DType::float32 ? 64 * 0x1p-24 : 0.0))
            << name << " " << layout.x.text() << ", not recorded";
        EXPECT_EQ(tape.node_count(), 0u);
      }
    }
  }
}

TEST_P(FeedForward, GradientsMatchFiniteDifferences) {
  for (const auto& entry : ops::activation_names) {
    const ActivationKind kind = entry.kind;
    for (const Layout& layout : {Layout{{1}, 1, 1}, Layout{{2, 2, 3}, 4, 2}, Layout{{3, 4}, 5, 3, false, false},
                                 Layout{{3}, 4, 3, true, false}, Layout{{2, 3}, 2, 4, false, true}}) {
      for (bool rematerialize : {false, true}) {
        if (on_simulator() && !rematerialize && layout.outer != 2) continue;
        const auto result = check_gradients(
            [&](Tape& tape, const std::vector<Variable>& in) {
              tape.set_recomputes_values(rematerialize);
              return fused(tape, layout, in, kind);
            },
            inputs_of(layout, DType::float64));
        EXPECT_LE(result.worst_relative_error, 1e-9) << entry.name << " " << layout.x.text() << ": " << result.where;
      }
    }
  }
}

TEST_P(FeedForward, AccumulatesGradientsOfInputsUsedTwice) {
  const Layout layout{{3, 4}, 4, 4};
  for (bool transposed_use : {false, true}) {  // one matrix for both weights, too
    const auto result = check_gradients(
        [&](Tape& tape, const std::vector<Variable>& in) {
          tape.set_recomputes_values(true);
          const Variable& out = transposed_use ? in[1] : in[2];
          const Variable y = ops::feed_forward(tape, in[0], in[1], &in[3], out, &in[4], ActivationKind::gelu_tanh);
          return ops::feed_forward(tape, y, in[1], &in[3], out, &in[3], ActivationKind::silu);
        },
        inputs_of(layout, DType::float64));
    EXPECT_LE(result.worst_relative_error, 1e-9) << result.where;
  }
}

TEST_P(FeedForward, Bfloat16AccumulatesInFloat32AndMatchesDouble) {
  // Row lengths 8 and 12: the library's epilogues support only one of them.
  for (std::int64_t hidden : {24, 12}) {
    for (bool epilogues : {true, false}) {
      const Layout layout{{40, 16}, hidden, 8};
      std::vector<std::vector<double>> found, expected;
      for (DType dtype : {DType::bfloat16, DType::float64}) {
        if (!epilogues) ops::simulated_gemm_library().has_all = false;
        Tape tape(stream());
        tape.set_recomputes_values(true);
        std::vector<Variable> in;
        for (const Tensor& value : inputs_of(layout, DType::bfloat16)) {
          in.push_back(Variable::leaf(tensor_of(values_of(value), value.shape(), dtype)));
        }
        for (std::size_t i = 1; i < in.size(); ++i) in[i].slot()->dtype = accumulate_dtype(dtype);
        const Variable y = fused(tape, layout, in, ActivationKind::gelu_tanh),
                       z = fused(tape, layout, in, ActivationKind::gelu_tanh);
        const Tensor d_y = tensor_of(stored(normal_values(y.shape().elements(), "d_y"), DType::bfloat16), y.shape(),
                                     dtype),
                     d_z = tensor_of(stored(normal_values(y.shape().elements(), "d_z"), DType::bfloat16), y.shape(),
                                     dtype);
        tape.backward({y, z}, {d_y, d_z});
        ops::simulated_gemm_library().has_all = true;
        for (const Variable& one : in)
          (dtype == DType::bfloat16 ? found : expected).push_back(values_of(one.gradient()));
      }
      for (std::size_t i = 0; i < found.size(); ++i) {
        // The output bias depends only on gradients: float32 sums of numbers with 8 bits. The others depend on values
        // rounded to 8 bits.
        EXPECT_LE(relative_error(found[i], expected[i]), i == 4 ? 80 * 0x1p-24 : 4 * rounding_unit(DType::bfloat16))
            << "input " << i << ", hidden " << hidden << (epilogues ? "" : ", in steps");
      }
    }
  }
}

TEST_P(FeedForward, SavesTheTensorsOfSeparateOpsAndComputesOnlyWantedGradients) {
  const Layout layout{{6, 5}, 7, 4};
  const auto values = inputs_of(layout, DType::float64);
  const std::int64_t weights = values[1].bytes() + values[2].bytes(), hidden = std::int64_t{6} * 7 * 8;
  const Tensor d_y = tensor_of(normal_values(24, "d_y"), {6, 4}, DType::float64);
  for (bool rematerialize : {false, true}) {
    for (unsigned wanted = 1; wanted < 32; ++wanted) {
      const auto start = [&](Tape& tape) {
        tape.set_recomputes_values(rematerialize);
        std::vector<Variable> in;
        for (std::size_t i = 0; i < values.size(); ++i)
          in.push_back(wanted >> i & 1 ? Variable::leaf(values[i]) : Variable(values[i]));
        return in;
      };
      Tape tape(stream()), other(stream());
      const auto in = start(tape), theirs = start(other);
      const Variable y = fused(tape, layout, in, ActivationKind::gelu),
                     expected = separate(other, layout, theirs, ActivationKind::gelu);
      const bool through = (wanted & 0b01011) != 0, weight_out = (wanted & 0b00100) != 0,
                 weight_in = (wanted & 0b00010) != 0;
      const std::int64_t kept_hidden =
          rematerialize ? std::int64_t{through || weight_out} : std::int64_t{through} + weight_out;
      EXPECT_EQ(tape.saved_bytes().at("feed_forward"),
                weights + (weight_in ? values[0].bytes() : 0) + kept_hidden * hidden)
          << wanted;
      std::int64_t kept_by_them = 0;
      for (const auto& [name, bytes] : other.saved_bytes()) kept_by_them += bytes;
      if (through && !(rematerialize && !weight_out)) {
        EXPECT_LE(tape.saved_bytes().at("feed_forward"), kept_by_them) << wanted;
      }
      tape.backward({y}, {d_y});
      other.backward({expected}, {d_y});
      for (std::size_t i = 0; i < in.size(); ++i) {
        ASSERT_EQ(in[i].gradient().defined(), (wanted >> i & 1) != 0) << wanted << " input " << i;
        if (in[i].gradient().defined()) {
          EXPECT_TRUE(same_bits(in[i].gradient(), theirs[i].gradient())) << wanted << " input " << i;
        }
      }
    }
  }
}

TEST_P(FeedForward, RecomputedSegmentHasTheSameBits) {
  for (DType dtype : {DType::float32, DType::bfloat16}) {
    const Layout layout{{9, 16}, 32, 16};
    const auto again = [](Tape& tape, const Layout& at, const std::vector<Variable>& in, ActivationKind kind) {
      return tape.recompute("block", {in[0]}, [&at, in, kind](Tape& inner, const std::vector<Variable>& x) {
        std::vector<Variable> all = in;
        all[0] = x[0];
        return std::vector<Variable>{fused(inner, at, all, kind)};
      })[0];
    };
    const auto found = run(again, layout, dtype, ActivationKind::gelu_tanh, true),
               expected = run(fused, layout, dtype, ActivationKind::gelu_tanh, true);
    for (std::size_t i = 0; i < found.size(); ++i)
      EXPECT_TRUE(same_bits(found[i], expected[i])) << name_of(dtype) << " result " << i;
  }
}

TEST_P(FeedForward, AcceptsColumnRangeAsInput) {
  for (DType dtype : float_dtypes) {
    const Tensor whole = tensor_of(normal_values(5 * 20, "whole"), {5, 20}, dtype), part = whole.narrow(1, 4, 7);
    const Tensor copied = tensor_of(values_of(part), {5, 7}, dtype);
    const Variable in(tensor_of(normal_values(21, "in"), {3, 7}, dtype)),
        out(tensor_of(normal_values(6, "out"), {2, 3}, dtype));
    Tape tape(stream());
    const auto results_of = [&](const Tensor& x) {
      return values_of(ops::feed_forward(tape, Variable(x), in, nullptr, out, nullptr, ActivationKind::relu).value());
    };
    EXPECT_LE(relative_error(results_of(part), results_of(copied)),
              10 * rounding_unit(accumulate_dtype(dtype)) + 2 * rounding_unit(dtype));
  }
}

TEST_P(FeedForward, ZeroRowsGiveZeroGradients) {
  const Layout layout{{0, 8}, 16, 8};
  const auto results = run(fused, layout, DType::float32, ActivationKind::gelu_tanh, true);
  EXPECT_EQ(results[0].shape(), (Shape{0, 8}));
  for (std::size_t i = 2; i < results.size(); ++i) {
    EXPECT_EQ(values_of(results[i]), std::vector<double>(static_cast<std::size_t>(results[i].elements()))) << i;
  }
}

/// Returns the number of products that `work` requests from the simulator's library, by epilogue.
template <class Work>
std::map<FusedEpilogue, std::int64_t> products_of(const Work& work) {
  auto& library = ops::simulated_gemm_library();
  for (auto& count : library.products) count = 0;
  library.refused = 0;
  work();
  std::map<FusedEpilogue, std::int64_t> counts;
  for (int i = 0; i < ops::n_fused_epilogues; ++i) {
    if (const std::int64_t count = library.products.at(static_cast<std::size_t>(i)); count > 0)
      counts[static_cast<FusedEpilogue>(i)] = count;
  }
  return counts;
}

TEST(FeedForwardOnTheSimulator, UsesTheFusedEpiloguesOfTheLibrary) {
  if (const std::string reason = engine_missing({DeviceType::simulated, 0}); !reason.empty()) GTEST_SKIP() << reason;
  const OnDevice simulated({DeviceType::simulated, 0});
  using Counts = std::map<FusedEpilogue, std::int64_t>;
  const Layout aligned{{20, 16}, 32, 16}, narrow{{20, 16}, 12, 16}, bare{{20, 16}, 32, 16, false, false};
  const auto requested = [](const Layout& layout, DType dtype, ActivationKind kind) {
    return products_of([&] { run(fused, layout, dtype, kind, true); });
  };
  using enum FusedEpilogue;
  // Forward: the first product with its activation, the second with its bias. Backward: the activation, two weights
  // with their biases, x.
  EXPECT_EQ(requested(aligned, DType::bfloat16, ActivationKind::gelu_tanh),
            (Counts{{none, 1}, {bias, 1}, {gelu_auxiliary_bias, 1}, {gelu_gradient, 1}, {bias_gradient, 2}}));
  EXPECT_EQ(requested(bare, DType::bfloat16, ActivationKind::gelu_tanh),
            (Counts{{none, 4}, {gelu_auxiliary, 1}, {gelu_gradient, 1}}));
  EXPECT_EQ(requested(narrow, DType::bfloat16, ActivationKind::gelu_tanh),
            (Counts{{none, 2}, {bias, 2}, {bias_gradient, 2}}));
  EXPECT_EQ(requested(aligned, DType::bfloat16, ActivationKind::gelu),
            (Counts{{none, 2}, {bias, 2}, {bias_gradient, 2}}));
  EXPECT_EQ(requested(aligned, DType::float32, ActivationKind::gelu_tanh),
            (Counts{{none, 2}, {bias, 2}, {bias_gradient, 2}}));
  EXPECT_EQ(requested(aligned, DType::float64, ActivationKind::gelu_tanh), (Counts{{none, 6}}));
  EXPECT_EQ(ops::simulated_gemm_library().refused, 0);

  const auto with = run(fused, aligned, DType::bfloat16, ActivationKind::gelu_tanh, true);
  const WithoutEpilogues in_steps;
  EXPECT_EQ(requested(aligned, DType::bfloat16, ActivationKind::gelu_tanh), (Counts{{none, 4}, {bias, 2}}));
  EXPECT_EQ(ops::simulated_gemm_library().refused, 4);
  const auto without = run(fused, aligned, DType::bfloat16, ActivationKind::gelu_tanh, true);
  for (std::size_t i = 0; i < with.size(); ++i) {
    EXPECT_LE(relative_error(values_of(with[i]), values_of(without[i])), 2 * rounding_unit(DType::bfloat16)) << i;
  }
}

TEST(FeedForwardOnTheSimulator, ReplayUsesCurrentMemoryContents) {
  if (const std::string reason = engine_missing({DeviceType::simulated, 0}); !reason.empty()) GTEST_SKIP() << reason;
  const OnDevice simulated({DeviceType::simulated, 0});
  GpuEngine& engine = *gpu_engine(DeviceType::simulated);
  const Layout layout{{20, 16}, 32, 16};
  std::vector<Variable> in;
  for (const Tensor& value : inputs_of(layout, DType::bfloat16)) in.push_back(Variable::leaf(value));
  for (std::size_t i = 1; i < in.size(); ++i) in[i].slot()->dtype = DType::float32;
  const Tensor d_y = tensor_of(normal_values(320, "d_y"), {20, 16}, DType::bfloat16), first_x = in[0].value().clone();
  const auto step = [&] {
    for (const Variable& one : in) one.slot()->written = false;
    Tape tape(stream());
    tape.set_recomputes_values(true);
    const Variable y = fused(tape, layout, in, ActivationKind::gelu_tanh),
                   z = fused(tape, layout, in, ActivationKind::gelu_tanh);
    tape.backward({y, z}, {d_y, d_y});  // the second to arrive accumulates, biases through scratch
    return y.value();
  };
  const auto results = [&](const Tensor& y) {
    std::vector<std::vector<double>> values{values_of(y)};
    for (const Variable& one : in) values.push_back(values_of(one.gradient()));
    return values;
  };
  const auto expected = results(step());
  in[0].value().copy_from(tensor_of(normal_values(320, "other x"), {20, 16}, DType::bfloat16));
  engine.begin_capture(stream());
  const Tensor y = step();
  const auto graph = engine.end_capture(stream());
  graph->replay(stream());
  EXPECT_NE(results(y), expected);
  in[0].value().copy_from(first_x);
  graph->replay(stream());
  EXPECT_EQ(results(y), expected);
}

TEST(FeedForwardShapes, RejectsMismatchedShapes) {
  Tape tape(stream());
  const auto zeros = [](const Shape& shape) { return Variable(Tensor::zeros(shape, DType::float32)); };
  const auto call = [&](const Shape& x, const Shape& in, const Shape& out, std::int64_t bias) {
    const Variable b = zeros({bias});
    return ops::feed_forward(tape, zeros(x), zeros(in), &b, zeros(out), nullptr, ActivationKind::relu);
  };
  EXPECT_EQ(call({2, 4}, {3, 4}, {5, 3}, 3).shape(), (Shape{2, 5}));
  EXPECT_THROW(call({2, 4}, {3, 5}, {5, 3}, 3), ContractError);
  EXPECT_THROW(call({2, 4}, {3, 4}, {5, 4}, 3), ContractError);
  EXPECT_THROW(call({2, 4}, {3, 4}, {5, 3}, 4), ContractError);
  EXPECT_THROW(call({2, 4}, {12}, {5, 3}, 3), ContractError);
}

}  // namespace
}  // namespace furlong
