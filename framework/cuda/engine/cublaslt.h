#pragma once
// cuBLASLt, loaded at run time. Includes CUDA headers: only for files of the CUDA engine.
#include <cublasLt.h>

#include "framework/cuda/engine/library_table.h"

namespace furlong::cublaslt {

/// The functions in use. Types come from the toolkit's header. Opaque objects are created by the library itself, so an
/// earlier major version than the one at build time also works.
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
  /// "13.0.2"; empty if the library is not loaded.
  std::string version() const;
};

/// Returns the table, loading the library on the first call; `library.problem` says why loading failed. A major version
/// later than the driver's CUDA version (13000 for 13.0) is not tried, because it would load and then refuse to work. 0
/// tries all versions.
const Table& table(int driver_version = 0);

/// Throws MachineError with `what` and the status if a call failed.
void check(cublasStatus_t status, const char* what);

}  // namespace furlong::cublaslt
