#include "layers/attention/softmax/softmax_mechanism.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "framework/ops/attention/softmax/softmax_attention.h"
#include "tests/framework/ops/op_testing.h"
#include "tests/temporary_folder.h"

namespace furlong::layers {
namespace {

constexpr std::int64_t n = 90, d = 8, n_heads = 4, n_kv_heads = 2;

AttentionConfig config(std::int64_t window, bool causal = true) {
  AttentionConfig result;
  result.window = window;
  result.n_heads = n_heads;
  result.n_kv_heads = n_kv_heads;
  result.d_head = d;
  result.causal = causal;
  return result;
}

struct Inputs {
  Tensor query = random("query", n_heads*d), key = random("key", n_kv_heads*d), value = random("value", n_kv_heads*d);

  static Tensor random(const char* name, std::int64_t width) {
    return testing::tensor_of(testing::normal_values(2 * n * width, name), {2, n, width}, DType::float32);
  }
};

Tensor forward(const AttentionConfig& config, const Inputs& in, const ops::AttentionMask& mask,
               AttentionState* carried = nullptr) {
  ParameterStore store(DType::float32, Device{});
  Tape tape{Stream{}};
  ForwardContext context{tape};
  context.attention_mask = mask;
  return make_attention(store, "attention", config)
      ->forward(context, Variable(in.query), Variable(in.key), Variable(in.value), carried)
      .value();
}

TEST(SoftmaxMechanism, PassesWindowAndMaskToOp) {
  const Inputs in;
  std::vector<std::int32_t> keys(2 * n, 1), documents(2 * n, 0);
  for (std::size_t i = 0; i < keys.size(); i += 3) keys[i] = 0;
  std::fill(documents.begin() + 40, documents.begin() + n, 1);
  const ops::AttentionMask all{Tensor::from(keys, {2, n}), Tensor::from(documents, {2, n})};
  Tape tape{Stream{}};
  for (const bool causal : {true, false}) {
    std::vector<Tensor> different;
    for (const std::int64_t window : {0, 7}) {
      for (const ops::AttentionMask& mask : {ops::AttentionMask{}, {all.keys, {}}, {{}, all.documents}, all}) {
        const Tensor expected = ops::softmax_attention(tape, Variable(in.query), Variable(in.key), Variable(in.value),
                                                       {n_heads, n_kv_heads, causal, 0, 0, window}, mask)
                                    .value();
        EXPECT_TRUE(testing::same_bits(forward(config(window, causal), in, mask), expected));
        for (const Tensor& other : different) EXPECT_FALSE(testing::same_bits(other, expected));
        different.push_back(expected);
      }
    }
  }
}

/// Processes a prompt and then single tokens; with a window, sums are taken in another order.
TEST(SoftmaxMechanism, GenerationMatchesForward) {
  const Inputs in;
  ParameterStore store(DType::float32, Device{});
  for (const std::int64_t window : {0, 1, 20, 1000}) {
    const auto mechanism = make_attention(store, "attention", config(window));
    const auto state = mechanism->new_state(2, n, DType::float32, Device{});
    const Tensor whole = forward(config(window), in, {});
    for (std::int64_t first = 0; first < n;) {
      const std::int64_t tokens = first == 0 ? 50 : 1;
      const auto part = [&](const Tensor& tensor) {
        return Tensor::from(tensor.narrow(1, first, tokens).to_vector<float>(), {2, tokens, tensor.extent(2)});
      };
      const Tensor found = mechanism->extend(Stream{}, part(in.query), part(in.key), part(in.value), *state);
      EXPECT_LE(testing::relative_error(testing::values_of(found), testing::values_of(part(whole))), 1e-6)
          << window << " " << first;
      first += tokens;
    }
  }
}

/// Exceeds the cache by single tokens, by segments, and by a prompt longer than the cache. With a window the cache
/// holds at most window + 256 rows, and the outputs match the parallel form.
TEST(SoftmaxMechanism, WindowLimitsCacheSize) {
  constexpr std::int64_t long_n = 1500, batch = 2, row_bytes = 2 * batch * n_kv_heads * d * 4;
  const auto random = [](const char* name, std::int64_t width) {
    return testing::tensor_of(testing::normal_values(batch * long_n * width, name), {batch, long_n, width},
                              DType::float32);
  };
  const Tensor query = random("query", n_heads * d), key = random("key", n_kv_heads * d),
               value = random("value", n_kv_heads * d);
  std::vector<std::int32_t> kept(batch * long_n, 1);  // of one sequence, every third token is masked
  for (std::size_t i = 0; i < long_n; i += 3) kept[i] = 0;
  const Tensor keys = Tensor::from(kept, {batch, long_n});
  ParameterStore store(DType::float32, Device{});
  for (const std::int64_t window : {1, 20, 300}) {
    for (const auto& [prompt, masked] :
         {std::pair<std::int64_t, bool>{3, false}, {3, true}, {700, false}, {700, true}}) {
      const auto mechanism = make_attention(store, "attention", config(window));
      Tape tape{Stream{}};
      const Tensor whole =
          ops::softmax_attention(tape, Variable(query), Variable(key), Variable(value),
                                 {n_heads, n_kv_heads, true, 0, 0, window}, {masked ? keys : Tensor{}, {}})
              .value();
      const auto state = mechanism->new_state(batch, long_n, DType::float32, Device{});
      for (std::int64_t first = 0; first < long_n;) {
        const std::int64_t tokens = first == 0     ? prompt
                                    : first > 1300 ? 67
                                                   : 1,
                           length = std::min(tokens, long_n - first);
        const auto part = [&](const Tensor& tensor) {
          return Tensor::from(tensor.narrow(1, first, length).to_vector<float>(), {batch, length, tensor.extent(2)});
        };
        const Tensor mask =
            masked ? Tensor::from(keys.narrow(1, first, length).to_vector<std::int32_t>(), {batch, length}) : Tensor{};
        const Tensor found = mechanism->extend(Stream{}, part(query), part(key), part(value), *state, mask);
        ASSERT_LE(testing::relative_error(testing::values_of(found), testing::values_of(part(whole))), 1e-6)
            << window << " " << prompt << " " << first;
        ASSERT_LE(state->bytes(), (window + 256) * row_bytes) << window << " " << prompt << " " << first;
        first += length;
      }
      EXPECT_EQ(state->bytes(), (window + 256) * row_bytes);
      EXPECT_THROW(
          mechanism->extend(Stream{}, query.narrow(1, 0, 1), key.narrow(1, 0, 1), value.narrow(1, 0, 1), *state),
          ContractError);
    }
  }
}

TEST(SoftmaxMechanism, RejectsCarriedState) {
  ParameterStore store(DType::float32, Device{});
  const auto state = make_attention(store, "attention", config(0))->new_state(2, n, DType::float32, Device{});
  const Inputs in;
  EXPECT_THAT(furlong::testing::message_of<UserError>([&] { forward(config(0), in, {}, state.get()); }),
              ::testing::AllOf(::testing::HasSubstr("softmax has no recurrent state"), ::testing::HasSubstr("linear")));
}

}  // namespace
}  // namespace furlong::layers
