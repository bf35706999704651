#include "formats/pytorch_storage.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "framework/core/printable.h"

namespace furlong::foreign {

namespace {

using Kind = PickleValue::Kind;

/// The start of the legacy format in torch.serialization: a ten-byte integer and the format version.
constexpr std::array<unsigned char, 10> legacy_magic = {0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19};
constexpr std::int64_t legacy_version = 1001;

bool is_legacy_magic(const PickleValue& value) {
  return value.kind == Kind::large && value.text.size() == legacy_magic.size() &&
         std::memcmp(value.text.data(), legacy_magic.data(), legacy_magic.size()) == 0;
}

std::uint64_t bytes_of(const Storage& storage) {
  return static_cast<std::uint64_t>(storage.n_elements) * static_cast<std::uint64_t>(storage.type->bytes);
}

}  // namespace

Pickle PytorchStorages::open() {
  std::array<char, 2> beginning{};
  if (file_.size() < 16) throw UserError("{}: has {} bytes, too short for a PyTorch file", file_.path(), file_.size());
  file_.read_at(0, beginning.data(), beginning.size());
  if (beginning[0] == 'P' && beginning[1] == 'K') return open_zip();
  if (beginning[0] == '\x80') return open_legacy();
  throw UserError("{}: is neither a zip archive nor a pickle; expected a file written by torch.save", file_.path());
}

Pickle PytorchStorages::open_zip() {
  zip_.emplace(file_);
  const ZipEntry* object = nullptr;
  for (const ZipEntry& entry : zip_->entries()) {
    if (!entry.name.ends_with("/data.pkl")) continue;
    if (object != nullptr)
      throw UserError("{}: has two entries data.pkl; expected a file written by torch.save", file_.path());
    object = &entry;
  }
  if (object == nullptr)
    throw UserError("{}: is a zip archive without an entry data.pkl; expected a file written by torch.save",
                    file_.path());
  prefix_ = object->name.substr(0, object->name.size() - std::string_view("data.pkl").size());
  if (const ZipEntry* order = zip_->find(prefix_ + "byteorder"); order != nullptr && order->bytes <= 16) {
    const auto text = zip_->extract(*order);
    const std::string_view name(reinterpret_cast<const char*>(text.data()), text.size());
    if (name != "little")
      throw UserError("{}: has byte order '{}', expected 'little'; save the model again on a little-endian machine",
                      file_.path(), printable(name));
  }
  // Also checked here, not only in read_pickle(), because the whole entry is held in memory.
  constexpr std::uint64_t largest = std::uint64_t{64} << 20;
  if (object->bytes > largest)
    throw UserError("{}: data.pkl has {} bytes, expected at most {}; save only model.state_dict()", file_.path(),
                    object->bytes, largest);
  const auto text = zip_->extract(*object);
  ByteCursor cursor(text, file_.path() + ": " + printable(object->name));
  return read_pickle(cursor, file_.size());
}

Pickle PytorchStorages::open_legacy() {
  ByteCursor cursor(file_, 0, file_.size(), file_.path());
  const Pickle magic = read_pickle(cursor, file_.size());
  if (!is_legacy_magic(magic[magic.root]))
    throw UserError("{}: is a pickle but not one written by torch.save; expected torch.save(model.state_dict())",
                    file_.path());
  const Pickle version = read_pickle(cursor, file_.size());
  if (version[version.root].kind != Kind::integer || version[version.root].integer != legacy_version) {
    throw UserError("{}: the version of this legacy PyTorch file is not {}; save it again with a newer PyTorch",
                    file_.path(), legacy_version);
  }
  const Pickle system = read_pickle(cursor, file_.size());
  const PickleValue& description = system[system.root];
  if (description.kind != Kind::dictionary)
    throw UserError("{}: damaged: its system description is not a dict; download or copy it again", file_.path());
  for (std::size_t i = 0; i + 1 < description.items.size(); i += 2) {
    const PickleValue& value = system[description.items[i + 1]];
    if (system[description.items[i]].text == "little_endian" && (value.kind != Kind::boolean || value.integer != 1)) {
      throw UserError("{}: was written on a big-endian machine, which is not supported", file_.path());
    }
  }
  Pickle object = read_pickle(cursor, file_.size());
  pickles_end_ = cursor.position();
  return object;
}

std::size_t PytorchStorages::add(const Pickle& pickle, const PickleValue& reference) {
  const auto damaged = [&](std::string_view what) -> UserError {
    return UserError("{}: damaged: a storage {}; download or copy it again", file_.path(), what);
  };
  if (reference.kind != Kind::persistent) throw damaged("is not a persistent reference");
  const PickleValue& tuple = pickle[reference.items[0]];
  // ("storage", type, key, device, elements), and in the legacy format the view, unused since PyTorch 0.4.
  if (tuple.kind != Kind::tuple || tuple.items.size() < 5 || tuple.items.size() > 6)
    throw damaged("has a reference that is not a tuple of 5 or 6 items");
  const auto item = [&](std::size_t i) -> const PickleValue& { return pickle[tuple.items[i]]; };
  if (item(0).kind != Kind::text || item(0).text != "storage")
    throw damaged("has a reference that does not start with 'storage'");
  if (item(1).kind != Kind::global || item(1).global != PickleGlobal::storage) throw damaged("has no type");
  if (item(2).kind != Kind::text) throw damaged("has no key");
  if (item(4).kind != Kind::integer || item(4).integer < 0) throw damaged("has no number of elements");
  if (tuple.items.size() == 6 && item(5).kind != Kind::none)
    throw UserError(
        "{}: a storage is a view of another storage, as PyTorch before 0.4 wrote them; save the file again with a "
        "newer PyTorch",
        file_.path());

  Storage storage{item(2).text, find_element_type(item(1).text), item(4).integer, nullptr, 0};
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(storage.n_elements, storage.type->bytes, &bytes) ||
      static_cast<std::uint64_t>(bytes) > file_.size() * 1032) {
    throw damaged("states more elements than the file can hold");
  }
  const auto [known, is_new] = by_key_.emplace(storage.key, storages_.size());
  if (is_new) {
    storages_.push_back(std::move(storage));
  } else if (const Storage& first = storages_[known->second];
             first.type != storage.type || first.n_elements != storage.n_elements) {
    throw damaged("has two different descriptions");
  }
  return known->second;
}

void PytorchStorages::locate() {
  verified_.assign(storages_.size(), false);
  if (!zip_) return locate_legacy();
  for (Storage& storage : storages_) locate_in_zip(storage);
}

void PytorchStorages::locate_in_zip(Storage& storage) const {
  storage.entry = zip_->find(prefix_ + "data/" + storage.key);
  if (storage.entry == nullptr)
    throw UserError("{}: damaged: the archive has no entry for storage '{}'; download or copy it again", file_.path(),
                    printable(storage.key));
  if (storage.entry->bytes != bytes_of(storage)) {
    throw UserError("{}: damaged: entry '{}' has {} bytes, expected {} elements of {}; download or copy it again",
                    file_.path(), printable(storage.entry->name), storage.entry->bytes, storage.n_elements,
                    storage.type->name);
  }
  storage.offset = storage.entry->offset;
}

/// Reads a list of keys, then for each storage, in that order, its number of elements (int64) and the elements.
void PytorchStorages::locate_legacy() {
  ByteCursor cursor(file_, pickles_end_, file_.size(), file_.path());
  const Pickle pickle = read_pickle(cursor, file_.size());
  const PickleValue& keys = pickle[pickle.root];
  if (keys.kind != Kind::list)
    throw UserError("{}: damaged: its list of storages is {}; download or copy it again", file_.path(),
                    description_of(keys.kind));
  std::vector<bool> located(storages_.size(), false);
  for (const std::int32_t item : keys.items) {
    const PickleValue& key = pickle[item];
    const auto known = by_key_.find(key.text);
    if (key.kind != Kind::text || known == by_key_.end() || located[known->second]) {
      throw UserError("{}: damaged: lists storage '{}' twice, or no tensor uses it; download or copy it again",
                      file_.path(), printable(key.text));
    }
    Storage& storage = storages_[known->second];
    const auto n_elements = cursor.take<std::int64_t>();
    if (n_elements != storage.n_elements) {
      throw UserError("{}: damaged: storage '{}' has {} elements, expected {}; download or copy it again", file_.path(),
                      printable(key.text), n_elements, storage.n_elements);
    }
    storage.offset = cursor.position();
    cursor.skip(bytes_of(storage));
    located[known->second] = true;
  }
  const auto missing = std::find(located.begin(), located.end(), false);
  if (missing != located.end()) {
    throw UserError("{}: damaged: does not list storage '{}'; download or copy it again", file_.path(),
                    printable(storages_[static_cast<std::size_t>(missing - located.begin())].key));
  }
  if (cursor.remaining() != 0)
    throw UserError("{}: damaged: {} bytes follow the last storage; download or copy it again", file_.path(),
                    cursor.remaining());
}

void PytorchStorages::fetch(std::size_t index, std::uint64_t offset, std::span<std::byte> destination) const {
  const Storage& storage = storages_[index];
  require(within(offset, destination.size(), bytes_of(storage)), "{}: storage '{}' is read outside its {} bytes",
          file_.path(), storage.key, bytes_of(storage));
  if (storage.entry != nullptr) {
    const std::lock_guard lock(mutex_);
    if (storage.entry->deflated) {
      // Only one inflated storage is stored: tensors of one storage are usually read one after another.
      if (inflated_ != index) contents_ = zip_->extract(*storage.entry);
      inflated_ = index;
      if (!destination.empty()) std::memcpy(destination.data(), contents_.data() + offset, destination.size());
      return;
    }
    if (!verified_[index]) zip_->verify(*storage.entry);
    verified_[index] = true;
  }
  file_.read_at(storage.offset + offset, destination);
}

}  // namespace furlong::foreign
