#pragma once
// Which keys a query may see besides causality: the same for every attention.
#include "framework/core/tensor.h"

namespace furlong::ops {

/// Undefined tensors restrict nothing. A query that sees no key at all has output zero, and nothing flows back through
/// it.
struct AttentionMask {
  /// int32 [batch, n_key]: 1 keeps a key, 0 masks it (padding): it contributes to neither sum, and its key and value
  /// get gradient zero.
  Tensor keys;
  /// int32 [batch, n], n = n_query = n_key: runs of equal numbers are documents, packed one after another; attention
  /// stays inside each, as if it were a sequence of its own.
  Tensor documents;

  bool empty() const { return !keys.defined() && !documents.defined(); }
  /// Throws ContractError, naming `op`, when shapes or dtypes do not fit.
  void check(std::int64_t batch, std::int64_t n_query, std::int64_t n_key, const char* op) const {
    if (keys.defined()) {
      require(keys.dtype() == DType::int32 && keys.is_contiguous() && keys.shape() == Shape({batch, n_key}),
              "{}: a key mask of {} {}, expected int32 [{}, {}]", op, name_of(keys.dtype()), keys.shape().text(), batch,
              n_key);
    }
    if (documents.defined()) {
      require(n_query == n_key, "{}: documents need as many queries as keys, not {} and {}", op, n_query, n_key);
      require(
          documents.dtype() == DType::int32 && documents.is_contiguous() && documents.shape() == Shape({batch, n_key}),
          "{}: documents of {} {}, expected int32 [{}, {}]", op, name_of(documents.dtype()), documents.shape().text(),
          batch, n_key);
    }
  }
};

}  // namespace furlong::ops
