/* The runners load this before PyTorch's libraries. PyTorch's MKL selects its AVX-512 code on Intel processors only,
   although others can run it, and is two to three times slower on those. The setting is tried and reported by name, like
   the peer's other settings. */
int mkl_serv_intel_cpu_true(void) { return 1; }
