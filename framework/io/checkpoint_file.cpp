#include "framework/io/checkpoint_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "framework/core/error.h"
#include "framework/core/printable.h"
#include "framework/io/atomic_file.h"
#include "framework/io/checkpoint_header.h"
#include "framework/io/checkpoint_shards.h"
#include "framework/io/checkpoint_types.h"
#include "framework/io/hdf5_metadata.h"

namespace furlong {

namespace fs = std::filesystem;
using detail::access_list;
using detail::joined;
using detail::tensor_type;
using hdf5::DescriptorIo;
using hdf5::detail::Handle;
using hdf5::detail::Lock;

namespace {

constexpr std::ptrdiff_t max_group_depth = 32;  // each name is looked up from the root

enum class Kind { tensor, text, number, integer };

const char* describe(Kind kind) {
  switch (kind) {
    case Kind::tensor:
      return "a tensor";
    case Kind::text:
      return "a text";
    case Kind::number:
      return "a number";
    case Kind::integer:
      return "an integer";
  }
  return "";
}

struct Entry {
  Kind kind = Kind::tensor;
  TensorInfo info;
  std::string stored_name{};    // in the file
  std::vector<Piece> pieces{};  // of a tensor in shards
};

// Collects the names of all objects, and checks each header before HDF5 opens the object.
struct Links {
  const hdf5::MetadataCheck& metadata;
  const std::string& file;
  std::vector<std::string> names{};
  std::set<haddr_t> known{};  // an object with two names could contain others with two names, and so on
  std::exception_ptr failure{};

  // A callback of H5Lvisit(). Returns 1 for groups that are nested too deep.
  static herr_t take(hid_t, const char* name, const H5L_info_t* link, void* data) noexcept {
    auto& self = *static_cast<Links*>(data);
    if (link->type != H5L_TYPE_HARD) return 0;
    if (std::count(name, name + std::strlen(name), '/') > max_group_depth) return 1;
    try {
      if (!self.known.insert(link->u.address).second)
        throw UserError("{}: an object has two names ('{}'); it was not written by Furlong; use an earlier checkpoint",
                        self.file, foreign::printable(name));
      self.metadata.check_object(link->u.address);
      self.names.emplace_back(name);
      return 0;
    } catch (...) {  // must not cross C code
      self.failure = std::current_exception();
      return -1;
    }
  }
};

// Whether this is one string of fixed length. Reading any other type or shape, HDF5 would write more bytes than the
// string has.
bool is_one_text(hid_t type, hid_t space) {
  return H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) == 0 &&
         H5Sget_simple_extent_type(space) == H5S_SCALAR;
}

// Whether a dataset is one contiguous range of exactly `bytes` inside the file, as the writer lays it out.
bool lies_whole(hid_t dataset, std::uint64_t bytes, std::uint64_t file_bytes) {
  if (bytes == 0) return true;
  const haddr_t offset = H5Dget_offset(dataset);
  return offset != HADDR_UNDEF && H5Dget_storage_size(dataset) == bytes && offset <= file_bytes &&
         bytes <= file_bytes - offset;
}

// Returns today's name of an entry of a file with format version `version` (docs/file_formats.md).
std::string current_name(const std::string& name, std::uint32_t version) {
  constexpr std::string_view old_ema = "averages/", old_state = "carried/";
  if (version > 1) return name;
  if (name.starts_with(old_ema)) return "ema/" + name.substr(old_ema.size());
  const bool is_state = name.starts_with(old_state) && name.find('/', old_state.size()) != std::string::npos;
  return is_state ? "recurrent_state/" + name.substr(old_state.size()) : name;
}

}  // namespace

struct CheckpointReader::State {
  /// Verifies the whole file.
  explicit State(fs::path file)
      : path(std::move(file)),
        descriptor(path),
        io(descriptor.number()),
        version(detail::verify(descriptor, io, path)) {}

  [[noreturn]] void fail(std::string_view what);
  [[noreturn]] void refuse(const std::string& name, std::string_view what);
  void open();
  std::optional<Entry> examine(const std::string& name);
  Entry examine_tensor(const std::string& name, hid_t dataset, hid_t type, hid_t space);
  std::string dtype_of(const std::string& name, hid_t dataset);
  const Entry& find(const std::string& name, Kind kind);
  void read(const std::string& name, void* destination);
  ShardIndex shard_index();
  void open_shards();

  fs::path path;
  std::vector<std::unique_ptr<State>> shards;
  detail::Descriptor descriptor;
  DescriptorIo io;
  std::uint32_t version;  // of the format
  Handle handle;
  std::uint64_t file_bytes = 0;
  std::map<std::string, Entry, std::less<>> entries;
};

void CheckpointReader::State::fail(std::string_view what) {
  const hdf5::detail::Reason reason = hdf5::detail::take_reason();
  if (io.error() != 0) throw_file_error(path, "read", io.error());
  // The checksum has matched: with more memory the file may be readable.
  if (reason.is_memory)
    throw UnusableFile("{}: HDF5 cannot read {} for lack of memory ({}); free memory, or raise its limit (ulimit -v)",
                       path.string(), what, reason.text);
  throw UserError("{}: HDF5 cannot read {} ({}); use an earlier checkpoint", path.string(), what, reason.text);
}

void CheckpointReader::State::refuse(const std::string& name, std::string_view what) {
  throw UserError("{}: '{}' {}; it is damaged or was not written by Furlong; use an earlier checkpoint", path.string(),
                  name, what);
}

void CheckpointReader::State::open() {
  const Lock lock;
  file_bytes = io.size();
  const hdf5::MetadataCheck metadata(io, path.string());
  const Handle access = access_list(io);
  handle = Handle(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.id()));
  if (!handle) fail("its header");
  const std::string file = path.string();
  Links links{metadata, file};
  const herr_t visited = H5Lvisit(handle.id(), H5_INDEX_NAME, H5_ITER_INC, Links::take, &links);
  if (links.failure) {
    H5Eclear2(H5E_DEFAULT);
    std::rethrow_exception(links.failure);
  }
  if (visited < 0) fail("its table of contents");
  if (visited > 0)
    throw UserError("{}: groups are nested more than {} deep; it was not written by Furlong; use an earlier checkpoint",
                    path.string(), max_group_depth);
  std::uint64_t bytes = 0;
  for (const std::string& name : links.names) {
    std::optional<Entry> entry = examine(name);
    if (!entry) continue;
    bytes += entry->info.bytes;
    if (bytes > file_bytes) refuse(name, "shares bytes with other entries");
    entry->stored_name = name;
    entry->info.name = current_name(name, version);
    entries.emplace(entry->info.name, std::move(*entry));
  }
}

// Returns the entry of a name; nothing for groups and for objects that Furlong never writes. The checksum does not
// authenticate the writer. Types, shapes and sizes are therefore checked here, so that reading never exceeds the bytes
// that the entry states.
std::optional<Entry> CheckpointReader::State::examine(const std::string& name) {
  const Handle object(H5Oopen(handle.id(), name.c_str(), H5P_DEFAULT));
  if (!object) fail(name);
  if (H5Iget_type(object.id()) != H5I_DATASET) return std::nullopt;
  const Handle type(H5Dget_type(object.id()));
  const Handle space(H5Dget_space(object.id()));
  if (!type || !space) fail(name);
  if (H5Tget_class(type.id()) != H5T_STRING && H5Aexists(object.id(), "dtype") > 0)
    return examine_tensor(name, object.id(), type.id(), space.id());
  Entry entry;
  entry.info.name = name;
  entry.info.bytes = H5Tget_size(type.id());
  if (H5Tget_class(type.id()) == H5T_STRING) {
    entry.kind = Kind::text;
    const bool empty = H5Tis_variable_str(type.id()) == 0 && H5Sget_simple_extent_type(space.id()) == H5S_NULL;
    if (!empty && !is_one_text(type.id(), space.id())) refuse(name, "is a text but not one string of fixed length");
    if (empty) entry.info.bytes = 0;
  } else {
    const bool integer = H5Tequal(type.id(), H5T_STD_I64LE) > 0;
    if (H5Sget_simple_extent_type(space.id()) != H5S_SCALAR || (!integer && H5Tequal(type.id(), H5T_IEEE_F64LE) <= 0))
      return std::nullopt;
    entry.kind = integer ? Kind::integer : Kind::number;
  }
  if (!lies_whole(object.id(), entry.info.bytes, file_bytes))
    refuse(name, "is not one contiguous range inside the file");
  return entry;
}

Entry CheckpointReader::State::examine_tensor(const std::string& name, hid_t dataset, hid_t type, hid_t space) {
  Entry entry;
  entry.info.name = name;
  entry.info.dtype = dtype_of(name, dataset);
  const std::optional<hdf5::Type> known = tensor_type(entry.info.dtype);
  if (!known || H5Tequal(type, hdf5::detail::file_type(*known)) <= 0) {
    throw UserError("{}: tensor '{}' has dtype '{}', which is unknown or does not match its stored values",
                    path.string(), name, entry.info.dtype);
  }
  std::array<hsize_t, H5S_MAX_RANK> extents{};
  const int rank = H5Sget_simple_extent_dims(space, extents.data(), nullptr);
  if (rank < 0) fail("the shape of " + name);
  if (H5Sget_simple_extent_type(space) == H5S_NULL) refuse(name, "is a tensor without a shape");
  std::size_t bytes = hdf5::size_of(*known);
  for (int dimension = 0; dimension < rank; ++dimension) {
    const hsize_t extent = extents[static_cast<std::size_t>(dimension)];
    if (extent >> 63 != 0 || __builtin_mul_overflow(bytes, extent, &bytes))
      refuse(name, "has more elements than 64 bits can count");
    entry.info.shape.push_back(static_cast<std::int64_t>(extent));
  }
  entry.info.bytes = bytes;
  if (!lies_whole(dataset, bytes, file_bytes)) refuse(name, "is not one contiguous range inside the file");
  return entry;
}

std::string CheckpointReader::State::dtype_of(const std::string& name, hid_t dataset) {
  const Handle attribute(H5Aopen(dataset, "dtype", H5P_DEFAULT));
  const Handle type(attribute ? H5Aget_type(attribute.id()) : -1);
  const Handle space(attribute ? H5Aget_space(attribute.id()) : -1);
  if (!type || !space) fail("the dtype of " + name);
  std::array<char, 16> text{};
  if (!is_one_text(type.id(), space.id()) || H5Tget_size(type.id()) >= text.size())
    refuse(name, "has a dtype attribute that is not a short text");
  if (H5Aread(attribute.id(), type.id(), text.data()) < 0) fail("the dtype of " + name);
  return text.data();
}

const Entry& CheckpointReader::State::find(const std::string& name, Kind kind) {
  const auto entry = entries.find(name);
  if (entry == entries.end()) {
    const std::string group = name.substr(0, name.find_last_of('/') + 1);
    std::int64_t siblings = 0;
    for (auto at = entries.lower_bound(group); at != entries.end() && at->first.starts_with(group); ++at) ++siblings;
    throw UserError(
        "{}: '{}' is missing, expected {}; the checkpoint has {} entries under '{}', so check that it was written with "
        "this configuration",
        path.string(), name, describe(kind), siblings, group.empty() ? "/" : group);
  }
  if (entry->second.kind != kind) {
    throw UserError("{}: '{}' is {}, expected {}", path.string(), name, describe(entry->second.kind), describe(kind));
  }
  return entry->second;
}

// `destination` has the size that the entry states. Memory types equal file types, so nothing is converted.
void CheckpointReader::State::read(const std::string& name, void* destination) {
  const Entry& entry = entries.find(name)->second;
  if (!entry.pieces.empty()) {
    const std::size_t width = hdf5::size_of(*tensor_type(entry.info.dtype));
    for (const Piece& piece : entry.pieces)
      if (piece.elements > 0)
        shards[piece.file]->read(piece.name,
                                 static_cast<char*>(destination) + static_cast<std::size_t>(piece.first) * width);
    return;
  }
  const Lock lock;
  const Handle dataset(H5Dopen2(handle.id(), entry.stored_name.c_str(), H5P_DEFAULT));
  if (!dataset) fail(name);
  const Handle type(H5Dget_type(dataset.id()));
  if (!type || H5Dread(dataset.id(), type.id(), H5S_ALL, H5S_ALL, H5P_DEFAULT, destination) < 0) fail(name);
}

/// Returns the shard index; empty if the checkpoint has no shards.
ShardIndex CheckpointReader::State::shard_index() {
  const auto text = entries.find("shards");
  if (text == entries.end() || text->second.kind != Kind::text) return {};
  std::string json(text->second.info.bytes, '\0');
  if (!json.empty()) read("shards", json.data());
  ShardIndex index = ShardIndex::from_json(json, path.string());
  decltype(index.tensors) renamed;
  for (auto& [name, whole] : index.tensors) renamed.emplace(current_name(name, version), std::move(whole));
  index.tensors = std::move(renamed);
  return index;
}

/// Adds the tensors of all shards to the entries.
void CheckpointReader::State::open_shards() {
  const ShardIndex index = shard_index();
  std::vector<std::map<std::string, std::int64_t>> found;
  for (const ShardIndex::File& file : index.files) {
    auto shard = std::make_unique<State>(path.parent_path() / file.name);
    detail::CheckpointHeader header{};
    if (!shard->io.read_at(0, &header, sizeof header)) throw_file_error(shard->path, "read", shard->io.error());
    if (header.checksum != file.checksum)
      throw UserError("{}: the checksum of shard {} is not the one in the shard index; use an earlier checkpoint",
                      path.string(), file.name);
    shard->open();
    auto& names = found.emplace_back();
    for (const auto& [name, entry] : shard->entries)
      if (entry.kind == Kind::tensor)
        names[name] = static_cast<std::int64_t>(entry.info.bytes / hdf5::size_of(*tensor_type(entry.info.dtype)));
    shards.push_back(std::move(shard));
  }
  for (auto& [name, pieces] : assemble(index, found, path.string())) {
    const ShardIndex::Whole& whole = index.tensors.at(name);
    for (const Piece& piece : pieces)
      if (shards[piece.file]->entries.at(piece.name).info.dtype != whole.dtype)
        refuse(name, "has pieces with another dtype");
    if (entries.contains(name)) refuse(name, "is both in the checkpoint and in its shards");
    const std::optional<hdf5::Type> type = tensor_type(whole.dtype);
    if (!type) refuse(name, "has an unknown dtype");
    std::size_t bytes = hdf5::size_of(*type);
    for (const std::int64_t extent : whole.shape) bytes *= static_cast<std::size_t>(extent);
    entries.emplace(name, Entry{Kind::tensor, {name, whole.dtype, whole.shape, bytes}, {}, std::move(pieces)});
  }
}

CheckpointReader::CheckpointReader(std::unique_ptr<State> state) : state_(std::move(state)) {}
CheckpointReader::CheckpointReader(CheckpointReader&&) noexcept = default;
CheckpointReader& CheckpointReader::operator=(CheckpointReader&&) noexcept = default;
CheckpointReader::~CheckpointReader() = default;

CheckpointReader CheckpointReader::open(const fs::path& path) {
  return foreign::with_single_line_errors([&] {
    auto state = std::make_unique<State>(path);
    state->open();
    state->open_shards();
    return CheckpointReader(std::move(state));
  });
}

std::vector<std::string> CheckpointReader::shards_of(const fs::path& path) {
  return foreign::with_single_line_errors([&] {
    State state(path);
    state.open();
    std::vector<std::string> names;
    for (const ShardIndex::File& file : state.shard_index().files) names.push_back(file.name);
    return names;
  });
}

bool CheckpointReader::has(const std::string& name) const { return state_->entries.contains(name); }

std::vector<TensorInfo> CheckpointReader::tensors(std::string_view prefix) const {
  std::vector<TensorInfo> found;
  const auto& entries = state_->entries;
  for (auto at = entries.lower_bound(prefix); at != entries.end() && at->first.starts_with(prefix); ++at) {
    if (at->second.kind == Kind::tensor) found.push_back(at->second.info);
  }
  return found;
}

const TensorInfo& CheckpointReader::info(const std::string& name) const {
  return state_->find(name, Kind::tensor).info;
}

void CheckpointReader::read(const std::string& name, void* destination, std::size_t bytes) const {
  const TensorInfo& found = info(name);
  if (found.bytes != bytes) {
    throw UserError(
        "{}: tensor '{}' is {} {} of {} bytes, expected {} bytes; check that it was written with this configuration",
        path().string(), name, found.dtype, joined(found.shape), found.bytes, bytes);
  }
  if (bytes > 0) state_->read(name, destination);
}

void CheckpointReader::read(const std::string& name, std::string_view dtype, std::span<const std::int64_t> shape,
                            void* destination) const {
  const TensorInfo& found = info(name);
  if (found.dtype != dtype || !std::equal(shape.begin(), shape.end(), found.shape.begin(), found.shape.end())) {
    throw UserError("{}: tensor '{}' is {} {}, expected {} {}; check that it was written with this configuration",
                    path().string(), name, found.dtype, joined(found.shape), dtype, joined(shape));
  }
  if (found.bytes > 0) state_->read(name, destination);
}

std::string CheckpointReader::text(const std::string& name) const {
  std::string value(state_->find(name, Kind::text).info.bytes, '\0');
  if (!value.empty()) state_->read(name, value.data());
  return value;
}

double CheckpointReader::number(const std::string& name) const {
  state_->find(name, Kind::number);
  double value = 0;
  state_->read(name, &value);
  return value;
}

std::int64_t CheckpointReader::integer(const std::string& name) const {
  state_->find(name, Kind::integer);
  std::int64_t value = 0;
  state_->read(name, &value);
  return value;
}

const fs::path& CheckpointReader::path() const { return state_->path; }

}  // namespace furlong
