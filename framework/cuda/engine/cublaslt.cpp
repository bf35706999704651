#include "framework/cuda/engine/cublaslt.h"

#include <fmt/format.h>

#include "framework/core/error.h"

namespace furlong::cublaslt {

std::string Table::version() const {
  if (!loaded()) return "";
  const std::size_t number = get_version();
  return fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
}

const Table& table(int driver_version) {
  static const Table loaded = [&] {
    LibraryWanted wanted{"cuBLASLt", {}, {"nvidia/cu13/lib", "nvidia/cublas/lib"}, {}};
    for (int major : {13, 12}) {
      if (driver_version == 0 || major <= driver_version / 1000)
        wanted.file_names.push_back(fmt::format("libcublasLt.so.{}", major));
    }
    Table t;
    t.library = load_table(wanted, t.get_version, t.status_string, t.create, t.description_create,
                           t.description_destroy, t.description_set, t.layout_create, t.layout_destroy,
                           t.preference_create, t.preference_destroy, t.preference_set, t.find_algorithm, t.multiply);
    return t;
  }();
  return loaded;
}

void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw MachineError("cuBLASLt: {} failed: {}", what, table().status_string(status));
}

}  // namespace furlong::cublaslt
