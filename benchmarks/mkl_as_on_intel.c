/* Loaded before PyTorch's libraries by the runners: PyTorch's MKL takes its AVX-512 code on processors by Intel alone, though others run it, and
   on those is two to three times slower without this. A setting of the peer like the others, tried and reported by name. */
int mkl_serv_intel_cpu_true(void) { return 1; }
