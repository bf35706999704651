#include "datasets/samplers/labeled_source.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "framework/core/error.h"
#include "framework/core/random.h"

namespace furlong {

// A Feistel network on an even number of bits is a permutation for any round function. Values outside [0, size) are
// mapped again until they are inside (cycle walking; Black and Rogaway 2002, "Ciphers with arbitrary finite domains"):
// fewer than four rounds on average.
std::uint64_t permuted_index(std::uint64_t index, std::uint64_t size, std::uint64_t seed, std::uint64_t epoch) {
  require(index < size, "index {} of a permutation of {}", index, size);
  const std::uint64_t half = std::max<std::uint64_t>(1, (std::bit_width(size - 1) + 1) / 2);
  const std::uint64_t low = (std::uint64_t{1} << half) - 1;
  const RandomKey key{seed, static_cast<std::uint32_t>(epoch), random_stream("order of documents")};
  do {
    std::uint64_t left = index >> half, right = index & low;
    for (std::uint64_t round = 0; round < 6; ++round) {
      const auto words = philox(key, right << 8 | round);
      const std::uint64_t mixed = left ^ ((std::uint64_t{words[1]} << 32 | words[0]) & low);
      left = right;
      right = mixed;
    }
    index = left << half | right;
  } while (index >= size);
  return index;
}

LabeledSource::LabeledSource(const TokenizedDataset& dataset, Split split, const LabeledOptions& options)
    : dataset_(&dataset), split_(split), options_(options), outputs_(dataset.vocabulary().labels().size()) {
  require(options.sequence_length > (options.first_token ? 1 : 0), "a sequence length of {}", options.sequence_length);
  if (options.reverse_complement) other_strand_.emplace(dataset.vocabulary(), options.seed);
  check_labels();
  read_labels();
  find_samples();
  if (samples_.empty()) {
    throw UserError("{}: the {} split has no complete labeled document; prepare more data for it", dataset.path(),
                    name_of(split));
  }
}

void LabeledSource::check_labels() const {
  if (dataset_->documents_per_label() == 0) {
    throw UserError("{}: the dataset has no labels; create one with furlong prepare labeled", dataset_->path());
  }
  if (dataset_->documents_per_label() != rows_per_sample()) {
    throw UserError("{}: the dataset has labels of {}, expected labels of {}; {}", dataset_->path(),
                    options_.pairs ? "single documents" : "pairs of documents",
                    options_.pairs ? "pairs of documents" : "single documents",
                    options_.pairs ? "use objective.name: classification, or prepare with --second-text-field"
                                   : "use objective.name: pair_classification");
  }
  if (dataset_->label_kind() != options_.kind)
    throw UserError(
        "{}: the dataset has labels of type {}, expected {}; prepare it with --label-type {}, or use another "
        "objective.name",
        dataset_->path(), name_of(dataset_->label_kind()), name_of(options_.kind), name_of(options_.kind));
}

void LabeledSource::read_labels() {
  if (options_.kind == LabelKind::sets) label_ends_ = dataset_->label_ends();
  if (options_.kind != LabelKind::numbers) {
    labels_ = dataset_->labels();
    return;
  }
  numbers_ = dataset_->label_numbers();
  const auto& scales = options_.scales.empty() ? dataset_->vocabulary().label_scales() : options_.scales;
  require(scales.size() == outputs_, "{} scales of {} numbers", scales.size(), outputs_);
  for (std::size_t i = 0; i < numbers_.size(); ++i) {
    const LabelScale& scale = scales[i % outputs_];
    numbers_[i] = static_cast<float>((static_cast<double>(numbers_[i]) - scale.mean) / scale.scale);
  }
}

bool LabeledSource::needs_front(std::uint64_t position) const {
  if (!options_.first_token) return false;
  // Only a tokenizer's documents can already start with it: see Vocabulary::frame_front().
  return !dataset_->vocabulary().tokenizer() || dataset_->read(split_, position, 1)[0] != *options_.first_token;
}

void LabeledSource::find_samples() {
  const std::vector<std::uint64_t> offsets = dataset_->document_offsets();
  const auto& ranges = dataset_->ranges(split_);
  const std::uint64_t rows = rows_per_sample(), n_labels = dataset_->n_documents() / rows;
  std::uint64_t before = 0;  // tokens of the split before `range`
  auto range = ranges.begin();
  for (std::uint64_t i = 0; i < n_labels; ++i) {
    const std::uint64_t begin = offsets[i * rows], end = offsets[(i + 1) * rows];
    for (; range != ranges.end() && range->end <= begin; ++range) before += range->end - range->begin;
    if (range == ranges.end()) break;
    if (begin < range->begin || end > range->end) continue;
    Sample sample{{}, i};
    for (std::uint64_t row = 0; row < rows; ++row) {
      const std::uint64_t start = offsets[i * rows + row];
      const auto length = static_cast<std::int64_t>(offsets[i * rows + row + 1] - start);
      const std::uint64_t position = before + (start - range->begin);
      const bool fronted = needs_front(position);
      const std::int64_t room = options_.sequence_length - (fronted ? 1 : 0);
      n_cut_ += length > room;
      sample.documents[row] = {position, start, std::min(length, room), fronted};
    }
    samples_.push_back(sample);
  }
}

std::vector<std::uint64_t> LabeledSource::documents() const {
  std::vector<std::uint64_t> documents;
  for (std::uint64_t i = 0; i < n_samples(); ++i) documents.push_back(sample(i).index);
  return documents;
}

const LabeledSource::Sample& LabeledSource::sample(std::uint64_t index) const {
  const std::uint64_t size = samples_.size(), place = index % size;
  return samples_[options_.shuffled ? permuted_index(place, size, options_.seed, index / size) : place];
}

Batch LabeledSource::make_batch(std::uint64_t first, std::int64_t samples, std::uint64_t end) const {
  require(samples > 0, "a batch of {}", samples);
  const auto count = static_cast<std::uint64_t>(samples);
  const std::uint64_t rows = rows_per_sample(), filled = end > first ? std::min(count, end - first) : 0;
  std::int64_t longest = 1;
  for (std::uint64_t i = 0; i < filled; ++i) {
    for (std::uint64_t row = 0; row < rows; ++row)
      longest = std::max(longest, sample(first + i).documents[row].tokens());
  }
  // Round up to few distinct lengths, because each new shape sets up new matrix products.
  longest = (longest + 63) / 64 * 64;
  Batch made;
  made.batch = static_cast<std::int64_t>(count * rows);
  made.n = options_.pad_to_longest ? std::min(longest, options_.sequence_length) : options_.sequence_length;
  const auto n = static_cast<std::size_t>(made.n);
  made.inputs.assign(count * rows * n, 0);
  made.mask.assign(made.inputs.size(), 0);
  const bool of_tokens = options_.kind == LabelKind::tokens;
  (of_tokens ? made.targets : made.labels).assign(of_tokens ? made.inputs.size() : count, ignored_target);
  if (options_.kind == LabelKind::numbers || options_.kind == LabelKind::sets) made.values.assign(count * outputs_, 0);
  for (std::uint64_t i = 0; i < filled; ++i) {
    const Sample& found = sample(first + i);
    put_label(found, i, made);
    for (std::uint64_t row = 0; row < rows; ++row) {
      const std::size_t place = (i * rows + row) * n;
      const auto length = static_cast<std::size_t>(found.documents[row].length);
      const std::size_t front = found.documents[row].fronted ? 1 : 0;
      if (front > 0) made.inputs[place] = *options_.first_token;
      const std::span<std::int32_t> tokens = std::span(made.inputs).subspan(place + front, length);
      dataset_->read(split_, found.documents[row].position, tokens);
      if (other_strand_) other_strand_->apply(first + i, tokens);
      std::fill_n(made.mask.begin() + static_cast<std::ptrdiff_t>(place), front + length, 1);
      made.n_tokens += static_cast<std::int64_t>(front + length);
    }
  }
  return made;
}

void LabeledSource::put_label(const Sample& sample, std::size_t place, Batch& batch) const {
  if (options_.kind == LabelKind::tokens) {
    const Document& document = sample.documents[0];
    const auto begin = labels_.begin() + static_cast<std::ptrdiff_t>(document.start);
    const std::size_t to = place * static_cast<std::size_t>(batch.n) + (document.fronted ? 1 : 0);
    for (std::int64_t t = 0; t < document.length; ++t) batch.n_targets += begin[t] != ignored_target;
    std::copy_n(begin, document.length, batch.targets.begin() + static_cast<std::ptrdiff_t>(to));
    return;
  }
  ++batch.n_targets;
  batch.labels[place] = options_.kind == LabelKind::classes ? labels_[sample.index] : 0;
  const auto values = std::span(batch.values).subspan(options_.kind == LabelKind::classes ? 0 : place * outputs_);
  for (std::size_t k = 0; options_.kind == LabelKind::numbers && k < outputs_; ++k)
    values[k] = std::bit_cast<std::int32_t>(numbers_[sample.index * outputs_ + k]);
  if (options_.kind != LabelKind::sets) return;
  const std::uint64_t begin = sample.index == 0 ? 0 : label_ends_[sample.index - 1];
  for (std::uint64_t k = begin; k < label_ends_[sample.index]; ++k)
    values[static_cast<std::size_t>(labels_[k])] = std::bit_cast<std::int32_t>(1.0F);
}

std::string LabeledSource::note() const {
  if (n_cut_ == 0) return {};
  return fmt::format(
      "{} of the {} documents of the {} split are longer than {} tokens{} and are truncated (data.sequence_length)",
      n_cut_, samples_.size() * rows_per_sample(), name_of(split_), options_.sequence_length,
      options_.first_token ? " with the class token" : "");
}

Batch LabeledSource::batch(std::uint64_t first, std::int64_t samples) const {
  return make_batch(first, samples, std::numeric_limits<std::uint64_t>::max());
}
Batch LabeledSource::single_pass_batch(std::uint64_t first, std::int64_t samples) const {
  return make_batch(first, samples, samples_.size());
}

}  // namespace furlong
