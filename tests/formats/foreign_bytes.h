#pragma once
// Builds valid and invalid foreign files byte by byte.
#include <zlib.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/tensor_file.h"

namespace furlong::testing {

/// Appends little-endian numbers and text.
class Bytes {
 public:
  template <class T>
  Bytes& number(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Bytes& text(std::string_view value) {
    text_ += value;
    return *this;
  }
  Bytes& pad_to(std::size_t multiple) {
    text_.resize((text_.size() + multiple - 1) / multiple * multiple, '\0');
    return *this;
  }
  std::size_t size() const { return text_.size(); }
  const std::string& all() const { return text_; }

 private:
  std::string text_;
};

template <class T>
std::string packed(const std::vector<T>& values) {
  Bytes bytes;
  for (const T value : values) bytes.number(value);
  return bytes.all();
}

/// Returns `bytes` with the bytes at `at` replaced by a number.
template <class T>
std::string patched(std::string bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
  return bytes;
}

inline std::string replaced(std::string text, std::string_view what, std::string_view by) {
  return text.replace(text.find(what), what.size(), by);
}

/// Returns all elements of a tensor.
inline std::vector<float> floats(const TensorFile& file, const std::string& name) {
  std::vector<float> values(static_cast<std::size_t>(file.find(name)->shape.elements()));
  file.read(name, values);
  return values;
}

inline std::string safetensors_file(std::string_view header, std::string_view data) {
  return Bytes().number<std::uint64_t>(header.size()).text(header).text(data).all();
}

// Zip.

struct ZipPart {
  std::string name;
  std::string contents;
  bool deflate = false;
};

inline std::string deflated(const std::string& contents) {
  std::string result(compressBound(contents.size()) + 64, '\0');
  z_stream stream{};
  deflateInit2(&stream, 9, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(contents.data()));
  stream.avail_in = static_cast<uInt>(contents.size());
  stream.next_out = reinterpret_cast<Bytef*>(result.data());
  stream.avail_out = static_cast<uInt>(result.size());
  deflate(&stream, Z_FINISH);
  result.resize(stream.total_out);
  deflateEnd(&stream);
  return result;
}

/// `wide` writes zip64 records and fields throughout.
inline std::string zip_file(const std::vector<ZipPart>& parts, bool wide = false) {
  Bytes file, directory;
  for (const ZipPart& part : parts) {
    const std::string stored = part.deflate ? deflated(part.contents) : part.contents;
    const auto checksum = static_cast<std::uint32_t>(
        crc32(0, reinterpret_cast<const Bytef*>(part.contents.data()), static_cast<uInt>(part.contents.size())));
    const std::size_t offset = file.size();
    const auto common = [&](Bytes& to, std::uint16_t extra_bytes) {
      to.number<std::uint16_t>(45)
          .number<std::uint16_t>(0)
          .number<std::uint16_t>(part.deflate ? 8 : 0)
          .number<std::uint32_t>(0)
          .number(checksum);
      to.number<std::uint32_t>(wide ? 0xffffffff : static_cast<std::uint32_t>(stored.size()));
      to.number<std::uint32_t>(wide ? 0xffffffff : static_cast<std::uint32_t>(part.contents.size()));
      to.number(static_cast<std::uint16_t>(part.name.size())).number(extra_bytes);
    };
    const auto sizes = [&](Bytes& to) {
      to.number<std::uint64_t>(part.contents.size()).number<std::uint64_t>(stored.size());
    };
    file.text("PK\3\4");
    common(file, wide ? 20 : 0);
    file.text(part.name);
    if (wide) sizes(file.number<std::uint16_t>(1).number<std::uint16_t>(16));
    file.text(stored);
    directory.text("PK\1\2").number<std::uint16_t>(45);
    common(directory, wide ? 28 : 0);
    directory.number<std::uint16_t>(0).number<std::uint16_t>(0).number<std::uint16_t>(0).number<std::uint32_t>(0);
    directory.number<std::uint32_t>(wide ? 0xffffffff : static_cast<std::uint32_t>(offset)).text(part.name);
    if (wide) {
      sizes(directory.number<std::uint16_t>(1).number<std::uint16_t>(24));
      directory.number<std::uint64_t>(offset);
    }
  }
  const std::size_t begin = file.size();
  file.text(directory.all());
  const std::size_t wide_begin = file.size();
  if (wide) {
    file.text("PK\6\6").number<std::uint64_t>(44).number<std::uint32_t>(0).number<std::uint64_t>(0);
    file.number<std::uint64_t>(parts.size())
        .number<std::uint64_t>(parts.size())
        .number<std::uint64_t>(directory.size())
        .number<std::uint64_t>(begin);
    file.text("PK\6\7").number<std::uint32_t>(0).number<std::uint64_t>(wide_begin).number<std::uint32_t>(1);
  }
  const auto count = static_cast<std::uint16_t>(wide ? 0xffff : parts.size());
  file.text("PK\5\6").number<std::uint32_t>(0).number(count).number(count);
  file.number<std::uint32_t>(wide ? 0xffffffff : static_cast<std::uint32_t>(directory.size()));
  return file.number<std::uint32_t>(wide ? 0xffffffff : static_cast<std::uint32_t>(begin))
      .number<std::uint16_t>(0)
      .all();
}

// PyTorch.

struct PickledTensor {
  std::string name;
  std::string storage;  ///< "FloatStorage"
  std::string key;
  std::int64_t n_elements = 0;  ///< of the storage
  std::int64_t offset = 0;
  std::vector<std::int64_t> size, stride;
};

inline std::string pickled_text(std::string_view text) {
  return Bytes().text("X").number(static_cast<std::uint32_t>(text.size())).text(text).all();
}
inline std::string pickled_integer(std::int64_t value) {
  return value >= 0 && value < 256 ? Bytes().text("K").number(static_cast<std::uint8_t>(value)).all()
                                   : Bytes().text("\x8a\x08").number(value).all();
}
inline std::string pickled_integers(const std::vector<std::int64_t>& values) {
  std::string text = "(";
  for (const std::int64_t value : values) text += pickled_integer(value);
  return text + "t";
}
inline const std::string ordered_dict = "ccollections\nOrderedDict\n)R";

/// Returns the instructions that push one tensor. `older` adds the sixth item of a reference, as in the legacy format.
inline std::string pickled_tensor(const PickledTensor& tensor, bool older = false) {
  return "ctorch._utils\n_rebuild_tensor_v2\n((" + pickled_text("storage") + "ctorch\n" + tensor.storage + "\n" +
         pickled_text(tensor.key) + pickled_text("cpu") + pickled_integer(tensor.n_elements) + (older ? "N" : "") +
         "tQ" + pickled_integer(tensor.offset) + pickled_integers(tensor.size) + pickled_integers(tensor.stride) +
         "\x89" + ordered_dict + "tR";
}

/// Returns a pickle: an OrderedDict of `items` (key, value, key, value, …) with torch's _metadata.
inline std::string pickled_dict(const std::string& items) {
  return "\x80\x02" + ordered_dict + "(" + items + "u}" + pickled_text("_metadata") + ordered_dict + "sb.";
}
inline std::string pickled_state(const std::vector<PickledTensor>& tensors, bool older = false) {
  std::string items;
  for (const PickledTensor& tensor : tensors) items += pickled_text(tensor.name) + pickled_tensor(tensor, older);
  return pickled_dict(items);
}

struct StorageBytes {
  std::string key;
  std::int64_t n_elements;
  std::string bytes;
};

inline std::string pytorch_zip(const std::string& pickle, const std::vector<StorageBytes>& storages,
                               bool deflate = false, bool wide = false) {
  std::vector<ZipPart> parts = {{"archive/data.pkl", pickle, deflate}, {"archive/byteorder", "little"}};
  for (const StorageBytes& storage : storages) parts.push_back({"archive/data/" + storage.key, storage.bytes, deflate});
  parts.push_back({"archive/version", "3\n"});
  return zip_file(parts, wide);
}

inline std::string pytorch_older(const std::string& pickle, const std::vector<StorageBytes>& storages) {
  Bytes file;
  file.text("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.");
  file.text("\x80\x02M\xe9\x03.");
  file.text("\x80\x02}(" + pickled_text("protocol_version") + "M\xe9\x03" + pickled_text("little_endian") + "\x88u.");
  file.text(pickle).text("\x80\x02](");
  for (const StorageBytes& storage : storages) file.text(pickled_text(storage.key));
  file.text("e.");
  for (const StorageBytes& storage : storages) file.number(storage.n_elements).text(storage.bytes);
  return file.all();
}

// GGUF.

struct GgufTensor {
  std::string name;
  std::vector<std::uint64_t> extents;  ///< the fastest one first, as in the file
  std::uint32_t type;
  std::string data;
};

inline std::string gguf_text(std::string_view text) {
  return Bytes().number<std::uint64_t>(text.size()).text(text).all();
}
/// Returns a key, a type number and the encoded value.
inline std::string gguf_pair(std::string_view key, std::uint32_t type, std::string_view value) {
  return Bytes().text(gguf_text(key)).number(type).text(value).all();
}
inline std::string gguf_array(std::uint32_t type, std::uint64_t count, std::string_view values) {
  return Bytes().number(type).number(count).text(values).all();
}

inline std::string gguf_file(const std::vector<std::string>& pairs, const std::vector<GgufTensor>& tensors,
                             std::uint32_t version = 3, std::size_t alignment = 32) {
  Bytes file;
  file.text("GGUF").number(version).number<std::uint64_t>(tensors.size()).number<std::uint64_t>(pairs.size());
  for (const std::string& pair : pairs) file.text(pair);
  Bytes data;
  for (const GgufTensor& tensor : tensors) {
    data.pad_to(alignment);
    file.text(gguf_text(tensor.name))
        .number(static_cast<std::uint32_t>(tensor.extents.size()))
        .text(packed(tensor.extents));
    file.number(tensor.type).number<std::uint64_t>(data.size());
    data.text(tensor.data);
  }
  return file.pad_to(alignment).text(data.all()).all();
}

}  // namespace furlong::testing
