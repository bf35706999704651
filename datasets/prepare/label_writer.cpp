#include "datasets/prepare/label_writer.h"

#include <algorithm>
#include <cmath>

#include "framework/core/error.h"

namespace furlong {
namespace {

hdf5::Dataset make_dataset(hdf5::File& file, const char* path, hdf5::Type type, std::uint64_t width) {
  constexpr std::uint64_t block = BufferedRows<std::int32_t>::block;
  if (width == 1 && type != hdf5::Type::f32)
    return file.create_dataset(path, type, {0}, {.chunk = {block}, .fletcher32 = true, .extendible = true});
  return file.create_dataset(path, type, {0, width}, {.chunk = {block, width}, .fletcher32 = true, .extendible = true});
}

}  // namespace

LabelWriter::LabelWriter(hdf5::File& file, LabelKind kind, std::uint64_t documents_per_label, bool drops_unused)
    : file_(file), kind_(kind), drops_unused_(drops_unused), documents_per_label_(documents_per_label) {
  require(kind == LabelKind::classes || documents_per_label == 1, "a {} label of {} documents", name_of(kind),
          documents_per_label);
  if (kind == LabelKind::numbers) return;
  hdf5::Dataset ids = make_dataset(file, "labels", hdf5::Type::i32, 1);
  ids.set_integer("documents_per_label", static_cast<std::int64_t>(documents_per_label));
  if (kind != LabelKind::classes) ids.set_text("kind", name_of(kind));
  ids_.emplace(std::move(ids), 1);
  if (kind == LabelKind::sets) ends_.emplace(make_dataset(file, "label_ends", hdf5::Type::u64, 1), 1);
}

void LabelWriter::push(const DocumentLabel& label, std::uint64_t end, std::optional<Split> split) {
  if (kind_ == LabelKind::numbers) {
    push_numbers(label.numbers, split == Split::train);
  } else {
    require(kind_ != LabelKind::classes || label.ids.size() == 1, "{} classes of one document", label.ids.size());
    push_ids(label.ids, split);
  }
  if (kind_ == LabelKind::sets) ends_->push({&n_ids_, 1});
  if (kind_ == LabelKind::tokens) {
    require(n_ids_ <= end, "{} labels of {} tokens", n_ids_, end);
    constexpr std::int32_t none = -1;  // the token that ends the document
    while (n_ids_ < end) push_ids({&none, 1}, split);
  }
  ++n_labels_;
}

void LabelWriter::push_ids(std::span<const std::int32_t> ids, std::optional<Split> split) {
  for (const std::int32_t id : ids) {
    require(id >= 0 || (id == -1 && kind_ == LabelKind::tokens), "label {}", id);
    if (id < 0) continue;
    const auto place = static_cast<std::size_t>(id);
    if (counts_.size() <= place) counts_.resize(place + 1);
    ++counts_[place].count;
    if (split) ++counts_[place].split_counts[static_cast<std::size_t>(*split)];
  }
  ids_->push(ids);
  n_ids_ += ids.size();
}

void LabelWriter::drop_unused() {
  std::vector<std::int32_t> new_ids;
  std::int32_t n_used = 0;
  for (const LabelSummary& label : counts_) new_ids.push_back(label.count > 0 ? n_used++ : -1);
  if (static_cast<std::size_t>(n_used) == counts_.size()) return;
  std::erase_if(counts_, [](const LabelSummary& label) { return label.count == 0; });
  ids_->change_each([&](std::int32_t& id) { id = id < 0 ? id : new_ids[static_cast<std::size_t>(id)]; });
}

void LabelWriter::push_numbers(std::span<const float> numbers, bool train) {
  if (!numbers_) {
    require(!numbers.empty(), "a label without numbers");
    moments_.resize(numbers.size());
    hdf5::Dataset dataset = make_dataset(file_, "labels", hdf5::Type::f32, numbers.size());
    dataset.set_integer("documents_per_label", static_cast<std::int64_t>(documents_per_label_));
    dataset.set_text("kind", name_of(kind_));
    numbers_.emplace(std::move(dataset), numbers.size());
  }
  require(numbers.size() == moments_.size(), "{} numbers after {}", numbers.size(), moments_.size());
  numbers_->push(numbers);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    Moments& of = moments_[i];
    const auto value = static_cast<double>(numbers[i]);
    of.minimum = of.any ? std::min(of.minimum, value) : value;
    of.maximum = of.any ? std::max(of.maximum, value) : value;
    of.any = true;
    if (!train) continue;
    const double difference = value - of.mean;
    of.mean += difference / ++of.count;
    of.squares += difference * (value - of.mean);
  }
}

std::vector<LabelScale> LabelWriter::finish(const std::vector<std::string>& names, DatasetSummary& summary) {
  require(n_labels_ * documents_per_label_ == summary.n_documents && counts_.size() <= names.size(),
          "{} labels of {} names for {} documents", n_labels_, names.size(), summary.n_documents);
  if (ids_) ids_->flush();
  if (ends_) ends_->flush();
  if (kind_ != LabelKind::numbers) {
    counts_.resize(names.size());
    for (std::size_t i = 0; i < names.size(); ++i) counts_[i].name = names[i];
    if (drops_unused_) drop_unused();
    summary.labels = std::move(counts_);
    return {};
  }
  require(names.size() == moments_.size(), "{} names of {} numbers", names.size(), moments_.size());
  numbers_->flush();
  std::vector<LabelScale> scales;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const Moments& of = moments_[i];
    const double deviation = of.count > 0 ? std::sqrt(of.squares / of.count) : 0;
    summary.numbers.push_back({names[i], of.mean, deviation, of.minimum, of.maximum});
    scales.push_back({of.mean, deviation > 0 ? deviation : 1});
  }
  return scales;
}

}  // namespace furlong
