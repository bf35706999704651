#pragma once
#include "framework/autodiff/tape.h"

namespace furlong::ops {

/// Returns each token's position in its document, int32 [batch, n]. `documents` is int32 [batch, n]; each run of equal
/// numbers is one document, and positions count 0, 1, 2 ... from its start. Throws ContractError if dtype or shape
/// differs.
Tensor document_positions(const Stream& stream, const Tensor& documents);

}  // namespace furlong::ops
