#include "datasets/prepare/prepare.h"

#include <fmt/ranges.h>
#include <sys/stat.h>
#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "datasets/prepare/byte_source.h"
#include "datasets/prepare/image_reader.h"
#include "datasets/prepare/input_files.h"
#include "datasets/prepare/label_table.h"
#include "datasets/prepare/provenance.h"
#include "framework/core/clock.h"
#include "framework/core/error.h"
#include "framework/core/log.h"
#include "framework/core/printable.h"
#include "framework/io/atomic_file.h"
#include "framework/io/checkpoint_file.h"

namespace furlong {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using SplitBy = DatasetWriterOptions::SplitBy;

constexpr std::size_t kBlock = std::size_t{1} << 20;
constexpr double kSecondsBetweenProgress = 5;

/// A file, and the split that all of it goes to.
struct InputFile {
  std::string path;
  std::optional<Split> split;
};

/// Returns all inputs in order, with the files of folders.
std::vector<InputFile> inputs_of(const PrepareOptions& options) {
  std::vector<InputFile> inputs;
  for (std::string& path : files_of(options.inputs)) inputs.push_back({std::move(path), std::nullopt});
  for (const Split split : {Split::validation, Split::test}) {
    const auto& own = split == Split::test ? options.test_inputs : options.validation_inputs;
    if (own.empty()) continue;
    if (options.store.split_by != SplitBy::document)
      throw UserError("--{}-inputs needs --split-by document", name_of(split));
    if (options.store.shares[split] > 0)
      throw UserError("--split: the {} split has the fraction {} and --{}-inputs; give it the fraction 0",
                      name_of(split), options.store.shares[split], name_of(split));
    for (std::string& path : files_of(own)) inputs.push_back({std::move(path), split});
  }
  return inputs;
}

/// Returns whether the names of folders are the labels.
bool is_labeled_by_folder(const PrepareOptions& options, const std::string& first) {
  if (options.format == PrepareOptions::Format::labeled) return options.labeled.kind == LabeledFormat::Kind::files;
  if (options.format != PrepareOptions::Format::images || !options.image_labels.empty() || options.cifar10)
    return false;
  std::error_code ignored;
  if (!fs::is_regular_file(first, ignored)) return false;  // standard input or a pipe can be read only once
  std::string beginning(8, '\0');
  beginning.resize(ByteSource(first).read(beginning.data(), beginning.size()));
  return is_picture(beginning);
}

/// Puts the inputs of each split in random order. A prefix of a split, which validation measures, would otherwise have
/// one label.
void shuffle(std::vector<InputFile>& inputs, std::uint64_t seed) {
  std::vector<std::tuple<std::size_t, std::uint64_t, std::size_t>> keys;  // inputs of all splits come first
  for (std::size_t i = 0; i < inputs.size(); ++i)
    keys.emplace_back(inputs[i].split ? 1 + static_cast<std::size_t>(*inputs[i].split) : 0,
                      XXH3_64bits_withSeed(&i, sizeof i, seed), i);
  std::sort(keys.begin(), keys.end());
  std::vector<InputFile> shuffled;
  for (const auto& key : keys) shuffled.push_back(std::move(inputs[std::get<2>(key)]));
  inputs = std::move(shuffled);
}

/// Returns the names of the folders, in order of appearance.
std::vector<std::string> folder_names(const std::vector<InputFile>& inputs) {
  std::vector<std::string> names;
  std::set<std::string> known;
  for (const InputFile& input : inputs) {
    std::string name = folder_of(input.path);
    if (known.insert(name).second) names.push_back(std::move(name));
  }
  return names;
}

void check_paths(const PrepareOptions& options, const std::vector<InputFile>& inputs) {
  require(!options.inputs.empty() && !options.output.empty(), "prepare() without inputs or output");
  std::vector<std::string> paths;
  for (const InputFile& input : inputs) paths.push_back(input.path);
  for (const std::string& other : {options.label_file, options.tokenizer})
    if (!other.empty()) paths.push_back(other);
  check_inputs(paths, options.output);
  // What a model trained on says nothing about it. Several links to a file count as the file.
  std::map<std::pair<dev_t, ino_t>, const InputFile*> known_files;
  const auto& shares = options.store.shares;
  const bool has_one_split =
      std::count_if(all_splits.begin(), all_splits.end(), [&](Split split) { return shares[split] > 0; }) == 1;
  for (const InputFile& input : inputs) {
    struct stat status {};
    if (::stat(input.path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    const auto [known, is_new] = known_files.emplace(std::pair(status.st_dev, status.st_ino), &input);
    if (is_new) continue;
    if (known->second->split != input.split)
      throw UserError("{}: is an input of two splits (INPUT, --validation-inputs, --test-inputs); remove one",
                      input.path);
    if (input.split || has_one_split) continue;
    throw UserError("{}: is the same file as {}, so its documents could be in two splits; remove one", input.path,
                    known->second->path);
  }
  if (options.labeled.label_kind == LabelKind::numbers && options.store.split_by == SplitBy::span)
    throw UserError(
        "--label-type number needs --split-by document, because mean and deviation are those of training documents");
  if (!options.image_labels.empty() && options.cifar10)
    throw UserError("--label-file: records of CIFAR-10 have their labels; remove --label-file");
  if (!options.image_labels.empty() && options.image_labels.size() != inputs.size())
    throw UserError("--label-file: found {} files for {} inputs; expected one for each", options.image_labels.size(),
                    inputs.size());
}

/// Returns the vocabulary of a tokenizer file or directory, or of a checkpoint trained with a tokenizer.
Vocabulary tokenizer_vocabulary(const std::string& path) {
  if (!checkpoint_checksum(path)) return Vocabulary::of_tokenizer(load_tokenizer(path));
  const Vocabulary of_model = Vocabulary::from_json(CheckpointReader::open(path).text("vocabulary"), path);
  if (of_model.tokenizer()) return Vocabulary::of_tokenizer(of_model.tokenizer());
  throw UserError("--tokenizer: {} has a {} vocabulary and no tokenizer; omit --tokenizer to get the same vocabulary",
                  path, of_model.kind_name());
}

/// A single plain text needs no document token: 256 symbols fit one byte per token.
Vocabulary choose_vocabulary(const PrepareOptions& options, std::size_t n_inputs, std::string_view beginning,
                             const std::string& name) {
  if (!options.tokenizer.empty()) return tokenizer_vocabulary(options.tokenizer);
  if (options.format == PrepareOptions::Format::images) return Vocabulary::bytes(false);
  if (options.format == PrepareOptions::Format::text) {
    return Vocabulary::bytes(options.separator != DocumentSeparator::file || n_inputs > 1);
  }
  const bool has_texts = options.format == PrepareOptions::Format::labeled && options.label_file.empty();
  if (has_texts && options.alphabet == "auto") {
    if (options.map_unknown) throw UserError("--unknown has no effect on bytes; remove it, or give --alphabet");
    return Vocabulary::bytes(true);
  }
  return Vocabulary::alphabet(options.alphabet == "auto" ? guess_alphabet(beginning, name, options.map_unknown)
                                                         : options.alphabet);
}

std::string_view name_of(DocumentSeparator separator) {
  switch (separator) {
    case DocumentSeparator::line:
      return "line";
    case DocumentSeparator::blank_line:
      return "blank-line";
    case DocumentSeparator::file:
      break;
  }
  return "file";
}

/// Returns how the inputs are read.
Json format_as_json(const PrepareOptions& options) {
  Json json;
  if (options.format == PrepareOptions::Format::images) {
    json["format"] = "images";
    if (!options.image_labels.empty()) json["label_files"] = options.image_labels;
    if (options.cifar10) json["records"] = "cifar10";
    json["grayscale"] = options.grayscale;
    return json;
  }
  const bool text = options.format == PrepareOptions::Format::text;
  const bool labeled = options.format == PrepareOptions::Format::labeled;
  json["format"] = text ? "text" : labeled && options.label_file.empty() ? name_of(options.labeled.kind) : "fasta";
  const bool has_fields = options.labeled.kind != LabeledFormat::Kind::files;
  if (labeled && has_fields) {
    json["text_field"] = options.labeled.text_field;
    if (!options.labeled.second_text_field.empty()) json["second_text_field"] = options.labeled.second_text_field;
    if (!options.label_file.empty()) json["label_file"] = options.label_file;
    json["label_field"] = fmt::format("{}", fmt::join(options.labeled.label_fields, ","));
    if (options.labeled.label_kind != LabelKind::classes) json["label_type"] = name_of(options.labeled.label_kind);
  }
  if (text) json["document_separator"] = name_of(options.separator);
  if (!options.tokenizer.empty()) json["tokenizer"] = options.tokenizer;
  if (!text && options.tokenizer.empty()) json["alphabet"] = options.alphabet;
  if (!text) json["unknown"] = options.map_unknown ? "map" : "error";
  return json;
}

Json options_as_json(const PrepareOptions& options) {
  Json json = format_as_json(options);
  json["split_by"] = options.store.split_by == SplitBy::document ? "document" : "span";
  for (const Split split : all_splits) json["split"][std::string(name_of(split))] = options.store.shares[split];
  if (!options.validation_inputs.empty()) json["validation_inputs"] = options.validation_inputs;
  if (!options.test_inputs.empty()) json["test_inputs"] = options.test_inputs;
  json["seed"] = options.store.seed;
  return json;
}

/// One call of prepare(): all inputs in order, into one dataset.
class Preparation {
 public:
  explicit Preparation(const PrepareOptions& options)
      : options_(options), labeled_(options.labeled), start_(Clock::now()), last_progress_(start_) {}

  PrepareReport run() {
    std::vector<InputFile> inputs = inputs_of(options_);
    n_inputs_ = inputs.size();
    check_paths(options_, inputs);
    label_by_folders(inputs);
    // fail on a bad path before reading inputs, which may take hours
    output_ = std::make_unique<AtomicFile>(options_.output, options_.force);
    if (!options_.label_file.empty()) read_labels();
    for (const std::string& path : options_.image_labels) {
      ByteSource source(path);
      images_.labels.push_back(read_idx_labels(source));
      provenance_.add(source);
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      read_input(inputs[i]);
      if (i + 1 == inputs.size() || inputs[i + 1].split != inputs[i].split) end_split(inputs[i].split);
    }
    report_.store = writer_->finish(provenance_.text(options_as_json(options_)), reader_->label_names());
    for (const std::string& warning : reader_->warnings()) log_warn("{}", warning);
    warn_of_missing_labels();
    report_.output = options_.output;
    report_.n_mapped = reader_->n_mapped();
    report_.is_plain_text = options_.format == PrepareOptions::Format::text;
    report_.n_cut_documents = reader_->n_cut_documents();
    report_.ignored = reader_->ignored();
    if (const std::uint64_t n = report_.ignored.characters; n > 0)
      log_warn(
          "{} character{} in {} document{} became no token, because the tokenizer leaves out what it has no token for; "
          "check that it suits the input",
          n, n == 1 ? "" : "s", report_.ignored.documents, report_.ignored.documents == 1 ? "" : "s");
    if (const std::uint64_t n = report_.ignored.not_utf8; n > 0)
      log_warn(
          "{} document{} contain{} bytes that are not UTF-8, which the tokenizer reads as U+FFFD or leaves out; "
          "convert the input (iconv -f latin1 -t utf8)",
          n, n == 1 ? "" : "s", n == 1 ? "s" : "");
    if (vocabulary_->tokenizer() && vocabulary_->unknown_id())
      report_.n_unknown = report_.store.counts[static_cast<std::size_t>(*vocabulary_->unknown_id())];
    for (std::int32_t id = 0; id < vocabulary_->size(); ++id) {
      const std::uint64_t count = report_.store.counts[static_cast<std::size_t>(id)];
      if (count > 0 && vocabulary_->is_ambiguous(id)) report_.ambiguous.emplace_back(vocabulary_->symbol(id), count);
    }
    report_.seconds = seconds_since(start_);
    return report_;
  }

 private:
  /// Returns the labels that one split has and the other lacks, at most five by name, or nothing.
  std::string labels_missing(Split from, Split present_in) const {
    constexpr std::size_t max_names = 5;
    std::string names;
    std::size_t n = 0;
    for (const LabelSummary& label : report_.store.labels) {
      if (label.split_counts[static_cast<std::size_t>(present_in)] == 0) continue;
      if (label.split_counts[static_cast<std::size_t>(from)] > 0) continue;
      if (n++ < max_names) names += fmt::format("{}'{}'", n > 1 ? ", " : "", foreign::printable(label.name));
    }
    if (n == 0) return "";
    return fmt::format("the {} split lacks {} label{} of the {} split: {}{}", name_of(from), n, n == 1 ? "" : "s",
                       name_of(present_in), names, n > max_names ? ", ..." : "");
  }

  /// A label that a split lacks makes its metrics over labels meaningless. One that only the training split lacks is
  /// never learned: perhaps a misspelled one.
  void warn_of_missing_labels() const {
    const bool official = !options_.validation_inputs.empty() || !options_.test_inputs.empty();
    const char* advice = official ? "" : "; change --seed or --split, or add data";
    for (const Split split : {Split::validation, Split::test}) {
      if (report_.store.split_documents[static_cast<std::size_t>(split)] == 0) continue;
      if (const std::string missing = labels_missing(split, Split::train); !missing.empty())
        log_warn("{}; its metrics say nothing about such labels{}", missing, advice);
      if (const std::string missing = labels_missing(Split::train, split); !missing.empty())
        log_warn("{}; no model can learn such labels; check their spelling{}", missing, advice);
    }
  }

  void label_by_folders(std::vector<InputFile>& inputs) {
    labeled_by_folder_ = is_labeled_by_folder(options_, inputs.front().path);
    if (!labeled_by_folder_) return;
    for (const InputFile& input : inputs)
      if (input.path == "-") refuse_standard_input();
    if (labeled_.labels.empty()) labeled_.labels = folder_names(inputs);
    shuffle(inputs, options_.store.seed);
  }

  [[noreturn]] void refuse_standard_input() const {
    throw UserError("standard input or a pipe is in no folder, which would be its label; give the path of a file{}",
                    options_.format == PrepareOptions::Format::images ? ", or --label-file" : "");
  }

  void read_input(const InputFile& input) {
    ByteSource source(input.path);
    std::size_t count = source.read(block_.data(), block_.size());
    if (!writer_) open_writer({block_.data(), count}, source.name());
    if (input.split) writer_->set_split(input.split);
    reader_->begin_input(source.name());
    while (count > 0) {
      report_.input_bytes += count;
      reader_->feed({block_.data(), count});
      report_progress(source);
      count = source.read(block_.data(), block_.size());
    }
    reader_->end_input();
    report_.file_bytes += source.file_bytes();
    provenance_.add(source);
  }

  /// The last input that goes to this split has been read.
  void end_split(std::optional<Split> split) {
    if (split && writer_->n_tokens() == tokens_before_split_)
      throw UserError("--{}-inputs: no tokens to write; the inputs are empty", name_of(*split));
    tokens_before_split_ = writer_->n_tokens();
  }

  void read_labels() {
    label_table_ = std::make_unique<LabelTable>(options_.labeled, options_.label_file);
    ByteSource source(options_.label_file);
    label_table_->reader().begin_input(source.name());
    while (const std::size_t count = source.read(block_.data(), block_.size()))
      label_table_->reader().feed({block_.data(), count});
    label_table_->reader().end_input();
    provenance_.add(source);
  }

  void open_writer(std::string_view beginning, const std::string& name) {
    vocabulary_ = choose_vocabulary(options_, n_inputs_, beginning, name);
    report_.vocabulary = vocabulary_->kind_name();
    report_.vocabulary_size = vocabulary_->size();
    if (vocabulary_->tokenizer()) report_.tokenizer = vocabulary_->tokenizer()->kind();
    DatasetWriterOptions writer_options = options_.store;
    const bool labeled = options_.format == PrepareOptions::Format::labeled;
    if (labeled) writer_options.documents_per_label = options_.labeled.second_text_field.empty() ? 1 : 2;
    if (options_.format == PrepareOptions::Format::images) {
      images_.cifar10 = options_.cifar10;
      const bool by_folder = options_.image_labels.empty() && !options_.cifar10 && is_picture(beginning);
      if (by_folder && !labeled_by_folder_) refuse_standard_input();  // whose first bytes were not known before
      images_.labeled = !options_.image_labels.empty() || options_.cifar10 || labeled_by_folder_;
      images_.names = labeled_.labels;
      images_.grayscale = options_.grayscale;
      if (images_.labeled) writer_options.documents_per_label = 1;
    }
    writer_options.label_kind = options_.labeled.label_kind;
    writer_options.drops_unused_labels = labeled && options_.labeled.labels.empty();
    writer_ = std::make_unique<DatasetWriter>(std::move(output_), *vocabulary_, writer_options);
    reader_ = make_reader();
  }

  std::unique_ptr<DocumentReader> make_reader() {
    // With --label-file, too: labeled texts without an alphabet are bytes, which know all letters.
    const AlphabetSource source = options_.alphabet == "auto" ? AlphabetSource::detection : AlphabetSource::option;
    switch (options_.format) {
      case PrepareOptions::Format::fasta:
        return make_fasta_reader(*vocabulary_, options_.map_unknown, *writer_, source);
      case PrepareOptions::Format::labeled:
        if (label_table_)
          return make_labeled_fasta_reader(*label_table_, options_.labeled.label_kind, *vocabulary_,
                                           options_.map_unknown, *writer_, source);
        return make_labeled_reader(labeled_, *vocabulary_, options_.map_unknown, *writer_, source);
      case PrepareOptions::Format::images:
        return make_image_reader(std::move(images_), *writer_);
      case PrepareOptions::Format::text:
        break;
    }
    return make_text_reader(options_.separator, *vocabulary_, *writer_);
  }

  void report_progress(const ByteSource& source) {
    if (!options_.progress || seconds_since(last_progress_) < kSecondsBetweenProgress) return;
    last_progress_ = Clock::now();
    options_.progress(
        {source.name(), report_.file_bytes + source.file_bytes(), writer_->n_tokens(), seconds_since(start_)});
  }

  const PrepareOptions& options_;
  LabeledFormat labeled_;
  std::size_t n_inputs_ = 0;
  std::uint64_t tokens_before_split_ = 0;
  bool labeled_by_folder_ = false;
  Clock::time_point start_, last_progress_;
  std::vector<char> block_ = std::vector<char>(kBlock);
  std::optional<Vocabulary> vocabulary_;
  std::unique_ptr<AtomicFile> output_;  // until the writer takes it over
  std::unique_ptr<DatasetWriter> writer_;
  std::unique_ptr<LabelTable> label_table_;
  ImageOptions images_;  // until the reader takes it over
  std::unique_ptr<DocumentReader> reader_;
  Provenance provenance_;
  PrepareReport report_;
};

}  // namespace

PrepareReport prepare(const PrepareOptions& options) { return Preparation(options).run(); }

}  // namespace furlong
