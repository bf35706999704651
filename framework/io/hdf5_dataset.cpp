// Groups and datasets; see hdf5.h.
#include <algorithm>
#include <set>

#include "framework/core/error.h"
#include "framework/io/hdf5_descriptor.h"
#include "framework/io/hdf5_internal.h"
#include "framework/io/hdf5_metadata.h"

namespace furlong::hdf5 {

using detail::Handle;
using detail::Lock;

// --- Dataset

namespace {

std::string joined(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

/// hsize_t is unsigned long long, uint64_t is unsigned long: the same representation under two types.
const hsize_t* extents(const Shape& shape) {
  static_assert(sizeof(hsize_t) == sizeof(std::uint64_t));
  return reinterpret_cast<const hsize_t*>(shape.data());
}

Handle make_space(const Shape& shape, const Shape& maximum) {
  if (shape.empty()) return Handle(H5Screate(H5S_SCALAR));
  return Handle(H5Screate_simple(static_cast<int>(shape.size()), extents(shape), extents(maximum)));
}

Handle creation_properties(const Shape& shape, const DatasetOptions& options) {
  Handle properties(H5Pcreate(H5P_DATASET_CREATE));
  // Callers write every element; filling first would write each twice.
  H5Pset_fill_time(properties.id(), H5D_FILL_TIME_NEVER);
  require(!options.chunk.empty() || !(options.fletcher32 || options.extendible),
          "checksums and extendible datasets need chunks");
  if (options.chunk.empty()) return properties;
  require(options.chunk.size() == shape.size(), "chunk shape {} does not match dataset shape {}", joined(options.chunk),
          joined(shape));
  H5Pset_chunk(properties.id(), static_cast<int>(options.chunk.size()), extents(options.chunk));
  if (options.fletcher32) H5Pset_fletcher32(properties.id());
  return properties;
}

/// Throws UserError if a dataset has other filters than Fletcher32, the only one that create_dataset() writes.
/// Compressed chunks could expand to a thousand times the size of the file.
void require_checksums_only(hid_t properties, const std::string& file, const std::string& path) {
  for (int i = 0, n_filters = H5Pget_nfilters(properties); i < n_filters; ++i) {
    unsigned flags = 0, configuration = 0;
    std::size_t n_values = 0;
    const H5Z_filter_t filter =
        H5Pget_filter2(properties, static_cast<unsigned>(i), &flags, &n_values, nullptr, 0, nullptr, &configuration);
    if (filter != H5Z_FILTER_FLETCHER32)
      throw UserError(
          "{}: HDF5 dataset {} has filter {} (1 is deflate), expected none except checksums; rewrite the file with "
          "h5repack --low=2 --filter=NONE",
          file, path, filter);
  }
}

/// Returns in `type` the type of a dataset; `bfloat16` means that it has the dtype attribute. Returns false if `Type`
/// has no such type.
bool decode_type(hid_t file_type, bool bfloat16, Type& type) {
  const H5T_class_t kind = H5Tget_class(file_type);
  const std::size_t size = H5Tget_size(file_type);
  if (kind == H5T_INTEGER) {
    const bool is_signed = H5Tget_sign(file_type) == H5T_SGN_2;
    if (size == 1 && !is_signed) return type = Type::u8, true;
    if (size == 2 && !is_signed) return type = bfloat16 ? Type::bf16 : Type::u16, true;
    if (size == 4) return type = is_signed ? Type::i32 : Type::u32, true;
    if (size == 8) return type = is_signed ? Type::i64 : Type::u64, true;
  } else if (kind == H5T_FLOAT) {
    if (size == 4) return type = Type::f32, true;
    if (size == 8) return type = Type::f64, true;
  }
  return false;
}

}  // namespace

std::size_t Dataset::check_block(const Shape& offset, const Shape& count, std::size_t bytes) const {
  require(offset.size() == shape_.size() && count.size() == shape_.size(), "{} has {} dimensions, the block has {}",
          path_, shape_.size(), offset.size());
  for (std::size_t dimension = 0; dimension < shape_.size(); ++dimension) {
    require(offset[dimension] <= shape_[dimension] && count[dimension] <= shape_[dimension] - offset[dimension],
            "block at {} with extents {} is outside {} of shape {}", joined(offset), joined(count), path_,
            joined(shape_));
  }
  const std::size_t needed = n_elements(count) * size_of(type_);
  require(bytes == needed, "{}: got {} bytes of memory for a block of {} bytes", path_, bytes, needed);
  return needed;
}

Handle Dataset::select(const Shape& offset, const Shape& count) const {
  Handle space(H5Dget_space(id()));
  if (!space) fail_reading("cannot read the shape of");
  if (!shape_.empty() &&
      H5Sselect_hyperslab(space.id(), H5S_SELECT_SET, extents(offset), nullptr, extents(count), nullptr) < 0) {
    fail_reading("cannot select a block of");
  }
  return space;
}

std::uint64_t Dataset::storage_bytes() const {
  const Lock lock;
  const std::uint64_t stated = H5Dget_storage_size(id());  // by the file
  return origin_->input ? std::min<std::uint64_t>(stated, origin_->input->size()) : stated;
}

bool Dataset::is_filtered() const {
  const Lock lock;
  const Handle properties(H5Dget_create_plist(id()));
  const int n_filters = properties ? H5Pget_nfilters(properties.id()) : -1;
  if (n_filters < 0) fail_reading("cannot read the filters of");
  return n_filters > 0;
}

void Dataset::read(void* destination, std::size_t bytes) const {
  read_block(Shape(shape_.size(), 0), shape_, destination, bytes);
}
void Dataset::write(const void* source, std::size_t bytes) {
  write_block(Shape(shape_.size(), 0), shape_, source, bytes);
}

void Dataset::read_block(const Shape& offset, const Shape& count, void* destination, std::size_t bytes) const {
  const Lock lock;
  if (check_block(offset, count, bytes) == 0) return;
  const Handle file_space = select(offset, count);
  const Handle memory_space = make_space(count, count);
  if (H5Dread(id(), detail::memory_type(type_), memory_space.id(), file_space.id(), H5P_DEFAULT, destination) < 0) {
    fail_reading("cannot read dataset");
  }
}

void Dataset::write_block(const Shape& offset, const Shape& count, const void* source, std::size_t bytes) {
  const Lock lock;
  check_writable();
  if (check_block(offset, count, bytes) == 0) return;
  const Handle file_space = select(offset, count);
  const Handle memory_space = make_space(count, count);
  if (H5Dwrite(id(), detail::memory_type(type_), memory_space.id(), file_space.id(), H5P_DEFAULT, source) < 0) {
    fail_writing("cannot write dataset");
  }
  check_writable();
}

void Dataset::read_rows(std::uint64_t begin, std::uint64_t end, void* destination, std::size_t bytes) const {
  require(!shape_.empty() && begin <= end && end <= shape_[0], "rows [{}, {}) are outside {} of shape {}", begin, end,
          path_, joined(shape_));
  Shape offset(shape_.size(), 0);
  Shape count = shape_;
  offset[0] = begin;
  count[0] = end - begin;
  read_block(offset, count, destination, bytes);
}

void Dataset::append(const void* source, std::uint64_t n_rows) {
  const Lock lock;
  check_writable();
  require(!shape_.empty(), "{} is a scalar and cannot grow", path_);
  if (n_rows == 0) return;
  Shape grown = shape_;
  grown[0] += n_rows;
  if (H5Dset_extent(id(), extents(grown)) < 0) fail_writing("cannot extend dataset");
  Shape offset(shape_.size(), 0);
  Shape count = shape_;
  offset[0] = shape_[0];
  count[0] = n_rows;
  shape_ = grown;
  write_block(offset, count, source, n_elements(count) * size_of(type_));
}

// --- TextDataset

namespace {

Handle text_type() {
  Handle type(H5Tcopy(H5T_C_S1));
  H5Tset_size(type.id(), H5T_VARIABLE);
  H5Tset_cset(type.id(), H5T_CSET_UTF8);
  return type;
}

}  // namespace

void TextDataset::append(std::span<const std::string> texts) {
  const Lock lock;
  check_writable();
  if (texts.empty()) return;
  const Shape offset{size_}, count{texts.size()};
  size_ += texts.size();
  if (H5Dset_extent(id(), extents({size_})) < 0) fail_writing("cannot extend dataset");
  const Handle space(H5Dget_space(id())), memory = make_space(count, count), type = text_type();
  std::vector<const char*> pointers;
  for (const std::string& text : texts) pointers.push_back(text.c_str());
  if (H5Sselect_hyperslab(space.id(), H5S_SELECT_SET, extents(offset), nullptr, extents(count), nullptr) < 0 ||
      H5Dwrite(id(), type.id(), memory.id(), space.id(), H5P_DEFAULT, pointers.data()) < 0)
    fail_writing("cannot write dataset");
  check_writable();
}

// --- Group

std::string Group::full_path(const std::string& path) const {
  require(!path.empty() && path.front() != '/' && path.back() != '/', "'{}' is not a path relative to a group", path);
  return path_ == "/" ? "/" + path : path_ + "/" + path;
}

bool Group::has(const std::string& path) const {
  const Lock lock;
  full_path(path);
  // Check each component: HDF5 fails if one is missing, and would follow links into other files, which a foreign file
  // may contain.
  for (std::size_t end = path.find('/');; end = path.find('/', end + 1)) {
    const std::string step = path.substr(0, end);
    const htri_t found = H5Lexists(id(), step.c_str(), H5P_DEFAULT);
    if (found < 0) fail_reading("cannot look up '" + step + "' in");
    if (found == 0) return false;
    H5L_info_t link;
    if (H5Lget_info(id(), step.c_str(), &link, H5P_DEFAULT) < 0) fail_reading("cannot look up '" + step + "' in");
    if (link.type != H5L_TYPE_HARD) return false;
    if (origin_->metadata) origin_->metadata->check_object(link.u.address);
    if (end == std::string::npos) return true;
    // A dataset has no members.
    const Handle object(H5Oopen(id(), step.c_str(), H5P_DEFAULT));
    if (!object) fail_reading("cannot open '" + step + "' in");
    if (H5Iget_type(object.id()) != H5I_GROUP) return false;
  }
}

std::vector<Group::Member> Group::members() const {
  const Lock lock;
  struct Found {
    std::string name;
    bool hard;
    haddr_t address;
  };
  std::vector<Found> found;
  const auto collect = [](hid_t, const char* name, const H5L_info_t* link, void* data) -> herr_t {
    static_cast<std::vector<Found>*>(data)->push_back({name, link->type == H5L_TYPE_HARD, link->u.address});
    return 0;
  };
  if (H5Literate(id(), H5_INDEX_NAME, H5_ITER_INC, nullptr, collect, &found) < 0) fail_reading("cannot list");
  std::vector<Member> members;
  for (const Found& link : found) {
    Kind kind = Kind::other;
    if (link.hard) {
      if (origin_->metadata) origin_->metadata->check_object(link.address);
      const Handle object(H5Oopen(id(), link.name.c_str(), H5P_DEFAULT));
      if (!object) fail_reading("cannot open '" + link.name + "' in");
      const H5I_type_t type = H5Iget_type(object.id());
      kind = type == H5I_GROUP ? Kind::group : type == H5I_DATASET ? Kind::dataset : Kind::other;
    }
    members.push_back({link.name, kind});
  }
  return members;
}

std::vector<std::string> Group::datasets() const {
  const Lock lock;
  std::vector<std::string> paths;
  std::set<haddr_t> visited;  // a damaged or hostile file may link a group below itself
  const auto walk = [&](const auto& self, const Group& group, const std::string& prefix) -> void {
    H5O_info_t info;
    if (H5Oget_info2(group.id(), &info, H5O_INFO_BASIC) < 0) group.fail_reading("cannot read");
    if (!visited.insert(info.addr).second) return;
    for (const Member& member : group.members()) {
      if (member.kind == Kind::dataset) paths.push_back(prefix + member.name);
      if (member.kind == Kind::group) self(self, group.group(member.name), prefix + member.name + "/");
    }
  };
  walk(walk, *this, "");
  return paths;
}

Group Group::group(const std::string& path) const {
  const Lock lock;
  const std::string full = full_path(path);
  if (!has(path)) throw UserError("{}: has no group {}", file_name(), full);
  Handle object(H5Oopen(id(), path.c_str(), H5P_DEFAULT));
  if (!object) fail_reading("cannot open '" + path + "' in");
  if (H5Iget_type(object.id()) != H5I_GROUP) throw UserError("{}: {} is not a group", file_name(), full);
  return {std::move(object), origin_, full};
}

Dataset Group::create_dataset(const std::string& path, Type type, const Shape& shape, const DatasetOptions& options) {
  const Lock lock;
  check_writable();
  const std::string full = full_path(path);
  Shape maximum = shape;
  if (options.extendible) {
    require(!shape.empty(), "a scalar cannot grow");
    maximum[0] = H5S_UNLIMITED;
  }
  const Handle links(H5Pcreate(H5P_LINK_CREATE));
  H5Pset_create_intermediate_group(links.id(), 1);
  const Handle space = make_space(shape, maximum);
  const Handle properties = creation_properties(shape, options);
  Handle handle(
      H5Dcreate2(id(), path.c_str(), detail::file_type(type), space.id(), links.id(), properties.id(), H5P_DEFAULT));
  if (!handle) fail_writing("cannot create dataset '" + path + "' in");
  Dataset dataset(std::move(handle), origin_, full, type, shape);
  if (type == Type::bf16) dataset.set_text("dtype", name_of(type));
  return dataset;
}

TextDataset Group::create_texts(const std::string& path) {
  const Lock lock;
  check_writable();
  const std::string full = full_path(path);
  const Handle space = make_space({0}, {H5S_UNLIMITED}), properties(H5Pcreate(H5P_DATASET_CREATE)), type = text_type();
  H5Pset_chunk(properties.id(), 1, extents({1024}));
  Handle handle(H5Dcreate2(id(), path.c_str(), type.id(), space.id(), H5P_DEFAULT, properties.id(), H5P_DEFAULT));
  if (!handle) fail_writing("cannot create dataset '" + path + "' in");
  return {std::move(handle), origin_, full};
}

Dataset Group::dataset(const std::string& path) const {
  const Lock lock;
  const std::string full = full_path(path);
  if (!has(path)) throw UserError("{}: has no HDF5 dataset {}", file_name(), full);
  Handle object(H5Oopen(id(), path.c_str(), H5P_DEFAULT));
  if (!object) fail_reading("cannot open '" + path + "' in");
  if (H5Iget_type(object.id()) != H5I_DATASET) throw UserError("{}: {} is not an HDF5 dataset", file_name(), full);

  const Handle properties(H5Dget_create_plist(object.id()));
  if (!properties) fail_reading("cannot read the layout of '" + path + "' in");
  if (H5Pget_layout(properties.id()) == H5D_VIRTUAL || H5Pget_external_count(properties.id()) != 0) {
    throw UserError(
        "{}: HDF5 dataset {} stores its elements in other files (external storage or a virtual dataset), which is not "
        "supported; store them in this file",
        file_name(), full);
  }
  if (origin_->metadata) require_checksums_only(properties.id(), file_name(), full);
  const Handle space(H5Dget_space(object.id()));
  const int rank = space ? H5Sget_simple_extent_ndims(space.id()) : -1;
  if (rank < 0 || H5Sis_simple(space.id()) <= 0) fail_reading("cannot read the shape of '" + path + "' in");
  std::vector<hsize_t> dimensions(static_cast<std::size_t>(rank));
  if (rank > 0) H5Sget_simple_extent_dims(space.id(), dimensions.data(), nullptr);

  const Handle file_type(H5Dget_type(object.id()));
  Dataset dataset(std::move(object), origin_, full, Type::u8, Shape(dimensions.begin(), dimensions.end()));
  const bool bfloat16 = dataset.has_attribute("dtype") && dataset.text("dtype") == name_of(Type::bf16);
  if (!decode_type(file_type.id(), bfloat16, dataset.type_)) {
    throw UserError("{}: HDF5 dataset {} has elements of a type that is not supported (HDF5 class {}, {} bytes)",
                    file_name(), full, static_cast<int>(H5Tget_class(file_type.id())), H5Tget_size(file_type.id()));
  }
  n_elements(dataset.shape_);
  return dataset;
}

Dataset Group::write(const std::string& path, Type type, const Shape& shape, const void* source,
                     const DatasetOptions& options) {
  Dataset dataset = create_dataset(path, type, shape, options);
  dataset.write(source, n_elements(shape) * size_of(type));
  return dataset;
}

}  // namespace furlong::hdf5
