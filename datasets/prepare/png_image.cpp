#include "datasets/prepare/png_image.h"

#include <png.h>

#include <array>
#include <cstring>

#include "framework/core/error.h"
#include "framework/core/printable.h"

namespace furlong {
namespace {

constexpr std::string_view signature("\x89PNG\r\n\x1a\n", 8);

/// What libpng reads, and what it reports.
struct Input {
  std::string_view text;
  std::size_t at = 0;
  bool is_truncated = false;
  std::array<char, 200> message{};
};

void read_bytes(png_structp png, png_bytep to, std::size_t count) {
  auto& input = *static_cast<Input*>(png_get_io_ptr(png));
  if (count > input.text.size() - input.at) {
    input.is_truncated = true;
    png_error(png, "truncated");
  }
  std::memcpy(to, input.text.data() + input.at, count);
  input.at += count;
}

[[noreturn]] void note_error(png_structp png, png_const_charp message) {
  auto& input = *static_cast<Input*>(png_get_error_ptr(png));
  std::strncpy(input.message.data(), message, input.message.size() - 1);
  png_longjmp(png, 1);
}

void ignore_warning(png_structp, png_const_charp) {}

/// Decodes to [rows, row_bytes]. Returns false after an error. libpng reports errors by longjmp, so no
/// object with a destructor may live here.
bool decode(Input& input, png_bytep pixels, std::size_t rows, std::size_t row_bytes) {
  png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &input, note_error, ignore_warning);
  if (png == nullptr) return false;
  png_infop info = png_create_info_struct(png);
  if (info == nullptr || setjmp(png_jmpbuf(png)) != 0) {
    png_destroy_read_struct(&png, &info, nullptr);
    return false;
  }
  png_set_read_fn(png, &input, read_bytes);
  png_set_user_limits(png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);  // the caller limits the image's bytes
  png_set_chunk_malloc_max(png, 8 << 20);
  png_set_chunk_cache_max(png, 1);  // none: libpng would store a thousand texts, each of eight MiB
  png_read_info(png, info);
  if (png_get_valid(png, info, PNG_INFO_tRNS) != 0) png_error(png, "transparent colors");
  png_set_expand(png);  // palettes, and fewer than 8 bits
  const int passes = png_set_interlace_handling(png);
  png_read_update_info(png, info);
  if (png_get_rowbytes(png, info) != row_bytes) png_error(png, "another header");
  for (int pass = 0; pass < passes; ++pass) {
    for (std::size_t row = 0; row < rows; ++row) png_read_row(png, pixels + row * row_bytes, nullptr);
  }
  png_read_end(png, nullptr);
  png_destroy_read_struct(&png, &info, nullptr);
  return true;
}

std::uint32_t big_endian_at(std::string_view bytes, std::size_t place) {
  std::uint32_t value = 0;
  for (const char byte : bytes.substr(place, 4)) value = value << 8 | static_cast<unsigned char>(byte);
  return value;
}

}  // namespace

bool is_png(std::string_view beginning) { return beginning.starts_with(signature.substr(0, 4)); }

std::optional<PngHeader> png_header(std::string_view beginning, const std::string& name) {
  // Signature, then the chunk IHDR: length, name, width, height, bits, color type, three methods, checksum.
  constexpr std::size_t bytes = 33;
  if (beginning.size() < bytes) return std::nullopt;
  const auto bits = static_cast<unsigned char>(beginning[24]), color = static_cast<unsigned char>(beginning[25]);
  if (!beginning.starts_with(signature) || beginning.substr(12, 4) != "IHDR" || color > 6 || color == 1 || color == 5)
    throw UserError("{}: the header is not that of a PNG file; download or copy it again", name);
  if (color == PNG_COLOR_TYPE_GRAY_ALPHA || color == PNG_COLOR_TYPE_RGB_ALPHA)
    throw UserError(
        "{}: the image has an alpha channel; expected gray, color or a palette: convert it, for example with magick "
        "IN.png -alpha remove OUT.png",
        name);
  if (bits > 8)
    throw UserError(
        "{}: the image has {} bits for each value; expected at most 8: convert it, for example with magick IN.png "
        "-depth 8 OUT.png",
        name, bits);
  return PngHeader{.rows = big_endian_at(beginning, 20),
                   .columns = big_endian_at(beginning, 16),
                   .channels = color == PNG_COLOR_TYPE_GRAY ? 1U : 3U,
                   .bits_per_pixel = color == PNG_COLOR_TYPE_RGB ? 3U * bits : bits};
}

std::string decode_png(std::string_view file, const PngHeader& header, const std::string& name) {
  const std::size_t row_bytes = header.columns * header.channels;
  // A byte of deflate data gives at most 1032 bytes. A small file must not claim much memory.
  const std::uint64_t packed = header.rows * ((header.columns * header.bits_per_pixel + 7) / 8);
  Input input{.text = file, .is_truncated = packed / 1032 > file.size()};
  std::string pixels(input.is_truncated ? 0 : header.rows * row_bytes, '\0');
  if (input.is_truncated || !decode(input, reinterpret_cast<png_bytep>(pixels.data()), header.rows, row_bytes)) {
    if (input.is_truncated) throw UserError("{}: the file is truncated; download or copy it again", name);
    throw UserError("{}: cannot read the PNG data: {}; convert the image, or download or copy it again", name,
                    foreign::printable(input.message.data()));
  }
  if (input.at < file.size()) throw UserError("{}: the file continues after its image; expected its end", name);
  return pixels;
}

}  // namespace furlong
