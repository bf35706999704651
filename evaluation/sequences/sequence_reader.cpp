#include "evaluation/sequences/sequence_reader.h"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <optional>
#include <utility>

#include "datasets/prepare/byte_source.h"
#include "datasets/prepare/image_reader.h"
#include "datasets/prepare/labeled_readers.h"
#include "framework/core/log.h"
#include "framework/core/printable.h"
#include "framework/core/shape.h"

namespace furlong {
namespace {

using Format = SequenceInput::Format;

constexpr std::size_t max_window = 1 << 16;  // sequences; empty ones have no tokens that end a window
constexpr std::size_t block_bytes = 1 << 16, slice_bytes = 1 << 12;  // read at once; between two reports of progress
constexpr std::size_t queue_bytes = 1 << 18;  // of text that waits for a tokenizer: a window has about as much

Format format_of_name(std::string_view name) {
  if (is_fasta_name(name)) return Format::fasta;
  const std::string extension = extension_of(name);
  if (extension == ".tsv") return Format::tsv;
  if (extension == ".csv") return Format::csv;
  return extension == ".jsonl" || extension == ".ndjson" ? Format::jsonl : Format::text;
}

bool reads_letters(const Vocabulary& vocabulary) {
  const auto& tokenizer = vocabulary.tokenizer();
  return tokenizer ? tokenizer->kind() == "letters" : vocabulary.kind() != Vocabulary::Kind::bytes;
}

/// Throws if a file surely is none of the formats. Text that begins as FASTA does is an error for models of letters,
/// and a warning for others, whose texts may quote.
void check_beginning(std::string_view beginning, const std::string& name, bool is_text_by_name, bool reads_letters) {
  constexpr std::string_view hdf5 = "\x89HDF\r\n\x1a\n";  // in checkpoints behind a block of 512 bytes
  const bool is_hdf5 =
      beginning.starts_with(hdf5) || (beginning.size() > 512 && beginning.substr(512).starts_with(hdf5));
  const char* kind = is_hdf5 ? "an HDF5 file" : is_surely_picture(beginning) ? "a picture" : nullptr;
  if (kind) throw UserError("{}: is {}; expected text, FASTA, a table or JSON lines", name, kind);
  if (beginning.starts_with(byte_order_mark)) beginning.remove_prefix(byte_order_mark.size());
  while (!beginning.empty() && (std::isspace(static_cast<unsigned char>(beginning[0])) != 0 || beginning[0] == ';'))
    beginning.remove_prefix(beginning[0] == ';' ? std::min(beginning.find('\n'), beginning.size()) : 1);  // a comment
  if (!is_text_by_name || !beginning.starts_with('>')) return;
  constexpr const char* finding = "{}: begins with '>' as FASTA does, but is read as text, each line as a sequence";
  if (reads_letters) throw UserError("{}; pass --input-format fasta, or text", fmt::format(finding, name));
  log_warn("{}; --input-format fasta reads FASTA", fmt::format(finding, name));
}

LabeledFormat table_format(Format format, const SequenceInput& input) {
  LabeledFormat table;
  table.kind = format == Format::csv     ? LabeledFormat::Kind::csv
               : format == Format::jsonl ? LabeledFormat::Kind::jsonl
                                         : LabeledFormat::Kind::tsv;
  table.text_field = input.text_field;
  table.id_field = input.id_field;
  table.has_label = false;
  return table;
}

/// Collects the documents of readers, and hands them on a window at a time.
class Collector : public DocumentSink {
 public:
  Collector(const Vocabulary& vocabulary, const ReadOptions& options, SequenceWork& work)
      : unknown_(vocabulary.tokenizer() ? vocabulary.unknown_id() : std::nullopt), options_(options), work_(work) {
    // Readers put a tokenizer's own frame around its documents.
    const std::vector<std::int32_t>&front = vocabulary.frame_front(), &back = vocabulary.frame_back();
    front_ = options.frame.front;
    back_ = options.frame.back;
    if (front_.size() >= front.size() && std::equal(front.rbegin(), front.rend(), front_.rbegin()))
      front_.resize(front_.size() - front.size());
    if (back_.size() >= back.size() && std::equal(back.begin(), back.end(), back_.begin()))
      back_.erase(back_.begin(), back_.begin() + std::ssize(back));
  }

  void begin_input(const std::string& name) { input_ = name; }
  /// The bytes of all inputs that are read so far.
  void set_position(std::uint64_t bytes) { position_ = bytes; }
  void append(std::span<const std::uint16_t> ids) override { add(ids); }
  void append(std::span<const std::int32_t> ids) override { add(ids); }
  void name_document(std::string_view name, const std::string&) override { current_.id = name; }

  void end_document() override {
    if (current_.tokens.empty() && !is_long_) {
      ++summary_.empty;
      if (options_.keep_empty) add_to_window();
    } else {
      extend(back_);
      end_sequence();
    }
    ++number_;
    current_ = {};
    length_ = whole_length_ = 0;
    is_long_ = false;
  }

  void flush() {
    if (!window_.empty()) work_.window(window_, [this](double share) { report(share); });
    window_.clear();
    window_sum_ = 0;
    pass();
  }
  /// Reports that of what is read but not done this share is done.
  void report(double share) const {
    if (!options_.progress) return;
    const auto part = [share](std::uint64_t done, std::uint64_t all) {
      return done + static_cast<std::uint64_t>(share * static_cast<double>(all - done));
    };
    options_.progress(part(passed_bytes_, position_), part(passed_sequences_, summary_.sequences));
  }
  const ReadSummary& summary() const { return summary_; }

 private:
  template <class Id>
  void add(std::span<const Id> ids) {
    if (ids.empty()) return;
    if (length_ == 0) extend(front_);
    const std::span<const Id> kept = ids.first(extend(ids));
    if (unknown_) summary_.unknown += static_cast<std::uint64_t>(std::count(kept.begin(), kept.end(), Id(*unknown_)));
    if (options_.long_tokens == 0) return;
    // One token always stays for the end, so that the last piece is not empty.
    std::int64_t given = 0;
    for (; std::ssize(current_.tokens) - given > options_.long_tokens; given += options_.long_tokens) give_piece(given);
    current_.tokens.erase(current_.tokens.begin(), current_.tokens.begin() + given);
  }

  /// Returns how many are kept.
  template <class Ids>
  std::size_t extend(const Ids& ids) {
    std::int64_t count = std::ssize(ids);
    whole_length_ += count;
    if (options_.cut_tokens > 0) count = std::min(count, options_.cut_tokens - length_);
    current_.tokens.insert(current_.tokens.end(), ids.begin(), ids.begin() + count);
    length_ += count;
    if (options_.max_tokens > 0 && length_ > options_.max_tokens)
      throw UserError("{}: {} has more than the {} tokens that the model fits (model.max_sequence_length); shorten it",
                      input_, described(), options_.max_tokens);
    return static_cast<std::size_t>(count);
  }

  /// All that is read is done.
  void pass() {
    passed_bytes_ = position_;
    passed_sequences_ = summary_.sequences;
  }

  void give_piece(std::int64_t begin) {
    if (!is_long_) {
      flush();
      work_.begin_long({number_ + 1, id(), {}});
      is_long_ = true;
    }
    work_.extend_long(std::span(current_.tokens).subspan(at(begin), at(options_.long_tokens)));
    pass();
    report(0);
  }

  void end_sequence() {
    ++summary_.sequences;
    summary_.cut += whole_length_ > length_;
    summary_.longer += options_.trained_tokens > 0 && whole_length_ > options_.trained_tokens;
    const std::int64_t back = std::ssize(options_.frame.back);
    current_.n_back = static_cast<std::size_t>(std::clamp<std::int64_t>(length_ - (whole_length_ - back), 0, back));
    summary_.tokens += static_cast<std::uint64_t>(length_);
    if (is_long_) {
      work_.extend_long(current_.tokens);
      work_.end_long();
      pass();
      return;
    }
    add_to_window();
  }

  void add_to_window() {
    current_.id = id();
    current_.number = number_ + 1;
    window_sum_ += length_;
    window_.push_back(std::move(current_));
    if (window_sum_ >= options_.window_tokens || window_.size() == max_window) flush();
  }

  /// As in the input; bytes that JSON and HDF5 cannot hold are escaped.
  std::string id() const {
    if (current_.id.empty()) return std::to_string(number_ + 1);
    const bool is_text = foreign::is_utf8(current_.id) && current_.id.find('\0') == std::string::npos;
    return is_text ? current_.id : foreign::single_line(current_.id, 1 << 16);
  }
  std::string described() const {
    return current_.id.empty() ? fmt::format("sequence {}", number_ + 1)
                               : fmt::format("sequence {} ({})", number_ + 1, foreign::printable(current_.id));
  }

  const std::optional<std::int32_t> unknown_;  // of a tokenizer
  std::vector<std::int32_t> front_, back_;
  const ReadOptions& options_;
  SequenceWork& work_;
  std::string input_;
  std::vector<Sequence> window_;
  std::int64_t window_sum_ = 0, length_ = 0;               // tokens of the window; of the current sequence
  std::int64_t whole_length_ = 0;                          // with the tokens that are cut
  std::uint64_t number_ = 0;                               // of the last sequence that ended
  std::uint64_t position_ = 0;                             // bytes read
  std::uint64_t passed_bytes_ = 0, passed_sequences_ = 0;  // done
  Sequence current_;
  bool is_long_ = false;
  ReadSummary summary_;
};

/// Bytes of text as letters of an alphabet, without white space.
class LetterSink : public DocumentSink {
 public:
  LetterSink(const Vocabulary& vocabulary, bool map_unknown, DocumentSink& sink)
      : vocabulary_(vocabulary), map_unknown_(map_unknown), sink_(sink) {}

  void begin_input(const std::string& name) { input_ = name; }
  void append(std::span<const std::uint16_t> bytes) override {
    ids_.clear();
    for (const std::uint16_t byte : bytes) {
      ++position_;
      const auto letter = static_cast<unsigned char>(byte);
      const std::int32_t id = vocabulary_.id_of_byte(letter);
      if (id >= 0) {
        ids_.push_back(id);
      } else if (std::isspace(letter) == 0) {
        ids_.push_back(unknown(letter));
      }
    }
    sink_.append(ids_);
  }
  void append(std::span<const std::int32_t>) override { require(false, "tokens instead of bytes"); }
  void end_document() override {
    ++number_;
    position_ = 0;
    sink_.end_document();
  }
  std::uint64_t n_mapped() const { return n_mapped_; }

 private:
  std::int32_t unknown(unsigned char letter) {
    if (!map_unknown_)
      throw UserError("{}: '{}' at byte {} of sequence {} {}", input_,
                      foreign::printable(std::string(1, static_cast<char>(letter))), position_, number_,
                      letter_refusal(vocabulary_, AlphabetSource::model));
    ++n_mapped_;
    return *vocabulary_.unknown_id();
  }

  const Vocabulary& vocabulary_;
  bool map_unknown_;
  DocumentSink& sink_;
  std::string input_;
  std::vector<std::int32_t> ids_;
  std::uint64_t position_ = 0, number_ = 1, n_mapped_ = 0;
};

std::unique_ptr<DocumentReader> make_reader(const SequenceInput& input, Format format, const Vocabulary& vocabulary,
                                            Collector& collector, LetterSink& letter_sink) {
  if (format == Format::fasta)
    return make_fasta_reader(vocabulary, input.map_unknown, collector, AlphabetSource::model);
  const bool letters = !vocabulary.tokenizer() && vocabulary.kind() != Vocabulary::Kind::bytes;
  if (format != Format::text)
    return make_labeled_reader(table_format(format, input), vocabulary, input.map_unknown, collector,
                               AlphabetSource::model);
  if (letters) return make_text_reader(input.separator, Vocabulary::bytes(false), letter_sink);
  return make_text_reader(input.separator, vocabulary, collector, queue_bytes);
}

}  // namespace

Format format_of_input(const SequenceInput& input, const std::string& path) {
  return input.format == Format::automatic ? format_of_name(path) : input.format;
}

ReadSummary read_sequences(const SequenceInput& input, const Vocabulary& vocabulary, const ReadOptions& options,
                           SequenceWork& work) {
  require(!input.paths.empty(), "read_sequences: no inputs");
  if (std::count(input.paths.begin(), input.paths.end(), "-") > 1)
    throw UserError("standard input (-) is given more than once");
  Collector collector(vocabulary, options, work);
  LetterSink letter_sink(vocabulary, input.map_unknown, collector);
  std::vector<char> block(block_bytes);
  std::uint64_t bytes = 0, mapped = 0;
  TextCount ignored;
  for (const std::string& path : input.paths) {
    const Format format = format_of_input(input, path);
    const bool has_fields = format != Format::text && format != Format::fasta;
    if (!has_fields && !(input.text_field + input.id_field).empty())
      throw UserError("--{}-field {}: {} is read as {}, which has no fields; expected a table or JSON lines",
                      input.id_field.empty() ? "text" : "id",
                      input.id_field.empty() ? input.text_field : input.id_field, path,
                      format == Format::fasta ? "FASTA" : "text");
    const std::unique_ptr<DocumentReader> reader = make_reader(input, format, vocabulary, collector, letter_sink);
    ByteSource source(path);
    reader->begin_input(source.name());
    collector.begin_input(source.name());
    letter_sink.begin_input(source.name());
    const std::uint64_t before = collector.summary().sequences;
    std::uint64_t begin = 0;
    bool is_first = true;
    while (const std::size_t count = source.read(block.data(), block.size())) {
      if (std::exchange(is_first, false))
        check_beginning({block.data(), count}, source.name(),
                        input.format == Format::automatic && format == Format::text, reads_letters(vocabulary));
      const std::uint64_t end = source.file_bytes();
      for (std::size_t first = 0; first < count; first += slice_bytes) {
        const std::string_view slice = std::string_view(block.data(), count).substr(first, slice_bytes);
        collector.set_position(bytes + begin + (end - begin) * (first + slice.size()) / count);
        reader->feed(slice);
        collector.report(0);
      }
      begin = end;
    }
    reader->end_input();
    for (const std::string& warning : reader->warnings()) log_warn("{}", warning);
    if (collector.summary().sequences == before)
      throw UserError("{}: there is no sequence in it; expected at least one", source.name());
    bytes += source.file_bytes();
    mapped += reader->n_mapped();
    ignored.characters += reader->ignored().characters;
    ignored.documents += reader->ignored().documents;
    ignored.not_utf8 += reader->ignored().not_utf8;
  }
  collector.flush();
  ReadSummary summary = collector.summary();
  summary.cut_tokens = options.cut_tokens;
  summary.mapped = mapped + letter_sink.n_mapped();
  summary.ignored = ignored;
  return summary;
}

std::vector<std::vector<std::size_t>> batches_by_length(const std::vector<std::int64_t>& lengths,
                                                        std::int64_t batch_tokens) {
  std::vector<std::size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return lengths[a] > lengths[b]; });
  std::vector<std::vector<std::size_t>> batches;
  for (const std::size_t index : order) {
    // The first of a batch is its longest.
    if (batches.empty() || (std::ssize(batches.back()) + 1) * lengths[batches.back().front()] > batch_tokens)
      batches.emplace_back();
    batches.back().push_back(index);
  }
  return batches;
}

BatchProgress::BatchProgress(const std::vector<std::int64_t>& lengths, ShareDone done)
    : done_(std::move(done)), total_(std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0})) {}

void BatchProgress::add(std::int64_t tokens) {
  passed_ += tokens;
  if (done_ && total_ > 0) done_(static_cast<double>(passed_) / static_cast<double>(total_));
}

}  // namespace furlong
