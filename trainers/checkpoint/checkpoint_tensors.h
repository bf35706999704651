#pragma once
// Writes tensors of any device to checkpoint files and reads them back.
#include <string>

#include "framework/core/tensor.h"
#include "framework/io/checkpoint_file.h"

namespace furlong {

/// Writes a contiguous tensor with its dtype and shape. A GPU tensor is copied through host memory.
void write_tensor(CheckpointSink& file, const std::string& name, const Tensor& tensor);

/// Fills a contiguous tensor from the stored tensor `name`. Throws UserError if dtype or shape differ.
void read_tensor(const CheckpointReader& file, const std::string& name, const Tensor& tensor);

}  // namespace furlong
