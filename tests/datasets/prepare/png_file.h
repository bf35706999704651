#pragma once
#include <png.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace furlong::testing {

/// An image for png_file().
struct PngImage {
  std::uint32_t columns = 0, rows = 0;
  int bits = 8, color = PNG_COLOR_TYPE_GRAY;
  std::vector<std::string> lines{};  ///< packed bytes of each row
  bool interlaced = false;
  std::vector<png_color> palette{};
  bool transparent = false;  ///< adds a chunk tRNS
};

/// Returns a PNG file that libpng writes.
inline std::string png_file(const PngImage& image) {
  std::string file;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  if (setjmp(png_jmpbuf(png)) != 0) throw std::runtime_error("libpng");
  png_set_write_fn(
      png, &file,
      [](png_structp to, png_bytep data, std::size_t count) {
        static_cast<std::string*>(png_get_io_ptr(to))->append(reinterpret_cast<char*>(data), count);
      },
      nullptr);
  png_set_IHDR(png, info, image.columns, image.rows, image.bits, image.color,
               image.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
               PNG_FILTER_TYPE_DEFAULT);
  if (!image.palette.empty()) png_set_PLTE(png, info, image.palette.data(), static_cast<int>(image.palette.size()));
  const png_byte alpha = 0;
  png_color_16 color{};
  if (image.transparent) png_set_tRNS(png, info, &alpha, 1, image.palette.empty() ? &color : nullptr);
  png_write_info(png, info);
  std::vector<png_bytep> rows;
  for (const std::string& line : image.lines)
    rows.push_back(reinterpret_cast<png_bytep>(const_cast<char*>(line.data())));
  png_write_image(png, rows.data());
  png_write_end(png, nullptr);
  png_destroy_write_struct(&png, &info);
  return file;
}

}  // namespace furlong::testing
