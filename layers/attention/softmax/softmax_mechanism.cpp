#include "layers/attention/softmax/softmax_mechanism.h"

#include "framework/ops/attention/softmax/softmax_attention.h"
#include "framework/primitives/arithmetic.h"

namespace furlong::layers {
namespace {

/// Key-value cache. With a window it holds the keys and values that a later token may still attend to, and at most
/// `spare` older ones. The memory doubles as it fills, up to max_tokens rows, or to window + spare rows.
class KeyValueCache : public AttentionState {
 public:
  KeyValueCache(std::int64_t batch, std::int64_t max_tokens, const AttentionConfig& config, DType dtype,
                const Device& device)
      : max_tokens_(max_tokens),
        window_(config.window),
        most_rows_(window_ > 0 && window_ < max_tokens - spare ? window_ + spare : max_tokens),
        mask_(static_cast<std::size_t>(batch)),
        key_(empty(config.n_kv_heads * config.d_head, dtype, device)),
        value_(empty(config.n_kv_heads * config.value_width(), dtype, device)) {}

  std::int64_t bytes() const override { return key_.bytes() + value_.bytes(); }
  std::int64_t bytes_read() const override {
    return bytes() / key_.extent(1) * (window_ > 0 ? std::min(rows_, window_) : rows_);
  }
  std::unique_ptr<AttentionState> repeated(const Stream& stream, std::int64_t batch) const override {
    auto copy = std::make_unique<KeyValueCache>(*this);
    copy->mask_.assign(static_cast<std::size_t>(batch), mask_[0]);
    copy->key_ = repeated_row(stream, key_, batch);
    copy->value_ = repeated_row(stream, value_, batch);
    return copy;
  }
  std::int64_t rows() const { return rows_; }
  Tensor key() const { return key_.narrow(1, 0, rows_); }
  Tensor value() const { return value_.narrow(1, 0, rows_); }
  /// int32 [batch, rows()]; undefined without masks.
  Tensor mask() const {
    if (mask_[0].empty()) return {};
    std::vector<std::int32_t> all;
    for (const auto& row : mask_) all.insert(all.end(), row.begin(), row.end());
    return Tensor::from(all, {static_cast<std::int64_t>(mask_.size()), rows_}, key_.device());
  }

  void append(const Stream& stream, const Tensor& key, const Tensor& value, const Tensor& mask) {
    const std::int64_t added = key.extent(1);
    require(tokens_ + added <= max_tokens_, "a key-value cache for {} tokens was given {}", max_tokens_,
            tokens_ + added);
    if (rows_ + added > key_.extent(1)) {
      const std::int64_t kept = rows_ + added > most_rows_ ? seen_by_the_next() : rows_;
      move(stream, kept, std::max(kept + added, std::min(most_rows_, 2 * key_.extent(1))));
    }
    ops::convert(stream, key_.narrow(1, rows_, added), key);
    ops::convert(stream, value_.narrow(1, rows_, added), value);
    for (std::size_t row = 0; mask.defined() && row < mask_.size(); ++row) {
      const auto kept = mask.narrow(0, static_cast<std::int64_t>(row), 1).to_vector<std::int32_t>();
      mask_[row].insert(mask_[row].end(), kept.begin(), kept.end());
    }
    rows_ += added;
    tokens_ += added;
  }

  /// Call after attention: a long prompt may have needed more rows at once than the cache should hold.
  void trim(const Stream& stream) {
    if (key_.extent(1) > most_rows_) move(stream, seen_by_the_next(), most_rows_);
  }

 private:
  static constexpr std::int64_t spare = 256;  // tokens between two moves, each of which copies the window

  Tensor empty(std::int64_t width, DType dtype, const Device& device) const {
    return Tensor::empty({static_cast<std::int64_t>(mask_.size()), std::min(most_rows_, spare), width}, dtype, device);
  }
  std::int64_t seen_by_the_next() const { return window_ > 0 ? std::min(rows_, window_ - 1) : rows_; }

  /// Moves the last `kept` rows to the front of new memory; in place, source and target could overlap.
  void move(const Stream& stream, std::int64_t kept, std::int64_t capacity) {
    for (Tensor* cache : {&key_, &value_}) {
      const Tensor target =
          Tensor::empty({cache->extent(0), capacity, cache->extent(2)}, cache->dtype(), cache->device());
      if (kept > 0) ops::convert(stream, target.narrow(1, 0, kept), cache->narrow(1, rows_ - kept, kept));
      *cache = target;
    }
    for (auto& row : mask_)
      if (!row.empty()) row.erase(row.begin(), row.begin() + (rows_ - kept));
    rows_ = kept;
  }

  std::int64_t max_tokens_, window_, most_rows_;
  std::int64_t tokens_ = 0, rows_ = 0;           // tokens appended, and rows held
  std::vector<std::vector<std::int32_t>> mask_;  // one row for each sequence; empty without masks
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
    require(!context.exchange, "segments of a sequence on different ranks with softmax attention");
    if (carried) {
      throw UserError(
          "model.attention.mechanism: softmax has no recurrent state, because its cache grows with the length; "
          "expected mechanism linear in every layer, or data.stateful: false");
    }
    return ops::softmax_attention(context.tape, query, key, value, options_, context.attention_mask);
  }

  std::unique_ptr<AttentionState> new_state(std::int64_t batch, std::int64_t max_tokens, DType dtype,
                                            const Device& device) const override {
    return std::make_unique<KeyValueCache>(batch, max_tokens, config_, dtype, device);
  }

  Tensor extend(const Stream& stream, const Tensor& query, const Tensor& key, const Tensor& value,
                AttentionState& state, const Tensor& key_mask,
                ops::DenominatorReport* /*denominators*/) const override {
    auto& cache = dynamic_cast<KeyValueCache&>(state);
    ops::SoftmaxAttentionOptions options = options_;
    cache.append(stream, key, value, key_mask);
    options.first_query_position = cache.rows() - query.extent(1);  // index among the held keys; only distances matter
    const std::int64_t width = config_.value_width();
    const Tensor output =
        Tensor::empty({query.extent(0), query.extent(1), config_.n_heads * width}, query.dtype(), stream.device);
    ops::softmax_attention_forward(stream, query.split_last(config_.d_head), cache.key().split_last(config_.d_head),
                                   cache.value().split_last(width), output.split_last(width), Tensor{}, options,
                                   {cache.mask(), {}});
    cache.trim(stream);
    return output;
  }

 private:
  AttentionConfig config_;
  ops::SoftmaxAttentionOptions options_;
};

std::unique_ptr<AttentionMechanism> make_softmax(ParameterStore& /*store*/, const std::string& /*name*/,
                                                 const AttentionConfig& config) {
  return std::make_unique<SoftmaxMechanism>(config);
}

AttentionCost cost_of_softmax(const AttentionConfig& config, std::int64_t n) {
  const AttentionCost one =
      softmax_cost(attended_pairs(config.causal, n, config.window), static_cast<double>(config.d_head));
  const double heads = static_cast<double>(config.n_heads);
  return {heads * one.forward, heads * one.with_backward};
}

}  // namespace

double attended_pairs(bool causal, std::int64_t n, std::int64_t window) {
  const double tokens = static_cast<double>(n), width = static_cast<double>(window > 0 ? std::min(window, n) : n);
  const double to_the_left = width * tokens - width * (width - 1) / 2;
  return causal ? to_the_left : 2 * to_the_left - tokens;
}

AttentionCost softmax_cost(double pairs, double d) { return {pairs * 4 * d, pairs * 14 * d}; }

MechanismInfo softmax_mechanism() {
  MechanismInfo info{softmax_attention, "exact", make_softmax, cost_of_softmax};
  info.is_softmax = true;
  info.past = Past::growing;
  info.window = &AttentionConfig::window;
  return info;
}

}  // namespace furlong::layers
