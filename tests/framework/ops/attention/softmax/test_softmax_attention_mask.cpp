#include <ctime>

#include "framework/core/arena.h"
#include "tests/framework/ops/attention/softmax/softmax_attention_testing.h"
#include "tests/framework/ops/op_testing.h"

namespace furlong {
namespace {

using namespace softmax_testing;
using testing::for_each_instruction_set;
using testing::WithThreads;

class SoftmaxAttentionMask : public testing::EngineTest {};
FURLONG_INSTANTIATE_ENGINES(SoftmaxAttentionMask);

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

/// Returns a random key mask, 1 or 0 for each key of each sequence.
std::vector<std::int32_t> random_keys(std::int64_t n, double kept, unsigned seed) {
  std::mt19937_64 generator(seed);
  std::bernoulli_distribution keep(kept);
  std::vector<std::int32_t> keys;
  for (std::int64_t i = 0; i < n; ++i) keys.push_back(keep(generator) ? 1 : 0);
  return keys;
}
/// Returns a key mask in which sequence b keeps its first kept[b] keys of n.
std::vector<std::int32_t> padding(std::int64_t n, const std::vector<std::int64_t>& kept) {
  std::vector<std::int32_t> keys;
  for (const std::int64_t count : kept) {
    for (std::int64_t i = 0; i < n; ++i) keys.push_back(i < count ? 1 : 0);
  }
  return keys;
}
/// Returns document numbers for documents of these lengths; neighbors differ, but numbers repeat.
std::vector<std::int32_t> documents(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    ids.insert(ids.end(), static_cast<std::size_t>(lengths[i]), static_cast<std::int32_t>(i % 3));
  }
  return ids;
}
template <class T>
std::vector<T> joined(std::vector<T> a, const std::vector<T>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// Returns every combination of causality, windows, masked keys and documents, with grouped heads. n = 150 has three
/// blocks, the last one partial.
std::vector<Case> combinations() {
  const std::int64_t n = 150, batch = 2, heads = testing::on_simulator() ? 1 : 2;
  const std::vector<std::vector<std::int32_t>> masks{
      {}, padding(n, {150, 69}), padding(n, {150, 0}), random_keys(batch * n, 0.5, 7)};
  const std::vector<std::vector<std::int32_t>> packings{
      {}, joined(documents({1, 70, 64, 2, 13}), documents({90, 3, 3, 3, 51}))};
  std::vector<Case> all;
  for (const bool causal : {true, false}) {
    for (const std::int64_t window : {0, 1, 20, 100}) {
      for (const auto& keys : masks) {
        for (const auto& ids : packings) all.push_back({batch, n, n, heads, 1, 5, 7, causal, 0, 0, window, keys, ids});
      }
    }
  }
  return all;
}

TEST_P(SoftmaxAttentionMask, EveryCombinationMatchesDefinition) {
  const std::vector<Case> all = combinations();
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t type = 0; type < std::size(testing::float_dtypes); ++type) {
      // On the simulator 64 combinations, one type each; neighbors differ in one property, so every property is tested
      // with every type.
      if (testing::on_simulator() && i % std::size(testing::float_dtypes) != type) continue;
      SCOPED_TRACE(text(all[i]));
      compare_with_reference(Problem(all[i], testing::float_dtypes[type]), testing::float_dtypes[type]);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(SoftmaxAttentionMask, OtherShapesMatchDefinition) {
  // Queries at positions among the keys of a cache; more keys than a tile; grouped heads; sequences of one token.
  const std::vector<Case> cases{{2, 3, 200, 4, 2, 8, 8, true, 120, 0, 40, {}, {}},
                                {2, 3, 200, 4, 2, 8, 8, true, 197, 0, 0, random_keys(400, 0.7, 8), {}},
                                {1, 70, 200, 1, 1, 8, 8, false, 65, 0, 33, {}, {}},
                                {2, 9, 131, 2, 2, 3, 17, false, 0, 0.4, 0, random_keys(262, 0.3, 9), {}},
                                {1, 40, 20, 2, 2, 5, 5, true, 0, 0, 6, {}, {}},  // the last queries have no visible key
                                {1, 1, 1, 1, 1, 3, 2, true, 0, 0, 1, {1}, {4}},
                                {2, 1, 1, 1, 1, 3, 2, false, 0, 0, 0, {0, 1}, {}},
                                {1, 300, 300, 2, 2, 64, 64, true, 0, 0, 128, {}, {}},
                                {1, 300, 300, 6, 2, 16, 16, true, 0, 0, 0, {}, documents({129, 171})}};
  for (const Case& c : cases) {
    SCOPED_TRACE(text(c));
    for (const DType dtype : testing::float_dtypes) compare_with_reference(Problem(c, dtype), dtype);
  }
}

/// Enough blocks of queries for groups that share tiles of keys: nine blocks in forward, eight in backward.
TEST(SoftmaxAttentionMaskOnCpu, GroupsOfBlocksMatchDefinition) {
  const WithThreads one(1);
  const std::int64_t n = 570;
  for (const bool causal : {true, false}) {
    for (const std::int64_t window : {0, 100}) {
      for (const DType dtype : {DType::float32, DType::bfloat16}) {
        compare_with_reference(Problem({1, n, n, 8, 4, 12, 20, causal, 0, -0.3, window, {}, {}}, dtype), dtype);
        compare_with_reference(
            Problem({1, n, n, 8, 4, 12, 20, causal, 0, 0, window, random_keys(n, 0.6, 3), documents({66, 1, 400, 103})},
                    dtype),
            dtype);
      }
    }
  }
}

TEST(SoftmaxAttentionMaskOnCpu, EveryInstructionSetMatchesDefinition) {
  const std::int64_t n = 100;
  for_each_instruction_set([&] {
    for (const bool causal : {true, false}) {
      for (const DType dtype : testing::float_dtypes) {
        compare_with_reference(
            Problem({1, n, n, 2, 1, 6, 9, causal, 0, 0, 30, random_keys(n, 0.6, 3), documents({66, 1, 33})}, dtype),
            dtype);
      }
    }
  });
}

TEST_P(SoftmaxAttentionMask, GradientMatchesFiniteDifference) {
  const bool few = testing::on_simulator();
  std::vector<Case> cases{few ? Case{1, 4, 66, 1, 1, 1, 1, true, 62, 0, 40, random_keys(66, 0.5, 5), {}}
                              : Case{1, 70, 70, 2, 1, 2, 2, true, 0, 0, 3, random_keys(70, 0.5, 5), {}},
                          {1, 6, 12, 1, 1, 3, 2, false, 3, 0.8, 4, {}, {}}};
  for (const bool causal : {true, false}) {
    for (const std::int64_t window : {0, 4}) {
      for (const bool masked : {true, false}) {
        const auto keys = masked ? random_keys(24, 0.6, 6) : std::vector<std::int32_t>{};
        if (few) {
          const auto first = masked ? std::vector<std::int32_t>(keys.begin(), keys.begin() + 7) : keys;
          cases.push_back({1, 7, 7, 2, 1, 2, 1, causal, 0, 0, window, first, documents({3, 1, 3})});
        } else {
          cases.push_back(
              {2, 12, 12, 4, 2, 3, 2, causal, 0, 0, window, keys, joined(documents({5, 1, 6}), documents({2, 10}))});
        }
      }
    }
  }
  for (const Case& c : cases) {
    SCOPED_TRACE(text(c));
    const Problem p(c, DType::float64);
    const auto function = [&](Tape& tape, const std::vector<Variable>& x) {
      return ops::softmax_attention(tape, x[0], x[1], x[2], p.options, p.mask);
    };
    const GradientCheckResult result = check_gradients(function, {p.query, p.key, p.value});
    EXPECT_LE(result.worst_relative_error, 1e-7) << result.where;
  }
}

/// Returns a tensor [batch, n, width] in which the rows that `chosen` selects hold `value`.
template <class Chosen>
Tensor with_rows(const Tensor& tensor, double value, const Chosen& chosen) {
  std::vector<double> values = to_doubles(tensor);
  const std::int64_t width = tensor.extent(2);
  for (std::int64_t row = 0; row < tensor.extent(0) * tensor.extent(1); ++row) {
    if (chosen(row)) std::fill_n(values.begin() + row * width, width, value);
  }
  return tensor_of(values, tensor.shape(), tensor.dtype());
}

void expect_same_bits(const Gradients& a, const Gradients& b) {
  EXPECT_TRUE(same_bits(a.output, b.output)) << "output";
  EXPECT_TRUE(same_bits(a.d_query, b.d_query)) << "d_query";
  EXPECT_TRUE(same_bits(a.d_key, b.d_key)) << "d_key";
  EXPECT_TRUE(same_bits(a.d_value, b.d_value)) << "d_value";
}

TEST_P(SoftmaxAttentionMask, MaskedKeysChangeNoBit) {
  const bool few = testing::on_simulator();
  const std::int64_t n = 140, heads = few ? 1 : 2;
  for (const auto& keys : {padding(n, {140, 71}), random_keys(2 * n, 0.5, 11)}) {
    for (const bool causal : {true, false}) {
      for (const DType dtype : testing::float_dtypes) {
        Problem p({2, n, n, heads, 1, 6, 5, causal, 0, 0, 0, keys, {}}, dtype);
        const Gradients before = through_tape(p);
        const auto masked = [&](std::int64_t row) { return keys[static_cast<std::size_t>(row)] == 0; };
        const std::vector<double> all{0.0, 1e30, infinity, -infinity, not_a_number}, some{infinity, not_a_number};
        for (const double value : few ? some : all) {
          p.key = with_rows(p.key, value, masked);
          p.value = with_rows(p.value, -value, masked);
          const Gradients after = through_tape(p);
          expect_same_bits(after, before);
          for (const Tensor& gradient : {after.d_key, after.d_value}) {
            EXPECT_TRUE(same_bits(with_rows(gradient, 0.0, masked), gradient)) << value;  // exactly zero
          }
        }
      }
    }
  }
}

TEST_P(SoftmaxAttentionMask, QueryWithoutVisibleKeysGivesZeros) {
  const std::int64_t n = 80;
  std::vector<std::int32_t> keys(n, 1);
  std::fill_n(keys.begin(), 70,
              0);  // left padding: queries 0 .. 69 have no visible key; some share a block with others
  for (const DType dtype : testing::float_dtypes) {
    const Problem p({1, n, n, 1, 1, 4, 4, true, 0, 0, 0, keys, {}}, dtype);
    const Tensor log_sum_exp = Tensor::empty({1, 1, n}, accumulate_dtype(dtype), testing::device()),
                 output = Tensor::empty({1, n, 1, 4}, dtype, testing::device());
    ops::softmax_attention_forward(testing::stream(), p.query.split_last(4), p.key.split_last(4), p.value.split_last(4),
                                   output, log_sum_exp, p.options, p.mask);
    const std::vector<double> found = to_doubles(output), sums = to_doubles(log_sum_exp),
                              d_query = to_doubles(through_tape(p).d_query);
    for (std::size_t i = 0; i < 80; ++i) {
      EXPECT_EQ(sums[i] == -infinity, i < 70) << i;
      EXPECT_EQ(found[i * 4] == 0, i < 70) << i;
      if (i == 70) continue;  // one visible key, which has all the weight: no gradient except for rounding
      EXPECT_EQ(d_query[i * 4] == 0, i < 70) << i;
    }
  }
}

/// Returns the rows of tokens [first, first + n).
Tensor rows(const Tensor& tensor, std::int64_t first, std::int64_t n) { return tensor.narrow(1, first, n).clone(); }

const std::vector<std::int64_t> packed_lengths{1, 64, 65, 3, 130, 17, 1, 40};

/// Each document alone against all documents packed. With eight heads each head is a task, with the same order of sums.
TEST_P(SoftmaxAttentionMask, PackedDocumentsMatchSeparateDocumentsBitwise) {
  const std::int64_t n = 321, heads = testing::on_simulator() ? 1 : 8;  // on GPUs the order is the same for any number
  for (const DType dtype : testing::float_dtypes) {
    for (const bool causal : {true, false}) {
      for (const std::int64_t window : {0, 30}) {
        const Case c{
            1, n, n, heads, heads, 5, 6, causal, 0, 0, window, random_keys(n, 0.8, 13), documents(packed_lengths)};
        const Problem p(c, dtype);
        const Gradients packed = through_tape(p);
        std::int64_t first = 0;
        for (const std::int64_t length : packed_lengths) {
          SCOPED_TRACE(fmt::format("{} tokens from {}, {}", length, first, text(c)));
          Problem alone({1, length, length, heads, heads, 5, 6, causal, 0, 0, window, {}, {}}, dtype);
          alone.query = rows(p.query, first, length);
          alone.key = rows(p.key, first, length);
          alone.value = rows(p.value, first, length);
          alone.d_out = rows(p.d_out, first, length);
          alone.mask.keys = rows(p.mask.keys, first, length);
          expect_same_bits(through_tape(alone),
                           {rows(packed.output, first, length), rows(packed.d_query, first, length),
                            rows(packed.d_key, first, length), rows(packed.d_value, first, length)});
          first += length;
        }
      }
    }
  }
}

/// With one head backward splits the queries into segments, at other places than for a single document: the same sum in
/// two orders, within about one rounding of its largest terms.
TEST_P(SoftmaxAttentionMask, SegmentedBackwardMatchesSeparateDocuments) {
  const std::int64_t n = 321;
  const Problem p({1, n, n, 1, 1, 5, 6, true, 0, 0, 0, {}, documents(packed_lengths)}, DType::float32);
  const Gradients packed = through_tape(p);
  std::int64_t first = 0;
  for (const std::int64_t length : packed_lengths) {
    Problem alone({1, length, length, 1, 1, 5, 6, true, 0, 0, 0, {}, {}}, DType::float32);
    for (const auto& [part, whole] : {std::pair{&alone.query, p.query}, std::pair{&alone.key, p.key},
                                      std::pair{&alone.value, p.value}, std::pair{&alone.d_out, p.d_out}}) {
      *part = rows(whole, first, length);
    }
    const Gradients expected = through_tape(alone);
    EXPECT_TRUE(same_bits(rows(packed.output, first, length), expected.output));
    EXPECT_TRUE(same_bits(rows(packed.d_query, first, length), expected.d_query));
    expect_close(to_doubles(rows(packed.d_key, first, length)), to_doubles(expected.d_key), 1e-6, 0, "d_key", 1.0);
    expect_close(to_doubles(rows(packed.d_value, first, length)), to_doubles(expected.d_value), 1e-6, 0, "d_value",
                 1.0);
    first += length;
  }
}

TEST_P(SoftmaxAttentionMask, OtherDocumentsChangeNoBit) {
  const std::int64_t n = 160;
  const auto other = [](std::int64_t row) { return row >= 70 && row < 100; };
  for (const bool causal : {true, false}) {
    for (const DType dtype : testing::float_dtypes) {
      Problem p({1, n, n, 2, 1, 6, 5, causal, 0, 0, 0, {}, documents({70, 30, 60})}, dtype);
      const auto others_blank = [&](const Gradients& g) {
        return Gradients{with_rows(g.output, 0, other), with_rows(g.d_query, 0, other), with_rows(g.d_key, 0, other),
                         with_rows(g.d_value, 0, other)};
      };
      const Gradients before = others_blank(through_tape(p));
      for (const double value : {3.0, infinity, not_a_number}) {
        for (Tensor* tensor : {&p.query, &p.key, &p.value, &p.d_out}) *tensor = with_rows(*tensor, value, other);
        expect_same_bits(others_blank(through_tape(p)), before);
      }
    }
  }
}

TEST_P(SoftmaxAttentionMask, RightPaddingChangesNoBit) {
  const std::int64_t n = 200, heads = testing::on_simulator() ? 1 : 8;
  for (const std::int64_t length : {1, 63, 64, 65, 130}) {
    for (int i = 0; i < 4; ++i) {
      const bool causal = i % 2 == 0;
      const DType dtype = i < 2 ? DType::float32 : DType::bfloat16;
      Problem p({1, n, n, heads, heads, 5, 6, causal, 0, 0, 0, padding(n, {length}), {}}, dtype);
      p.d_out = with_rows(p.d_out, 0.0, [&](std::int64_t row) { return row >= length; });
      Problem alone({1, length, length, heads, heads, 5, 6, causal, 0, 0, 0, {}, {}}, dtype);
      alone.query = rows(p.query, 0, length);
      alone.key = rows(p.key, 0, length);
      alone.value = rows(p.value, 0, length);
      alone.d_out = rows(p.d_out, 0, length);
      const Gradients padded = through_tape(p);
      expect_same_bits(through_tape(alone), {rows(padded.output, 0, length), rows(padded.d_query, 0, length),
                                             rows(padded.d_key, 0, length), rows(padded.d_value, 0, length)});
    }
  }
}

TEST_P(SoftmaxAttentionMask, FullLengthWindowEqualsNoWindow) {
  const std::int64_t n = 150, heads = testing::on_simulator() ? 1 : 2;
  for (const bool causal : {true, false}) {
    for (const DType dtype : testing::float_dtypes) {
      Problem p({1, n, n, heads, heads, 6, 6, causal, 0, 0, 0, {}, {}}, dtype);
      const Gradients all = through_tape(p);
      for (const std::int64_t window : {n, n + 1, std::numeric_limits<std::int64_t>::max()}) {
        p.options.window = window;
        expect_same_bits(through_tape(p), all);
      }
      p.options.window = n - 1;
      EXPECT_FALSE(same_bits(through_tape(p).output, all.output));
    }
  }
}

TEST_P(SoftmaxAttentionMask, TrivialMasksEqualNoMask) {
  const std::int64_t n = 150;
  Problem p({2, n, n, 2, 1, 6, 6, true, 0, 0, 0, {}, {}}, DType::float32);
  const Gradients plain = through_tape(p);
  p.mask.keys = Tensor::from(std::vector<std::int32_t>(2 * n, 1), {2, n}, testing::device());
  p.mask.documents = Tensor::from(std::vector<std::int32_t>(2 * n, 5), {2, n}, testing::device());
  expect_same_bits(through_tape(p), plain);
}

/// Replaces tokens outside a query's window, before and after it; its output must keep its bits.
TEST_P(SoftmaxAttentionMask, TokensOutsideWindowChangeNoBit) {
  const std::int64_t n = 200, window = 30, heads = testing::on_simulator() ? 1 : 2;
  for (const DType dtype : testing::float_dtypes) {
    for (const bool causal : {true, false}) {
      Problem p({1, n, n, heads, heads, 6, 7, causal, 0, 0, window, random_keys(n, 0.9, 21), {}}, dtype);
      const Tensor before = through_tape(p).output, key = p.key, value = p.value;
      for (const std::int64_t i : testing::on_simulator() ? std::vector<std::int64_t>{0, 64, 199}
                                                          : std::vector<std::int64_t>{0, 15, 16, 63, 64, 100, 199}) {
        const auto unseen = [&](std::int64_t j) { return !p.c.sees(0, i, j); };
        for (const double replacement : {-3.5, infinity, not_a_number}) {
          p.key = with_rows(key, replacement, unseen);
          p.value = with_rows(value, replacement, unseen);
          Tape tape{testing::stream()};
          const Tensor after =
              ops::softmax_attention(tape, Variable(p.query), Variable(p.key), Variable(p.value), p.options, p.mask)
                  .value();
          EXPECT_TRUE(same_bits(rows(after, i, 1), rows(before, i, 1))) << i << " " << replacement;
        }
      }
    }
  }
}

/// Token by token with a cache: tile borders differ, so sums of a hundred terms have another order.
TEST_P(SoftmaxAttentionMask, WindowWithCacheMatchesWholeSequence) {
  const std::int64_t n = testing::on_simulator() ? 70 : 150, d = 16;
  const Problem p({2, n, n, 4, 2, d, d, true, 0, 0, 20, {}, {}}, DType::float32);
  const Tensor whole = through_tape(p).output;
  for (std::int64_t first = 0; first < n; ++first) {
    const Tensor output = Tensor::empty({2, 1, 4, d}, DType::float32, testing::device());
    auto options = p.options;
    options.first_query_position = first;
    ops::softmax_attention_forward(testing::stream(), p.query.narrow(1, first, 1).split_last(d),
                                   p.key.narrow(1, 0, first + 1).split_last(d),
                                   p.value.narrow(1, 0, first + 1).split_last(d), output, Tensor{}, options);
    expect_close(to_doubles(output), to_doubles(whole.narrow(1, first, 1)), 1e-6, 0, "output");
  }
}

TEST(SoftmaxAttentionMaskOnCpu, BitsAreIndependentOfThreadCount) {
  const std::int64_t n = 400;
  for (const auto& [heads, dtype] : {std::pair{1, DType::float32}, std::pair{8, DType::float32},
                                     std::pair{1, DType::bfloat16}, std::pair{8, DType::bfloat16}}) {  // 1: segments
    const Problem p({1, n, n, heads, heads, 16, 16, true, 0, 0, 90, random_keys(n, 0.8, 17), documents({250, 20, 130})},
                    dtype);
    const auto with_threads = [&](int threads) {
      const WithThreads set(threads);
      return through_tape(p);
    };
    const Gradients one = with_threads(1);
    for (const int threads : {2, 3, 5}) expect_same_bits(with_threads(threads), one);
  }
}

/// A window of 64 over 8192 tokens, documents of 64 tokens and a padded sequence of 128 cost about a twentieth of full
/// causal attention. Measures this thread's processor time, which other processes do not affect; the bound of a quarter
/// allows for their effect on the caches.
TEST(SoftmaxAttentionMaskOnCpu, InvisibleTilesCostNothing) {
  const std::int64_t n = 8192;
  const WithThreads one(1);
  const auto ticks = [&](std::int64_t window, const std::vector<std::int32_t>& keys,
                         const std::vector<std::int32_t>& ids) {
    const Problem p({1, n, n, 1, 1, 32, 32, true, 0, 0, window, keys, ids}, DType::float32);
    through_tape(p);  // touches the memory
    const std::clock_t start = std::clock();
    through_tape(p);
    return std::clock() - start;
  };
  const std::clock_t full = ticks(0, {}, {});
  EXPECT_LT(ticks(64, {}, {}), full / 4);
  EXPECT_LT(ticks(0, {}, documents(std::vector<std::int64_t>(128, 64))), full / 4);
  EXPECT_LT(ticks(0, padding(n, {128}), {}), full / 4);
}

TEST(SoftmaxAttentionMaskOnCpu, ShapeOnlyDeviceAllocatesTheSameAndReadsNoMask) {
  const auto allocations = [](const Device& device) {
    const Arena& home = arena(device);
    Tape tape{Stream{device}};
    const auto tensor = [&](const Shape& shape, DType dtype) {
      const Tensor result = Tensor::empty(shape, dtype, device);
      if (device.is_cpu()) result.fill_zero();
      return result;
    };
    const auto input = [&](std::int64_t width) { return Variable::leaf(tensor({2, 100, width}, DType::float32)); };
    const Variable q = input(32), k = input(16), v = input(16);
    const Tensor d_output = tensor({2, 100, 32}, DType::float32);
    const ops::AttentionMask mask{tensor({2, 100}, DType::int32), tensor({2, 100}, DType::int32)};
    const ArenaCounters before = home.counters();
    arena(device).reset_peak();
    const Variable output = ops::softmax_attention(tape, q, k, v, {4, 2, true, 0, 0, 10}, mask);
    tape.backward({output}, {d_output});
    const ArenaCounters after = home.counters();
    return std::pair{after.allocations - before.allocations, after.peak_bytes - before.bytes_in_use};
  };
  EXPECT_EQ(allocations(Device{}), allocations(Device{DeviceType::shape_only, 0}));
}

TEST(SoftmaxAttentionMaskOnCpu, RejectsMismatchedInputs) {
  Tape tape{Stream{}};
  const auto attend = [&](std::int64_t n, std::int64_t n_key, const ops::SoftmaxAttentionOptions& options,
                          const ops::AttentionMask& mask) {
    const Variable q(Tensor::zeros({2, n, 4}, DType::float32)), k(Tensor::zeros({2, n_key, 4}, DType::float32));
    return ops::softmax_attention(tape, q, k, k, options, mask);
  };
  const auto numbers = [](const Shape& shape, DType dtype = DType::int32) { return Tensor::zeros(shape, dtype); };
  EXPECT_NO_THROW(attend(3, 5, {1, 1, false, 0, 0, 0}, {numbers({2, 5}), {}}));
  EXPECT_THROW(attend(3, 5, {1, 1, false, 0, 0, 0}, {numbers({2, 3}), {}}), ContractError);  // mask of query length
  EXPECT_THROW(attend(3, 5, {1, 1, false, 0, 0, 0}, {numbers({2, 5}, DType::float32), {}}),
               ContractError);                                                               // mask of float32
  EXPECT_THROW(attend(3, 5, {1, 1, false, 0, 0, 0}, {{}, numbers({2, 5})}), ContractError);  // documents across lengths
  EXPECT_THROW(attend(5, 5, {1, 1, true, 2, 0, 0}, {{}, numbers({2, 5})}), ContractError);  // documents from a position
  EXPECT_THROW(attend(5, 5, {1, 1, true, 0, 0, -1}, {}), ContractError);                    // a window below 0
  EXPECT_THROW(attend(3, 5, {1, 1, false, 0, 0, 2}, {}), ContractError);  // a window without positions
  EXPECT_NO_THROW(attend(3, 5, {1, 1, false, 2, 0, 2}, {}));
}

}  // namespace
}  // namespace furlong
