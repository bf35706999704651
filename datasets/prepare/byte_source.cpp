#include "datasets/prepare/byte_source.h"

#include <fcntl.h>
#include <lzma.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "framework/core/error.h"
#include "framework/core/lower_case.h"
#include "framework/io/atomic_file.h"

namespace furlong {

namespace {

constexpr std::size_t kInputBuffer = std::size_t{1} << 18;
// xz -9e needs 65 MiB for decompression; no preset of xz needs more than this limit.
constexpr std::uint64_t kXzMemoryLimit = std::uint64_t{1} << 30;
// zstd --ultra -22 needs a window of 2^27 bytes, --long=30 one of 2^30.
constexpr int kZstdWindowLog = 30;
constexpr std::size_t kZstdHeader = 18;  // bytes that the header of a frame has at most (RFC 8878, 3.1.1)

constexpr std::size_t kBeginning = 1024;  // bytes that show whether data are texts

enum class Compression { none, gzip, xz, zstd };

/// Whether the bytes begin with UTF-16's byte order mark, and text follows: random bytes have unpaired surrogates or
/// control characters soon.
bool is_utf16(std::string_view bytes) {
  const bool little = bytes.starts_with("\xff\xfe");
  if (!little && !bytes.starts_with("\xfe\xff")) return false;
  bool after_high = false;
  for (std::size_t i = 2; i + 1 < std::min(bytes.size(), kBeginning); i += 2) {
    const unsigned first = static_cast<unsigned char>(bytes[i]), second = static_cast<unsigned char>(bytes[i + 1]);
    const unsigned unit = little ? first | second << 8 : first << 8 | second;
    const bool high = (unit & 0xfc00) == 0xd800, low = (unit & 0xfc00) == 0xdc00;
    if (low != after_high || (unit < 0x20 && !(unit >= '\t' && unit <= '\r')) || unit >= 0xfffe) return false;
    after_high = high;
  }
  return bytes.size() >= 4;
}

bool is_bzip2(std::string_view bytes) {
  return bytes.size() >= 10 && bytes.starts_with("BZh") && bytes.substr(4, 6) == "1AY&SY";
}

/// Throws UserError if the beginning of the uncompressed data shows that they are no texts yet.
void refuse_packed(std::string_view beginning, bool was_compressed, const std::string& name) {
  if (beginning.size() > 262 && beginning.substr(257, 5) == "ustar")
    throw UserError("{}: tar archives are not supported; unpack it first", name);
  if (is_utf16(beginning))
    throw UserError("{}: the text is UTF-16; convert it to UTF-8: iconv -f utf-16 -t utf-8 FILE > NEW", name);
  constexpr std::array<std::string_view, 4> packed{"\x1f\x8b\x08", "\x28\xb5\x2f\xfd", "\xfd\x37zXZ", "PK\x03\x04"};
  const bool is_packed = is_bzip2(beginning) || std::any_of(packed.begin(), packed.end(), [&](std::string_view magic) {
                           return beginning.starts_with(magic);
                         });
  if (was_compressed && is_packed)
    throw UserError("{}: the compressed file contains a packed one; unpack it once", name);
}

}  // namespace

struct ByteSource::State {
  std::string name;
  int descriptor = -1;
  bool owned = false;
  bool end_of_file = false;
  Compression compression = Compression::none;
  std::vector<unsigned char> buffer = std::vector<unsigned char>(kInputBuffer);
  std::size_t begin = 0, end = 0;  // bytes of `buffer` that are read but not yet used
  std::uint64_t file_bytes = 0;
  XXH3_state_t* hash = XXH3_createState();
  z_stream gzip{};
  lzma_stream xz = LZMA_STREAM_INIT;
  ZSTD_DStream* zstd = nullptr;
  bool member_open = false;                         // inside a gzip member or a zstd frame
  std::uint64_t frame_size = 0, frame_written = 0;  // of a zstd frame: the header's size, or unknown; written so far
  bool finished = false;                            // the compressed data are complete
  bool checked = false;                             // refuse_packed() has seen the first data

  ~State() {
    XXH3_freeState(hash);
    if (compression == Compression::gzip) inflateEnd(&gzip);
    lzma_end(&xz);
    ZSTD_freeDStream(zstd);
    if (owned) ::close(descriptor);
  }

  /// Reads more bytes from the file and appends them to the buffer. Returns false at the end of the file.
  bool fill() {
    if (begin > 0) {
      std::memmove(buffer.data(), buffer.data() + begin, end - begin);
      end -= begin;
      begin = 0;
    }
    while (!end_of_file && end < buffer.size()) {
      const ssize_t taken = ::read(descriptor, buffer.data() + end, buffer.size() - end);
      if (taken < 0 && errno == EINTR) continue;
      if (taken < 0 && errno == EISDIR) throw UserError("{}: is a directory; expected a file", name);
      if (taken < 0) throw MachineError("{}: cannot be read: {}", name, std::generic_category().message(errno));
      if (taken == 0) {
        end_of_file = true;
        return false;
      }
      XXH3_64bits_update(hash, buffer.data() + end, static_cast<std::size_t>(taken));
      file_bytes += static_cast<std::uint64_t>(taken);
      end += static_cast<std::size_t>(taken);
      return true;
    }
    return !end_of_file;
  }

  bool starts_with(std::string_view magic) const {
    return end - begin >= magic.size() && std::memcmp(buffer.data() + begin, magic.data(), magic.size()) == 0;
  }

  /// pzstd writes such frames (RFC 8878, 3.1.2).
  bool starts_with_skippable_frame() const {
    return end - begin >= 4 && (buffer[begin] & 0xf0) == 0x50 &&
           std::memcmp(buffer.data() + begin + 1, "\x2a\x4d\x18", 3) == 0;
  }

  void detect() {
    while (end < 10 && fill()) {
    }
    if (starts_with("\x1f\x8b")) {
      compression = Compression::gzip;
      if (inflateInit2(&gzip, 16 + MAX_WBITS) != Z_OK) throw MachineError("{}: cannot initialize zlib", name);
      member_open = true;
    } else if (starts_with(std::string_view("\xfd"
                                            "7zXZ\0",
                                            6))) {
      compression = Compression::xz;
      if (lzma_stream_decoder(&xz, kXzMemoryLimit, LZMA_CONCATENATED) != LZMA_OK)
        throw MachineError("{}: cannot initialize liblzma", name);
    } else if (is_bzip2({reinterpret_cast<const char*>(buffer.data() + begin), end - begin})) {
      throw UserError("{}: bzip2 files are not supported; decompress it: bzcat FILE | furlong prepare ... -", name);
    } else if (starts_with("\x28\xb5\x2f\xfd") || starts_with_skippable_frame()) {
      compression = Compression::zstd;
      zstd = ZSTD_createDStream();
      if (zstd == nullptr || ZSTD_isError(ZSTD_DCtx_setParameter(zstd, ZSTD_d_windowLogMax, kZstdWindowLog)) != 0)
        throw MachineError("{}: cannot initialize libzstd", name);
    } else if (starts_with("PK\x03\x04")) {
      throw UserError("{}: zip archives are not supported; unpack it first", name);
    }
  }

  std::size_t read_plain(unsigned char* destination, std::size_t capacity) {
    if (begin == end && !fill()) return 0;
    const std::size_t taken = std::min(capacity, end - begin);
    std::memcpy(destination, buffer.data() + begin, taken);
    begin += taken;
    return taken;
  }

  /// Skips zero padding between members, as tapes have it. Returns whether another member follows.
  bool open_next_member() {
    while (true) {
      while (begin < end && buffer[begin] == 0) ++begin;
      if (end - begin >= 2) break;
      if (!fill()) {
        if (begin == end) return false;
        break;
      }
    }
    if (!starts_with("\x1f\x8b"))
      throw UserError("{}: other data follow the gzip data; the file may be damaged; download or copy it again", name);
    inflateReset(&gzip);
    return true;
  }

  std::size_t read_gzip(unsigned char* destination, std::size_t capacity) {
    while (!finished) {
      if (!member_open) {
        member_open = open_next_member();
        finished = !member_open;
        continue;
      }
      if (begin == end && !fill())
        throw UserError("{}: the gzip data end unexpectedly; the file may be truncated; download or copy it again",
                        name);
      gzip.next_in = buffer.data() + begin;
      gzip.avail_in = static_cast<uInt>(end - begin);
      gzip.next_out = destination;
      gzip.avail_out = static_cast<uInt>(std::min(capacity, std::size_t{1} << 30));
      const uInt room = gzip.avail_out;
      const int status = inflate(&gzip, Z_NO_FLUSH);
      begin = end - gzip.avail_in;
      if (status == Z_STREAM_END) {
        member_open = false;
      } else if (status == Z_MEM_ERROR) {
        throw MachineError("{}: zlib: out of memory", name);
      } else if (status != Z_OK && status != Z_BUF_ERROR) {
        throw UserError("{}: the gzip data are damaged ({}); download or copy it again", name,
                        gzip.msg != nullptr ? gzip.msg : "invalid checksum or code");
      }
      if (gzip.avail_out < room) return room - gzip.avail_out;
    }
    return 0;
  }

  std::size_t read_xz(unsigned char* destination, std::size_t capacity) {
    while (!finished) {
      const bool more = begin < end || fill();
      xz.next_in = buffer.data() + begin;
      xz.avail_in = end - begin;
      xz.next_out = destination;
      xz.avail_out = capacity;
      const lzma_ret status = lzma_code(&xz, more ? LZMA_RUN : LZMA_FINISH);
      begin = end - xz.avail_in;
      switch (status) {
        case LZMA_OK:
          break;
        case LZMA_STREAM_END:
          finished = true;
          break;
        case LZMA_BUF_ERROR:
          throw UserError("{}: the xz data end unexpectedly; the file may be truncated; download or copy it again",
                          name);
        case LZMA_MEM_ERROR:
          throw MachineError("{}: liblzma: out of memory", name);
        case LZMA_MEMLIMIT_ERROR:
          throw UserError("{}: decompression needs more than {} MiB of memory; compress the file again with xz -9",
                          name, kXzMemoryLimit >> 20);
        default:
          throw UserError("{}: the xz data are damaged (liblzma status {}); download or copy it again", name,
                          static_cast<int>(status));
      }
      if (xz.avail_out < capacity) return capacity - xz.avail_out;
    }
    return 0;
  }

  std::size_t read_zstd(unsigned char* destination, std::size_t capacity) {
    while (!finished) {
      if (!member_open) {
        while (end - begin < kZstdHeader && fill()) {
        }
        finished = begin == end;
        if (finished) break;
        if (needs_larger_window()) fail_zstd_window();
        frame_size = ZSTD_getFrameContentSize(buffer.data() + begin, end - begin);
        frame_written = 0;
      }
      const bool more = begin < end || fill();
      ZSTD_inBuffer in{buffer.data() + begin, end - begin, 0};
      ZSTD_outBuffer out{destination, capacity, 0};
      const std::size_t status = ZSTD_decompressStream(zstd, &out, &in);
      begin += in.pos;
      if (ZSTD_isError(status) != 0) fail_zstd(status);
      member_open = status != 0;
      frame_written += out.pos;
      // libzstd checks the size only if the last block is not empty, or if the frame fits in one block of the reader.
      const bool is_known = frame_size != ZSTD_CONTENTSIZE_UNKNOWN && frame_size != ZSTD_CONTENTSIZE_ERROR;
      if (!member_open && is_known && frame_written != frame_size) fail_zstd_data();
      if (out.pos > 0) return out.pos;
      if (!more && member_open)
        throw UserError("{}: the zstd data end unexpectedly; the file may be truncated; download or copy it again",
                        name);
    }
    return 0;
  }

  /// Whether the frame at `begin` states a larger window than is allowed (RFC 8878, 3.1.1.1.2). libzstd checks it only
  /// if the frame does not fit in one block of the reader.
  bool needs_larger_window() const {
    const unsigned char* header = buffer.data() + begin;
    const bool is_stated = starts_with("\x28\xb5\x2f\xfd") && end - begin > 5 && (header[4] & 32) == 0;
    if (!is_stated) return false;
    const std::uint64_t base = std::uint64_t{1} << (10 + (header[5] >> 3));
    return base + base / 8 * (header[5] & 7) > std::uint64_t{1} << kZstdWindowLog;
  }

  [[noreturn]] void fail_zstd(std::size_t status) const {
    const ZSTD_ErrorCode code = ZSTD_getErrorCode(status);
    if (code == ZSTD_error_memory_allocation) throw MachineError("{}: libzstd: out of memory", name);
    if (code == ZSTD_error_frameParameter_windowTooLarge) fail_zstd_window();
    fail_zstd_data();
  }

  [[noreturn]] void fail_zstd_window() const {
    throw UserError("{}: decompression needs more than {} MiB of memory; compress the file again without --long", name,
                    1 << (kZstdWindowLog - 20));
  }

  // libzstd's reason depends on the size of the reader's blocks.
  [[noreturn]] void fail_zstd_data() const {
    throw UserError("{}: the zstd data are damaged; download or copy it again", name);
  }

  std::size_t read_some(unsigned char* destination, std::size_t capacity) {
    switch (compression) {
      case Compression::none:
        return read_plain(destination, capacity);
      case Compression::gzip:
        return read_gzip(destination, capacity);
      case Compression::xz:
        return read_xz(destination, capacity);
      case Compression::zstd:
        return read_zstd(destination, capacity);
    }
    return 0;
  }
};

std::string_view without_compression(std::string_view file_name) {
  const std::string name = lower_case(std::string(file_name));
  for (const std::string_view packed : {".gz", ".xz", ".zst"})
    if (name.ends_with(packed)) return file_name.substr(0, name.size() - packed.size());
  return file_name;
}

std::string extension_of(std::string_view file_name) {
  return lower_case(std::filesystem::path(without_compression(file_name)).extension().string());
}

bool is_fasta_name(std::string_view file_name) {
  constexpr std::array<std::string_view, 7> fasta{".fa", ".fasta", ".fas", ".faa", ".fna", ".ffn", ".frn"};
  return std::find(fasta.begin(), fasta.end(), extension_of(file_name)) != fasta.end();
}

ByteSource::ByteSource(const std::string& path) : state_(std::make_unique<State>()) {
  State& state = *state_;
  XXH3_64bits_reset(state.hash);
  if (path == "-") {
    state.name = "standard input";
    state.descriptor = STDIN_FILENO;
  } else {
    state.name = path;
    state.descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (state.descriptor < 0) throw_file_error(path, "read", errno);
    state.owned = true;
    posix_fadvise(state.descriptor, 0, 0, POSIX_FADV_SEQUENTIAL);
  }
  state.detect();
}

ByteSource::~ByteSource() = default;

std::size_t ByteSource::read(void* destination, std::size_t capacity) {
  auto* to = static_cast<unsigned char*>(destination);
  std::size_t filled = 0;
  const auto check = [&] {
    if (!std::exchange(state_->checked, true))
      refuse_packed({static_cast<const char*>(destination), filled}, state_->compression != Compression::none,
                    state_->name);
  };
  while (filled < capacity) {
    // The beginning by itself: otherwise it would depend on the size of blocks whether later damage is found first.
    const std::size_t most = state_->checked ? capacity : std::min(capacity, kBeginning);
    const std::size_t taken = state_->read_some(to + filled, most - filled);
    if (taken == 0) break;
    filled += taken;
    if (filled >= kBeginning) check();
  }
  check();
  return filled;
}

const std::string& ByteSource::name() const { return state_->name; }
std::uint64_t ByteSource::file_bytes() const { return state_->file_bytes; }
std::uint64_t ByteSource::file_hash() const { return XXH3_64bits_digest(state_->hash); }

const char* ByteSource::compression() const {
  switch (state_->compression) {
    case Compression::gzip:
      return "gzip";
    case Compression::xz:
      return "xz";
    case Compression::zstd:
      return "zstd";
    default:
      return "none";
  }
}

}  // namespace furlong
