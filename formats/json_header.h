#pragma once
// JSON out of foreign checkpoints, read as a stream of events: what is not expected is refused where it appears, and
// nothing is built of it.
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/tensor_file.h"

namespace furlong::foreign {

/// A tensor as the header of a safetensors file lists it; `stored_type` is one that find_element_type knows, offsets
/// count from the end of the header. Whether they fit the shape and the file is not checked yet.
struct HeaderEntry {
  ForeignTensor tensor;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// Parses a safetensors header. Throws UserError, beginning with `path`, where it is not UTF-8 or JSON, or an entry has
/// other fields than dtype, shape and data_offsets, each once.
std::vector<HeaderEntry> parse_safetensors_header(const std::string& path, std::string_view header);

/// The weight_map of a model.safetensors.index.json (or pytorch_model.bin.index.json): pairs of tensor and file name,
/// as written. Throws UserError where the text is not JSON, has no weight_map or two, or the map has something else
/// than text for text.
std::vector<std::pair<std::string, std::string>> parse_weight_map(const std::string& path, std::string_view text);

}  // namespace furlong::foreign
