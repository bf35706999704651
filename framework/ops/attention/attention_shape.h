#pragma once
// The geometry that all attentions share: which tensor shapes match, and where the rows of a head are.
#include "framework/core/tensor.h"

namespace furlong::ops {

/// Shapes of the four-dimensional views that attention works on. Their last dimension is contiguous. The other strides
/// are free, so column ranges of one fused tensor are valid.
///   query [batch, n_query, n_heads, d_key], key [batch, n_key, n_kv_heads, d_key],
///   value [batch, n_key, n_kv_heads, d_value], output [batch, n_query, n_heads, d_value].
/// Grouped-query attention (Ainslie et al. 2023): query head h reads key-value head h / heads_per_kv().
struct AttentionShape {
  std::int64_t batch = 0, n_query = 0, n_key = 0, n_heads = 0, n_kv_heads = 0, d_key = 0, d_value = 0;

  std::int64_t heads_per_kv() const { return n_heads / n_kv_heads; }
  Shape query() const { return {batch, n_query, n_heads, d_key}; }
  Shape key() const { return {batch, n_key, n_kv_heads, d_key}; }
  Shape value() const { return {batch, n_key, n_kv_heads, d_value}; }
  Shape output() const { return {batch, n_query, n_heads, d_value}; }

  /// Returns the geometry of three views. Throws ContractError, naming `op`, if shapes or dtypes do not match.
  static AttentionShape of(const Tensor& query, const Tensor& key, const Tensor& value, const char* op) {
    const auto misfit = [&] {
      return fmt::format("{}: query {}, key {}, value {}", op, query.shape().text(), key.shape().text(),
                         value.shape().text());
    };
    require(query.shape().rank() == 4 && key.shape().rank() == 4 && value.shape().rank() == 4,
            "{}: expected three tensors [batch, n, heads, d]", misfit());
    const AttentionShape shape{query.extent(0), query.extent(1), key.extent(1),  query.extent(2),
                               key.extent(2),   query.extent(3), value.extent(3)};
    require(key.shape() == shape.key() && value.shape() == shape.value(), "{}: batch, length, heads or width differs",
            misfit());
    require(shape.n_kv_heads > 0 && shape.n_heads > 0 && shape.n_heads % shape.n_kv_heads == 0,
            "{}: the number of query heads is not a multiple of the number of key-value heads", misfit());
    require(shape.n_key > 0 && shape.d_key > 0 && shape.d_value > 0,
            "{}: expected at least one key and heads of positive width", misfit());
    require(query.dtype() == key.dtype() && key.dtype() == value.dtype(), "{}: dtypes {}, {}, {} differ", misfit(),
            name_of(query.dtype()), name_of(key.dtype()), name_of(value.dtype()));
    for (const Tensor* tensor : {&query, &key, &value})
      require(tensor->has_contiguous_rows(), "{}: the last dimension is not contiguous", misfit());
    return shape;
  }
};

/// Returns a view of [batch, n, n_heads * d] as [batch, n, n_heads, d]. Throws ContractError if n_heads does not divide
/// the width; the message names `op` and `what`, the tensor.
inline Tensor split_heads(const Tensor& tensor, std::int64_t n_heads, const char* op, const char* what) {
  require(tensor.shape().rank() == 3 && n_heads > 0 && tensor.extent(2) > 0 && tensor.extent(2) % n_heads == 0,
          "{}: {} is {}, expected [batch, n, {} heads x d]", op, what, tensor.shape().text(), n_heads);
  return tensor.split_last(tensor.extent(2) / n_heads);
}

/// Rows of one head of one sequence: element (i, j) is data[i * stride + j].
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
