#pragma once
// HDF5 files with C++ lifetimes and Furlong's errors. The library behind this is not thread safe: every call here takes
// one process-wide recursive mutex, so any thread may use any object. File locking is off (cluster file systems do not
// have it), HDF5's own printing of errors is off, and the innermost reason that it gives is quoted in ours.
//
// What fails while reading is a UserError (missing, foreign, truncated, damaged: the file has to be replaced) unless
// the operating system reported an I/O error; what fails while writing is a MachineError. Both name the file.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace furlong {
class AtomicFile;
}

namespace furlong::hdf5 {

class DescriptorIo;

/// The process-wide lock; hold it to make several calls one unit.
std::recursive_mutex& mutex();

/// Element types, little-endian in the file. `bf16` is stored as 16-bit unsigned integers with the attribute dtype =
/// "bfloat16".
enum class Type { u8, u16, u32, u64, i32, i64, f32, f64, bf16 };

std::size_t size_of(Type type);
/// "uint8", "uint16", "uint32", "uint64", "int32", "int64", "float32", "float64", "bfloat16".
std::string_view name_of(Type type);
/// The type of that name. Throws UserError on another one.
Type type_from_name(std::string_view name);

using Shape = std::vector<std::uint64_t>;
/// Number of elements; 1 for the empty (scalar) shape. Throws UserError where it does not fit 63 bits.
std::uint64_t n_elements(const Shape& shape);

namespace detail {
/// Owns one HDF5 identifier.
class Handle {
 public:
  Handle() = default;
  explicit Handle(std::int64_t id) : id_(id) {}
  Handle(Handle&& other) noexcept : id_(other.release()) {}
  Handle& operator=(Handle&& other) noexcept;
  ~Handle() { reset(); }
  void reset() noexcept;
  std::int64_t release() noexcept;
  std::int64_t id() const { return id_; }
  explicit operator bool() const { return id_ >= 0; }

 private:
  std::int64_t id_ = -1;
};

/// Where an object comes from: the file's name for errors, and where it writes to.
struct Origin {
  std::string file;
  std::unique_ptr<DescriptorIo> output;  ///< none where the file was opened for reading
  std::unique_ptr<DescriptorIo> input;   ///< where it was opened for reading from a descriptor
};
}  // namespace detail

/// What a file, a group and a dataset have in common: a path inside the file, and attributes.
class Object {
 public:
  const std::string& path() const { return path_; }
  const std::string& file_name() const { return origin_->file; }

  bool has_attribute(const std::string& name) const;
  std::vector<std::string> attribute_names() const;
  /// Setting an attribute that exists replaces it. Text is UTF-8 without NUL characters at its end, of any length.
  void set_text(const std::string& name, std::string_view value);
  void set_integer(const std::string& name, std::int64_t value);
  void set_number(const std::string& name, double value);
  /// Throw UserError when the attribute is missing or of another kind.
  std::string text(const std::string& name) const;
  std::int64_t integer(const std::string& name) const;
  double number(const std::string& name) const;

 protected:
  Object(detail::Handle handle, std::shared_ptr<const detail::Origin> origin, std::string path)
      : handle_(std::move(handle)), origin_(std::move(origin)), path_(std::move(path)) {}
  [[noreturn]] void fail_reading(std::string_view what) const;
  [[noreturn]] void fail_writing(std::string_view what) const;
  /// ContractError when the file was opened for reading, MachineError when an earlier write failed.
  void check_writable() const;
  std::int64_t id() const { return handle_.id(); }

  detail::Handle handle_;
  std::shared_ptr<const detail::Origin> origin_;
  std::string path_;

 private:
  detail::Handle open_attribute(const std::string& name) const;
  void write_scalar(const std::string& name, std::int64_t file_type, std::int64_t memory_type, const void* value);
};

struct DatasetOptions {
  Shape chunk;  ///< empty: contiguous storage (written straight from the caller's memory); else the shape of a chunk
  bool fletcher32 = false;  ///< a checksum on every chunk, verified when it is read; needs chunks
  int deflate = 0;          ///< zlib level 1 to 9, 0 for none; needs chunks
  bool extendible = false;  ///< the first dimension can grow by append(); needs chunks
};

class Dataset : public Object {
 public:
  Type type() const { return type_; }
  const Shape& shape() const { return shape_; }
  std::uint64_t bytes() const { return n_elements(shape_) * size_of(type_); }
  /// Bytes that the elements take in the file; less than bytes() where they are compressed or were never written.
  std::uint64_t storage_bytes() const;
  /// Whether elements are compressed or have checksums in the file.
  bool is_filtered() const;

  /// The whole dataset; `bytes` is the size of the caller's memory and has to match exactly (ContractError).
  void read(void* destination, std::size_t bytes) const;
  void write(const void* source, std::size_t bytes);
  /// The block at `offset` of extent `count` (one number per dimension, inside the shape), row-major.
  void read_block(const Shape& offset, const Shape& count, void* destination, std::size_t bytes) const;
  void write_block(const Shape& offset, const Shape& count, const void* source, std::size_t bytes);
  /// Rows [begin, end) along the first dimension.
  void read_rows(std::uint64_t begin, std::uint64_t end, void* destination, std::size_t bytes) const;
  /// Adds `n_rows` rows behind the last; needs DatasetOptions::extendible.
  void append(const void* source, std::uint64_t n_rows);

 private:
  friend class Group;
  Dataset(detail::Handle handle, std::shared_ptr<const detail::Origin> origin, std::string path, Type type, Shape shape)
      : Object(std::move(handle), std::move(origin), std::move(path)), type_(type), shape_(std::move(shape)) {}
  /// Bytes of a block, after checking that it lies inside the shape.
  std::size_t check_block(const Shape& offset, const Shape& count, std::size_t bytes) const;
  detail::Handle select(const Shape& offset, const Shape& count) const;

  Type type_ = Type::u8;
  Shape shape_;
};

enum class Kind { group, dataset, other };

class Group : public Object {
 public:
  /// Paths are relative to this group and may hold '/'; groups on the way are created as needed.
  bool has(const std::string& path) const;
  /// Names of the direct members, in alphabetical order. Links that lead out of the file are `other`.
  struct Member {
    std::string name;
    Kind kind;
  };
  std::vector<Member> members() const;
  /// Paths of all datasets below this group, in alphabetical order.
  std::vector<std::string> datasets() const;

  Group create_group(const std::string& path);
  Group group(const std::string& path) const;
  Dataset create_dataset(const std::string& path, Type type, const Shape& shape, const DatasetOptions& options = {});
  /// Throws UserError when it is missing, not a dataset, or of a type that is not in `Type`.
  Dataset dataset(const std::string& path) const;
  /// create_dataset and write in one.
  Dataset write(const std::string& path, Type type, const Shape& shape, const void* source,
                const DatasetOptions& options = {});

 protected:
  Group(detail::Handle handle, std::shared_ptr<const detail::Origin> origin, std::string path)
      : Object(std::move(handle), std::move(origin), std::move(path)) {}

 private:
  std::string full_path(const std::string& path) const;
};

/// A file, which is also its root group. Closing it closes all groups and datasets that were taken from it. New files
/// have the 1.10 format, whose metadata carry checksums.
class File : public Group {
 public:
  /// Makes an HDF5 file of `file`, which has to outlive this object: close() here, then commit() there. After a write
  /// that the system refused (disk full) everything throws the same MachineError.
  static File create(AtomicFile& file);
  /// Opens for reading.
  static File open(const std::string& path);
  /// The same of a descriptor, which stays open as long as this object; `path` is for messages.
  static File open(const std::string& path, int descriptor);
  /// The same for files that this program writes: refused with headers that have no checksums (superblock 0 or 1).
  static File open_own(const std::string& path);

  File(File&&) = default;
  File& operator=(File&&) = default;
  ~File();

  /// Writes what HDF5 still holds, and closes; throws where either fails. Without it the file is given up: the
  /// destructor writes nothing.
  void close();

 private:
  File(detail::Handle handle, std::shared_ptr<const detail::Origin> origin)
      : Group(std::move(handle), std::move(origin), "/") {}
};

}  // namespace furlong::hdf5
