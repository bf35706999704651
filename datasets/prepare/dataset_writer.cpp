#include "datasets/prepare/dataset_writer.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <type_traits>
#include <utility>

#include "datasets/prepare/label_writer.h"
#include "framework/core/error.h"
#include "framework/io/atomic_file.h"
#include "framework/io/hdf5.h"
#include "framework/io/interrupted_writes.h"

namespace furlong {

namespace {

constexpr std::uint64_t kTokensPerChunk = std::uint64_t{1} << 16;
constexpr std::uint64_t kRowsPerChunk = std::uint64_t{1} << 11;
constexpr std::size_t kMaxAttributeBytes = 32768;

using SplitBy = DatasetWriterOptions::SplitBy;

/// Buffers rows of 64-bit integers for an HDF5 dataset.
class Rows {
 public:
  Rows(hdf5::File& file, const std::string& path, std::uint64_t width)
      : dataset_(
            file.create_dataset(path, hdf5::Type::u64, width == 1 ? hdf5::Shape{0} : hdf5::Shape{0, width},
                                {.chunk = width == 1 ? hdf5::Shape{kRowsPerChunk} : hdf5::Shape{kRowsPerChunk, width},
                                 .fletcher32 = true,
                                 .extendible = true})),
        width_(width) {}

  void push(std::initializer_list<std::uint64_t> row) {
    buffer_.insert(buffer_.end(), row);
    if (buffer_.size() >= kRowsPerChunk * width_) flush();
  }
  void flush() {
    dataset_.append(buffer_.data(), buffer_.size() / width_);
    buffer_.clear();
  }

 private:
  hdf5::Dataset dataset_;
  std::uint64_t width_;
  std::vector<std::uint64_t> buffer_;
};

/// Counts of each token in any prefix of a sequence whose length is unknown until its end. Counts are stored at up to
/// 512 evenly spaced positions; the spacing doubles when there are too many. The counts of a prefix then need at most
/// one spacing of tokens to be read again. Large vocabularies have fewer positions, so that memory stays bounded.
class PrefixCounts {
 public:
  explicit PrefixCounts(std::size_t vocabulary_size)
      : max_places_(std::clamp<std::size_t>((std::size_t{1} << 21) / vocabulary_size, 8, 512)),
        running_(vocabulary_size, 0),
        places_{running_} {}

  /// Adds the counts of the last kTokensPerChunk tokens.
  void add_chunk(const std::vector<std::uint64_t>& chunk_counts) {
    for (std::size_t id = 0; id < running_.size(); ++id) running_[id] += chunk_counts[id];
    if (++chunks_ % spacing_ != 0) return;
    places_.push_back(running_);
    if (places_.size() <= max_places_) return;
    for (std::size_t place = 1; 2 * place < places_.size(); ++place) places_[place] = std::move(places_[2 * place]);
    places_.resize((places_.size() + 1) / 2);
    spacing_ *= 2;
  }
  /// Returns the last stored position at or before `end` (in tokens), and the counts up to it.
  std::pair<std::uint64_t, std::vector<std::uint64_t>> before(std::uint64_t end) const {
    const std::uint64_t step = spacing_ * kTokensPerChunk;
    const std::uint64_t place = std::min<std::uint64_t>(end / step, places_.size() - 1);
    return {place * step, places_[place]};
  }

 private:
  std::size_t max_places_;
  std::vector<std::uint64_t> running_;
  std::vector<std::vector<std::uint64_t>> places_;
  std::uint64_t chunks_ = 0, spacing_ = 1;
};

/// Writes an attribute. Larger vocabularies (tokenizers may have megabytes) become a dataset, whose chunks have
/// checksums.
void write_vocabulary(hdf5::File& file, const std::string& json) {
  if (json.size() <= kMaxAttributeBytes) return file.set_text("vocabulary", json);
  hdf5::Dataset dataset = file.create_dataset(
      "vocabulary", hdf5::Type::u8, {0}, {.chunk = {std::uint64_t{1} << 16}, .fletcher32 = true, .extendible = true});
  dataset.append(json.data(), json.size());
}

double entropy(const std::vector<std::uint64_t>& counts) {
  double total = 0, bits = 0;
  for (const std::uint64_t count : counts) total += static_cast<double>(count);
  for (const std::uint64_t count : counts) {
    if (count > 0) bits -= static_cast<double>(count) / total * std::log2(static_cast<double>(count) / total);
  }
  return bits;
}

}  // namespace

struct DatasetWriter::State {
  Vocabulary vocabulary;
  DatasetWriterOptions options;
  std::unique_ptr<AtomicFile> on_disk;
  hdf5::File file;
  hdf5::Type type;
  hdf5::Dataset tokens;
  std::vector<std::uint32_t> buffer;
  std::optional<std::uint32_t> last;  // last token of the current document
  std::uint64_t written = 0;          // tokens in the file; `buffer` holds the next ones
  std::uint64_t document_begin = 0;
  Rows documents;
  std::vector<Rows> splits;
  std::optional<LabelWriter> labels;
  std::optional<Split> assigned;  // of the documents that follow
  bool has_assigned = false;
  // last range of each split, which may still grow
  std::array<std::pair<std::uint64_t, std::uint64_t>, 3> pending{};
  std::vector<std::uint64_t> chunk_counts, train_counts;
  PrefixCounts prefix_counts;
  DatasetSummary summary;

  State(std::unique_ptr<AtomicFile> output, Vocabulary the_vocabulary, const DatasetWriterOptions& the_options)
      : vocabulary(std::move(the_vocabulary)),
        options(the_options),
        on_disk(std::move(output)),
        file(hdf5::File::create(*on_disk)),
        type(vocabulary.size() <= 1 << 8    ? hdf5::Type::u8
             : vocabulary.size() <= 1 << 16 ? hdf5::Type::u16
                                            : hdf5::Type::u32),
        tokens(file.create_dataset("tokens", type, {0},
                                   {.chunk = {kTokensPerChunk}, .fletcher32 = true, .extendible = true})),
        documents(file, "documents", 1),
        chunk_counts(static_cast<std::size_t>(vocabulary.size()), 0),
        train_counts(chunk_counts),
        prefix_counts(chunk_counts.size()) {
    buffer.reserve(kTokensPerChunk);
    summary.counts = chunk_counts;
    for (const Split split : all_splits) splits.emplace_back(file, fmt::format("splits/{}", name_of(split)), 2);
    documents.push({0});
    if (options.documents_per_label > 0)
      labels.emplace(file, options.label_kind, options.documents_per_label, options.drops_unused_labels);
  }

  std::uint64_t position() const { return written + buffer.size(); }

  /// Returns the split of a document. Without counts, a hash of seed and index is a point in the unit interval, which
  /// the shares divide.
  std::size_t split_of_document(std::uint64_t document) const {
    if (assigned) return static_cast<std::size_t>(*assigned);
    if (options.split_by == SplitBy::count) {
      const auto& counts = options.split_documents;
      return document < counts[0] ? 0 : document < counts[0] + counts[1] ? 1 : 2;
    }
    if (options.documents_per_label > 0) document /= options.documents_per_label;
    const std::uint64_t hash = XXH3_64bits_withSeed(&document, sizeof document, options.seed);
    const double place = static_cast<double>(hash >> 11) * 0x1p-53;
    const auto& share = options.shares.share;
    if (place < share[0]) return 0;
    if (place < share[0] + share[1] || share[2] == 0) return share[1] > 0 ? 1 : 0;
    return 2;
  }

  /// Calls `action` with a value of the file's token type.
  template <class Action>
  void with_stored_type(const Action& action) const {
    if (type == hdf5::Type::u8) {
      action(std::uint8_t{});
    } else if (type == hdf5::Type::u16) {
      action(std::uint16_t{});
    } else {
      action(std::uint32_t{});
    }
  }

  void write_chunk() {
    with_stored_type([&]<class Stored>(Stored) {
      if constexpr (std::is_same_v<Stored, std::uint32_t>) {
        tokens.append(buffer.data(), buffer.size());
      } else {
        const std::vector<Stored> narrow(buffer.begin(), buffer.end());
        tokens.append(narrow.data(), narrow.size());
      }
    });
    if (options.split_by == SplitBy::span) {
      for (const std::uint32_t id : buffer) ++chunk_counts[id];
      if (buffer.size() == kTokensPerChunk) prefix_counts.add_chunk(chunk_counts);
      for (std::size_t id = 0; id < chunk_counts.size(); ++id) summary.counts[id] += std::exchange(chunk_counts[id], 0);
    }
    written += buffer.size();
    buffer.clear();
  }

  template <class Id>
  void count_document_tokens(std::span<const Id> ids) {
    const bool train = split_of_document(summary.n_documents) == 0;
    for (const Id id : ids) ++summary.counts[static_cast<std::size_t>(id)];
    if (!train) return;
    for (const Id id : ids) ++train_counts[static_cast<std::size_t>(id)];
  }

  template <class Id>
  void append(std::span<const Id> ids) {
    if (ids.empty()) return;
    last = static_cast<std::uint32_t>(ids.back());
    if (options.split_by != SplitBy::span) count_document_tokens(ids);
    while (!ids.empty()) {
      const std::size_t taken = std::min<std::size_t>(ids.size(), kTokensPerChunk - buffer.size());
      buffer.insert(buffer.end(), ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(taken));
      ids = ids.subspan(taken);
      if (buffer.size() == kTokensPerChunk) write_chunk();
    }
  }

  void add_range(std::size_t split, std::uint64_t begin, std::uint64_t end) {
    auto& [pending_begin, pending_end] = pending[split];
    if (pending_end != begin && pending_end > pending_begin) splits[split].push({pending_begin, pending_end});
    if (pending_end != begin || pending_end == pending_begin) pending_begin = begin;
    pending_end = end;
    summary.split_tokens[split] += end - begin;
  }

  void cut_into_spans();
  void count_train_span(std::uint64_t end);
  void check_no_split_is_empty() const;
  void finish_labels(const std::vector<std::string>& names);
};

void DatasetWriter::State::finish_labels(const std::vector<std::string>& names) {
  if (!labels) return;
  const std::vector<LabelScale> scales = labels->finish(names, summary);
  std::vector<std::string> used;
  for (const LabelSummary& label : summary.labels) used.push_back(label.name);
  vocabulary = vocabulary.with_labels(options.label_kind == LabelKind::numbers ? names : used, scales);
}

void DatasetWriter::State::cut_into_spans() {
  const auto n_tokens = static_cast<long double>(summary.n_tokens);
  const std::uint64_t train_end = static_cast<std::uint64_t>(std::llround(n_tokens * options.shares[Split::train]));
  const double both = options.shares[Split::train] + options.shares[Split::validation];
  const std::uint64_t validation_end =
      options.shares[Split::test] > 0 ? static_cast<std::uint64_t>(std::llround(n_tokens * both)) : summary.n_tokens;
  const std::array<std::uint64_t, 4> borders{
      0, options.shares[Split::validation] + options.shares[Split::test] > 0 ? train_end : summary.n_tokens,
      validation_end, summary.n_tokens};
  for (std::size_t split = 0; split < 3; ++split) {
    if (borders[split + 1] > borders[split]) add_range(split, borders[split], borders[split + 1]);
  }
  count_train_span(borders[1]);
}

void DatasetWriter::State::count_train_span(std::uint64_t end) {
  auto [place, counts] = prefix_counts.before(end);
  with_stored_type([&, &place = place, &counts = counts]<class Stored>(Stored) {
    std::vector<Stored> ids;
    while (place < end) {
      const std::uint64_t next = std::min(end, place + kTokensPerChunk);
      ids.resize(static_cast<std::size_t>(next - place));
      tokens.read_rows(place, next, ids.data(), ids.size() * sizeof(Stored));
      for (const Stored id : ids) ++counts[id];
      place = next;
    }
  });
  train_counts = std::move(counts);
}

void DatasetWriter::State::check_no_split_is_empty() const {
  for (const Split split : all_splits) {
    const auto index = static_cast<std::size_t>(split);
    if (options.shares[split] == 0 || summary.split_tokens[index] > 0) continue;
    const bool by_document = options.split_by == SplitBy::document;
    throw UserError("{}: the {} split (fraction {}) gets none of {} {}; {}", on_disk->path().string(), name_of(split),
                    options.shares[split], by_document ? summary.n_documents : summary.n_tokens,
                    by_document ? "documents" : "tokens",
                    has_assigned              ? "give it inputs of its own or no fraction (--split), or change --seed"
                    : (by_document && labels) ? "change --seed or the fractions"
                    : by_document             ? "use --split-by span, or change --seed or the fractions"
                                              : "add more data, or change the fractions");
  }
}

DatasetWriter::DatasetWriter(const std::filesystem::path& path, Vocabulary vocabulary,
                             const DatasetWriterOptions& options)
    : DatasetWriter(std::make_unique<AtomicFile>(path), std::move(vocabulary), options) {}

DatasetWriter::DatasetWriter(std::unique_ptr<AtomicFile> file, Vocabulary vocabulary,
                             const DatasetWriterOptions& options)
    : state_(std::make_unique<State>(std::move(file), std::move(vocabulary), options)) {}

DatasetWriter::~DatasetWriter() = default;

std::uint64_t DatasetWriter::n_tokens() const { return state_->position(); }

void DatasetWriter::append(std::span<const std::uint16_t> ids) { state_->append(ids); }
void DatasetWriter::append(std::span<const std::int32_t> ids) { state_->append(ids); }

void DatasetWriter::end_document() {
  State& state = *state_;
  if (state.position() == state.document_begin) {
    ++state.summary.n_empty_documents;
    return;
  }
  if (const auto border = state.vocabulary.document_id(); border && state.last != static_cast<std::uint32_t>(*border))
    state.append(std::span<const std::int32_t>(&*border, 1));
  state.last.reset();
  if (state.options.split_by != SplitBy::span) {
    const std::size_t split = state.split_of_document(state.summary.n_documents);
    state.add_range(split, state.document_begin, state.position());
    ++state.summary.split_documents[split];
  }
  ++state.summary.n_documents;
  state.document_begin = state.position();
  state.documents.push({state.position()});
}

void DatasetWriter::label(const DocumentLabel& label) {
  State& state = *state_;
  require(state.labels && state.position() == state.document_begin, "label() without a finished document");
  std::optional<Split> split;
  if (state.options.split_by != SplitBy::span)
    split = static_cast<Split>(state.split_of_document(state.summary.n_documents - 1));
  state.labels->push(label, state.position(), split);
}

void DatasetWriter::set_split(std::optional<Split> split) {
  State& state = *state_;
  require(state.position() == state.document_begin && state.options.split_by == SplitBy::document,
          "set_split() inside a document or without documents");
  state.assigned = split;
  state.has_assigned = state.has_assigned || split;
}

DatasetSummary DatasetWriter::finish(const std::string& provenance, const std::vector<std::string>& label_names) {
  State& state = *state_;
  require(state.position() == state.document_begin, "finish() before the end of a document");
  if (!state.buffer.empty()) state.write_chunk();
  state.summary.n_tokens = state.written;
  if (state.written == 0) throw UserError("{}: no tokens to write; the input is empty", state.on_disk->path().string());
  if (state.options.split_by == SplitBy::span) state.cut_into_spans();
  state.check_no_split_is_empty();
  state.summary.train_entropy = entropy(state.train_counts);
  for (std::size_t split = 0; split < 3; ++split) {
    const auto [begin, end] = state.pending[split];
    if (end > begin) state.splits[split].push({begin, end});
    state.splits[split].flush();
  }
  state.documents.flush();
  state.finish_labels(label_names);
  state.file.set_text("format", tokenized_dataset_format);
  state.file.set_integer("format_version", tokenized_dataset_version);
  write_vocabulary(state.file, state.vocabulary.to_json());
  state.file.set_text("provenance", provenance);
  state.file.close();
  state.on_disk->flush();
  const DelayedSignals delayed;
  state.on_disk->commit();
  if (state.options.completed) state.options.completed();
  return state.summary;
}

}  // namespace furlong
