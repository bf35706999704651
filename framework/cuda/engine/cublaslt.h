#pragma once
// cuBLASLt, loaded when the program runs. Includes CUDA's headers: for files of the CUDA engine only.
#include <cublasLt.h>

#include "framework/cuda/engine/library_table.h"

namespace furlong::cublaslt {

/// The functions that are used. Types come from the toolkit's header; opaque objects are made by the library itself, so
/// that an earlier major version may stand in for the one that the program was built with.
struct Table {
  LibraryFunction<decltype(cublasLtGetVersion)> get_version{"cublasLtGetVersion"};
  LibraryFunction<decltype(cublasLtGetStatusString)> status_string{"cublasLtGetStatusString"};
  LibraryFunction<decltype(cublasLtCreate)> create{"cublasLtCreate"};
  LibraryFunction<decltype(cublasLtMatmulDescCreate)> description_create{"cublasLtMatmulDescCreate"};
  LibraryFunction<decltype(cublasLtMatmulDescDestroy)> description_destroy{"cublasLtMatmulDescDestroy"};
  LibraryFunction<decltype(cublasLtMatmulDescSetAttribute)> description_set{"cublasLtMatmulDescSetAttribute"};
  LibraryFunction<decltype(cublasLtMatrixLayoutCreate)> layout_create{"cublasLtMatrixLayoutCreate"};
  LibraryFunction<decltype(cublasLtMatrixLayoutDestroy)> layout_destroy{"cublasLtMatrixLayoutDestroy"};
  LibraryFunction<decltype(cublasLtMatmulPreferenceCreate)> preference_create{"cublasLtMatmulPreferenceCreate"};
  LibraryFunction<decltype(cublasLtMatmulPreferenceDestroy)> preference_destroy{"cublasLtMatmulPreferenceDestroy"};
  LibraryFunction<decltype(cublasLtMatmulPreferenceSetAttribute)> preference_set{
      "cublasLtMatmulPreferenceSetAttribute"};
  LibraryFunction<decltype(cublasLtMatmulAlgoGetHeuristic)> find_algorithm{"cublasLtMatmulAlgoGetHeuristic"};
  LibraryFunction<decltype(cublasLtMatmul)> multiply{"cublasLtMatmul"};
  Library library;

  bool loaded() const { return library.handle != nullptr; }
  /// "13.0.2"; empty where it is not loaded.
  std::string version() const;
};

/// Loaded on the first call; `library.problem` says why it is not. A major version later than CUDA of the driver (13000
/// for 13.0) is not tried: it would load and then refuse to work. 0 tries all.
const Table& table(int driver_version = 0);

/// Throws MachineError naming `what` and the status when a call failed.
void check(cublasStatus_t status, const char* what);

}  // namespace furlong::cublaslt
