// A read one element past a heap block on purpose: an AddressSanitizer build must report it, or its silence about the tests means nothing.
#include <cstdio>
#include <memory>

int main(int argc, char**) {
  const auto block = std::make_unique<float[]>(16);
  const volatile int index = 15 + argc;  // 16 when called without arguments; the compiler must not see it
  std::printf("%f\n", static_cast<double>(block[index]));
}
