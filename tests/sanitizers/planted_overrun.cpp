// A read one element too far on purpose: an AddressSanitizer build must report it, or its silence about the tests means
// nothing. The argument says of what: a block of the "heap", or a "tensor" with another one behind it.
#include <cstdio>
#include <memory>
#include <string_view>

#include "framework/core/tensor.h"

int main(int argc, char** argv) {
  using namespace furlong;
  constexpr int n = 13;           // neither 8 nor 256 bytes have a whole number of such
  const volatile int behind = n;  // the compiler must not see it
  if (argc > 1 && std::string_view(argv[1]) == "tensor") {
    const Tensor tensor = Tensor::zeros({n}, DType::float32), neighbor = Tensor::zeros({n}, DType::float32);
    std::printf("%f\n", static_cast<double>(tensor.data<float>()[behind - 1]));
    std::puts("correct read done");
    std::fflush(stdout);
    std::printf("%f\n", static_cast<double>(tensor.data<float>()[behind]));
  } else {
    const auto block = std::make_unique<float[]>(n);
    std::printf("%f\n", static_cast<double>(block[behind]));
  }
}
