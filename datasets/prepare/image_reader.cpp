#include "datasets/prepare/image_reader.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>

#include "datasets/prepare/byte_source.h"
#include "datasets/prepare/input_files.h"
#include "datasets/prepare/label_parser.h"
#include "datasets/prepare/png_image.h"
#include "framework/core/error.h"
#include "framework/core/printable.h"

namespace furlong {
namespace {

constexpr std::uint64_t max_image_bytes = std::uint64_t{1} << 30;
constexpr std::size_t max_netpbm_header = 4096;
constexpr std::uint64_t unknown_count = std::numeric_limits<std::uint64_t>::max();
constexpr int cifar10_labels = 10;

/// What a file's header says.
struct ImageHeader {
  std::uint64_t images = 1;  ///< or unknown_count: to the end of the file
  std::uint64_t rows = 0, columns = 0, channels = 1;
  std::size_t bytes = 0;  ///< of the header
  unsigned maximum = 255;
  bool named_by_folder = false;    ///< PGM, PPM and PNG, whose folder is their label
  std::optional<PngHeader> png{};  ///< a compressed image: only the whole file can be decoded
  std::uint64_t label_bytes = 0;   ///< before each image, which then has planes of channels
  std::uint64_t image_bytes() const { return rows * columns * channels; }
  std::string size() const { return fmt::format("{} x {} x {}", rows, columns, channels); }
};

std::uint32_t big_endian(std::string_view bytes) {
  std::uint32_t value = 0;
  for (const char byte : bytes.substr(0, 4)) value = value << 8 | static_cast<unsigned char>(byte);
  return value;
}

/// Returns the dimensions of an IDX file of bytes, or nothing if more of the file is needed. Magic number: two zeros,
/// the type of the values, the number of dimensions.
std::optional<std::vector<std::uint64_t>> idx_dimensions(std::string_view text, const std::string& name) {
  if (text.size() < 4) return std::nullopt;
  const auto type = static_cast<unsigned char>(text[2]);
  const auto count = static_cast<std::size_t>(static_cast<unsigned char>(text[3]));
  if (type != 8)
    throw UserError("{}: IDX values of type 0x{:02x}; expected unsigned bytes (0x08), or --format cifar10", name, type);
  if (count < 1 || count > 4) throw UserError("{}: IDX data of {} dimensions; expected 1 to 4", name, count);
  if (text.size() < 4 + 4 * count) return std::nullopt;
  std::vector<std::uint64_t> dimensions;
  for (std::size_t i = 0; i < count; ++i) dimensions.push_back(big_endian(text.substr(4 + 4 * i)));
  return dimensions;
}

bool is_netpbm(std::string_view beginning) { return beginning.starts_with("P5") || beginning.starts_with("P6"); }

bool is_idx(std::string_view text) { return text.size() >= 2 && text[0] == 0 && text[1] == 0; }

/// Reads the words of a PGM or PPM header: whitespace separates them, # starts a comment.
class NetpbmWords {
 public:
  NetpbmWords(std::string_view text, const std::string& name) : text_(text), name_(name) {}
  /// Returns the next number, or nothing if the text ends before the character after it.
  std::optional<std::uint64_t> number() {
    while (at_ < text_.size() && (is_space(text_[at_]) || text_[at_] == '#')) {
      if (text_[at_] == '#') at_ = std::min(text_.find('\n', at_), text_.size() - 1);
      ++at_;
    }
    const std::size_t begin = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
    if (at_ == text_.size()) return std::nullopt;
    std::uint32_t value = 0;
    const auto [last, error] = std::from_chars(text_.data() + begin, text_.data() + at_, value);
    if (error != std::errc{} || !is_space(text_[at_]))
      throw UserError("{}: the header is not that of a PGM or PPM file; expected width, height and largest value",
                      name_);
    return value;
  }
  /// Returns the place after the single space that ends the header.
  std::size_t end() const { return at_ + 1; }

 private:
  static bool is_space(char letter) { return letter == ' ' || (letter >= '\t' && letter <= '\r'); }
  std::string_view text_;
  const std::string& name_;
  std::size_t at_ = 2;
};

std::optional<ImageHeader> netpbm_header(std::string_view text, const std::string& name) {
  NetpbmWords words(text.substr(0, max_netpbm_header), name);
  const auto width = words.number(), height = width ? words.number() : width,
             maximum = height ? words.number() : height;
  if (!maximum) {
    if (text.size() < max_netpbm_header) return std::nullopt;
    throw UserError("{}: the header has more than {} bytes", name, max_netpbm_header);
  }
  if (*maximum < 1 || *maximum > 255)
    throw UserError("{}: the largest value is {}; expected 1 to 255, one byte for each value", name, *maximum);
  return ImageHeader{.rows = *height,
                     .columns = *width,
                     .channels = text[1] == '6' ? 3U : 1U,
                     .bytes = words.end(),
                     .maximum = static_cast<unsigned>(*maximum),
                     .named_by_folder = true};
}

/// Returns the header, or nothing if more of the file is needed.
std::optional<ImageHeader> header_of(std::string_view text, const std::string& name) {
  if (is_netpbm(text)) return netpbm_header(text, name);
  if (text.size() < 4) return std::nullopt;
  if (is_png(text)) {
    const auto png = png_header(text, name);
    if (!png) return std::nullopt;
    return ImageHeader{
        .rows = png->rows, .columns = png->columns, .channels = png->channels, .named_by_folder = true, .png = png};
  }
  if (!is_idx(text))
    throw UserError("{}: not an image file; expected IDX, PGM (P5), PPM (P6) or PNG, or --format cifar10", name);
  const auto dimensions = idx_dimensions(text, name);
  if (!dimensions) return std::nullopt;
  if (dimensions->size() < 3)
    throw UserError("{}: IDX data of {} dimensions; expected 3 (images, rows, columns) or 4 (channels)", name,
                    dimensions->size());
  ImageHeader header;
  header.images = (*dimensions)[0];
  header.rows = (*dimensions)[1];
  header.columns = (*dimensions)[2];
  if (dimensions->size() == 4) header.channels = (*dimensions)[3];
  header.bytes = 4 + 4 * dimensions->size();
  return header;
}

class ImageReader : public DocumentReader {
 public:
  ImageReader(ImageOptions options, DocumentSink& writer)
      : options_(std::move(options)), n_named_(options_.names.size()), writer_(writer) {
    check_label_names(options_.names);
    if (options_.cifar10) highest_ = cifar10_labels - 1;
  }

  void begin_input(const std::string& name) override {
    name_ = name;
    header_.reset();
    read_ = 0;
    text_.clear();
    if (options_.cifar10) {
      header_ = {.images = unknown_count, .rows = 32, .columns = 32, .channels = 3, .label_bytes = 1};
    } else if (options_.labeled && options_.labels.empty()) {
      folder_ = folder_label();
    }
  }

  void feed(std::string_view block) override {
    text_ += block;
    if (!header_) read_header();
    if (!header_) return;
    if (header_->png) {
      if (text_.size() > 2 * max_image_bytes) throw UserError("{}: the file is larger than 2 GiB", name_);
      return;
    }
    const std::uint64_t before = header_->label_bytes, bytes = before + header_->image_bytes();
    std::size_t begin = 0;
    for (; read_ < header_->images && text_.size() - begin >= bytes; begin += bytes, ++read_) {
      const std::string_view record = std::string_view(text_).substr(begin, bytes);
      write(before == 0 ? record : interleaved(record));
    }
    text_.erase(0, begin);
    if (read_ == header_->images && !text_.empty())
      throw UserError("{}: the file continues after its {}; expected its end", name_, counted());
  }

  void end_input() override {
    if (!header_) throw UserError("{}: the file ends inside its header; download or copy it again", name_);
    if (header_->png) {
      write(decode_png(text_, *header_->png, name_));
      ++read_;
    }
    const bool cut_record = header_->images == unknown_count && (read_ == 0 || !text_.empty());
    if (cut_record)
      throw UserError("{}: the file is truncated: its record {} has {} of {} bytes; download or copy it again", name_,
                      read_ + 1, text_.size(), header_->label_bytes + header_->image_bytes());
    if (header_->images != unknown_count && read_ < header_->images)
      throw UserError("{}: the file is truncated: it has {} of {} of {}; download or copy it again", name_, read_,
                      counted(), header_->size());
    ++input_;
  }

  std::vector<std::string> label_names() const override {
    std::vector<std::string> names = options_.names;
    if (!names.empty() || (options_.labels.empty() && !options_.cifar10)) return names;
    for (int label = 0; label <= highest_; ++label) names.push_back(std::to_string(label));
    return names;
  }

 private:
  std::string counted() const { return fmt::format("{} image{}", header_->images, header_->images == 1 ? "" : "s"); }

  /// Returns the pixels of a record of CIFAR-10, red, green and blue of one after another, and keeps its label.
  std::string_view interleaved(std::string_view record) {
    label_ = static_cast<unsigned char>(record.front());
    if (label_ >= cifar10_labels)
      throw UserError(
          "{}: record {} has the label {}, expected 0 to 9; check that this is the binary version of CIFAR-10", name_,
          read_ + 1, label_);
    const std::size_t plane = header_->rows * header_->columns;
    planes_.resize(3 * plane);
    for (std::size_t i = 0; i < plane; ++i)
      for (std::size_t channel = 0; channel < 3; ++channel) planes_[3 * i + channel] = record[1 + channel * plane + i];
    return planes_;
  }

  void read_header() {
    header_ = header_of(text_, name_);
    if (!header_) return;
    text_.erase(0, header_->bytes);
    const ImageHeader& found = *header_;
    // Each factor is below 2^32, so that the product of two does not overflow.
    const bool too_large = found.rows * found.columns > max_image_bytes || found.channels > max_image_bytes ||
                           found.image_bytes() > max_image_bytes;
    if (found.images == 0 || too_large || found.image_bytes() == 0)
      throw UserError("{}: found {} of {}; expected at least one image of 1 byte to 1 GiB", name_, counted(),
                      found.size());
    if (options_.grayscale && found.channels != 1 && found.channels != 3)
      throw UserError("{}: found {} channels; --grayscale needs 1 or 3", name_, found.channels);
    if (first_name_.empty()) {
      first_ = found;
      first_name_ = name_;
    } else if (found.size() != first_.size()) {
      throw UserError("{}: images of {}; expected {} as in {}", name_, found.size(), first_.size(), first_name_);
    }
    check_labels();
  }

  void check_labels() const {
    if (options_.labels.empty()) {
      // Folders label pictures, and nothing labels an IDX file: a dataset has either all labels or none.
      if (header_->named_by_folder != first_.named_by_folder)
        throw UserError("{}: {} and {} has the other kind; prepare IDX files and pictures separately", name_,
                        header_->named_by_folder ? "its folder is its label" : "an IDX file without --label-file",
                        first_name_);
      if (!options_.labeled && n_named_ > 0)
        throw UserError("{}: --labels names labels, but an IDX file has none; give --label-file, or remove --labels",
                        name_);
      return;
    }
    const std::size_t labels = options_.labels.at(input_).size();
    if (labels != header_->images)
      throw UserError("{}: has {}, but its --label-file has {} labels; give the labels of this file", name_, counted(),
                      labels);
  }

  void write(std::string_view image) {
    pixels_.clear();
    const auto value = [&](std::size_t place) {
      const unsigned raw = static_cast<unsigned char>(image[place]);
      if (raw > header_->maximum)
        throw UserError("{}: found the value {} above the largest one of the header, {}", name_, raw, header_->maximum);
      return (raw * 255 + header_->maximum / 2) / header_->maximum;
    };
    if (options_.grayscale && header_->channels == 3) {
      for (std::size_t i = 0; i < image.size(); i += 3)
        pixels_.push_back(
            static_cast<std::uint16_t>((299 * value(i) + 587 * value(i + 1) + 114 * value(i + 2) + 500) / 1000));
    } else {
      for (std::size_t i = 0; i < image.size(); ++i) pixels_.push_back(static_cast<std::uint16_t>(value(i)));
    }
    writer_.append(std::span<const std::uint16_t>(pixels_));
    writer_.end_document();
    if (!options_.labeled) return;
    const bool of_folder = options_.labels.empty() && !options_.cifar10;
    const std::int32_t label = of_folder ? folder_ : label_of_image();
    writer_.label({.ids = {&label, 1}, .place = name_});
  }

  std::int32_t label_of_image() {
    const int label = options_.cifar10 ? label_ : options_.labels[input_][static_cast<std::size_t>(read_)];
    if (n_named_ > 0 && static_cast<std::size_t>(label) >= n_named_)
      throw UserError("{}: image {} has the label {}, but --labels gives {} names", name_, read_ + 1, label, n_named_);
    highest_ = std::max(highest_, label);
    return label;
  }

  /// Returns the label of the folder that the input is in.
  std::int32_t folder_label() {
    const std::string folder = folder_of(name_);
    const auto found = std::find(options_.names.begin(), options_.names.end(), folder);
    if (found == options_.names.end() && n_named_ > 0)
      throw UserError("{}: its folder {} is not one of --labels", name_, foreign::printable(folder));
    const auto label = static_cast<std::int32_t>(found - options_.names.begin());
    if (found == options_.names.end()) options_.names.push_back(folder);
    return label;
  }

  ImageOptions options_;
  std::size_t n_named_;  // names that the caller gave
  DocumentSink& writer_;
  std::string name_, text_, first_name_, planes_;
  std::optional<ImageHeader> header_;
  ImageHeader first_;
  std::uint64_t read_ = 0;  // images of this input
  std::size_t input_ = 0;
  std::int32_t folder_ = 0;
  int label_ = 0, highest_ = 0;
  std::vector<std::uint16_t> pixels_;
};

}  // namespace

bool is_picture(std::string_view beginning) { return is_netpbm(beginning) || is_png(beginning); }

bool is_surely_picture(std::string_view beginning) {
  if (is_png(beginning)) return true;
  if (!is_netpbm(beginning) || beginning.size() < 3 || (beginning[2] >= '0' && beginning[2] <= '9')) return false;
  const std::string name;
  try {
    return netpbm_header(beginning, name).has_value();
  } catch (const UserError&) {
    return false;
  }
}

std::unique_ptr<DocumentReader> make_image_reader(ImageOptions options, DocumentSink& writer) {
  return std::make_unique<ImageReader>(std::move(options), writer);
}

std::vector<std::uint8_t> read_idx_labels(ByteSource& source) {
  std::string header(8, '\0');
  header.resize(source.read(header.data(), header.size()));
  const std::string& name = source.name();
  if (header.size() >= 2 && !is_idx(header))
    throw UserError("{}: not an IDX file; expected the labels of images", name);
  if (header.size() >= 4 && header[3] != 1)
    throw UserError("{}: IDX data of {} dimensions; expected 1, a label for each image", name,
                    static_cast<unsigned char>(header[3]));
  const auto dimensions = idx_dimensions(header, name);
  std::vector<std::uint8_t> labels;
  std::vector<std::uint8_t> block(1 << 16);
  const std::size_t stated = dimensions ? dimensions->front() : 0;
  while (const std::size_t count = labels.size() > stated ? 0 : source.read(block.data(), block.size()))
    labels.insert(labels.end(), block.begin(), block.begin() + static_cast<std::ptrdiff_t>(count));
  if (labels.size() > stated)
    throw UserError("{}: the file has more labels than the {} that its header states; download or copy it again", name,
                    stated);
  if (!dimensions || labels.size() != stated)
    throw UserError("{}: the file has {} of {} labels; download or copy it again", name, labels.size(), stated);
  return labels;
}

}  // namespace furlong
