#include "framework/cuda/engine/nccl.h"

#include <fmt/format.h>

namespace furlong::nccl {

int Table::version_number() const {
  int number = 0;
  if (!loaded() || get_version(&number) != success) return 0;
  // The factor of the major version is 1000 up to 2.8, and 10000 since 2.9.
  return number < 10000 ? number / 1000 * 10000 + number % 1000 : number;
}

std::string Table::version() const {
  const int number = version_number();
  return number == 0 ? "" : fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
}

const Table& table() {
  static const Table loaded = [] {
    Table t;
    t.library = load_table({"NCCL", {"libnccl.so.2"}, {"nvidia/nccl/lib"}, {}}, t.get_version, t.get_error_string,
                           t.get_unique_id, t.comm_init_rank, t.comm_destroy, t.comm_abort, t.comm_get_async_error,
                           t.all_reduce, t.broadcast, t.all_gather, t.reduce_scatter, t.send, t.receive, t.group_start,
                           t.group_end);
    load_optional(t.library, t.comm_init_rank_config, t.comm_finalize, t.get_last_error);
    return t;
  }();
  return loaded;
}

}  // namespace furlong::nccl
