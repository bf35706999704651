#include <set>
#include <utility>

#include "framework/core/error.h"
#include "framework/io/atomic_file.h"
#include "framework/io/checkpoint_file.h"
#include "framework/io/checkpoint_header.h"
#include "framework/io/checkpoint_types.h"

namespace furlong {

namespace fs = std::filesystem;
using detail::access_list;
using detail::joined;
using detail::tensor_type;
using hdf5::DescriptorIo;
using hdf5::detail::Handle;
using hdf5::detail::Lock;

namespace {

Handle text_type(std::size_t bytes) {
  Handle type(H5Tcopy(H5T_C_S1));
  H5Tset_size(type.id(), bytes);
  H5Tset_cset(type.id(), H5T_CSET_UTF8);
  H5Tset_strpad(type.id(), H5T_STR_NULLPAD);
  return type;
}

}  // namespace

struct CheckpointWriter::State {
  explicit State(std::unique_ptr<AtomicFile> output) : file(std::move(output)), io(file->descriptor()) {}

  [[noreturn]] void fail(std::string_view what);
  void create();
  void claim(const std::string& name);
  void put(const std::string& name, hid_t type, hid_t space, std::string_view dtype, const void* data,
           std::size_t bytes);
  void scalar(const std::string& name, hid_t type, const void* data, std::size_t bytes);
  void complete();

  std::unique_ptr<AtomicFile> file;
  DescriptorIo io;
  Handle handle;  // the HDF5 file; closed before `io` and `file` are destroyed
  std::set<std::string> names;
  std::set<std::string> groups;
};

void CheckpointWriter::State::fail(std::string_view what) {
  const std::string reason = hdf5::detail::take_reason().text;
  const int error = io.error();
  io.abandon();
  handle.reset();
  file->discard();
  if (error != 0) throw_file_error(file->path(), "write", error);
  throw MachineError("{}: cannot write {} ({})", file->path().string(), what, reason);
}

void CheckpointWriter::State::create() {
  const Lock lock;
  const Handle creation(H5Pcreate(H5P_FILE_CREATE));
  H5Pset_userblock(creation.id(), detail::user_block_bytes);
  // Without timestamps equal contents give equal bytes.
  H5Pset_obj_track_times(creation.id(), false);
  const Handle access = access_list(io);
  handle = Handle(H5Fcreate(file->path().c_str(), H5F_ACC_TRUNC, creation.id(), access.id()));
  if (!handle) fail("the file's header");
}

// Checks a name and creates its groups.
void CheckpointWriter::State::claim(const std::string& name) {
  require(file->descriptor() >= 0 && handle, "{}: written after flush(), finish() or a failure", file->path().string());
  require(!name.empty() && name.back() != '/' && name.find('\0') == std::string::npos, "checkpoint: invalid name '{}'",
          name);
  require(!groups.contains(name), "checkpoint: '{}' is already a group of another name", name);
  for (std::size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = name.find('/', begin);
    const std::string part = name.substr(begin, end - begin);
    require(!part.empty() && part != ".", "checkpoint: invalid name '{}'", name);
    if (end == std::string::npos) break;
    const std::string group = name.substr(0, end);
    require(!names.contains(group), "checkpoint: '{}' lies below '{}', which is not a group", name, group);
    if (groups.contains(group)) continue;
    const Lock lock;
    const Handle creation(H5Pcreate(H5P_GROUP_CREATE));
    H5Pset_obj_track_times(creation.id(), false);
    const Handle created(H5Gcreate2(handle.id(), group.c_str(), H5P_DEFAULT, creation.id(), H5P_DEFAULT));
    if (!created) fail(group);
    groups.insert(group);
  }
  require(names.insert(name).second, "checkpoint: '{}' is written twice", name);
}

// HDF5 allocates the dataset and returns its offset. The bytes are then written there directly, without HDF5's lock, so
// that a large tensor does not block other threads that use HDF5.
void CheckpointWriter::State::put(const std::string& name, hid_t type, hid_t space, std::string_view dtype,
                                  const void* data, std::size_t bytes) {
  haddr_t offset = 0;
  {
    const Lock lock;
    const Handle creation(H5Pcreate(H5P_DATASET_CREATE));
    H5Pset_layout(creation.id(), H5D_CONTIGUOUS);
    H5Pset_alloc_time(creation.id(), H5D_ALLOC_TIME_EARLY);
    H5Pset_fill_time(creation.id(), H5D_FILL_TIME_NEVER);
    H5Pset_obj_track_times(creation.id(), false);
    const Handle dataset(H5Dcreate2(handle.id(), name.c_str(), type, space, H5P_DEFAULT, creation.id(), H5P_DEFAULT));
    if (!dataset) fail(name);
    if (!dtype.empty()) {
      const Handle attribute_type = text_type(dtype.size());
      const Handle scalar_space(H5Screate(H5S_SCALAR));
      const Handle attribute(
          H5Acreate2(dataset.id(), "dtype", attribute_type.id(), scalar_space.id(), H5P_DEFAULT, H5P_DEFAULT));
      if (!attribute || H5Awrite(attribute.id(), attribute_type.id(), dtype.data()) < 0) fail(name);
    }
    if (bytes > 0) {
      offset = H5Dget_offset(dataset.id());
      if (offset == HADDR_UNDEF || H5Dget_storage_size(dataset.id()) != bytes) fail(name);
    }
  }
  if (bytes > 0 && !io.write_at(offset, data, bytes)) fail(name);
  if (io.error() != 0) fail(name);
}

void CheckpointWriter::State::scalar(const std::string& name, hid_t type, const void* data, std::size_t bytes) {
  claim(name);
  const Lock lock;
  const Handle space(H5Screate(H5S_SCALAR));
  put(name, type, space.id(), "", data, bytes);
}

// Writes everything that is not in the file yet.
void CheckpointWriter::State::complete() {
  require(file->descriptor() >= 0 && handle, "{}: completed twice, or after a failure", file->path().string());
  {
    const Lock lock;
    if (H5Fclose(handle.release()) < 0 || io.error() != 0) fail("the end of the file");
  }
  const detail::CheckpointHeader header = detail::make_header(io, file->path());
  if (!io.write_at(0, &header, sizeof header)) fail("the checksum");
}

CheckpointWriter::CheckpointWriter(fs::path path) : CheckpointWriter(std::make_unique<AtomicFile>(std::move(path))) {}

CheckpointWriter::CheckpointWriter(std::unique_ptr<AtomicFile> file)
    : state_(std::make_unique<State>(std::move(file))) {
  state_->create();
}

CheckpointWriter::~CheckpointWriter() {
  state_->io.abandon();
  state_->handle.reset();
}

void CheckpointWriter::tensor(const std::string& name, std::string_view dtype, std::span<const std::int64_t> shape,
                              const void* data) {
  const std::optional<hdf5::Type> type = tensor_type(dtype);
  require(type.has_value(),
          "checkpoint: tensor '{}' has dtype '{}', expected float32, bfloat16, float64, int32, int64 or uint8", name,
          dtype);
  require(shape.size() <= H5S_MAX_RANK, "checkpoint: tensor '{}' has {} dimensions, expected at most {}", name,
          shape.size(), H5S_MAX_RANK);
  std::size_t bytes = hdf5::size_of(*type);
  for (const std::int64_t extent : shape) {
    require(extent >= 0 && !__builtin_mul_overflow(bytes, static_cast<std::size_t>(extent), &bytes),
            "checkpoint: tensor '{}' has an invalid shape {}", name, joined(shape));
  }
  state_->claim(name);
  Handle space;
  {
    const Lock lock;
    const std::vector<hsize_t> extents(shape.begin(), shape.end());
    space = Handle(extents.empty() ? H5Screate(H5S_SCALAR)
                                   : H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr));
    if (!space) state_->fail(name);
  }
  state_->put(name, hdf5::detail::file_type(*type), space.id(), dtype, data, bytes);
}

void CheckpointWriter::text(const std::string& name, std::string_view value) {
  require(value.size() < std::size_t{1} << 32, "checkpoint: text '{}' has {} bytes, expected less than 4 GiB", name,
          value.size());
  state_->claim(name);
  const Lock lock;
  // HDF5 has no strings of length zero: an empty text is a dataset without elements.
  const Handle type = text_type(std::max<std::size_t>(1, value.size()));
  const Handle space(H5Screate(value.empty() ? H5S_NULL : H5S_SCALAR));
  state_->put(name, type.id(), space.id(), "", value.data(), value.size());
}

void CheckpointWriter::number(const std::string& name, double value) {
  state_->scalar(name, H5T_IEEE_F64LE, &value, sizeof value);
}

void CheckpointWriter::integer(const std::string& name, std::int64_t value) {
  state_->scalar(name, H5T_STD_I64LE, &value, sizeof value);
}

void CheckpointWriter::flush() {
  state_->complete();
  state_->file->flush();
}

void CheckpointWriter::finish() {
  if (state_->handle) state_->complete();
  state_->file->commit();
}

const fs::path& CheckpointWriter::path() const { return state_->file->path(); }

}  // namespace furlong
