// Races on purpose in simulated kernels: a ThreadSanitizer build must report each, or its silence about the other
// kernels means nothing. The argument says which: "threads" of one block without a barrier between them, or "blocks"
// that add to one number. The same kernels with their barrier and their atomic come first, and nothing may be reported
// there.
#include <cstdio>
#include <string_view>

#include "tests/framework/simulator/planted_faults.h"

int main(int argc, char** argv) {
  using namespace furlong;
  const Stream stream{{DeviceType::simulated, 0}};
  const Tensor out = Tensor::zeros({64}, DType::float32, stream.device);
  const bool threads = argc > 1 && std::string_view(argv[1]) == "threads";
  const auto run = [&](bool correct) {
    if (threads) {
      launch(stream, planted::neighbor, dim3(1), dim3(64), 0, gpu_data<float>(out), correct);
    } else {
      launch(stream, planted::add_to_one, dim3(4), dim3(64), 0, gpu_data<float>(out), correct);
    }
  };
  run(true);
  std::puts("correct kernels done");
  std::fflush(stdout);
  run(false);
}
