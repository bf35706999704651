#pragma once
// A checkpoint file: named tensors, texts and numbers in HDF5, preceded by a checksum of the whole
// (docs/file_formats.md).
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace furlong {

class AtomicFile;

/// Version of the file layout that CheckpointWriter writes and CheckpointReader reads.
inline constexpr std::uint32_t checkpoint_format_version = 2;  ///< version 1 can still be read

/// Receives the entries of a checkpoint. Names are paths such as "parameters/blocks.0.attention.query.weight".
class CheckpointSink {
 public:
  virtual ~CheckpointSink() = default;
  /// `dtype` is float32, bfloat16, float64, int32, int64 or uint8. `shape` may be empty (a scalar) or contain zeros.
  /// `data` holds product(shape) elements, row-major; the caller may reuse it after the call.
  virtual void tensor(const std::string& name, std::string_view dtype, std::span<const std::int64_t> shape,
                      const void* data) = 0;
  /// Usually UTF-8, but any bytes are preserved. At most 4 GiB less one byte.
  virtual void text(const std::string& name, std::string_view value) = 0;
  virtual void number(const std::string& name, double value) = 0;
  virtual void integer(const std::string& name, std::int64_t value) = 0;
};

/// Writes a checkpoint to a partial file; finish() renames the complete file to its final name. Each '/' in a name
/// creates an HDF5 group.
/// One thread at a time may use a writer, also while other threads use HDF5: tensors are written from the caller's
/// memory without a copy and without HDF5's lock.
/// Throws UserError if the path is at fault, MachineError if the machine is (disk full), and ContractError for an
/// invalid or duplicate name or an unknown dtype. After any throw the partial file is removed and the writer is
/// unusable.
class CheckpointWriter final : public CheckpointSink {
 public:
  explicit CheckpointWriter(std::filesystem::path path);
  /// Writes to an empty file that the caller opened before the contents were known.
  explicit CheckpointWriter(std::unique_ptr<AtomicFile> file);
  /// Removes the partial file unless finish() has returned.
  ~CheckpointWriter() override;
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  void tensor(const std::string& name, std::string_view dtype, std::span<const std::int64_t> shape,
              const void* data) override;
  void text(const std::string& name, std::string_view value) override;
  void number(const std::string& name, double value) override;
  void integer(const std::string& name, std::int64_t value) override;
  /// Writes the checksum and flushes the file to disk in advance, so that little in finish() can fail.
  void flush();
  /// Does what flush() has not done, and renames the file to its final name.
  void finish();
  const std::filesystem::path& path() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

struct TensorInfo {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::size_t bytes = 0;
};

/// Reads a checkpoint. open() reads the whole file once and verifies its checksum before HDF5 parses it. A damaged file
/// is rejected with a one-line UserError that names the file and the damage. Tensors in shards (checkpoint_shards.h)
/// are read like local ones; open() also reads and verifies the shards. Any thread may use a reader, one at a time.
class CheckpointReader {
 public:
  static CheckpointReader open(const std::filesystem::path& path);
  /// Returns the names of the shards that a checkpoint needs. Reads and verifies only the file itself; throws as open()
  /// does.
  static std::vector<std::string> shards_of(const std::filesystem::path& path);
  CheckpointReader(CheckpointReader&&) noexcept;
  CheckpointReader& operator=(CheckpointReader&&) noexcept;
  ~CheckpointReader();

  /// Whether a tensor, text, number or integer with this name exists.
  bool has(const std::string& name) const;
  /// Returns all tensors whose name starts with `prefix`, in alphabetical order.
  std::vector<TensorInfo> tensors(std::string_view prefix = "") const;
  /// Returns a tensor's description. Throws UserError if the tensor does not exist, as the functions below do.
  const TensorInfo& info(const std::string& name) const;
  /// Reads a whole tensor into `bytes` bytes at `destination`. Throws UserError with both sizes if the tensor has
  /// another size.
  void read(const std::string& name, void* destination, std::size_t bytes) const;
  /// As above. Throws UserError if the tensor has another dtype or shape.
  void read(const std::string& name, std::string_view dtype, std::span<const std::int64_t> shape,
            void* destination) const;
  std::string text(const std::string& name) const;
  double number(const std::string& name) const;
  std::int64_t integer(const std::string& name) const;
  const std::filesystem::path& path() const;

 private:
  struct State;
  explicit CheckpointReader(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Returns the checksum stated in the file without verifying it; files with equal checksums are copies of each other.
/// Returns nothing if the file cannot be read or is not a checkpoint.
std::optional<std::uint64_t> checkpoint_checksum(const std::filesystem::path& path) noexcept;

}  // namespace furlong
