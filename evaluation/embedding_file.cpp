#include "evaluation/embedding_file.h"

#include <fmt/format.h>

#include <bit>
#include <iterator>
#include <optional>

#include "framework/core/error.h"
#include "framework/core/printable.h"
#include "framework/io/hdf5.h"

namespace furlong {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;

/// Elements on their way to the end of a dataset whose rows have `width` of them; 0: a dataset of one dimension.
template <class T>
class Appender {
 public:
  Appender(hdf5::File& file, const std::string& name, hdf5::Type type, std::uint64_t width = 0)
      : row_(std::max<std::uint64_t>(width, 1)),
        dataset_(file.create_dataset(name, type, width > 0 ? hdf5::Shape{0, width} : hdf5::Shape{0},
                                     {.chunk = chunk(width), .extendible = true})) {}

  void add(std::span<const T> values) {
    buffer_.insert(buffer_.end(), values.begin(), values.end());
    if (buffer_.size() * sizeof(T) >= kBufferBytes) flush();
  }
  void add(T value) { add(std::span(&value, 1)); }
  void flush() {
    if (!buffer_.empty()) dataset_.append(buffer_.data(), buffer_.size() / row_);
    buffer_.clear();
  }

 private:
  static hdf5::Shape chunk(std::uint64_t width) {
    const std::uint64_t elements = (std::uint64_t{1} << 16) / sizeof(T);
    if (width == 0) return {elements};
    return {std::max<std::uint64_t>(1, elements / width), width};
  }
  std::uint64_t row_;
  hdf5::Dataset dataset_;
  std::vector<T> buffer_;
};

class Hdf5File : public EmbeddingFile {
 public:
  Hdf5File(std::unique_ptr<AtomicFile> place, const EmbeddingFormat& format)
      : width_(static_cast<std::uint64_t>(format.width)),
        place_(std::move(place)),
        file_(hdf5::File::create(*place_)),
        embeddings_(file_, "embeddings", hdf5::Type::f32, width_),
        ids_(file_.create_texts("ids")) {
    if (format.per_token) offsets_.emplace(file_, "offsets", hdf5::Type::u64);
    for (const auto& [name, value] : format.attributes) {
      if (const auto* text = std::get_if<std::string>(&value))
        file_.set_text(name, *text);
      else
        file_.set_integer(name, std::get<std::int64_t>(value));
    }
    if (offsets_) offsets_->add(0);
  }
  void begin(const std::string& id) override {
    new_ids_.push_back(id);
    if (new_ids_.size() == 1024) flush_ids();
  }
  void rows(std::span<const float> values) override {
    embeddings_.add(values);
    n_rows_ += values.size() / width_;
  }
  void end() override {
    if (offsets_) offsets_->add(n_rows_);
  }
  void finish() override {
    embeddings_.flush();
    flush_ids();
    if (offsets_) offsets_->flush();
    file_.close();
    place_->commit_last();
  }

 private:
  void flush_ids() {
    ids_.append(new_ids_);
    new_ids_.clear();
  }
  std::uint64_t width_, n_rows_ = 0;
  std::unique_ptr<AtomicFile> place_;
  hdf5::File file_;
  Appender<float> embeddings_;
  hdf5::TextDataset ids_;
  std::vector<std::string> new_ids_;
  std::optional<Appender<std::uint64_t>> offsets_;
};

/// Version 1.0 of NumPy's format: a header whose shape is written once the number of rows is known.
class NpyFile : public EmbeddingFile {
 public:
  NpyFile(std::unique_ptr<AtomicFile> place, const EmbeddingFormat& format)
      : width_(format.width), place_(std::move(place)) {
    static_assert(std::endian::native == std::endian::little);
    place_->write(header());
  }
  void begin(const std::string&) override { ++n_rows_; }
  void rows(std::span<const float> values) override {
    buffer_.insert(buffer_.end(), values.begin(), values.end());
    if (buffer_.size() * sizeof(float) >= kBufferBytes) flush();
  }
  void end() override {}
  void finish() override {
    flush();
    const std::string text = header();
    place_->write_at(0, text.data(), text.size());
    place_->commit_last();
  }

 private:
  void flush() {
    place_->write(buffer_.data(), buffer_.size() * sizeof(float));
    buffer_.clear();
  }
  std::string header() const {
    const std::string text =
        fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", n_rows_, width_);
    constexpr std::size_t size = 128, prefix = 10;
    std::string whole("\x93NUMPY\x01\x00", 8);
    whole += static_cast<char>(size - prefix);
    whole += '\0';
    return whole + text + std::string(size - prefix - 1 - text.size(), ' ') + '\n';
  }
  std::int64_t width_, n_rows_ = 0;
  std::unique_ptr<AtomicFile> place_;
  std::vector<float> buffer_;
};

class TsvFile : public EmbeddingFile {
 public:
  TsvFile(std::unique_ptr<AtomicFile> place, const EmbeddingFormat& format)
      : width_(static_cast<std::size_t>(format.width)), per_token_(format.per_token), place_(std::move(place)) {
    text_ = per_token_ ? "id\tposition" : "id";
    for (std::size_t i = 0; i < width_; ++i) text_ += fmt::format("\t{}", i);
    text_ += '\n';
  }
  void begin(const std::string& id) override {
    id_ = foreign::single_line(id, 1 << 16);
    position_ = 0;
  }
  void rows(std::span<const float> values) override {
    for (std::size_t row = 0; row < values.size(); row += width_) {
      text_ += id_;
      if (per_token_) text_ += fmt::format("\t{}", ++position_);
      for (std::size_t i = 0; i < width_; ++i) fmt::format_to(std::back_inserter(text_), "\t{}", values[row + i]);
      text_ += '\n';
    }
    if (text_.size() >= kBufferBytes) flush();
  }
  void end() override {}
  void finish() override {
    flush();
    place_->commit_last();
  }

 private:
  void flush() {
    place_->write(text_);
    text_.clear();
  }
  std::size_t width_;
  bool per_token_;
  std::unique_ptr<AtomicFile> place_;
  std::string text_, id_;
  std::uint64_t position_ = 0;
};

}  // namespace

std::unique_ptr<EmbeddingFile> make_embedding_file(std::unique_ptr<AtomicFile> place, const EmbeddingFormat& format) {
  const std::filesystem::path path = place->path();
  const std::string extension = path.extension().string();
  if (extension == ".h5" || extension == ".hdf5") return std::make_unique<Hdf5File>(std::move(place), format);
  if (extension == ".tsv") return std::make_unique<TsvFile>(std::move(place), format);
  if (extension != ".npy")
    throw UserError("--output: {} has the extension '{}'; expected .h5, .hdf5, .npy or .tsv", path.string(), extension);
  if (format.per_token)
    throw UserError("--output: {}: .npy cannot keep the vectors of tokens apart by sequence; expected .h5 or .tsv",
                    path.string());
  return std::make_unique<NpyFile>(std::move(place), format);
}

}  // namespace furlong
