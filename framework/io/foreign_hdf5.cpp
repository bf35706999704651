#include "framework/io/foreign_hdf5.h"

#include <unistd.h>

#include <algorithm>
#include <new>
#include <string_view>
#include <type_traits>
#include <utility>

#include "framework/core/error.h"
#include "framework/core/machine.h"
#include "framework/core/printable.h"
#include "framework/io/atomic_file.h"
#include "framework/io/confined_process.h"
#include "framework/io/hdf5_descriptor.h"
#include "framework/io/hdf5_internal.h"

namespace furlong::hdf5 {
namespace {

// Both sides run the same program, so numbers are sent in their memory layout. A request is an action and a name. A
// reply is an outcome, a size, and that many bytes: a record, elements, or a message.
enum class Action : std::uint32_t { list, describe, read };
enum class Outcome : std::uint32_t { done, user_error, machine_error };

struct RequestHeader {
  Action action;
  std::uint32_t name_bytes;
};
struct ReplyHeader {
  Outcome outcome;
  std::uint32_t reserved;
  std::uint64_t bytes;
};

constexpr std::uint64_t max_record_bytes = std::uint64_t{1} << 24, max_reason_bytes = 4096;

/// Description of a dataset.
struct Description {
  Type type;
  bool filtered;
  std::uint32_t rank;
  std::uint64_t extents[H5S_MAX_RANK];
};
static_assert(std::is_trivially_copyable_v<Description>);

// --- The child

void reply(int channel, Outcome outcome, const void* data, std::size_t bytes) {
  const ReplyHeader header{outcome, 0, bytes};
  if (!write_all(channel, &header, sizeof header) || !write_all(channel, data, bytes)) _exit(0);
}

Description description_of(const Dataset& dataset) {
  Description found{dataset.type(), dataset.is_filtered(), static_cast<std::uint32_t>(dataset.shape().size()), {}};
  std::copy(dataset.shape().begin(), dataset.shape().end(), found.extents);
  return found;
}

void answer(int channel, const File& file, Action action, const std::string& name) {
  if (action == Action::list) {
    std::string record;
    for (const Group::Member& member : file.members()) {
      record += static_cast<char>(member.kind);
      record.append(member.name.c_str(), member.name.size() + 1);
    }
    return reply(channel, Outcome::done, record.data(), record.size());
  }
  const Dataset dataset = file.dataset(name);
  if (action == Action::describe) {
    const Description found = description_of(dataset);
    return reply(channel, Outcome::done, &found, sizeof found);
  }
  const std::vector<char> elements = [&] {
    std::vector<char> bytes(dataset.bytes());
    dataset.read(bytes.data(), bytes.size());
    return bytes;
  }();
  reply(channel, Outcome::done, elements.data(), elements.size());
}

/// Opens the file at the first request and answers requests until the channel closes.
void serve(int channel, int descriptor, const std::string& path) {
  std::unique_ptr<File> file;
  RequestHeader request{};
  while (read_all(channel, &request, sizeof request)) {
    std::string name(request.name_bytes, '\0'), reason;
    if (!read_all(channel, name.data(), name.size())) return;
    Outcome outcome = Outcome::machine_error;
    try {
      if (!file) file = std::make_unique<File>(File::open(path, descriptor));
      answer(channel, *file, request.action, name);
      continue;
    } catch (const UserError& error) {
      outcome = Outcome::user_error;
      reason = error.what();
    } catch (const std::bad_alloc&) {
      reason = path + ": out of memory while reading it";
    } catch (const std::exception& error) {
      reason = error.what();
    }
    reply(channel, outcome, reason.data(), std::min<std::size_t>(reason.size(), max_reason_bytes));
  }
}

// --- The parent

constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;
constexpr std::uint64_t max_deflate_ratio = 1032;  ///< largest expansion factor of deflate

}  // namespace

class ForeignFile::Reader {
 public:
  Reader(int descriptor, const std::string& path, std::uint64_t file_bytes)
      : path_(path),
        file_bytes_(file_bytes),
        process_(descriptor, path, "the HDF5 library", [&](int channel, int file) { serve(channel, file, path); }) {}

  std::vector<Group::Member> members() {
    process_.allow(30 + seconds_for(file_bytes_), own_memory());
    const std::string record = ask(Action::list, "");
    std::vector<Group::Member> members;
    for (std::string_view rest = record; !rest.empty();) {
      const std::size_t end = rest.find('\0', 1);
      if (end == std::string_view::npos || static_cast<unsigned char>(rest[0]) > static_cast<unsigned>(Kind::other))
        throw_damaged();
      members.push_back({std::string(rest.substr(1, end - 1)), static_cast<Kind>(rest[0])});
      rest.remove_prefix(end + 1);
    }
    return members;
  }

  Description describe(const std::string& name) {
    const std::string record = ask(Action::describe, name);
    Description found{};
    if (record.size() != sizeof found) throw_damaged();
    record.copy(reinterpret_cast<char*>(&found), sizeof found);
    if (static_cast<unsigned>(found.type) > static_cast<unsigned>(Type::bf16) || found.rank > H5S_MAX_RANK)
      throw_damaged();
    return found;
  }

  void check_size(const std::string& name, std::uint64_t bytes, bool filtered) const {
    // A small dataset may have no elements in the file: all elements are its fill value.
    const std::uint64_t most = 16 * mebibyte + (filtered ? max_deflate_ratio : 1) * file_bytes_;
    if (bytes > most)
      throw UserError("{}: HDF5 dataset /{} states {} bytes of elements; the file of {} bytes can hold at most {}",
                      path_, name, bytes, file_bytes_, most);
    const std::uint64_t memory = read_machine().memory.usable();
    if (memory > 0 && 2 * bytes > memory)
      throw UserError(
          "{}: HDF5 dataset /{} has {} bytes of elements; reading it takes two copies, and this machine has {} bytes "
          "of memory",
          path_, name, bytes, memory);
  }

  void read(const std::string& name, void* destination, std::size_t bytes) {
    process_.allow(10 + seconds_for(bytes), own_memory() + 3 * bytes);
    if (begin(Action::read, name) != bytes) throw_damaged();
    process_.receive(destination, bytes);
  }

 private:
  static std::uint64_t seconds_for(std::uint64_t bytes) { return bytes / (4 * mebibyte); }
  std::uint64_t own_memory() const { return 256 * mebibyte + file_bytes_; }

  [[noreturn]] void throw_damaged() const {
    throw UserError(
        "{}: the HDF5 library returns inconsistent data; the file is damaged or hostile; copy it again from a source "
        "that you trust",
        path_);
  }

  /// Sends a request and returns the size of the reply, which follows.
  std::uint64_t begin(Action action, const std::string& name) {
    const RequestHeader request{action, static_cast<std::uint32_t>(name.size())};
    process_.send(&request, sizeof request);
    process_.send(name.data(), name.size());
    ReplyHeader header{};
    process_.receive(&header, sizeof header);
    if (header.outcome == Outcome::done) return header.bytes;
    std::string reason(std::min(header.bytes, max_reason_bytes), '\0');
    process_.receive(reason.data(), reason.size());
    if (header.outcome == Outcome::user_error) throw UserError("{}", reason);
    throw MachineError("{}", reason);
  }

  std::string ask(Action action, const std::string& name) {
    const std::uint64_t bytes = begin(action, name);
    if (bytes > max_record_bytes) throw_damaged();
    std::string record(bytes, '\0');
    process_.receive(record.data(), record.size());
    return record;
  }

  std::string path_;
  std::uint64_t file_bytes_;
  ConfinedProcess process_;
};

std::shared_ptr<ForeignFile> ForeignFile::open(const std::string& path) {
  const InputFile file(path);
  DescriptorIo input(file.number());
  const std::uint64_t file_bytes = input.size();
  if (input.error() != 0) throw_file_error(path, "read", input.error());
  mutex();  // initializes HDF5 here: its start needs more system calls than the confined process has
  return foreign::with_single_line_errors([&] {  // names in a file may contain any bytes
    return std::shared_ptr<ForeignFile>(
        new ForeignFile(path, std::make_unique<Reader>(file.number(), path, file_bytes)));
  });
}

ForeignFile::ForeignFile(const std::string& path, std::unique_ptr<Reader> reader)
    : path_(path), reader_(std::move(reader)), members_(reader_->members()) {}
ForeignFile::~ForeignFile() = default;

bool ForeignFile::has(const std::string& name) const {
  return std::any_of(members_.begin(), members_.end(),
                     [&](const Group::Member& member) { return member.name == name && member.kind != Kind::other; });
}

ForeignDataset ForeignFile::dataset(const std::string& name) {
  return foreign::with_single_line_errors([&] { return find(name); });
}

ForeignDataset ForeignFile::find(const std::string& name) {
  if (!has(name)) throw UserError("{}: has no dataset /{}", path_, name);
  const Description found = reader_->describe(name);
  ForeignDataset dataset;
  dataset.file_ = shared_from_this();
  dataset.path_ = "/" + name;
  dataset.type_ = found.type;
  dataset.shape_.assign(found.extents, found.extents + found.rank);
  reader_->check_size(name, n_elements(dataset.shape_) * size_of(found.type), found.filtered);
  return dataset;
}

const std::string& ForeignDataset::file_name() const { return file_->path_; }

void ForeignDataset::read(void* destination, std::size_t bytes) const {
  require(bytes == n_elements(shape_) * size_of(type_), "{}: got {} bytes of memory, not the dataset's size", path_,
          bytes);
  if (bytes > 0) foreign::with_single_line_errors([&] { file_->reader_->read(path_.substr(1), destination, bytes); });
}

}  // namespace furlong::hdf5
