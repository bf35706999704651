#pragma once
// Reads images as sequences of pixels: `furlong prepare images`.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "datasets/prepare/document_readers.h"

namespace furlong {

class ByteSource;

/// Options of make_image_reader().
struct ImageOptions {
  /// true: inputs are files of CIFAR-10's binary version, whose records have a label. They begin like no other file, so
  /// that this cannot be guessed.
  bool cifar10 = false;
  /// true: each image is labeled: by its record (`cifar10`), by `labels` if there are any, otherwise by the name of its
  /// file's folder.
  bool labeled = false;
  std::vector<std::vector<std::uint8_t>> labels;  ///< of the images of each input, in order
  /// Names of the labels 0, 1, ...; empty: the numbers of labels, or folders in order of appearance.
  std::vector<std::string> names;
  bool grayscale = false;  ///< reduce red, green and blue to their luma (ITU-R BT.601)
};

/// Returns a reader of images: IDX files of bytes [images, rows, columns] or [images, rows, columns, channels] (the
/// format of MNIST), PGM (P5), PPM (P6) or PNG files with one image each, and, with `cifar10`, records of a label (0 to
/// 9) and planes of red, green and blue, 32 x 32 bytes each. Each image is a document; its tokens are the bytes of its
/// pixels, row by row. Values of pictures are scaled to 0 ... 255. All images have one size. Throws UserError, naming
/// the input, for other files, truncated files, labels that do not match, and names of labels that occur twice.
std::unique_ptr<DocumentReader> make_image_reader(ImageOptions options, DocumentSink& writer);

/// Reads labels: an IDX file of bytes [images]. Throws UserError if it is another file or truncated.
std::vector<std::uint8_t> read_idx_labels(ByteSource& source);

/// Returns whether a file that begins so is a PGM, PPM or PNG file.
bool is_picture(std::string_view beginning);
/// The same, but P5 and P6 alone, with which accessions of UniProt begin too, are no picture: their header is read.
bool is_surely_picture(std::string_view beginning);

}  // namespace furlong
