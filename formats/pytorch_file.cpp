// State dicts written by torch.save: a pickle of tensors, each a view of a storage.
#include <cstring>
#include <set>

#include "formats/pytorch_storage.h"
#include "formats/shards.h"
#include "formats/tensor_table.h"

namespace furlong {

namespace fs = std::filesystem;

namespace {

using foreign::Pickle;
using foreign::PickleValue;
using Kind = PickleValue::Kind;

/// A strided view of a storage; offset and strides in elements.
struct View {
  std::size_t storage = 0;
  std::int64_t offset = 0;
  Shape strides;
  std::int64_t end = 0;  ///< one past the last element
};

bool is_contiguous(const Shape& shape, const Shape& strides) {
  const Shape expected = contiguous_strides(shape);
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape[i] != 1 && strides[i] != expected[i]) return false;
  }
  return true;
}

/// Copies a view's elements in row-major order from `stretch`, which starts at the view's offset.
void gather(const Shape& shape, const Shape& strides, std::size_t element_bytes, std::span<const std::byte> stretch,
            std::span<std::byte> packed) {
  Shape index;
  for (int i = 0; i < shape.rank(); ++i) index.push_back(0);
  std::int64_t at = 0;
  for (std::size_t done = 0; done < packed.size(); done += element_bytes) {
    std::memcpy(packed.data() + done, stretch.data() + static_cast<std::size_t>(at) * element_bytes, element_bytes);
    for (int i = shape.rank() - 1; i >= 0; --i) {
      if (++index[i] < shape[i]) {
        at += strides[i];
        break;
      }
      at -= strides[i] * (shape[i] - 1);  // stays within the view; the stride of an extent of 1 may be any number
      index[i] = 0;
    }
  }
}

class PytorchFile final : public foreign::TensorTable<TensorFile, View> {
 public:
  explicit PytorchFile(const fs::path& path) : TensorTable(path.string()), file_(path), storages_(file_) {
    const Pickle pickle = storages_.open();
    const PickleValue& dictionary = pickle[pickle.root];
    if (dictionary.kind != Kind::dictionary) {
      throw UserError("{}: contains {}, expected a state dict; save only model.state_dict()", this->path(),
                      description_of(dictionary.kind));
    }
    std::vector<std::pair<ForeignTensor, View>> found;
    for (std::size_t i = 0; i < dictionary.items.size(); i += 2) {
      const PickleValue &name = pickle[dictionary.items[i]], &tensor = pickle[dictionary.items[i + 1]];
      if (name.kind != Kind::text)
        throw UserError("{}: is not a state dict: one of its keys is {}, expected a string", this->path(),
                        description_of(name.kind));
      if (tensor.kind != Kind::tensor) {
        throw UserError("{}: is not a state dict: '{}' is {}, expected a tensor; save only model.state_dict()",
                        this->path(), foreign::printable(name.text), description_of(tensor.kind));
      }
      found.push_back(tensor_of(pickle, name.text, pickle[tensor.items[0]]));
    }
    storages_.locate();
    check_sharing(found);
    set_tensors(std::move(found));
  }

  void read(const std::string& name, std::span<float> values) const override {
    const auto [tensor, view] = locate(name, values);
    foreign::read_elements(path(), tensor, *storages_[view.storage].type, fetch_from(tensor, view), values);
  }

  std::vector<std::int64_t> read_integers(const std::string& name) const override {
    const auto [tensor, view] = locate(name);
    return foreign::read_integer_elements(path(), tensor, *storages_[view.storage].type, fetch_from(tensor, view));
  }

 private:
  /// Tensors may share elements, as tied weights and masks do; otherwise a small file could describe any memory.
  void check_sharing(const std::vector<std::pair<ForeignTensor, View>>& found) const {
    constexpr std::int64_t most_times = 4, always = std::int64_t{1} << 26;
    std::set<std::size_t> used;
    for (const auto& [tensor, view] : found) used.insert(view.storage);
    std::int64_t limit = always;
    for (const std::size_t storage : used) limit += most_times * storages_[storage].n_elements;
    for (const auto& [tensor, view] : found) {
      limit -= tensor.shape.elements();
      if (limit < 0)
        throw UserError(
            "{}: its tensors have more elements than {} times those of its storages; save tensors that many names "
            "share only once",
            path(), most_times);
    }
  }

  /// _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, backward_hooks[, metadata])
  std::pair<ForeignTensor, View> tensor_of(const Pickle& pickle, const std::string& name,
                                           const PickleValue& arguments) {
    const auto damaged = [&](std::string_view what) -> UserError {
      return UserError("{}: damaged: tensor '{}' {}; download or copy it again", path(), foreign::printable(name),
                       what);
    };
    if (arguments.items.size() < 6 || arguments.items.size() > 7) throw damaged("is not built from 6 or 7 arguments");
    const auto argument = [&](std::size_t i) -> const PickleValue& { return pickle[arguments.items[i]]; };
    const PickleValue &offset = argument(1), &size = argument(2), &stride = argument(3);
    if (offset.kind != Kind::integer || offset.integer < 0) throw damaged("has no offset");
    if (size.kind != Kind::tuple || stride.kind != Kind::tuple || size.items.size() != stride.items.size())
      throw damaged("has no size and stride");
    View view{storages_.add(pickle, argument(0)), offset.integer, {}, 0};
    const foreign::Storage& storage = storages_[view.storage];
    ForeignTensor tensor{name, {}, std::string(storage.type->name)};
    for (std::size_t i = 0; i < size.items.size(); ++i) {
      const PickleValue &extent = pickle[size.items[i]], &step = pickle[stride.items[i]];
      if (extent.kind != Kind::integer || extent.integer < 0 || step.kind != Kind::integer || step.integer < 0) {
        throw damaged("has a size or stride that is not a non-negative integer");
      }
      foreign::append_extent(path(), name, tensor.shape, static_cast<std::uint64_t>(extent.integer));
      view.strides.push_back(step.integer);
    }
    if (tensor.shape.elements() > 0) view.end = end_of(tensor, view);
    if (view.end > storage.n_elements || tensor.shape.elements() > storage.n_elements) {
      throw UserError(
          "{}: damaged: tensor '{}' {} with strides {} and offset {} does not fit its storage of {} elements; if the "
          "tensor repeats elements, call .contiguous() before saving it",
          path(), foreign::printable(name), tensor.shape.text(), view.strides.text(), view.offset, storage.n_elements);
    }
    return {std::move(tensor), view};
  }

  /// Returns one past the last element that a view of at least one element accesses. Throws UserError on overflow.
  std::int64_t end_of(const ForeignTensor& tensor, const View& view) const {
    std::int64_t last = view.offset;
    bool overflow = false;
    for (int i = 0; i < tensor.shape.rank(); ++i) {
      std::int64_t reach = 0;
      overflow = __builtin_mul_overflow(tensor.shape[i] - 1, view.strides[i], &reach) || overflow;
      overflow = __builtin_add_overflow(last, reach, &last) || overflow;
    }
    std::int64_t end = 0;
    if (overflow || __builtin_add_overflow(last, 1, &end)) {
      throw UserError("{}: damaged: tensor '{}' {} has strides {}, which overflow 64 bits; download or copy it again",
                      path(), foreign::printable(tensor.name), tensor.shape.text(), view.strides.text());
    }
    return end;
  }

  /// Returns the elements in row-major order: directly from the storage, or from a packed copy if the view is not
  /// contiguous.
  foreign::Fetch fetch_from(const ForeignTensor& tensor, const View& view) const {
    const auto element_bytes = static_cast<std::size_t>(storages_[view.storage].type->bytes);
    const std::uint64_t begin = static_cast<std::uint64_t>(view.offset) * element_bytes;
    if (is_contiguous(tensor.shape, view.strides)) {
      return [this, storage = view.storage, begin](std::uint64_t offset, std::span<std::byte> piece) {
        storages_.fetch(storage, begin + offset, piece);
      };
    }
    const auto n_elements = static_cast<std::size_t>(tensor.shape.elements());
    std::vector<std::byte> stretch(n_elements == 0 ? 0
                                                   : static_cast<std::size_t>(view.end - view.offset) * element_bytes);
    if (!stretch.empty()) storages_.fetch(view.storage, begin, stretch);
    const auto packed = std::make_shared<std::vector<std::byte>>(n_elements * element_bytes);
    gather(tensor.shape, view.strides, element_bytes, stretch, *packed);
    return [packed](std::uint64_t offset, std::span<std::byte> piece) {
      std::memcpy(piece.data(), packed->data() + offset, piece.size());
    };
  }

  foreign::ByteFile file_;
  foreign::PytorchStorages storages_;
};

std::unique_ptr<TensorFile> open_pytorch_file(const fs::path& path) { return std::make_unique<PytorchFile>(path); }

}  // namespace

std::unique_ptr<TensorFile> open_pytorch(const fs::path& path) {
  return foreign::is_directory(path) ? foreign::open_in_directory(path, "pytorch_model.bin", open_pytorch_file)
                                     : open_pytorch_file(path);
}

}  // namespace furlong
