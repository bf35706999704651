// A simulated kernel that writes one element too many, on purpose: an AddressSanitizer build must report it, or its
// silence about the other kernels means nothing. The argument says where: "shared", "dynamic" or "global"; "neighbor"
// is global memory behind a tensor that does not fill its last bytes, with another one behind it, and "separate" the
// same where each tensor is an allocation of its own.
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tests/framework/simulator/planted_faults.h"

int main(int argc, char** argv) {
  using namespace furlong;
  const Stream stream{{DeviceType::simulated, 0}};
  const std::string_view where = argc > 1 ? argv[1] : "shared";
  if (where == "separate") setenv("FURLONG_SEPARATE_TENSORS", "1", 1);
  const std::int64_t n = where == "neighbor" || where == "separate" ? 61 : 64;
  const Tensor out = Tensor::zeros({n}, DType::float32, stream.device),
               neighbor = Tensor::zeros({n}, DType::float32, stream.device);
  const auto fill = [&](int written, int written_dynamic) {
    launch(stream, planted::fill_shared, dim3(2), dim3(32), 40, written, written_dynamic, gpu_data<float>(out));
  };
  // Elements 0 to `last`.
  const auto write = [&](std::int64_t last) {
    launch(stream, planted::write_past_end, dim3(1), dim3(32), 0, gpu_data<float>(out), last);
  };
  fill(32, 10);
  write(n - 1);
  std::puts("correct kernels done");
  std::fflush(stdout);
  if (where == "shared") fill(33, 10);
  if (where == "dynamic") fill(32, 11);
  if (where == "global" || where == "neighbor" || where == "separate") write(n);
}
