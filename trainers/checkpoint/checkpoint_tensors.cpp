#include "trainers/checkpoint/checkpoint_tensors.h"

#include <vector>

namespace furlong {
namespace {

std::vector<std::int64_t> shape_of(const Tensor& tensor) { return {tensor.shape().begin(), tensor.shape().end()}; }

}  // namespace

void write_tensor(CheckpointSink& file, const std::string& name, const Tensor& tensor) {
  const Tensor host = tensor.to(Device{});
  file.tensor(name, name_of(tensor.dtype()), shape_of(tensor), host.address());
}

void read_tensor(const CheckpointReader& file, const std::string& name, const Tensor& tensor) {
  const Tensor host = tensor.device().is_cpu() ? tensor : Tensor::empty(tensor.shape(), tensor.dtype());
  file.read(name, name_of(tensor.dtype()), shape_of(tensor), host.address());
  if (!tensor.device().is_cpu()) tensor.copy_from(host);
}

}  // namespace furlong
