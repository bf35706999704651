#pragma once
// HDF5 files as C++ objects with Furlong's errors. libhdf5 is not thread-safe: every call takes one process-wide
// recursive mutex, so any thread may use any object. File locking is off because cluster file systems lack it. HDF5's
// error printing is off; errors quote its innermost reason. Filters of plugins are never loaded.
// A failed read throws UserError (missing, foreign, truncated, damaged) unless the operating system reported an I/O
// error. A failed write throws MachineError. Both name the file.
#include <cstddef>
#include <cstdint>
#include <filesystem>
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
class MetadataCheck;
class InputFile;

/// The process-wide lock. Hold it to make several calls atomic.
std::recursive_mutex& mutex();

/// Element types, little-endian in the file. `bf16` is stored as 16-bit unsigned integers with the attribute dtype =
/// "bfloat16".
enum class Type { u8, u16, u32, u64, i32, i64, f32, f64, bf16 };

std::size_t size_of(Type type);
/// Returns "uint8", "uint16", "uint32", "uint64", "int32", "int64", "float32", "float64" or "bfloat16".
std::string_view name_of(Type type);

using Shape = std::vector<std::uint64_t>;
/// Returns the number of elements; 1 for the empty (scalar) shape. Throws UserError beyond 2^59 elements.
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

/// The file that an object belongs to: its name for errors, and its descriptors.
struct Origin {
  std::string file;
  std::unique_ptr<InputFile> opened;        ///< set if this object owns the descriptor of `input`
  std::unique_ptr<DescriptorIo> output;     ///< null if the file was opened for reading
  std::unique_ptr<DescriptorIo> input;      ///< set if the file was opened for reading from a descriptor
  std::unique_ptr<MetadataCheck> metadata;  ///< set if the file must have the form that Furlong writes
};
}  // namespace detail

/// Common base of file, group and dataset: a path inside the file, and attributes.
class Object {
 public:
  const std::string& path() const { return path_; }
  const std::string& file_name() const { return origin_->file; }

  bool has_attribute(const std::string& name) const;
  /// Sets an attribute and replaces an existing one. Text is UTF-8 of any length without trailing NUL characters.
  void set_text(const std::string& name, std::string_view value);
  void set_integer(const std::string& name, std::int64_t value);
  void set_number(const std::string& name, double value);
  /// Return an attribute. Throw UserError if it is missing or has another type.
  std::string text(const std::string& name) const;
  std::int64_t integer(const std::string& name) const;
  double number(const std::string& name) const;

 protected:
  Object(detail::Handle handle, std::shared_ptr<const detail::Origin> origin, std::string path)
      : handle_(std::move(handle)), origin_(std::move(origin)), path_(std::move(path)) {}
  [[noreturn]] void fail_reading(std::string_view what) const;
  [[noreturn]] void fail_writing(std::string_view what) const;
  /// Throws ContractError if the file was opened for reading, MachineError if an earlier write failed.
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
  /// Shape of a chunk. Empty: contiguous storage, written directly from the caller's memory.
  Shape chunk;
  /// Stores a checksum of every chunk and verifies it on reading; needs chunks.
  bool fletcher32 = false;
  bool extendible = false;  ///< the first dimension can grow with append(); needs chunks
};

class Dataset : public Object {
 public:
  Type type() const { return type_; }
  const Shape& shape() const { return shape_; }
  std::uint64_t bytes() const { return n_elements(shape_) * size_of(type_); }
  /// Returns the bytes that the elements occupy in the file; less than bytes() if they are compressed or were never
  /// written.
  std::uint64_t storage_bytes() const;
  /// Whether elements are compressed or have checksums.
  bool is_filtered() const;

  /// Reads or writes the whole dataset. `bytes`, the size of the caller's memory, must equal bytes() (ContractError).
  void read(void* destination, std::size_t bytes) const;
  void write(const void* source, std::size_t bytes);
  /// Reads or writes the block at `offset` with extents `count` (one number per dimension, inside the shape),
  /// row-major.
  void read_block(const Shape& offset, const Shape& count, void* destination, std::size_t bytes) const;
  void write_block(const Shape& offset, const Shape& count, const void* source, std::size_t bytes);
  /// Reads rows [begin, end) of the first dimension.
  void read_rows(std::uint64_t begin, std::uint64_t end, void* destination, std::size_t bytes) const;
  /// Appends `n_rows` rows; needs DatasetOptions::extendible.
  void append(const void* source, std::uint64_t n_rows);

 private:
  friend class Group;
  Dataset(detail::Handle handle, std::shared_ptr<const detail::Origin> origin, std::string path, Type type, Shape shape)
      : Object(std::move(handle), std::move(origin), std::move(path)), type_(type), shape_(std::move(shape)) {}
  /// Returns the bytes of a block. Throws if the block is not inside the shape.
  std::size_t check_block(const Shape& offset, const Shape& count, std::size_t bytes) const;
  detail::Handle select(const Shape& offset, const Shape& count) const;

  Type type_ = Type::u8;
  Shape shape_;
};

/// A growing dataset of UTF-8 texts of variable length.
class TextDataset : public Object {
 public:
  /// Appends texts without NUL characters.
  void append(std::span<const std::string> texts);

 private:
  friend class Group;
  using Object::Object;
  std::uint64_t size_ = 0;
};

enum class Kind { group, dataset, other };

class Group : public Object {
 public:
  /// Paths are relative to this group and may contain '/'. Intermediate groups are created as needed.
  bool has(const std::string& path) const;
  /// Returns the direct members in alphabetical order. Links that lead out of the file have kind `other`.
  struct Member {
    std::string name;
    Kind kind;
  };
  std::vector<Member> members() const;
  /// Returns the paths of all datasets below this group, in alphabetical order.
  std::vector<std::string> datasets() const;

  Group group(const std::string& path) const;
  Dataset create_dataset(const std::string& path, Type type, const Shape& shape, const DatasetOptions& options = {});
  TextDataset create_texts(const std::string& path);
  /// Opens a dataset. Throws UserError if it is missing, is not a dataset, has a type that is not in `Type`, or, in
  /// files of open_checksummed(), has filters other than Fletcher32.
  Dataset dataset(const std::string& path) const;
  /// Creates a dataset and writes it.
  Dataset write(const std::string& path, Type type, const Shape& shape, const void* source,
                const DatasetOptions& options = {});

 protected:
  Group(detail::Handle handle, std::shared_ptr<const detail::Origin> origin, std::string path)
      : Object(std::move(handle), std::move(origin), std::move(path)) {}

 private:
  std::string full_path(const std::string& path) const;
};

/// A file, which is also its root group. Closing it closes all groups and datasets taken from it. New files use the
/// 1.10 format, whose metadata has checksums.
class File : public Group {
 public:
  /// Creates an HDF5 file in `file`, which must outlive this object. Call close() here, then commit() there. After a
  /// failed write (disk full) every call throws the same MachineError.
  static File create(AtomicFile& file);
  /// Throws UserError if the name that a user gave for an output does not end in .h5 or .hdf5.
  static void check_output_name(const std::filesystem::path& path);
  /// Returns whether a file can be read and does not begin as HDF5 does.
  static bool lacks_signature(const std::string& path);
  /// Opens for reading.
  static File open(const std::string& path);
  /// As above, from a descriptor that must stay open as long as this object; `path` is for messages.
  static File open(const std::string& path, int descriptor);
  /// As above, for files that Furlong writes. Only structures that it writes are read: those of the 1.10 format, whose
  /// metadata have checksums (hdf5_metadata.h), no compressed data, and no text of variable length. Throws UserError
  /// for others, some of them only when they are read.
  static File open_checksummed(const std::string& path);

  File(File&&) = default;
  File& operator=(File&&) = default;
  ~File();

  /// Writes what HDF5 has buffered and closes the file; throws if either fails. Without close() the file is discarded:
  /// the destructor writes nothing.
  void close();

 private:
  File(detail::Handle handle, std::shared_ptr<const detail::Origin> origin)
      : Group(std::move(handle), std::move(origin), "/") {}
  static File open_input(std::shared_ptr<detail::Origin> origin);
};

}  // namespace furlong::hdf5
