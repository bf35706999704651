#pragma once
// Masks that restrict which keys a query attends to, in addition to causality. All attentions share them.
#include "framework/core/tensor.h"

namespace furlong::ops {

/// Key and document masks. An undefined tensor restricts nothing. A query without any visible key has output zero and
/// passes no gradient.
struct AttentionMask {
  /// int32 [batch, n_key]: 1 keeps a key, 0 masks it (padding). A masked key contributes to neither sum; its key and
  /// value get gradient zero.
  Tensor keys;
  /// int32 [batch, n], n = n_query = n_key. Each run of equal numbers is one document of a packed row. Attention stays
  /// inside each document, as if it were a separate sequence.
  Tensor documents;

  bool empty() const { return !keys.defined() && !documents.defined(); }
  /// Checks shapes and dtypes. Throws ContractError, naming `op`, if they do not match.
  void check(std::int64_t batch, std::int64_t n_query, std::int64_t n_key, const char* op) const {
    if (keys.defined()) {
      require(keys.dtype() == DType::int32 && keys.is_contiguous() && keys.shape() == Shape({batch, n_key}),
              "{}: key mask is {} {}, expected int32 [{}, {}]", op, name_of(keys.dtype()), keys.shape().text(), batch,
              n_key);
    }
    if (documents.defined()) {
      require(n_query == n_key, "{}: a document mask needs as many queries as keys, found {} and {}", op, n_query,
              n_key);
      require(
          documents.dtype() == DType::int32 && documents.is_contiguous() && documents.shape() == Shape({batch, n_key}),
          "{}: document mask is {} {}, expected int32 [{}, {}]", op, name_of(documents.dtype()),
          documents.shape().text(), batch, n_key);
    }
  }
};

}  // namespace furlong::ops
