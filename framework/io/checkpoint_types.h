#pragma once
// Internal to framework/io/checkpoint_*.cpp: HDF5 types of tensors and HDF5 access to descriptors.
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "framework/io/hdf5_descriptor.h"
#include "framework/io/hdf5_internal.h"

namespace furlong::detail {

/// Returns the HDF5 type of a checkpoint tensor's dtype; nothing for dtypes that checkpoints do not have.
inline std::optional<hdf5::Type> tensor_type(std::string_view dtype) {
  using hdf5::Type;
  for (const Type type : {Type::f32, Type::bf16, Type::f64, Type::i32, Type::i64, Type::u8}) {
    if (hdf5::name_of(type) == dtype) return type;
  }
  return std::nullopt;
}

inline std::string joined(std::span<const std::int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

/// Returns the access list that opens a file through `io`.
inline hdf5::detail::Handle access_list(hdf5::DescriptorIo& io) {
  hdf5::detail::Handle list(H5Pcreate(H5P_FILE_ACCESS));
  H5Pset_libver_bounds(list.id(), H5F_LIBVER_V110, H5F_LIBVER_V110);
  H5Pset_fclose_degree(list.id(), H5F_CLOSE_STRONG);
  hdf5::use_descriptor(list.id(), io);
  return list;
}

}  // namespace furlong::detail
