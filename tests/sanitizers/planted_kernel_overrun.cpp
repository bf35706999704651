// A simulated kernel that writes one element too many, on purpose: an AddressSanitizer build must report it, or its silence about the other
// kernels means nothing. The argument says where: "shared", "dynamic" or "global".
#include <cstdio>
#include <string_view>

#include "tests/framework/cuda/planted_faults.h"

int main(int argc, char** argv) {
  using namespace furlong;
  const Stream stream{{DeviceType::simulated, 0}};
  const Tensor out = Tensor::zeros({64}, DType::float32, stream.device);
  const std::string_view where = argc > 1 ? argv[1] : "shared";
  const auto fill = [&](int written, int written_dynamic) {
    launch(stream, planted::fill_shared, dim3(2), dim3(32), 40, written, written_dynamic, gpu_data<float>(out));
  };
  fill(32, 10);
  launch(stream, planted::write_behind, dim3(1), dim3(32), 0, gpu_data<float>(out), std::int64_t{63});
  std::puts("correct kernels done");
  std::fflush(stdout);
  if (where == "shared") fill(33, 10);
  if (where == "dynamic") fill(32, 11);
  if (where == "global") launch(stream, planted::write_behind, dim3(1), dim3(32), 0, gpu_data<float>(out), std::int64_t{64});
}
