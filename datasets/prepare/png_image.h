#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace furlong {

struct PngHeader {
  std::uint64_t rows = 0, columns = 0, channels = 1;  ///< 3 channels for color and palettes
  std::uint64_t bits_per_pixel = 8;                   ///< in the file, before compression
};

/// Returns whether a file that begins so is a PNG file.
bool is_png(std::string_view beginning);

/// Reads the header of a PNG file; returns nothing if more of the file is needed. Throws UserError, naming the file,
/// for 16 bits per value, for an alpha channel and for a damaged header.
std::optional<PngHeader> png_header(std::string_view beginning, const std::string& name);

/// Returns the pixels of a whole PNG file, [rows, columns, channels] as its header says. Values of fewer bits are
/// scaled to 0 ... 255; interlaced images are put in order; gamma and color profiles are ignored. Throws UserError,
/// naming the file, for truncated or damaged data, transparent colors, and data after the image.
std::string decode_png(std::string_view file, const PngHeader& header, const std::string& name);

}  // namespace furlong
