// IDX, PGM, PPM and PNG images, records of CIFAR-10, and IDX labels. The first byte chooses grayscale, CIFAR-10, labels
// and their names; the second the number of labels.
#include <fstream>

#include "datasets/prepare/byte_source.h"
#include "datasets/prepare/image_reader.h"
#include "tests/fuzz/documents.h"

namespace fuzzing = furlong::fuzzing;
using furlong::Vocabulary;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::string_view text = fuzzing::text_of(data + 2, size - 2);
  furlong::ImageOptions images;
  images.grayscale = (data[0] & 1) != 0;
  images.cifar10 = (data[0] & 16) != 0;
  images.labeled = (data[0] & 2) != 0 || images.cifar10;
  if (images.labeled && !images.cifar10 && (data[0] & 4) != 0) {
    images.labels.emplace_back();
    for (int label = 0; label < data[1] % 8; ++label) images.labels[0].push_back(static_cast<std::uint8_t>(label));
    if ((data[0] & 8) != 0) images.names = {"no", "yes"};
  }
  const Vocabulary vocabulary = Vocabulary::bytes(false);
  furlong::DatasetWriterOptions options;
  options.documents_per_label = images.labeled ? 1 : 0;
  options.shares = furlong::parse_split_shares("1");
  options.split_by = furlong::DatasetWriterOptions::SplitBy::document;
  fuzzing::read_documents(text, vocabulary, options,
                          [&](furlong::DatasetWriter& writer) { return make_image_reader(images, writer); });
  const std::string path = fuzzing::Folder::instance().path("labels.idx");
  std::ofstream(path, std::ios::binary) << text;
  fuzzing::succeeds([&] {
    furlong::ByteSource source(path);
    furlong::read_idx_labels(source);
  });
  return 0;
}
