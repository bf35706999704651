#include "framework/io/hdf5.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "framework/core/error.h"
#include "framework/io/atomic_file.h"
#include "framework/io/hdf5_descriptor.h"
#include "framework/io/hdf5_internal.h"
#include "framework/io/hdf5_metadata.h"

namespace furlong::hdf5 {

using detail::Handle;
using detail::Lock;
using detail::Origin;

std::recursive_mutex& mutex() {
  // Never destroyed: static objects may close files at exit.
  static auto* the_mutex = [] {
    H5open();
    H5PLset_loading_state(0);  // a file must not make HDF5 load plugin libraries
    return new std::recursive_mutex;
  }();
  return *the_mutex;
}

namespace {

struct TypeEntry {
  Type type;
  std::string_view name;
  std::size_t size;
};
constexpr std::array<TypeEntry, 9> kTypes{{{Type::u8, "uint8", 1},
                                           {Type::u16, "uint16", 2},
                                           {Type::u32, "uint32", 4},
                                           {Type::u64, "uint64", 8},
                                           {Type::i32, "int32", 4},
                                           {Type::i64, "int64", 8},
                                           {Type::f32, "float32", 4},
                                           {Type::f64, "float64", 8},
                                           {Type::bf16, "bfloat16", 2}}};

const TypeEntry& entry(Type type) {
  return *std::find_if(kTypes.begin(), kTypes.end(),
                       [&](const TypeEntry& candidate) { return candidate.type == type; });
}

}  // namespace

std::size_t size_of(Type type) { return entry(type).size; }
std::string_view name_of(Type type) { return entry(type).name; }

std::uint64_t n_elements(const Shape& shape) {
  std::uint64_t product = 1;
  for (const std::uint64_t extent : shape) {
    if (__builtin_mul_overflow(product, extent, &product) || product > std::uint64_t{1} << 59) {
      throw UserError("a shape has more than 2^59 elements (one extent is {})", extent);
    }
  }
  return product;
}

namespace detail {

Handle& Handle::operator=(Handle&& other) noexcept {
  if (this != &other) {
    reset();
    id_ = other.release();
  }
  return *this;
}

void Handle::reset() noexcept {
  if (id_ < 0) return;
  const Lock lock;
  // Closing a file invalidates its identifiers; then nothing is left to close.
  if (H5Iis_valid(id_) > 0) H5Idec_ref(id_);
  H5Eclear2(H5E_DEFAULT);
  id_ = -1;
}

std::int64_t Handle::release() noexcept {
  const std::int64_t id = id_;
  id_ = -1;
  return id;
}

Reason take_reason() {
  Reason reason;
  const auto keep_innermost = [](unsigned position, const H5E_error2_t* error, void* data) -> herr_t {
    auto* reason = static_cast<Reason*>(data);
    if (position == 0 && error->desc != nullptr) reason->text = error->desc;
    if (error->maj_num == H5E_RESOURCE && error->min_num == H5E_NOSPACE) reason->is_memory = true;
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_innermost, &reason);
  H5Eclear2(H5E_DEFAULT);
  // "..., errno = 28, error message = 'No space left on device', buf = 0x...": quote only the system's words.
  const auto position = reason.text.find("errno = ");
  if (position != std::string::npos) {
    reason.error_number = std::atoi(reason.text.c_str() + position + 8);
    if (reason.error_number != 0) reason.text = std::strerror(reason.error_number);
  }
  // The words of HDF5 1.10 and 1.14, which says no more.
  if (reason.text.find("Fletcher32") != std::string::npos || reason.text == "filter returned failure during read")
    reason.text = "a checksum does not match, or a filter fails: the data are damaged";
  std::replace(reason.text.begin(), reason.text.end(), '\n', ' ');
  if (reason.text.empty()) reason.text = "HDF5 gives no reason";
  return reason;
}

void throw_reading(const std::string& file, std::string_view what) {
  const Reason reason = take_reason();
  switch (reason.error_number) {
    case EIO:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
    case ESTALE:
      throw MachineError("{}: {} ({})", file, what, reason.text);
    default:
      throw UserError("{}: {} ({})", file, what, reason.text);
  }
}

hid_t file_type(Type type) {
  switch (type) {
    case Type::u8:
      return H5T_STD_U8LE;
    case Type::u16:
      return H5T_STD_U16LE;
    case Type::u32:
      return H5T_STD_U32LE;
    case Type::u64:
      return H5T_STD_U64LE;
    case Type::i32:
      return H5T_STD_I32LE;
    case Type::i64:
      return H5T_STD_I64LE;
    case Type::f32:
      return H5T_IEEE_F32LE;
    case Type::f64:
      return H5T_IEEE_F64LE;
    case Type::bf16:
      return H5T_STD_U16LE;
  }
  throw ContractError("not an element type");
}

hid_t memory_type(Type type) {
  switch (type) {
    case Type::u8:
      return H5T_NATIVE_UINT8;
    case Type::u16:
      return H5T_NATIVE_UINT16;
    case Type::u32:
      return H5T_NATIVE_UINT32;
    case Type::u64:
      return H5T_NATIVE_UINT64;
    case Type::i32:
      return H5T_NATIVE_INT32;
    case Type::i64:
      return H5T_NATIVE_INT64;
    case Type::f32:
      return H5T_NATIVE_FLOAT;
    case Type::f64:
      return H5T_NATIVE_DOUBLE;
    case Type::bf16:
      return H5T_NATIVE_UINT16;
  }
  throw ContractError("not an element type");
}

}  // namespace detail

// --- Object: attributes

void Object::fail_reading(std::string_view what) const {
  if (origin_->input && origin_->input->error() != 0) throw_file_error(file_name(), "read", origin_->input->error());
  detail::throw_reading(file_name(), fmt::format("{} {}", what, path_));
}

void Object::fail_writing(std::string_view what) const {
  const std::string reason = detail::take_reason().text;
  if (origin_->output->error() != 0) throw_file_error(file_name(), "write", origin_->output->error());
  throw MachineError("{}: {} {} ({})", file_name(), what, path_, reason);
}

void Object::check_writable() const {
  require(origin_->output != nullptr, "{} was opened for reading only", file_name());
  if (origin_->output->error() != 0) fail_writing("cannot write");
}

bool Object::has_attribute(const std::string& name) const {
  const Lock lock;
  const htri_t found = H5Aexists(id(), name.c_str());
  if (found < 0) fail_reading("cannot look up attribute " + name + " of");
  return found > 0;
}

void Object::write_scalar(const std::string& name, std::int64_t file_type, std::int64_t memory_type,
                          const void* value) {
  check_writable();
  if (has_attribute(name) && H5Adelete(id(), name.c_str()) < 0)
    fail_writing("cannot replace attribute " + name + " of");
  const Handle space(H5Screate(H5S_SCALAR));
  const Handle attribute(H5Acreate2(id(), name.c_str(), file_type, space.id(), H5P_DEFAULT, H5P_DEFAULT));
  if (!attribute || H5Awrite(attribute.id(), memory_type, value) < 0)
    fail_writing("cannot write attribute " + name + " of");
}

void Object::set_text(const std::string& name, std::string_view value) {
  const Lock lock;
  const Handle type(H5Tcopy(H5T_C_S1));
  // HDF5 has no strings of length zero: an empty text is one padding NUL.
  H5Tset_size(type.id(), std::max<std::size_t>(1, value.size()));
  H5Tset_cset(type.id(), H5T_CSET_UTF8);
  H5Tset_strpad(type.id(), H5T_STR_NULLPAD);
  write_scalar(name, type.id(), type.id(), value.empty() ? "" : value.data());
}

void Object::set_integer(const std::string& name, std::int64_t value) {
  const Lock lock;
  write_scalar(name, H5T_STD_I64LE, H5T_NATIVE_INT64, &value);
}

void Object::set_number(const std::string& name, double value) {
  const Lock lock;
  write_scalar(name, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, &value);
}

Handle Object::open_attribute(const std::string& name) const {
  if (!has_attribute(name))
    throw UserError("{}: {} has no attribute '{}'; check that the file is of the expected kind, or write it again",
                    file_name(), path_, name);
  Handle attribute(H5Aopen(id(), name.c_str(), H5P_DEFAULT));
  if (!attribute) fail_reading("cannot open attribute " + name + " of");
  const Handle space(H5Aget_space(attribute.id()));
  if (H5Sget_simple_extent_npoints(space.id()) != 1) {
    throw UserError("{}: attribute '{}' of {} has {} values, expected one; write the file again", file_name(), name,
                    path_, static_cast<std::int64_t>(H5Sget_simple_extent_npoints(space.id())));
  }
  return attribute;
}

std::string Object::text(const std::string& name) const {
  const Lock lock;
  const Handle attribute = open_attribute(name);
  const Handle type(H5Aget_type(attribute.id()));
  if (H5Tget_class(type.id()) != H5T_STRING)
    throw UserError("{}: attribute '{}' of {} is not text", file_name(), name, path_);
  if (H5Tis_variable_str(type.id()) > 0) {
    // It is stored in a global heap, which has no checksum.
    if (origin_->metadata)
      throw UserError(
          "{}: attribute '{}' of {} is text of variable length, expected fixed length; write the file again",
          file_name(), name, path_);
    char* raw = nullptr;
    if (H5Aread(attribute.id(), type.id(), &raw) < 0) fail_reading("cannot read attribute " + name + " of");
    std::string value = raw != nullptr ? raw : "";
    H5free_memory(raw);
    return value;
  }
  const std::size_t size = H5Tget_size(type.id());
  if (size > (std::size_t{1} << 28) || H5Aget_storage_size(attribute.id()) < size) {
    throw UserError("{}: attribute '{}' of {} is damaged: it states {} bytes of text; copy the file again", file_name(),
                    name, path_, size);
  }
  std::string value(size, '\0');
  if (H5Aread(attribute.id(), type.id(), value.data()) < 0) fail_reading("cannot read attribute " + name + " of");
  value.resize(value.find_last_not_of('\0') + 1);
  return value;
}

std::int64_t Object::integer(const std::string& name) const {
  const Lock lock;
  const Handle attribute = open_attribute(name);
  const Handle type(H5Aget_type(attribute.id()));
  if (H5Tget_class(type.id()) != H5T_INTEGER)
    throw UserError("{}: attribute '{}' of {} is not an integer", file_name(), name, path_);
  std::int64_t value = 0;
  if (H5Aread(attribute.id(), H5T_NATIVE_INT64, &value) < 0) fail_reading("cannot read attribute " + name + " of");
  return value;
}

double Object::number(const std::string& name) const {
  const Lock lock;
  const Handle attribute = open_attribute(name);
  const Handle type(H5Aget_type(attribute.id()));
  const H5T_class_t kind = H5Tget_class(type.id());
  if (kind != H5T_FLOAT && kind != H5T_INTEGER)
    throw UserError("{}: attribute '{}' of {} is not a number", file_name(), name, path_);
  double value = 0;
  if (H5Aread(attribute.id(), H5T_NATIVE_DOUBLE, &value) < 0) fail_reading("cannot read attribute " + name + " of");
  return value;
}

// --- File

namespace {

Handle access_properties() {
  Handle properties(H5Pcreate(H5P_FILE_ACCESS));
  H5Pset_libver_bounds(properties.id(), H5F_LIBVER_V110, H5F_LIBVER_V110);
  // With SEMI or WEAK, a forgotten dataset would keep the file open, with unwritten bytes, after close().
  H5Pset_fclose_degree(properties.id(), H5F_CLOSE_STRONG);
#if H5_VERSION_GE(1, 10, 7)
  H5Pset_file_locking(properties.id(), false, true);
#endif
  return properties;
}

/// Limits the cache of metadata, so that writing takes the same memory for any number of chunks, whose index would
/// otherwise fill up to 32 MiB.
void limit_metadata_cache(hid_t access_list) {
  H5AC_cache_config_t config{};
  config.version = H5AC__CURR_CACHE_CONFIG_VERSION;
  if (H5Pget_mdc_config(access_list, &config) < 0) return;  // the defaults work, too
  config.set_initial_size = true;
  config.initial_size = config.max_size = config.min_size = std::size_t{1} << 17;
  config.incr_mode = H5C_incr__off;
  config.flash_incr_mode = H5C_flash_incr__off;
  config.decr_mode = H5C_decr__off;
  H5Pset_mdc_config(access_list, &config);
}

}  // namespace

File File::create(AtomicFile& file) {
  const Lock lock;
  auto origin = std::make_shared<Origin>();
  origin->file = file.path().string();
  origin->output = std::make_unique<DescriptorIo>(file.descriptor());
  const Handle access = access_properties();
  limit_metadata_cache(access.id());
  use_descriptor(access.id(), *origin->output);
  Handle handle(H5Fcreate(origin->file.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.id()));
  if (!handle) throw MachineError("{}: cannot be created ({})", origin->file, detail::take_reason().text);
  return {std::move(handle), std::move(origin)};
}

void File::check_output_name(const std::filesystem::path& path) {
  const std::string extension = path.extension().string();
  if (extension != ".h5" && extension != ".hdf5")
    throw UserError("--output: {} has the extension '{}'; expected .h5 or .hdf5", path.string(), extension);
}

bool File::lacks_signature(const std::string& path) {
  const Lock lock;
  return H5Fis_hdf5(path.c_str()) == 0;  // negative: it cannot be read
}

File File::open(const std::string& path) {
  const Lock lock;
  std::error_code failure;
  const auto status = std::filesystem::status(path, failure);
  if (status.type() == std::filesystem::file_type::not_found) throw_missing(path, "an HDF5 file");
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    throw UserError("{}: is not a regular file, expected an HDF5 file", path);
  }
  const Handle access = access_properties();
  Handle handle(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.id()));
  if (!handle) detail::throw_reading(path, "cannot be opened as an HDF5 file");
  auto origin = std::make_shared<Origin>();
  origin->file = path;
  return {std::move(handle), std::move(origin)};
}

File File::open(const std::string& path, int descriptor) {
  const Lock lock;
  auto origin = std::make_shared<Origin>();
  origin->file = path;
  origin->input = std::make_unique<DescriptorIo>(descriptor);
  return open_input(std::move(origin));
}

File File::open_checksummed(const std::string& path) {
  const Lock lock;
  auto origin = std::make_shared<Origin>();
  origin->file = path;
  origin->opened = std::make_unique<InputFile>(path);
  origin->input = std::make_unique<DescriptorIo>(origin->opened->number());
  origin->metadata = std::make_unique<MetadataCheck>(*origin->input, path);
  return open_input(std::move(origin));
}

File File::open_input(std::shared_ptr<Origin> origin) {
  const Handle access = access_properties();
  use_descriptor(access.id(), *origin->input);
  Handle handle(H5Fopen(origin->file.c_str(), H5F_ACC_RDONLY, access.id()));
  if (!handle && origin->input->error() != 0) throw_file_error(origin->file, "read", origin->input->error());
  if (!handle) detail::throw_reading(origin->file, "cannot be opened as an HDF5 file");
  return {std::move(handle), std::move(origin)};
}

File::~File() {
  if (!handle_) return;
  if (origin_->output) origin_->output->abandon();
  handle_.reset();
}

void File::close() {
  const Lock lock;
  if (!handle_) return;
  const bool closed = H5Fclose(handle_.release()) >= 0;
  if (origin_->output && (!closed || origin_->output->error() != 0)) fail_writing("cannot close the file at");
}

}  // namespace furlong::hdf5
