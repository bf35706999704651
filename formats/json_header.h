#pragma once
// JSON of foreign checkpoints, parsed as a stream of events without building a document. Unexpected content is rejected
// where it occurs.
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/tensor_file.h"

namespace furlong::foreign {

/// A tensor as listed in a safetensors header. find_element_type() knows `stored_type`; `begin` and `end` count from
/// the end of the header. They are not yet checked against the shape and the file.
struct HeaderEntry {
  ForeignTensor tensor;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// Parses a safetensors header. Throws UserError that starts with `path` if it is not UTF-8 or JSON, or if an entry
/// does not have exactly the fields dtype, shape and data_offsets, each once.
std::vector<HeaderEntry> parse_safetensors_header(const std::string& path, std::string_view header);

/// Parses the weight_map of a model.safetensors.index.json (or pytorch_model.bin.index.json) into pairs of tensor name
/// and file name, in file order. Throws UserError if the text is not JSON, does not have exactly one weight_map, or
/// maps anything but strings to strings.
std::vector<std::pair<std::string, std::string>> parse_weight_map(const std::string& path, std::string_view text);

}  // namespace furlong::foreign
