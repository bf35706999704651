#include "layers/attention/softmax_mechanism.h"

#include "framework/ops/arithmetic.h"
#include "framework/ops/softmax_attention.h"

namespace furlong::layers {
namespace {

/// Keys and values so far. The memory doubles as it fills, up to the longest sequence announced.
class KeyValueCache : public AttentionState {
 public:
  KeyValueCache(std::int64_t batch, std::int64_t max_tokens, std::int64_t width, DType dtype, const Device& device)
      : max_tokens_(max_tokens),
        key_(Tensor::empty({batch, std::min<std::int64_t>(max_tokens, 256), width}, dtype, device)),
        value_(Tensor::empty(key_.shape(), dtype, device)) {}

  std::int64_t bytes() const override { return key_.bytes() + value_.bytes(); }
  std::int64_t tokens() const { return tokens_; }
  Tensor key() const { return key_.narrow(1, 0, tokens_); }
  Tensor value() const { return value_.narrow(1, 0, tokens_); }

  void append(const Stream& stream, const Tensor& key, const Tensor& value) {
    const std::int64_t added = key.extent(1);
    require(tokens_ + added <= max_tokens_, "a key-value cache for {} tokens was given {}", max_tokens_, tokens_ + added);
    if (tokens_ + added > key_.extent(1)) {
      const std::int64_t capacity = std::min(max_tokens_, std::max(tokens_ + added, 2 * key_.extent(1)));
      grow(stream, key_, capacity);
      grow(stream, value_, capacity);
    }
    ops::convert(stream, key_.narrow(1, tokens_, added), key);
    ops::convert(stream, value_.narrow(1, tokens_, added), value);
    tokens_ += added;
  }

 private:
  void grow(const Stream& stream, Tensor& cache, std::int64_t capacity) const {
    const Tensor larger = Tensor::empty({cache.extent(0), capacity, cache.extent(2)}, cache.dtype(), cache.device());
    if (tokens_ > 0) ops::convert(stream, larger.narrow(1, 0, tokens_), cache.narrow(1, 0, tokens_));
    cache = larger;
  }

  std::int64_t max_tokens_, tokens_ = 0;
  Tensor key_, value_;
};

class SoftmaxMechanism : public AttentionMechanism {
 public:
  explicit SoftmaxMechanism(const AttentionConfig& config) : config_(config) {
    options_.n_heads = config.n_heads;
    options_.n_kv_heads = config.n_kv_heads;
    options_.causal = config.causal;
    options_.window = config.window;
  }

  Variable forward(ForwardContext& context, const Variable& query, const Variable& key, const Variable& value,
                   AttentionState* carried = nullptr) const override {
    if (carried) {
      throw UserError(
          "model.attention.mechanism: softmax carries no state from one segment to the next, since what it keeps grows with the length; "
          "expected mechanism linear in every layer, or training without carried state");
    }
    return ops::softmax_attention(context.tape, query, key, value, options_, context.attention_mask);
  }

  std::unique_ptr<AttentionState> new_state(std::int64_t batch, std::int64_t max_tokens, DType dtype, const Device& device) const override {
    return std::make_unique<KeyValueCache>(batch, max_tokens, config_.n_kv_heads * config_.d_head, dtype, device);
  }

  Tensor extend(const Stream& stream, const Tensor& query, const Tensor& key, const Tensor& value, AttentionState& state) const override {
    auto& cache = dynamic_cast<KeyValueCache&>(state);
    ops::SoftmaxAttentionOptions options = options_;
    options.first_query_position = cache.tokens();
    cache.append(stream, key, value);
    const Tensor output = Tensor::empty(query.shape(), query.dtype(), stream.device);
    ops::softmax_attention_forward(stream, query.split_last(config_.d_head), cache.key().split_last(config_.d_head),
                                   cache.value().split_last(config_.d_head), output.split_last(config_.d_head), Tensor{}, options);
    return output;
  }

 private:
  AttentionConfig config_;
  ops::SoftmaxAttentionOptions options_;
};

}  // namespace

std::unique_ptr<AttentionMechanism> make_softmax_mechanism(ParameterStore& /*store*/, const std::string& /*name*/,
                                                           const AttentionConfig& config) {
  return std::make_unique<SoftmaxMechanism>(config);
}

}  // namespace furlong::layers
