// Every feature map in every mode against its definition, pair by pair, and gradients against finite differences. For
// GPUs see test_linear_attention_gpu.cpp.
#include <gtest/gtest.h>

#include "framework/autodiff/gradient_check.h"
#include "tests/framework/ops/attention/linear/linear_attention_modes.h"

namespace furlong::testing {
namespace {

class EveryAttention : public ::testing::TestWithParam<std::tuple<FeatureMap, bool, Mode>> {
 protected:
  AttentionProblem make_problem(const ProblemShape& shape, double scale = 1) const {
    return attention_problem(GetParam(), shape, scale);
  }
};
std::string name_of_case(const ::testing::TestParamInfo<std::tuple<FeatureMap, bool, Mode>>& info) {
  return name_of_combination(info.param);
}
class EveryCausalAttention : public EveryAttention {};
class EveryMaskedAttention : public EveryAttention {};
class EveryPackedAttention : public EveryAttention {};
class EverySplitAttention : public EveryAttention {};
INSTANTIATE_TEST_SUITE_P(LinearAttention, EveryAttention, ::testing::ValuesIn(every_attention(any_problem)),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(LinearAttention, EveryCausalAttention, ::testing::ValuesIn(every_attention(is_causal)),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(LinearAttention, EveryMaskedAttention, ::testing::ValuesIn(every_attention(is_masked)),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(LinearAttention, EveryPackedAttention, ::testing::ValuesIn(every_attention(is_packed)),
                         name_of_case);

INSTANTIATE_TEST_SUITE_P(LinearAttention, EverySplitAttention, ::testing::ValuesIn(every_attention(is_split)),
                         name_of_case);

TEST_P(EveryAttention, ForwardMatchesDefinition) {
  for (const ProblemShape& shape : odd_shapes()) {
    const AttentionProblem p = make_problem(shape);
    // Rounding of a signed sum is relative to its terms, and relu's features may nearly vanish. The bound then includes
    // the condition of the sum.
    const double slack = is_positive(p) ? 1 : 30;
    EXPECT_LT(relative_error(run_attention(p, DType::float64).output, definition_of(p, DType::float64)), 2e-13 * slack)
        << shape.n;
    EXPECT_LT(relative_error(run_attention(p, DType::float32).output, definition_of(p, DType::float32)), 6e-6 * slack)
        << shape.n;
    // Inputs are the same 16-bit values. If only the output is rounded: half a unit of 8 significant bits is 2^-8. The
    // rounding of weights is relative to the values, which may cancel in an output.
    const std::vector<double> found = run_attention(p, DType::bfloat16).output,
                              expected = definition_of(p, DType::bfloat16);
    if (rounds_operands(p, DType::bfloat16)) {
      double largest = 0;
      for (const double value : p.value) largest = std::max(largest, std::fabs(value));
      EXPECT_LT(scaled_error(found, expected, largest), 0x1p-7) << shape.n;
    } else {
      EXPECT_LT(relative_error(found, expected), 0x1p-8 * 1.05) << shape.n;
    }
  }
}

TEST_P(EveryAttention, GradientMatchesFiniteDifference) {
  std::vector<ProblemShape> shapes{{1, 1, 1, 1, 3, 2, 4, 16}, {1, 2, 1, 6, 3, 4, 4, 16}, {2, 2, 1, 9, 4, 3, 6, 4}};
  if (make_problem(shapes[0]).options.rotate_numerator)
    shapes = {{1, 1, 1, 1, 3, 2, 4, 16}, {1, 2, 1, 13, 4, 3, 7, 4}};  // m even and odd
  for (const ProblemShape& shape : shapes) {
    AttentionProblem p = make_problem(shape);
    for (auto* values : {&p.query, &p.key}) {
      for (double& value : *values)
        value = std::fabs(value) < 0.02 ? value + 0.06 : value;  // elu and relu have kinks at 0
    }
    std::vector<Tensor> inputs{tensor_of(p.query, p.query_shape(), DType::float64),
                               tensor_of(p.key, p.key_shape(), DType::float64),
                               tensor_of(p.value, p.value_shape(), DType::float64)};
    if (!p.gate.empty()) inputs.push_back(tensor_of(p.gate, {p.heads()}, DType::float64));
    const GradientCheckResult result = check_gradients(
        [&](Tape& tape, const std::vector<Variable>& in) {
          ops::LinearAttentionInputs call;
          call.query = in[0], call.key = in[1], call.value = in[2];
          if (in.size() > 3) call.gate = in[3];
          call.constants = constants_of(p, DType::float64);
          call.mask = mask_of(p);
          return attend(tape, call, p.options);
        },
        inputs);
    // A query with one visible key has gradient zero, and finite differences give only rounding errors: more of them
    // without fused multiply-adds.
    EXPECT_LT(result.worst_relative_error, ops::cpu_isa() == "sse4" ? 2e-6 : 5e-7)
        << result.where << " at n = " << shape.n;
  }
}

TEST_P(EveryAttention, NoSequencesGiveZeroGateGradient) {
  const AttentionProblem p = make_problem({0, 2, 1, 5, 3, 4, 4, 16});
  fill_freed_memory(p.heads(), DType::float32);
  const Outcome found = run_attention(p, DType::float32);
  EXPECT_TRUE(found.output.empty());
  EXPECT_EQ(found.d_gate, std::vector<double>(p.gate.size(), 0));
}

// Several chunks, and lengths and widths of vector and tile kernels, which finite differences are too slow for. The
// gradients of float64 on the same inputs are compared with finite differences above.
TEST_P(EveryAttention, GradientsInLowPrecisionMatchFloat64) {
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    SCOPED_TRACE(name_of(dtype));
    AttentionProblem p = make_problem({2, 2, 1, 70, 16, 32, 24, 16});
    for (auto* values : {&p.query, &p.key, &p.value, &p.gate}) *values = stored(*values, dtype);
    const Outcome found = run_attention(p, dtype), expected = run_on_cpu(p, DType::float64);
    const bool single = dtype == DType::float32;
    const double bound = single ? 1e-4 : 0x1p-5;  // as in test_every_feature_map.cpp
    EXPECT_LT(relative_error(found.d_query, expected.d_query), bound);
    EXPECT_LT(relative_error(found.d_key, expected.d_key), bound);
    EXPECT_LT(relative_error(found.d_value, expected.d_value), bound);
    // A sum over all rows of g · (softmax's output - the other's). The outputs are rounded before.
    const double terms = std::sqrt(static_cast<double>(p.batch * p.n * p.d_value));
    EXPECT_LT(scaled_error(found.d_gate, expected.d_gate, single ? 1e-3 : terms), single ? bound : 0x1p-8);
  }
}

TEST_P(EveryAttention, ChunkSizeChangesOnlyRoundingAndThreadsChangeNothing) {
  AttentionProblem p = make_problem({2, 2, 1, 45, 8, 8, 16, 16});
  const Outcome small = run_attention(p, DType::float64);
  const double slack = is_positive(p) ? 1 : 30;
  for (const std::int64_t chunk : {1, 7, 64}) {
    p.options.chunk_size = chunk;
    const Outcome other = run_attention(p, DType::float64);
    EXPECT_LT(relative_error(other.output, small.output), 1e-12 * slack) << chunk;
    EXPECT_LT(relative_error(other.d_query, small.d_query), 1e-11 * slack) << chunk;
    EXPECT_LT(relative_error(other.d_key, small.d_key), 1e-11 * slack) << chunk;
    EXPECT_LT(relative_error(other.d_value, small.d_value), 1e-12 * slack) << chunk;
  }
  const auto with_threads = [&](int count) {
    const WithThreads threads(count);
    return run_attention(p, DType::float32);
  };
  const Outcome one = with_threads(1), four = with_threads(4);
  EXPECT_EQ(one.output, four.output);
  EXPECT_EQ(one.d_query, four.d_query);
  EXPECT_EQ(one.d_key, four.d_key);
  EXPECT_EQ(one.d_value, four.d_value);
}

TEST_P(EverySplitAttention, SegmentsOfFewHeadsMatchWholeSequences) {
  for (const ProblemShape& shape : {ProblemShape{2, 1, 1, 1024, 8, 8, 16, 16}, {1, 2, 1, 1024, 8, 6, 16, 16}}) {
    AttentionProblem p = make_problem(shape);
    if (!p.options.causal) {
      make_square(p);
      p.mask.resize(p.mask.empty() ? 0 : static_cast<std::size_t>(p.batch * p.n));
    }
    const auto with_threads = [&](int count, DType dtype) {
      const WithThreads threads(count);
      return run_attention(p, dtype);
    };
    const double slack = is_positive(p) ? 1 : 30;
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      const bool single = dtype == DType::float32;
      // Both have roundings of their own. In bfloat16, operands may be rounded too.
      const double output_bound = single ? 1e-5 * slack : 0x1p-6, gradient_bound = single ? 1e-4 * slack : 0x1p-5;
      const Outcome whole = with_threads(1, dtype);
      for (const int count : {4, 9}) {  // two and four segments
        SCOPED_TRACE(fmt::format("{}, {} heads, {} threads", name_of(dtype), p.heads(), count));
        const Outcome split = with_threads(count, dtype);
        EXPECT_FALSE(single && split.output == whole.output) << "one segment";
        EXPECT_LT(relative_error(split.output, whole.output), output_bound);
        EXPECT_LT(relative_error(split.d_query, whole.d_query), gradient_bound);
        EXPECT_LT(relative_error(split.d_key, whole.d_key), gradient_bound);
        EXPECT_LT(relative_error(split.d_value, whole.d_value), output_bound);
      }
    }
    EXPECT_EQ(with_threads(1, DType::float64).output, with_threads(4, DType::float64).output);
  }
}

TEST_P(EveryCausalAttention, LaterTokensChangeNoEarlierBit) {
  const auto expect_no_change = [&](std::int64_t n, std::int64_t d, std::int64_t m, std::int64_t chunk, DType dtype) {
    const AttentionProblem p = make_problem({1, 2, 2, n, d, d, m, chunk}, 2);
    const std::vector<double> before = run_attention(p, dtype).output;
    for (const std::int64_t cut : {std::int64_t{1}, chunk - 1, chunk, chunk + 18, n - 1}) {
      for (const double factor : {-40.0, HUGE_VAL, std::nan("")}) {
        AttentionProblem changed = p;
        for (std::int64_t i = cut * 2 * d; i < n * 2 * d; ++i) {
          for (auto* values : {&changed.query, &changed.key, &changed.value})
            (*values)[static_cast<std::size_t>(i)] *= factor;
        }
        const std::vector<double> after = run_attention(changed, dtype).output;
        EXPECT_EQ(std::memcmp(before.data(), after.data(), static_cast<std::size_t>(cut * 2 * d) * sizeof(double)), 0)
            << name_of(dtype) << ", " << cut << ", " << factor;
        EXPECT_NE(std::memcmp(before.data(), after.data(), before.size() * sizeof(double)), 0);
      }
    }
  };
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    expect_no_change(90, 8, 8, 32, dtype);
    expect_no_change(150, 32, 64, 64, dtype);  // whole tiles of AMX, next to parts of tiles
  }
}

TEST_P(EveryMaskedAttention, MaskedKeysHaveNoInfluence) {
  AttentionProblem p = make_problem({2, 2, 1, 40, 8, 8, 16, 16});
  AttentionProblem changed = p;
  const std::int64_t width = p.options.n_kv_heads * p.d;
  for (std::int64_t j = 0; j < p.batch * p.n_key; ++j) {
    if (p.mask[static_cast<std::size_t>(j)] != 0) continue;
    for (std::int64_t f = 0; f < width; ++f) {
      changed.key[static_cast<std::size_t>(j * width + f)] = f % 2 == 0 ? std::nan("") : 1e30;
      changed.value[static_cast<std::size_t>(j * width + f)] = HUGE_VAL;
    }
  }
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    const Outcome before = run_attention(p, dtype), after = run_attention(changed, dtype);
    EXPECT_EQ(before.output, after.output);
    EXPECT_EQ(before.d_query, after.d_query);
    EXPECT_EQ(before.d_key, after.d_key);
    EXPECT_EQ(before.d_value, after.d_value);
    for (std::int64_t j = 0; j < p.batch * p.n_key; ++j) {
      for (std::int64_t f = 0; f < width && p.mask[static_cast<std::size_t>(j)] == 0; ++f) {
        EXPECT_EQ(after.d_key[static_cast<std::size_t>(j * width + f)], 0);
        EXPECT_EQ(after.d_value[static_cast<std::size_t>(j * width + f)], 0);
      }
    }
  }
}

TEST_P(EveryPackedAttention, PackedDocumentsMatchSeparateDocuments) {
  const AttentionProblem p = make_problem({1, 2, 1, 70, 8, 8, 16, 16});
  const std::int64_t output_width = p.heads() * p.d_value;
  const std::vector<double> d_output = normal_values(p.n * output_width, 5);
  const Outcome packed = run_attention(p, DType::float32, d_output),
                packed16 = run_attention(p, DType::bfloat16, d_output);
  for (std::int64_t start = 0, end = 1; start < p.n; start = end++) {
    while (end < p.n && p.documents[static_cast<std::size_t>(end)] == p.documents[static_cast<std::size_t>(start)])
      ++end;
    AttentionProblem alone = p;
    alone.n = alone.n_key = end - start;
    alone.documents.clear();
    const auto cut = [&](const std::vector<double>& values, std::int64_t width) {
      return std::vector<double>(values.begin() + start * width, values.begin() + end * width);
    };
    const std::int64_t query_width = p.heads() * p.d, key_width = p.options.n_kv_heads * p.d,
                       value_width = p.options.n_kv_heads * p.d_value;
    alone.query = cut(p.query, query_width);
    alone.key = cut(p.key, key_width);
    alone.value = cut(p.value, value_width);
    if (!p.mask.empty()) alone.mask = {p.mask.begin() + start, p.mask.begin() + end};
    // Chunks restart with each document, so the computation is exactly the same.
    for (const auto& [dtype, found] : {std::pair{DType::float32, packed}, {DType::bfloat16, packed16}}) {
      SCOPED_TRACE(fmt::format("{}, document at {}", name_of(dtype), start));
      const Outcome separate = run_attention(alone, dtype, cut(d_output, output_width));
      EXPECT_EQ(cut(found.output, output_width), separate.output);
      EXPECT_EQ(cut(found.d_query, query_width), separate.d_query);
      EXPECT_EQ(cut(found.d_key, key_width), separate.d_key);
      EXPECT_EQ(cut(found.d_value, value_width), separate.d_value);
    }
  }
}

// ---- Orders, sets and kinds of random projections, and sums that cancel ----

struct OrderCase {
  FeatureMap map;
  std::int64_t order;
};
const OrderCase other_orders[] = {{FeatureMap::taylor, 1},
                                  {FeatureMap::taylor, 3},
                                  {FeatureMap::limit, 1},
                                  {FeatureMap::limit, 3},
                                  {FeatureMap::limit, 4}};

std::string text(const OrderCase& c, bool causal) {
  return fmt::format("{} of order {}, {}", feature_map_info(c.map).name, c.order, causal ? "causal" : "bidirectional");
}

class LinearAttentionOrders : public ComposedKernelTest {};
class LinearAttentionDirections : public ComposedKernelTest {};
class LinearAttentionSigned : public ComposedKernelTest {};
FURLONG_INSTANTIATE_ENGINES(LinearAttentionOrders);
FURLONG_INSTANTIATE_ENGINES(LinearAttentionDirections);
FURLONG_INSTANTIATE_ENGINES(LinearAttentionSigned);

void expect_definition(const AttentionProblem& p) {
  const double slack = is_positive(p) ? 1 : 30;  // as in ForwardMatchesDefinition
  EXPECT_LT(relative_error(run_attention(p, DType::float64).output, definition_of(p, DType::float64)), 2e-13 * slack);
  EXPECT_LT(relative_error(run_attention(p, DType::float32).output, definition_of(p, DType::float32)), 6e-6 * slack);
}

TEST_P(LinearAttentionOrders, EveryOrderMatchesDefinition) {
  for (const OrderCase& c : other_orders) {
    for (const bool causal : {true, false}) {
      SCOPED_TRACE(text(c, causal));
      const ProblemShape larger =
          on_simulator() ? ProblemShape{1, 2, 1, 17, 4, 5, 1, 8} : ProblemShape{2, 4, 2, 33, 4, 5, 1, 16};
      for (const ProblemShape& shape : {ProblemShape{1, 1, 1, 1, 1, 1, 1, 16}, larger}) {
        AttentionProblem p = attention_problem(c.map, causal, shape);
        p.options.map_options.order = c.order;
        keep_denominators_large(p);
        expect_definition(p);
      }
    }
  }
}

TEST_P(LinearAttentionOrders, GradientMatchesFiniteDifference) {
  for (const OrderCase& c : other_orders) {
    for (const bool causal : {true, false}) {
      SCOPED_TRACE(text(c, causal));
      AttentionProblem p = attention_problem(c.map, causal, {1, 2, 1, 6, 3, 2, 1, 4});
      p.options.map_options.order = c.order;
      keep_denominators_large(p);
      if (on_gpu()) {  // compared with the CPU's gradients, which are checked against finite differences
        const Outcome found = run_attention(p, DType::float64), expected = run_on_cpu(p, DType::float64);
        EXPECT_LT(relative_error(found.d_query, expected.d_query), 3e-10);
        EXPECT_LT(relative_error(found.d_key, expected.d_key), 3e-10);
        EXPECT_LT(relative_error(found.d_value, expected.d_value), 3e-11);
        continue;
      }
      const auto result = check_gradients(
          [&](Tape& tape, const std::vector<Variable>& in) {
            ops::LinearAttentionInputs call;
            call.query = in[0], call.key = in[1], call.value = in[2];
            return attend(tape, call, p.options);
          },
          {tensor_of(p.query, p.query_shape(), DType::float64), tensor_of(p.key, p.key_shape(), DType::float64),
           tensor_of(p.value, p.value_shape(), DType::float64)});
      EXPECT_LT(result.worst_relative_error, 5e-7) << result.where;
    }
  }
}

std::vector<FeatureMap> maps_with_directions() {
  std::vector<FeatureMap> maps;
  for (const FeatureMap map : every_feature_map()) {
    if (feature_map_info(map).needs_random_projection) maps.push_back(map);
  }
  return maps;
}

TEST_P(LinearAttentionDirections, EveryProjectionKindMatchesDefinition) {
  for (const FeatureMap map : maps_with_directions()) {
    for (const layers::RandomProjectionKind kind : all_values<layers::RandomProjectionKind>()) {
      if (on_simulator() && kind != layers::RandomProjectionKind::iid) continue;  // kernels do not depend on the kind
      for (const bool causal : {true, false}) {
        SCOPED_TRACE(
            fmt::format("{}, {}, {}", feature_map_info(map).name, name_of(kind), causal ? "causal" : "bidirectional"));
        AttentionProblem p = attention_problem(map, causal, {1, 2, 1, 40, 6, 5, 9, 16});
        p.random_projection.clear();
        for (float w : layers::draw_random_projection(kind, 9, 6, {12, 0, 4})) p.random_projection.push_back(w);
        if (!is_positive(p)) keep_denominators_large(p);
        expect_definition(p);
      }
    }
  }
}

/// Random projections [n_heads, m, d]: each head's output and gradients are those of a single head with its projection.
TEST_P(LinearAttentionDirections, PerHeadProjectionsMatchSeparateHeads) {
  const std::int64_t heads = 3, m = 9, d = 6, width = 5;
  for (const FeatureMap map : maps_with_directions()) {
    for (const bool causal : {true, false}) {
      AttentionProblem p = attention_problem(map, causal, {2, heads, heads, 21, d, width, m, 8});
      if (!is_positive(p)) keep_denominators_large(p);
      std::vector<double> sets;
      for (std::uint32_t h = 0; h < heads; ++h) {
        for (float w : layers::draw_random_projection(layers::RandomProjectionKind::iid, m, d, {13, 0, h}))
          sets.push_back(w);
      }
      const auto run = [&](const AttentionProblem& of, const Tensor& random_projection,
                           const std::vector<double>& d_output) {
        Tape tape{stream()};
        ops::LinearAttentionInputs call = inputs_of(of, DType::float64);
        call.constants.random_projection = random_projection;
        return outcome_of(tape, call, attend(tape, call, of.options), d_output);
      };
      const std::vector<double> d_output = normal_values(2 * 21 * heads * width, 5);
      const auto together = run(p, tensor_of(sets, {heads, m, d}, DType::float64), d_output);
      for (std::int64_t h = 0; h < heads; ++h) {
        SCOPED_TRACE(
            fmt::format("{}, {}, head {}", feature_map_info(map).name, causal ? "causal" : "bidirectional", h));
        const auto of_head = [&](const std::vector<double>& values, std::int64_t n, std::int64_t columns) {
          std::vector<double> rows;
          for (std::int64_t b = 0; b < 2; ++b) {
            const std::vector<double> one = head_rows_of(values, b, n, heads, h, columns);
            rows.insert(rows.end(), one.begin(), one.end());
          }
          return rows;
        };
        AttentionProblem alone = p;
        alone.options.n_heads = alone.options.n_kv_heads = 1;
        alone.query = of_head(p.query, p.n, d);
        alone.key = of_head(p.key, p.n_key, d);
        alone.value = of_head(p.value, p.n_key, width);
        alone.random_projection.assign(sets.begin() + h * m * d, sets.begin() + (h + 1) * m * d);
        if (!p.oprf_a.empty()) alone.oprf_a = {p.oprf_a[static_cast<std::size_t>(h)]};
        const auto single =
            run(alone, tensor_of(alone.random_projection, {m, d}, DType::float64), of_head(d_output, p.n, width));
        EXPECT_LT(relative_error(of_head(together.output, p.n, width), definition_of(alone, DType::float64)),
                  is_positive(p) ? 2e-13 : 6e-12);
        EXPECT_EQ(of_head(together.output, p.n, width), single.output);
        EXPECT_EQ(of_head(together.d_query, p.n, d), single.d_query);
        EXPECT_EQ(of_head(together.d_key, p.n_key, d), single.d_key);
        EXPECT_EQ(of_head(together.d_value, p.n_key, width), single.d_value);
      }
    }
  }
}

/// Returns Σ_j w_ij over Σ_j |φ(q_i)| |φ(k_j)| by the definition, for one head, causal or not.
std::vector<double> relative_denominators(const AttentionProblem& p) {
  const reference::FeatureMapCase c{p.options.feature_map, p.options.map_options, p.d, p.n_projections(),
                                    p.random_projection};
  const auto size = [](const std::vector<double>& row) {
    return std::sqrt(reference::inner(row.data(), row.data(), static_cast<std::int64_t>(row.size())));
  };
  std::vector<double> relative;
  for (std::int64_t i = 0; i < p.n; ++i) {
    const auto q = reference::feature_row(c, p.query.data() + i * p.d, false);
    double total = 0, magnitude = 0;
    for (std::int64_t j = 0; j < (p.options.causal ? i + 1 : p.n_key); ++j) {
      const auto k = reference::feature_row(c, p.key.data() + j * p.d, true);
      const double by = std::exp(k.row_log);
      total +=
          by * reference::inner(q.features.data(), k.features.data(), static_cast<std::int64_t>(q.features.size()));
      magnitude += by * size(q.features) * size(k.features);
    }
    relative.push_back(std::fabs(total) / magnitude);
  }
  return relative;
}

/// Inputs of either sign, so that sums cancel: with the default guard, and with a guard above a third of the rows.
TEST_P(LinearAttentionSigned, GuardZeroesExactlyTheRowsBelowIt) {
  const OrderCase signed_maps[] = {{FeatureMap::favor_trig, 2},
                                   {FeatureMap::taylor, 1},
                                   {FeatureMap::taylor, 3},
                                   {FeatureMap::limit, 1},
                                   {FeatureMap::limit, 3}};
  for (const OrderCase& c : signed_maps) {
    for (const bool causal : {true, false}) {
      for (const std::int64_t below : {0, 20}) {
        SCOPED_TRACE(text(c, causal) + fmt::format(", {} rows below the guard", below));
        AttentionProblem p = attention_problem(c.map, causal, {1, 1, 1, 60, 5, 4, 11, 16}, 1.5);
        p.options.map_options.order = c.order;
        for (auto* values : {&p.query, &p.key, &p.value}) *values = stored(*values, DType::float32);
        const std::vector<double> relative = relative_denominators(p);
        std::vector<double> ascending = relative;
        std::sort(ascending.begin(), ascending.end());
        EXPECT_LT(ascending[5], 0.3) << "sums hardly cancel";
        ASSERT_GT(ascending[20] / ascending[19], 1.0001) << "float32 may not separate these two";
        if (below > 0) p.options.denominator_guard = (ascending[19] + ascending[20]) / 2;
        const double guard = p.options.denominator_guard;
        for (const DType dtype : {DType::float64, DType::float32}) {
          const Outcome found = run_attention(p, dtype);
          EXPECT_EQ(found.report.rows, 60);
          EXPECT_EQ(found.report.guarded, below);
          EXPECT_NEAR(found.report.least / *std::min_element(relative.begin(), relative.end()), 1,
                      dtype == DType::float64 ? 1e-9 : 1e-2);
          for (const auto* values : {&found.output, &found.d_query, &found.d_key, &found.d_value}) {
            for (double value : *values) ASSERT_TRUE(std::isfinite(value));
          }
          const auto is_zero = [](const std::vector<double>& values, std::size_t row, std::size_t width) {
            return std::all_of(values.begin() + static_cast<std::ptrdiff_t>(row * width),
                               values.begin() + static_cast<std::ptrdiff_t>((row + 1) * width),
                               [](double value) { return value == 0; });
          };
          for (std::size_t i = 0; i < relative.size(); ++i) {
            EXPECT_EQ(is_zero(found.output, i, 4), relative[i] < guard) << i;
            if (relative[i] < guard) {
              EXPECT_TRUE(is_zero(found.d_query, i, 5)) << i;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace furlong::testing
