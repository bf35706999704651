#pragma once
// Tensors of any device into checkpoint files and back.
#include <string>

#include "framework/core/tensor.h"
#include "framework/io/checkpoint_file.h"

namespace furlong {

/// Writes a contiguous tensor under its dtype and shape; one on a GPU by way of the host.
void write_tensor(CheckpointSink& file, const std::string& name, const Tensor& tensor);

/// Fills a contiguous tensor from the one of that name. Throws UserError where dtype or shape differ.
void read_tensor(const CheckpointReader& file, const std::string& name, const Tensor& tensor);

}  // namespace furlong
