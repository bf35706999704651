#pragma once
// One checkpoint in one file: named tensors, texts and numbers, in HDF5 behind a checksum of the whole
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

/// Version of the layout that CheckpointWriter writes and CheckpointReader reads.
inline constexpr std::uint32_t checkpoint_format_version = 1;

/// Takes what a checkpoint is to hold. Names are paths such as "parameters/blocks.0.attention.query.weight".
class CheckpointSink {
 public:
  virtual ~CheckpointSink() = default;
  /// `dtype`: float32, bfloat16, float64, int32, int64 or uint8. `shape` may be empty (a scalar) or hold zeros. `data`
  /// is row-major and holds product(shape) elements; it is the caller's again when this returns.
  virtual void tensor(const std::string& name, std::string_view dtype, std::span<const std::int64_t> shape,
                      const void* data) = 0;
  /// UTF-8 by custom, but any bytes come back as they were. At most 4 GiB less one byte.
  virtual void text(const std::string& name, std::string_view value) = 0;
  virtual void number(const std::string& name, double value) = 0;
  virtual void integer(const std::string& name, std::int64_t value) = 0;
};

/// Writes a checkpoint beside its place; finish() makes it appear, whole. The '/' in names become HDF5 groups. Any one
/// thread may use a writer, also while others use HDF5: tensors go from the caller's memory to the file without a copy
/// and without HDF5's lock. After any throw the partial file is gone and the writer of no further use. Throws UserError
/// where the place is at fault, MachineError where the machine is (disk full), and ContractError for a bad name, a name
/// used twice, an unknown dtype.
class CheckpointWriter final : public CheckpointSink {
 public:
  explicit CheckpointWriter(std::filesystem::path path);
  /// Removes the partial file, unless finish() has returned.
  ~CheckpointWriter() override;
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  void tensor(const std::string& name, std::string_view dtype, std::span<const std::int64_t> shape,
              const void* data) override;
  void text(const std::string& name, std::string_view value) override;
  void number(const std::string& name, double value) override;
  void integer(const std::string& name, std::int64_t value) override;
  /// Writes the checksum, flushes the file to disk, and renames it to its place.
  void finish();

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

/// Reads a checkpoint. open() reads the whole file once and compares its checksum before HDF5 sees it, so that a
/// damaged file is refused with a UserError of one line that names the file and what is wrong. Tensors that lie in
/// shards (checkpoint_shards.h) are read as if they lay here; open() reads and checks those files, too. Any thread may
/// use a reader, one at a time.
class CheckpointReader {
 public:
  static CheckpointReader open(const std::filesystem::path& path);
  /// The names of the shards that a checkpoint needs. Checks and reads nothing but the file itself; throws as open()
  /// does.
  static std::vector<std::string> shards_of(const std::filesystem::path& path);
  CheckpointReader(CheckpointReader&&) noexcept;
  CheckpointReader& operator=(CheckpointReader&&) noexcept;
  ~CheckpointReader();

  /// Whether a tensor, text, number or integer has that name.
  bool has(const std::string& name) const;
  /// All tensors whose name begins with `prefix`, in alphabetical order.
  std::vector<TensorInfo> tensors(std::string_view prefix = "") const;
  /// Throws UserError when there is no such tensor, as the reading functions below do.
  const TensorInfo& info(const std::string& name) const;
  /// Reads a whole tensor into `bytes` bytes at `destination`. Throws UserError, with what was found and what was
  /// expected, when the tensor has another size.
  void read(const std::string& name, void* destination, std::size_t bytes) const;
  /// The same, and the tensor has to have this dtype and shape.
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

/// Reads the whole file and throws what CheckpointReader::open would throw about its checksum.
void verify_checkpoint(const std::filesystem::path& path);

/// The checksum that the file states of itself, without checking it: files that state the same one are copies of each
/// other. Nothing when the file cannot be read or is no checkpoint.
std::optional<std::uint64_t> checkpoint_checksum(const std::filesystem::path& path) noexcept;

}  // namespace furlong
