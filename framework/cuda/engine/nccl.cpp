#include "framework/cuda/engine/nccl.h"

#include <fmt/format.h>

namespace furlong::nccl {

std::string Table::version() const {
  int number = 0;
  if (!loaded() || get_version(&number) != success) return "";
  return fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
}

const Table& table() {
  static const Table loaded = [] {
    Table t;
    t.library = load_table({"NCCL", {"libnccl.so.2"}, {"nvidia/nccl/lib"}, {}}, t.get_version, t.get_error_string,
                           t.get_unique_id, t.get_last_error, t.comm_init_rank_config, t.comm_finalize, t.comm_destroy,
                           t.comm_abort, t.comm_get_async_error, t.all_reduce, t.broadcast, t.all_gather,
                           t.reduce_scatter, t.send, t.receive, t.group_start, t.group_end);
    return t;
  }();
  return loaded;
}

}  // namespace furlong::nccl
