#pragma once
// The geometry that all attentions share: which tensors fit together, and where the rows of a head lie.
#include "framework/core/tensor.h"

namespace furlong::ops {

/// Four-dimensional views whose last dimension is contiguous; the other strides are free, so that column ranges of one
/// fused tensor fit.
///   query [batch, n_query, n_heads, d_key], key [batch, n_key, n_kv_heads, d_key],
///   value [batch, n_key, n_kv_heads, d_value], output [batch, n_query, n_heads, d_value].
/// Heads are grouped (Ainslie et al. 2023): query head h reads key-value head h / heads_per_kv().
struct AttentionShape {
  std::int64_t batch = 0, n_query = 0, n_key = 0, n_heads = 0, n_kv_heads = 0, d_key = 0, d_value = 0;

  std::int64_t heads_per_kv() const { return n_heads / n_kv_heads; }
  Shape query() const { return {batch, n_query, n_heads, d_key}; }
  Shape key() const { return {batch, n_key, n_kv_heads, d_key}; }
  Shape value() const { return {batch, n_key, n_kv_heads, d_value}; }
  Shape output() const { return {batch, n_query, n_heads, d_value}; }

  /// The geometry of three views. Throws ContractError, naming `op`, when they do not fit together or differ in dtype.
  static AttentionShape of(const Tensor& query, const Tensor& key, const Tensor& value, const char* op) {
    const auto misfit = [&] {
      return fmt::format("{}: query {}, key {}, value {}", op, query.shape().text(), key.shape().text(),
                         value.shape().text());
    };
    require(query.shape().rank() == 4 && key.shape().rank() == 4 && value.shape().rank() == 4,
            "{}: expected [batch, n, heads, d] each", misfit());
    const AttentionShape shape{query.extent(0), query.extent(1), key.extent(1),  query.extent(2),
                               key.extent(2),   query.extent(3), value.extent(3)};
    require(key.shape() == shape.key() && value.shape() == shape.value(), "{}: batch, length, heads or widths differ",
            misfit());
    require(shape.n_kv_heads > 0 && shape.n_heads > 0 && shape.n_heads % shape.n_kv_heads == 0,
            "{}: the query heads are no multiple of the key-value heads", misfit());
    require(shape.n_key > 0 && shape.d_key > 0 && shape.d_value > 0, "{}: no keys, or heads of width 0", misfit());
    require(query.dtype() == key.dtype() && key.dtype() == value.dtype(), "{}: dtypes {}, {}, {} differ", misfit(),
            name_of(query.dtype()), name_of(key.dtype()), name_of(value.dtype()));
    for (const Tensor* tensor : {&query, &key, &value})
      require(tensor->has_contiguous_rows(), "{}: the last dimension is not contiguous", misfit());
    return shape;
  }
};

/// [batch, n, n_heads * d] seen as [batch, n, n_heads, d]. Throws ContractError when the width does not divide.
inline Tensor split_heads(const Tensor& tensor, std::int64_t n_heads, const char* op, const char* what) {
  require(tensor.shape().rank() == 3 && n_heads > 0 && tensor.extent(2) > 0 && tensor.extent(2) % n_heads == 0,
          "{}: {} is {}, expected [batch, n, {} heads x d]", op, what, tensor.shape().text(), n_heads);
  return tensor.split_last(tensor.extent(2) / n_heads);
}

/// The rows of one head of one sequence: element (i, j) is data[i * stride + j].
template <class T>
struct HeadRows {
  T* data = nullptr;
  std::int64_t stride = 0;
};
template <class T>
HeadRows<T> head_rows(const Tensor& tensor, std::int64_t batch, std::int64_t head) {
  return {tensor.data<T>() + batch * tensor.strides()[0] + head * tensor.strides()[2], tensor.strides()[1]};
}

}  // namespace furlong::ops
