#include "datasets/tokenized_dataset.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <mutex>

#include "datasets/prepare/dataset_writer.h"
#include "framework/core/error.h"
#include "framework/io/hdf5.h"
#include "framework/io/json_bounds.h"

namespace furlong {

namespace {

constexpr std::uint64_t kMaxBytesInMemory = std::uint64_t{1} << 30;

using Range = TokenizedDataset::Range;

struct SplitRanges {
  std::vector<Range> ranges;
  std::vector<std::uint64_t> starts;  // start of each range in the split, then the split's size
  mutable std::once_flag loaded;
  mutable std::vector<std::byte> memory;  // the split's elements in the file's type, once loaded

  std::uint64_t size() const { return starts.back(); }
};

void check_type(const hdf5::Dataset& dataset, std::size_t rank, bool offsets) {
  const hdf5::Type type = dataset.type();
  const bool fits =
      offsets ? type == hdf5::Type::u64 : type == hdf5::Type::u8 || type == hdf5::Type::u16 || type == hdf5::Type::u32;
  if (fits && dataset.shape().size() == rank) return;
  throw UserError("{}: {} has {} dimensions of {}, expected {} of {}; it is not a tokenized dataset",
                  dataset.file_name(), dataset.path(), dataset.shape().size(), hdf5::name_of(type), rank,
                  offsets ? "uint64" : "uint8, uint16 or uint32");
}

/// Checks the declared size of a dataset before memory is allocated for it. Offsets are small compared with the tokens,
/// but their size is not trusted.
void check_stored(const hdf5::Dataset& dataset) {
  if (dataset.storage_bytes() < dataset.bytes()) {
    throw UserError(
        "{}: {} declares {} bytes but holds {}; the file is damaged: copy it again, or run furlong prepare again",
        dataset.file_name(), dataset.path(), dataset.bytes(), dataset.storage_bytes());
  }
}

/// Returns the JSON of the vocabulary: an attribute, or a dataset if it is too large for one.
std::string read_vocabulary(const hdf5::File& file) {
  if (file.has_attribute("vocabulary")) return file.text("vocabulary");
  const hdf5::Dataset dataset = file.dataset("vocabulary");
  if (dataset.type() != hdf5::Type::u8 || dataset.shape().size() != 1) {
    throw UserError(
        "{}: /vocabulary has {} dimensions of {}, expected 1 of uint8; the file is damaged: copy it again, or run "
        "furlong prepare again",
        file.file_name(), dataset.shape().size(), hdf5::name_of(dataset.type()));
  }
  check_stored(dataset);
  std::string json(dataset.shape()[0], '\0');
  dataset.read(json.data(), json.size());
  return json;
}

std::vector<Range> read_ranges(const hdf5::File& file, Split split, std::uint64_t n_tokens) {
  const std::string path = fmt::format("splits/{}", name_of(split));
  if (!file.has(path)) return {};
  const hdf5::Dataset dataset = file.dataset(path);
  check_type(dataset, 2, true);
  if (dataset.shape()[1] != 2)
    throw UserError(
        "{}: /{} has {} columns, expected 2 (begin and end); the file is damaged: copy it again, or run furlong "
        "prepare again",
        file.file_name(), path, dataset.shape()[1]);
  check_stored(dataset);
  std::vector<std::uint64_t> raw(dataset.shape()[0] * 2);
  dataset.read(raw.data(), raw.size() * sizeof(std::uint64_t));
  std::vector<Range> ranges;
  for (std::size_t row = 0; row + 1 < raw.size(); row += 2) {
    const Range range{raw[row], raw[row + 1]};
    const std::uint64_t earliest = ranges.empty() ? 0 : ranges.back().end;
    if (range.begin < earliest || range.begin >= range.end || range.end > n_tokens) {
      throw UserError(
          "{}: range {} of /{} is [{}, {}), expected a start of at least {} and an end of at most {}; the file is "
          "damaged: copy it again, or run furlong prepare again",
          file.file_name(), row / 2, path, range.begin, range.end, earliest, n_tokens);
    }
    if (!ranges.empty() && ranges.back().end == range.begin) {
      ranges.back().end = range.end;
    } else {
      ranges.push_back(range);
    }
  }
  return ranges;
}

/// A token in two splits would be used for training and for evaluation.
void check_disjoint(const std::string& file, const std::array<SplitRanges, 3>& splits) {
  std::vector<Range> all;
  for (const SplitRanges& split : splits) all.insert(all.end(), split.ranges.begin(), split.ranges.end());
  std::sort(all.begin(), all.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (std::size_t i = 1; i < all.size(); ++i) {
    if (all[i].begin < all[i - 1].end)
      throw UserError(
          "{}: two splits overlap at token {}; the file is damaged: copy it again, or run furlong prepare again", file,
          all[i].begin);
  }
}

}  // namespace

struct TokenizedDataset::State {
  std::string path;
  hdf5::File file;
  Vocabulary vocabulary;
  std::string provenance;
  hdf5::Dataset tokens;
  hdf5::Dataset documents;
  std::array<SplitRanges, 3> splits;

  State(std::string the_path, hdf5::File the_file, Vocabulary the_vocabulary)
      : path(std::move(the_path)),
        file(std::move(the_file)),
        vocabulary(std::move(the_vocabulary)),
        provenance(file.text("provenance")),
        tokens(file.dataset("tokens")),
        documents(file.dataset("documents")) {}

  const SplitRanges& split(Split which) const { return splits[static_cast<std::size_t>(which)]; }
  std::uint64_t n_tokens() const { return tokens.shape()[0]; }
  std::size_t width() const { return hdf5::size_of(tokens.type()); }

  void check_documents() const;
  hdf5::Dataset label_dataset(const char* name, hdf5::Type type, std::uint64_t rows, std::uint64_t width) const;
  void load(const SplitRanges& split) const;
  void convert(const std::byte* raw, std::uint64_t first, std::span<std::int32_t> out) const;
};

void TokenizedDataset::State::check_documents() const {
  check_type(documents, 1, true);
  const std::uint64_t n_offsets = documents.shape()[0];
  if (n_offsets < 2)
    throw UserError(
        "{}: /documents has {} offsets, expected at least 2; the file is damaged: copy it again, or run furlong "
        "prepare again",
        path, n_offsets);
  std::uint64_t first = 0, last = 0;
  documents.read_rows(0, 1, &first, sizeof first);
  documents.read_rows(n_offsets - 1, n_offsets, &last, sizeof last);
  if (first != 0 || last != n_tokens()) {
    throw UserError(
        "{}: /documents goes from {} to {}, expected 0 to {}; the file is damaged: copy it again, or run furlong "
        "prepare again",
        path, first, last, n_tokens());
  }
}

/// Converts elements of the file's type to ids. `first` is the position of the first one, for errors.
void TokenizedDataset::State::convert(const std::byte* raw, std::uint64_t first, std::span<std::int32_t> out) const {
  const auto size = static_cast<std::uint32_t>(vocabulary.size());
  std::uint32_t largest = 0;
  const auto widen = [&](const auto* source) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      largest = std::max<std::uint32_t>(largest, source[i]);
      out[i] = static_cast<std::int32_t>(source[i]);
    }
  };
  switch (width()) {
    case 1:
      widen(reinterpret_cast<const std::uint8_t*>(raw));
      break;
    case 2:
      widen(reinterpret_cast<const std::uint16_t*>(raw));
      break;
    default:
      widen(reinterpret_cast<const std::uint32_t*>(raw));
  }
  if (largest >= size) {
    throw UserError(
        "{}: token {} occurs near position {}, but the vocabulary has {} symbols; the file is damaged: copy it again, "
        "or run furlong prepare again",
        path, largest, first, size);
  }
}

void TokenizedDataset::State::load(const SplitRanges& split) const {
  check_stored(tokens);
  std::vector<std::byte> memory(split.size() * width());
  std::size_t offset = 0;
  for (const Range& range : split.ranges) {
    const std::size_t bytes = (range.end - range.begin) * width();
    tokens.read_rows(range.begin, range.end, memory.data() + offset, bytes);
    offset += bytes;
  }
  split.memory = std::move(memory);
}

TokenizedDataset TokenizedDataset::open(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored) && hdf5::File::lacks_signature(path))
    throw UserError(
        "{}: is not an HDF5 file; expected a tokenized dataset, which furlong prepare makes from text, FASTA, tables "
        "or images",
        path);
  hdf5::File file = hdf5::File::open_checksummed(path);
  if (!file.has_attribute("format") || file.text("format") != tokenized_dataset_format) {
    throw UserError("{}: is HDF5 but not a tokenized dataset; create one with furlong prepare", path);
  }
  const std::int64_t format_version = file.integer("format_version");
  if (format_version != tokenized_dataset_version) {
    throw UserError(
        "{}: is a tokenized dataset of version {}, but this program reads version {}; run furlong prepare again", path,
        format_version, tokenized_dataset_version);
  }
  Vocabulary vocabulary = Vocabulary::from_json(read_vocabulary(file), path);
  auto state = std::make_unique<State>(path, std::move(file), std::move(vocabulary));
  foreign::check_ordered_json(state->provenance, path + ": provenance");  // for all who parse it
  check_type(state->tokens, 1, false);
  state->check_documents();
  for (const Split which : all_splits) {
    SplitRanges& split = state->splits[static_cast<std::size_t>(which)];
    split.ranges = read_ranges(state->file, which, state->n_tokens());
    split.starts.push_back(0);
    for (const Range& range : split.ranges) split.starts.push_back(split.starts.back() + (range.end - range.begin));
  }
  check_disjoint(path, state->splits);
  return TokenizedDataset(std::move(state));
}

TokenizedDataset::TokenizedDataset(std::unique_ptr<State> state) : state_(std::move(state)) {}
TokenizedDataset::TokenizedDataset(TokenizedDataset&&) noexcept = default;
TokenizedDataset& TokenizedDataset::operator=(TokenizedDataset&&) noexcept = default;
TokenizedDataset::~TokenizedDataset() = default;

const std::string& TokenizedDataset::path() const { return state_->path; }
const Vocabulary& TokenizedDataset::vocabulary() const { return state_->vocabulary; }
const std::string& TokenizedDataset::provenance() const { return state_->provenance; }
std::uint64_t TokenizedDataset::n_tokens() const { return state_->n_tokens(); }
std::uint64_t TokenizedDataset::n_documents() const { return state_->documents.shape()[0] - 1; }
std::vector<std::uint64_t> TokenizedDataset::document_offsets() const {
  check_stored(state_->documents);
  std::vector<std::uint64_t> offsets(state_->documents.shape()[0]);
  state_->documents.read(offsets.data(), offsets.size() * sizeof(std::uint64_t));
  if (!std::is_sorted(offsets.begin(), offsets.end()))
    throw UserError(
        "{}: the offsets in /documents do not ascend; the file is damaged: copy it again, or run furlong prepare again",
        path());
  return offsets;
}

std::uint64_t TokenizedDataset::documents_per_label() const {
  if (!state_->file.has("labels")) return 0;
  const std::int64_t documents = state_->file.dataset("labels").integer("documents_per_label");
  if (documents != 1 && documents != 2)
    throw UserError(
        "{}: /labels has documents_per_label {}, expected 1 or 2; the file is damaged: copy it again, or run furlong "
        "prepare again",
        path(), documents);
  return static_cast<std::uint64_t>(documents);
}

LabelKind TokenizedDataset::label_kind() const {
  if (!state_->file.has("labels")) return LabelKind::classes;
  const hdf5::Dataset labels = state_->file.dataset("labels");
  return labels.has_attribute("kind")
             ? value_named<LabelKind>(labels.text("kind"), (path() + ": the kind of /labels").c_str())
             : LabelKind::classes;
}

hdf5::Dataset TokenizedDataset::State::label_dataset(const char* name, hdf5::Type type, std::uint64_t rows,
                                                     std::uint64_t width) const {
  if (!file.has(name))
    throw UserError("{}: the dataset has no {}; create one with furlong prepare labeled", path, name);
  hdf5::Dataset dataset = file.dataset(name);
  hdf5::Shape shape{rows};
  if (width > 0) shape.push_back(width);
  if (dataset.type() != type || dataset.shape() != shape) {
    throw UserError(
        "{}: /{} has the shape [{}] of {}, expected [{}] of {}, because there are {} documents and {} names; the file "
        "is damaged: copy it again, or run furlong prepare again",
        path, name, fmt::join(dataset.shape(), ", "), hdf5::name_of(dataset.type()), fmt::join(shape, ", "),
        hdf5::name_of(type), documents.shape()[0] - 1, vocabulary.labels().size());
  }
  check_stored(dataset);
  return dataset;
}

std::vector<std::int32_t> TokenizedDataset::labels() const {
  const std::uint64_t documents = std::max<std::uint64_t>(documents_per_label(), 1);
  const LabelKind kind = label_kind();
  std::uint64_t rows = kind == LabelKind::tokens ? n_tokens() : n_documents() / documents;
  if (kind == LabelKind::sets) {
    const auto ends = label_ends();
    rows = ends.empty() ? 0 : ends.back();
  }
  const hdf5::Dataset dataset = state_->label_dataset("labels", hdf5::Type::i32, rows, 0);
  std::vector<std::int32_t> labels(rows);
  dataset.read(labels.data(), labels.size() * sizeof(std::int32_t));
  const auto n_names = static_cast<std::int32_t>(vocabulary().labels().size());
  const std::int32_t least = kind == LabelKind::tokens ? -1 : 0;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] < least || labels[i] >= n_names)
      throw UserError(
          "{}: label {} is {}, but there are {} names; the file is damaged: copy it again, or run furlong prepare "
          "again",
          path(), i, labels[i], n_names);
  }
  return labels;
}

std::vector<std::uint64_t> TokenizedDataset::label_ends() const {
  const hdf5::Dataset dataset = state_->label_dataset("label_ends", hdf5::Type::u64, n_documents(), 0);
  std::vector<std::uint64_t> ends(n_documents());
  dataset.read(ends.data(), ends.size() * sizeof(std::uint64_t));
  if (!std::is_sorted(ends.begin(), ends.end()))
    throw UserError(
        "{}: the ends in /label_ends do not ascend; the file is damaged: copy it again, or run furlong prepare again",
        path());
  return ends;
}

std::vector<float> TokenizedDataset::label_numbers() const {
  const std::uint64_t width = vocabulary().labels().size();
  const hdf5::Dataset dataset = state_->label_dataset("labels", hdf5::Type::f32, n_documents(), width);
  std::vector<float> numbers(n_documents() * width);
  dataset.read(numbers.data(), numbers.size() * sizeof(float));
  if (vocabulary().label_scales().size() != width ||
      !std::all_of(numbers.begin(), numbers.end(), [](float number) { return std::isfinite(number); }))
    throw UserError(
        "{}: /labels has numbers that are not finite, or no scales; the file is damaged: copy it again, or run furlong "
        "prepare again",
        path());
  return numbers;
}

const std::vector<Range>& TokenizedDataset::ranges(Split split) const { return state_->split(split).ranges; }
std::uint64_t TokenizedDataset::size(Split split) const { return state_->split(split).size(); }

Range TokenizedDataset::document(std::uint64_t index) const {
  require(index < n_documents(), "document {} of {}", index, n_documents());
  std::array<std::uint64_t, 2> offsets{};
  state_->documents.read_rows(index, index + 2, offsets.data(), sizeof offsets);
  if (offsets[0] > offsets[1] || offsets[1] > n_tokens()) {
    throw UserError(
        "{}: document {} is [{}, {}) of {} tokens; the file is damaged: copy it again, or run furlong prepare again",
        path(), index, offsets[0], offsets[1], n_tokens());
  }
  return {offsets[0], offsets[1]};
}

void TokenizedDataset::read(Split which, std::uint64_t position, std::span<std::int32_t> tokens) const {
  const SplitRanges& split = state_->split(which);
  require(position <= split.size() && tokens.size() <= split.size() - position, "tokens [{}, {}) of the {} split of {}",
          position, position + tokens.size(), name_of(which), split.size());
  const std::size_t width = state_->width();
  if (split.size() * width <= kMaxBytesInMemory) {
    std::call_once(split.loaded, [&] { state_->load(split); });
    state_->convert(split.memory.data() + position * width, position, tokens);
    return;
  }
  auto range = static_cast<std::size_t>(std::upper_bound(split.starts.begin(), split.starts.end(), position) -
                                        split.starts.begin()) -
               1;
  std::vector<std::byte> raw;
  for (; !tokens.empty(); ++range) {
    const std::uint64_t begin = split.ranges[range].begin + (position - split.starts[range]);
    const auto count =
        static_cast<std::size_t>(std::min<std::uint64_t>(split.ranges[range].end - begin, tokens.size()));
    raw.resize(count * width);
    state_->tokens.read_rows(begin, begin + count, raw.data(), raw.size());
    state_->convert(raw.data(), begin, tokens.first(count));
    tokens = tokens.subspan(count);
    position += count;
  }
}

std::vector<std::int32_t> TokenizedDataset::read(Split split, std::uint64_t position, std::size_t count) const {
  std::vector<std::int32_t> tokens(count);
  read(split, position, tokens);
  return tokens;
}

std::vector<std::uint64_t> TokenizedDataset::breaks(Split which, std::uint64_t position, std::uint64_t count) const {
  const SplitRanges& split = state_->split(which);
  std::vector<std::uint64_t> places;
  auto start = std::upper_bound(split.starts.begin(), split.starts.end(), position);
  for (; start != split.starts.end() && *start < position + count && *start < split.size(); ++start)
    places.push_back(*start);
  return places;
}

}  // namespace furlong
