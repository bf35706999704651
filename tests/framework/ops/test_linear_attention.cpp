// Every feature map in every mode against its definition, pair by pair, and gradients against finite differences.
#include <gtest/gtest.h>

#include "framework/autodiff/gradient_check.h"
#include "tests/framework/ops/linear_attention_testing.h"

namespace furlong::testing {
namespace {

/// What can be asked of attention beside the map; the registry of modes that tests loop over.
enum class Mode {
  plain,
  window,
  mask,
  documents,
  everything_masked,
  centred,
  rms,
  hybrid,
  hybrid_masked,
  rotated,
  rotated_masked,
  rotated_window
};
const std::vector<std::pair<Mode, const char*>> modes{{Mode::plain, "plain"},
                                                      {Mode::window, "window"},
                                                      {Mode::mask, "mask"},
                                                      {Mode::documents, "documents"},
                                                      {Mode::everything_masked, "window_mask_documents"},
                                                      {Mode::centred, "centred_scaled"},
                                                      {Mode::rms, "rms"},
                                                      {Mode::hybrid, "hybrid"},
                                                      {Mode::hybrid_masked, "hybrid_mask_documents_centred"},
                                                      {Mode::rotated, "rotated"},
                                                      {Mode::rotated_masked, "rotated_mask_documents_rms"},
                                                      {Mode::rotated_window, "rotated_window_centred"}};

bool possible(FeatureMap map, bool causal, Mode mode) {
  if (mode == Mode::hybrid || mode == Mode::hybrid_masked) return causal;
  return mode != Mode::centred || feature_map_info(map).estimates_softmax;
}

void add_mask(AttentionProblem& p) {
  for (std::int64_t i = 0; i < p.batch * p.n_key; ++i) p.mask.push_back((i * 7 + 3) % 5 != 0 || p.n_key == 1 ? 1 : 0);
}
void add_documents(AttentionProblem& p) {
  p.n_key = p.n;
  const auto cut = [](std::vector<double>& values, const Shape& shape) { values.resize(static_cast<std::size_t>(shape.elements())); };
  cut(p.key, p.key_shape());
  cut(p.value, p.value_shape());
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t i = 0; i < p.n_key; ++i) p.documents.push_back(i < p.n / 3 ? 9 : i < p.n / 3 + 1 ? 4 : i < p.n - 2 ? 5 : 6);
  }
}
void add_centres(AttentionProblem& p) {
  p.query_center = normal_values(p.heads() * p.d, 21, 0.4);
  p.key_center = normal_values(p.heads() * p.d, 22, 0.4);
  for (double value : normal_values(p.heads() * p.d, 23, 0.3)) p.scaling.push_back(std::exp(value));
}

void apply(Mode mode, AttentionProblem& p) {
  p.options.rotate_numerator = mode == Mode::rotated || mode == Mode::rotated_masked || mode == Mode::rotated_window;
  p.options.rotary_base = 50;  // so that short sequences turn far, and no two features alike
  if (mode == Mode::window || mode == Mode::everything_masked || mode == Mode::rotated_window) {
    p.options.window = p.n > 40 ? 21 : 5;
    p.n_key = p.n;
    p.key.resize(static_cast<std::size_t>(p.key_shape().elements()));
    p.value.resize(static_cast<std::size_t>(p.value_shape().elements()));
  }
  if (mode == Mode::hybrid || mode == Mode::hybrid_masked) {
    p.options.softmax_window = p.n > 40 ? 23 : 4;
    p.gate = normal_values(p.heads(), 24, 0.5);
  }
  if (mode == Mode::documents || mode == Mode::everything_masked || mode == Mode::hybrid_masked || mode == Mode::rotated_masked)
    add_documents(p);
  if (mode == Mode::mask || mode == Mode::everything_masked || mode == Mode::hybrid_masked || mode == Mode::rotated_masked) add_mask(p);
  if (mode == Mode::centred ||
      ((mode == Mode::hybrid_masked || mode == Mode::rotated_window) && feature_map_info(p.options.feature_map).estimates_softmax))
    add_centres(p);
  if (mode == Mode::rms || mode == Mode::rotated_masked) p.options.normalizer = ops::Normalizer::rms;
}

class EveryAttention : public ::testing::TestWithParam<std::tuple<FeatureMap, bool, Mode>> {
 protected:
  AttentionProblem made(const ProblemShape& shape, double scale = 1) const {
    const auto [map, causal, mode] = GetParam();
    AttentionProblem p = attention_problem(map, causal, shape, scale);
    apply(mode, p);
    if (!is_positive(p) || (p.options.rotate_numerator && feature_map_info(map).can_vanish)) keep_denominators_large(p);
    return p;
  }
};

std::vector<std::tuple<FeatureMap, bool, Mode>> every_attention() {
  std::vector<std::tuple<FeatureMap, bool, Mode>> all;
  for (const FeatureMap map : every_feature_map()) {
    for (const bool causal : {true, false}) {
      for (const auto& [mode, name] : modes) {
        if (possible(map, causal, mode)) all.emplace_back(map, causal, mode);
      }
    }
  }
  return all;
}
std::string name_of_case(const ::testing::TestParamInfo<std::tuple<FeatureMap, bool, Mode>>& info) {
  const auto [map, causal, mode] = info.param;
  return std::string(feature_map_info(map).name) + (causal ? "_causal_" : "_bidirectional_") + modes[static_cast<std::size_t>(mode)].second;
}
INSTANTIATE_TEST_SUITE_P(LinearAttention, EveryAttention, ::testing::ValuesIn(every_attention()), name_of_case);

TEST_P(EveryAttention, ForwardEqualsTheDefinition) {
  for (const ProblemShape& shape : odd_shapes()) {
    const AttentionProblem p = made(shape);
    // Rounding of a signed sum is relative to its terms, and relu's features may all but vanish: there the bound is the sum's condition.
    const double slack = is_positive(p) ? 1 : 30;
    EXPECT_LT(relative_error(run_attention(p, DType::float64).output, definition_of(p, DType::float64)), 2e-13 * slack) << shape.n;
    EXPECT_LT(relative_error(run_attention(p, DType::float32).output, definition_of(p, DType::float32)), 6e-6 * slack) << shape.n;
    // Inputs are the same 16-bit values, so what is left is the rounding of the output: half an ulp of 8 significant bits is 2^-8.
    EXPECT_LT(relative_error(run_attention(p, DType::bfloat16).output, definition_of(p, DType::bfloat16)), 0x1p-8 * 1.05) << shape.n;
  }
}

TEST_P(EveryAttention, GradientsAgreeWithFiniteDifferences) {
  std::vector<ProblemShape> shapes{{1, 1, 1, 1, 3, 2, 4, 16}, {1, 2, 1, 6, 3, 4, 4, 16}, {2, 2, 1, 9, 4, 3, 6, 4}};
  if (made(shapes[0]).options.rotate_numerator) shapes = {{1, 1, 1, 1, 3, 2, 4, 16}, {1, 2, 1, 13, 4, 3, 7, 4}};  // m even and odd
  for (const ProblemShape& shape : shapes) {
    AttentionProblem p = made(shape);
    for (auto* values : {&p.query, &p.key}) {
      for (double& value : *values) value = std::fabs(value) < 0.02 ? value + 0.06 : value;  // elu and relu have kinks at 0
    }
    std::vector<Tensor> inputs{tensor_of(p.query, p.query_shape(), DType::float64), tensor_of(p.key, p.key_shape(), DType::float64),
                               tensor_of(p.value, p.value_shape(), DType::float64)};
    if (!p.gate.empty()) inputs.push_back(tensor_of(p.gate, {p.heads()}, DType::float64));
    const GradientCheckResult result = check_gradients(
        [&](Tape& tape, const std::vector<Variable>& in) {
          ops::LinearAttentionInputs call;
          call.query = in[0], call.key = in[1], call.value = in[2];
          if (in.size() > 3) call.gate = in[3];
          call.constants = constants_of(p, DType::float64);
          call.mask = mask_of(p);
          return ops::linear_attention(tape, call, p.options);
        },
        inputs);
    // Where one key is all that a query sees the gradient is zero, and what differences find is their own rounding.
    EXPECT_LT(result.worst_relative_error, 5e-7) << result.where << " at n = " << shape.n;
  }
}

TEST_P(EveryAttention, ChunkSizeAndThreadsChangeNothingButRounding) {
  AttentionProblem p = made({2, 2, 1, 45, 8, 8, 16, 16});
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

TEST_P(EveryAttention, ALaterTokenChangesNoEarlierBit) {
  if (!std::get<1>(GetParam())) return;
  const std::int64_t n = 90, d = 8;
  const AttentionProblem p = made({1, 2, 2, n, d, d, 8, 32}, 2);
  const std::vector<double> before = run_attention(p, DType::float32).output;
  for (const std::int64_t cut : {1, 31, 32, 50, 89}) {
    for (const double factor : {-40.0, HUGE_VAL, std::nan("")}) {
      AttentionProblem changed = p;
      for (std::int64_t i = cut * 2 * d; i < n * 2 * d; ++i) {
        for (auto* values : {&changed.query, &changed.key, &changed.value}) (*values)[static_cast<std::size_t>(i)] *= factor;
      }
      const std::vector<double> after = run_attention(changed, DType::float32).output;
      EXPECT_EQ(std::memcmp(before.data(), after.data(), static_cast<std::size_t>(cut * 2 * d) * sizeof(double)), 0)
          << cut << ", " << factor;
      EXPECT_NE(std::memcmp(before.data(), after.data(), before.size() * sizeof(double)), 0);
    }
  }
}

TEST_P(EveryAttention, MaskedKeysHaveNoInfluenceWhateverTheyHold) {
  AttentionProblem p = made({2, 2, 1, 40, 8, 8, 16, 16});
  if (p.mask.empty()) return;
  const Outcome before = run_attention(p, DType::float32);
  AttentionProblem changed = p;
  const std::int64_t width = p.options.n_kv_heads * p.d;
  for (std::int64_t j = 0; j < p.batch * p.n_key; ++j) {
    if (p.mask[static_cast<std::size_t>(j)] != 0) continue;
    for (std::int64_t f = 0; f < width; ++f) {
      changed.key[static_cast<std::size_t>(j * width + f)] = f % 2 == 0 ? std::nan("") : 1e30;
      changed.value[static_cast<std::size_t>(j * width + f)] = HUGE_VAL;
    }
  }
  const Outcome after = run_attention(changed, DType::float32);
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

TEST_P(EveryAttention, PackedDocumentsAreTheDocumentsAlone) {
  const AttentionProblem p = made({1, 2, 1, 70, 8, 8, 16, 16});
  if (p.documents.empty()) return;
  const Outcome packed = run_attention(p, DType::float32);
  for (std::int64_t start = 0, end = 1; start < p.n; start = end++) {
    while (end < p.n && p.documents[static_cast<std::size_t>(end)] == p.documents[static_cast<std::size_t>(start)]) ++end;
    AttentionProblem alone = p;
    alone.n = alone.n_key = end - start;
    alone.documents.clear();
    const auto cut = [&](std::vector<double>& values, std::int64_t width) {
      values = {values.begin() + start * width, values.begin() + end * width};
    };
    cut(alone.query, p.heads() * p.d);
    cut(alone.key, p.options.n_kv_heads * p.d);
    cut(alone.value, p.options.n_kv_heads * p.d_value);
    if (!p.mask.empty()) alone.mask = {p.mask.begin() + start, p.mask.begin() + end};
    const auto output = run_attention(alone, DType::float32).output;
    const std::int64_t width = p.heads() * p.d_value;
    // Chunks begin with each document, so that the very same is computed.
    EXPECT_EQ(std::vector<double>(packed.output.begin() + start * width, packed.output.begin() + end * width), output) << start;
  }
}

}  // namespace
}  // namespace furlong::testing
