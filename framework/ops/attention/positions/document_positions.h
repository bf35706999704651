#pragma once
#include "framework/autodiff/tape.h"

namespace furlong::ops {

/// Where each token stands in its document: documents int32 [batch, n], whose runs of equal numbers are documents
/// packed one after another, give int32 [batch, n] that counts 0, 1, 2 ... from the beginning of each run. Throws
/// ContractError on another dtype or shape.
Tensor document_positions(const Stream& stream, const Tensor& documents);

}  // namespace furlong::ops
