#include "datasets/prepare/prepare.h"

#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/command_line.h"
#include "cli/common_options.h"
#include "cli/json_output.h"
#include "cli/prepare_tasks.h"
#include "datasets/prepare/byte_source.h"
#include "datasets/prepare/label_table.h"
#include "datasets/tokenizers/train_tokenizer.h"
#include "framework/core/error.h"
#include "framework/core/log.h"
#include "framework/io/interrupted_writes.h"

namespace furlong::command_line {

namespace {

constexpr const char* default_split = "train:0.9,validation:0.05,test:0.05";

struct PrepareArguments {
  PrepareOptions options;
  std::string split;
  std::string labeled_format = "auto";
  bool labeled_by_folder = false;
  std::vector<Option> of_fields;  // options that have no meaning for whole files
  Option split_by, label_type, seed;
  bool json = false;
};

/// Adds an option whose value is one of a few words.
template <class Value>
void add_choice(Command command, const std::string& name, Value& value, const std::string& standard,
                const std::vector<std::pair<std::string, Value>>& choices, const std::string& meaning) {
  std::vector<std::string> words;
  for (const auto& choice : choices) words.push_back(choice.first);
  command.add_choice(
      name, words, standard,
      [&value, choices](const std::string& word) {
        for (const auto& choice : choices) {
          if (choice.first == word) value = choice.second;
        }
      },
      meaning);
}

/// Whether the name of a file's folder can be its label.
bool has_folder_labels(const PrepareOptions& options) {
  return options.format == PrepareOptions::Format::labeled || options.format == PrepareOptions::Format::images;
}

void add_inputs(Command command, PrepareOptions& options) {
  command
      .add_option("inputs", options.inputs,
                  std::string("Files to read, in order: plain, gzip, xz or zstd; - is standard input; a folder is all "
                              "files in it, ordered by path") +
                      (has_folder_labels(options) ? ". Files labeled by their folder are read in random order" : ""))
      .required()
      .value_name("INPUT");
  command
      .add_option("-o,--output", options.output,
                  "Dataset to write (HDF5), written atomically (default: the input's path, with .h5 as its extension)")
      .value_name("DATASET");
}

/// `otherwise` names the tokens without a tokenizer.
void add_files(Command command, PrepareOptions& options, const std::string& otherwise) {
  add_inputs(command, options);
  command
      .add_option("--tokenizer", options.tokenizer,
                  "Tokenizer to use: a Hugging Face directory, tokenizer.json, vocab.txt, vocab.json, *.model, GGUF, "
                  "or a checkpoint of a model with a tokenizer. Documents get the model's special tokens, for example "
                  "[CLS] ... [SEP]")
      .shows_default(otherwise)
      .value_name("PATH");
}

void add_splits(Command command, PrepareArguments& arguments, const std::string& split_by = "span") {
  PrepareOptions& options = arguments.options;
  using SplitBy = DatasetWriterOptions::SplitBy;
  command
      .add_option(
          "--split", arguments.split,
          "Fractions of the splits, by name, or as three numbers for train, validation and test. Their sum is 1. "
          "Splits with inputs of their own have 0, by default the other one 0.05")
      .shows_default(default_split)
      .value_name("FRACTIONS");
  // An official test split.
  command
      .add_option("--validation-inputs", options.validation_inputs,
                  "Files of the validation split, which then gets none of INPUT. Needs --split-by document, then the "
                  "default")
      .separated_by(',')
      .value_name("INPUT,...");
  command.add_option("--test-inputs", options.test_inputs, "The same for the test split")
      .separated_by(',')
      .value_name("INPUT,...");
  add_choice<SplitBy>(command, "--split-by", options.store.split_by, split_by,
                      {{"span", SplitBy::span}, {"document", SplitBy::document}},
                      "span: train, validation and test are consecutive parts of the data, which cut documents; "
                      "document: whole documents, by a hash of the seed and the document's number");
  arguments.split_by = command.option("--split-by");
  arguments.seed =
      command
          .add_option("--seed", options.store.seed,
                      std::string("Seed of --split-by document") +
                          (has_folder_labels(options) ? ", and of the order of files labeled by their folder" : ""))
          .shows_default();
  command.add_flag("--force", options.force, "Overwrite an existing output");
  add_json(command, arguments.json, "Print the report as one JSON object");
}

Command add_text(Command prepare_command, const std::shared_ptr<PrepareArguments>& arguments) {
  const Command command = prepare_command.add_subcommand("text", "Any files, as bytes or as the tokens of a tokenizer");
  add_files(command, arguments->options, "one token per byte");
  add_choice<DocumentSeparator>(command, "--document-separator", arguments->options.separator, "file",
                                {{"file", DocumentSeparator::file},
                                 {"line", DocumentSeparator::line},
                                 {"blank-line", DocumentSeparator::blank_line}},
                                "End of a document: the end of its file, each line, or blank lines");
  add_splits(command, *arguments);
  command.footer(
      "The byte vocabulary has 256 tokens. With several documents it also has <document>, the end-of-document token. "
      "With --tokenizer, a document of more than 1 MiB is tokenized in pieces, cut at line ends. OMP_NUM_THREADS sets "
      "the number of threads that tokenize (default: all cores); the result does not depend on it.");
  command.examples({
      "furlong prepare text book.txt.xz --output book.h5 --split 0.85,0.05,0.1",
      "furlong prepare text articles.txt --document-separator blank-line --tokenizer models/gpt2 --output articles.h5",
      "curl https://example.org/big.txt | furlong prepare text - --output big.h5",
  });
  return command;
}

Command add_fasta(Command prepare_command, const std::shared_ptr<PrepareArguments>& arguments) {
  const Command command = prepare_command.add_subcommand(
      "fasta", "DNA, RNA or protein sequences; each record is a document, each letter a token");
  PrepareOptions& options = arguments->options;
  add_files(command, options, "one token per letter");
  add_choice<std::string>(
      command, "--alphabet", options.alphabet, "auto",
      {{"dna", "dna"}, {"rna", "rna"}, {"protein", "protein"}, {"auto", "auto"}},
      "dna: A C G T R Y S W K M B D H V N; rna: U instead of T; protein: 20 amino acids, X B Z J U O "
      "* -; auto: detected at the start of the first input. Case-insensitive");
  add_choice<bool>(command, "--unknown", options.map_unknown, "error", {{"error", false}, {"map", true}},
                   "A letter outside the alphabet. error: report it and stop; map: read it as N (X in proteins), or as "
                   "the unknown token of --tokenizer");
  command.option("--alphabet").excludes(command.option("--tokenizer"));
  add_splits(command, *arguments);
  command.examples({
      "furlong prepare fasta genome.fa.gz --alphabet dna --output genome.h5",
      "furlong prepare fasta proteins.fa --alphabet protein --split-by document --output proteins.h5",
  });
  return command;
}

void add_fields(Command command, LabeledFormat& labeled) {
  command
      .add_option("--text-field", labeled.text_field,
                  "Field of the text. In tables: the column's number, from 1, or its name in the header row; in JSON "
                  "lines: the key (default: column 1, key text). With --label-file: the field with the record's name")
      .value_name("FIELD");
  command
      .add_option("--second-text-field", labeled.second_text_field,
                  "Field of the second text of a pair, for objective.name: pair_classification (default: no pairs)")
      .value_name("FIELD");
  command
      .add_option("--label-field", labeled.label_fields,
                  "Field of the label, or several for --label-type number (default: column 2, for pairs column 3; key "
                  "label)")
      .separated_by(',')
      .value_name("FIELD,...");
  add_choice<LabelKind>(
      command, "--label-type", labeled.label_kind, "class",
      {{"class", LabelKind::classes},
       {"number", LabelKind::numbers},
       {"set", LabelKind::sets},
       {"token", LabelKind::tokens}},
      "class: one label of each text; number: real numbers, for objective.name: regression; set: any number of labels, "
      "for multi_label_classification; token: a text with one character for each letter, or a list of labels in JSON "
      "lines, for token_classification");
  command
      .add_option("--labels", labeled.labels,
                  "All labels, in order, so that class indices agree across datasets (default: in order of appearance)")
      .separated_by(',')
      .value_name("LABEL,...");
  command
      .add_option("--label-separator", labeled.label_separator,
                  "--label-type set: text between the labels of a set (default: ;)")
      .value_name("TEXT");
  command
      .add_option("--unlabeled", labeled.unlabeled,
                  "--label-type token: labels excluded from the loss (default: none; in JSON lines null)")
      .separated_by(',')
      .value_name("LABEL,...");
}

void add_label_file(Command command, PrepareOptions& options) {
  command
      .add_option(
          "--label-file", options.label_file,
          "Labels of inputs that are FASTA, by the name of the record (first word of its header): a table, JSON "
          "lines, or, for --label-type token, FASTA with one character for each letter")
      .value_name("FILE");
}

Command add_labeled(Command prepare_command, const std::shared_ptr<PrepareArguments>& arguments) {
  const Command command =
      prepare_command.add_subcommand("labeled", "Labeled texts or pairs of texts, from tables, JSON lines or folders");
  command.alias("labelled");
  PrepareOptions& options = arguments->options;
  // A split that cuts a document would lose its label.
  options.store.split_by = DatasetWriterOptions::SplitBy::document;
  options.format = PrepareOptions::Format::labeled;
  add_files(command, options, "one token per byte, or per letter with --alphabet");
  add_fields(command, options.labeled);
  add_label_file(command, options);
  command
      .add_option(
          "--format", arguments->labeled_format,
          "tsv: columns separated by tabs, without quotes; csv: RFC 4180; jsonl: one JSON object per line; auto: "
          "by the name of the first input, or of --label-file")
      .one_of({"tsv", "csv", "jsonl", "auto"})
      .shows_default("auto");
  add_choice<bool>(
      command, "--label-from", arguments->labeled_by_folder, "field", {{"field", false}, {"folder", true}},
      "field: each input has many texts and their labels; folder: each input is one text, labeled with the "
      "name of its folder");
  add_choice<std::string>(
      command, "--alphabet", options.alphabet, "bytes",
      {{"bytes", "auto"}, {"dna", "dna"}, {"rna", "rna"}, {"protein", "protein"}},
      "Tokens of a text: bytes, or case-insensitive letters. With --label-file, letters, detected unless given");
  add_choice<bool>(command, "--unknown", options.map_unknown, "error", {{"error", false}, {"map", true}},
                   "A letter outside the alphabet. error: report it and stop; map: read it as N (X in proteins)");
  for (const char* of_letters : {"--alphabet", "--unknown"})
    command.option(of_letters).excludes(command.option("--tokenizer"));
  arguments->label_type = command.option("--label-type");
  arguments->of_fields = {command.option("--text-field"),      command.option("--second-text-field"),
                          command.option("--label-field"),     command.option("--label-type"),
                          command.option("--label-separator"), command.option("--unlabeled"),
                          command.option("--label-file"),      command.option("--format")};
  add_splits(command, *arguments, "document");
  command.footer(
      "If a field of a table is given by name, the first line of each input is the header row. Otherwise tables have "
      "no header row.");
  command.examples({
      "furlong prepare labeled reviews.csv --text-field review --label-field sentiment --output reviews.h5",
      "furlong prepare labeled pairs.tsv --text-field 4 --second-text-field 5 --label-field 1 --output pairs.h5",
      "furlong prepare labeled train/neg train/pos --label-from folder --test-inputs test/neg,test/pos --output "
      "reviews.h5",
      "furlong prepare labeled stability.csv --alphabet protein --text-field sequence --label-type number "
      "--label-field tm,activity --output stability.h5",
  });
  return command;
}

void add_tokenizer(Command prepare_command) {
  const Command command =
      prepare_command.add_subcommand("tokenizer", "Train a tokenizer (byte-pair encoding) on your own text");
  const auto options = std::make_shared<TrainTokenizerOptions>();
  const auto json = std::make_shared<bool>(false);
  command.add_option("inputs", options->inputs, "Files to read, in order: plain, gzip, xz or zstd; - is standard input")
      .required()
      .value_name("INPUT");
  command.add_option("-o,--output", options->output, "SentencePiece model to write").required().value_name("MODEL");
  command
      .add_option("--vocabulary-size", options->vocabulary_size,
                  "Number of tokens, of which 259 are bytes and special tokens")
      .range(300, 1'000'000)
      .shows_default();
  command.add_flag("--force", options->force, "Overwrite an existing output");
  add_json(command, *json, "Print the report as one JSON object");
  command.footer(
      "UTF-8 is encoded without loss: no normalization; characters outside the vocabulary become bytes. (Only U+2581 "
      "becomes a space.) Of more than 500,000 lines, a random sample of that size is used, always the same.");
  command.examples({
      "furlong prepare tokenizer book.txt --vocabulary-size 2048 --output book.model",
      "furlong prepare tokenizer *.txt.gz --vocabulary-size 16384 --output corpus.model",
      "furlong prepare text book.txt --tokenizer book.model --output book.h5",
  });
  command.action([options, json] {
    const TrainTokenizerReport report = train_tokenizer(*options);
    if (*json) {
      print_json(nlohmann::ordered_json{{"output", options->output},
                                        {"vocabulary_size", report.vocabulary_size},
                                        {"lines", report.lines},
                                        {"bytes", report.bytes},
                                        {"seconds", report.seconds}});
    } else {
      fmt::print("{}: {} tokens, trained on {} lines ({} bytes) in {:.1f} s\n", options->output, report.vocabulary_size,
                 report.lines, report.bytes, report.seconds);
    }
    if (report.vocabulary_size < options->vocabulary_size)
      log_warn("the text supports only {} of the {} tokens of --vocabulary-size; use more text for more",
               report.vocabulary_size, options->vocabulary_size);
  });
}

Command add_images(Command prepare_command, const std::shared_ptr<PrepareArguments>& arguments) {
  const Command command = prepare_command.add_subcommand(
      "images",
      "Images (IDX, CIFAR-10, PGM, PPM, PNG) as sequences of pixels; each image is a document, each byte a token");
  PrepareOptions& options = arguments->options;
  options.format = PrepareOptions::Format::images;
  options.store.split_by = DatasetWriterOptions::SplitBy::document;
  add_inputs(command, options);
  command
      .add_option("--label-file", options.image_labels,
                  "IDX files with the labels of the inputs, validation inputs and test inputs, one for each (default: "
                  "none; a PGM, PPM or PNG file has the name of its folder as its label)")
      .separated_by(',')
      .value_name("FILE,...");
  command
      .add_option("--labels", options.labeled.labels,
                  "Names of the labels 0, 1, ... (default: the numbers; of folders: in order of appearance)")
      .separated_by(',')
      .value_name("LABEL,...");
  add_choice<bool>(command, "--format", options.cifar10, "auto", {{"auto", false}, {"cifar10", true}},
                   "auto: IDX, PGM, PPM or PNG, by the first bytes; cifar10: the binary version of CIFAR-10, whose "
                   "records have the labels");
  command.add_flag("--grayscale", options.grayscale,
                   "Reduce red, green and blue to one gray value (default: three tokens for each pixel)");
  add_splits(command, *arguments, "document");
  command.footer(
      "Tokens are the 256 byte values, row by row from the top left, without a token between images. IDX is the format "
      "of MNIST: unsigned bytes of 3 dimensions (images, rows, columns), or 4 (channels). PNG files have at most 8 "
      "bits for each value and no transparency; palettes become colors. "
      "All images have one size.");
  command.examples({
      "furlong prepare images train-images-idx3-ubyte.gz --label-file train-labels-idx1-ubyte.gz --output train.h5",
      "furlong prepare images pictures/*/*.png --grayscale --output pictures.h5",
      "furlong prepare images data_batch_*.bin --format cifar10 --grayscale --test-inputs test_batch.bin --output "
      "cifar10.h5",
  });
  return command;
}

/// Returns "book.h5" for "book.txt.xz": where the dataset goes without --output. Throws UserError for several inputs
/// and for standard input.
std::string default_output(const std::vector<std::string>& inputs) {
  if (inputs.size() != 1 || inputs.front() == "-" || std::filesystem::is_directory(inputs.front()))
    throw UserError("--output is missing; it is required with standard input, a folder and several inputs");
  std::filesystem::path path = without_compression(inputs.front());
  return path.replace_extension(".h5").string();
}

/// Returns the default of --split: splits with inputs of their own get nothing.
std::string split_without(bool validation, bool test) {
  if (!validation && !test) return default_split;
  return validation && test ? "train:1" : validation ? "train:0.95,test:0.05" : "train:0.95,validation:0.05";
}

/// Sets how labeled inputs are read: --format or the name of a file decides.
void settle_labeled_format(PrepareArguments& arguments) {
  const std::string& name = arguments.labeled_format;
  LabeledFormat& format = arguments.options.labeled;
  const std::string& labels =
      arguments.options.label_file.empty() ? arguments.options.inputs.front() : arguments.options.label_file;
  if (arguments.labeled_by_folder) {
    for (const Option& of_field : arguments.of_fields) {
      if (of_field.is_given()) throw UserError("{} has no effect with --label-from folder; remove it", of_field.name());
    }
  }
  if (name == "auto" && !arguments.labeled_by_folder && std::filesystem::is_directory(labels))
    throw UserError("{}: is a folder; pass --label-from folder, or the --format of the files in it", labels);
  const bool fasta = !arguments.options.label_file.empty() && is_fasta_name(labels);
  if (fasta && name != "auto") throw UserError("--format {}: {} is FASTA; remove --format", name, labels);
  if (!fasta)
    format.kind = arguments.labeled_by_folder ? LabeledFormat::Kind::files
                  : name == "auto"            ? labeled_format_of(labels)
                  : name == "csv"             ? LabeledFormat::Kind::csv
                  : name == "jsonl"           ? LabeledFormat::Kind::jsonl
                                              : LabeledFormat::Kind::tsv;
  format.label_kind_is_given = arguments.label_type.is_given();
}

void run(PrepareArguments& arguments) {
  if (arguments.options.output.empty()) arguments.options.output = default_output(arguments.options.inputs);
  if (arguments.options.format == PrepareOptions::Format::labeled) settle_labeled_format(arguments);
  const bool own_validation = !arguments.options.validation_inputs.empty();
  const bool own_test = !arguments.options.test_inputs.empty();
  // Files of a split are whole documents. A given span is an error.
  if ((own_validation || own_test) && !arguments.split_by.is_given())
    arguments.options.store.split_by = DatasetWriterOptions::SplitBy::document;
  // Images can be labeled by their folder.
  const bool by_folder = arguments.labeled_by_folder || arguments.options.format == PrepareOptions::Format::images;
  if (arguments.options.store.split_by == DatasetWriterOptions::SplitBy::span && !by_folder &&
      arguments.seed.is_given())
    throw UserError("--seed has no effect with --split-by span; remove it, or add --split-by document");
  if (arguments.split.empty()) arguments.split = split_without(own_validation, own_test);
  arguments.options.store.shares = parse_split_shares(arguments.split);
  arguments.options.progress = [](const PrepareOptions::Progress& now) {
    log_info("prepare: {}: {:.1f} MB read, {:.1f} M tokens, {:.0f} s", now.input,
             static_cast<double>(now.file_bytes) * 1e-6, static_cast<double>(now.n_tokens) * 1e-6, now.seconds);
  };
  arguments.options.store.completed = output_is_complete;
  const PrepareReport report = prepare(arguments.options);
  const std::string text = arguments.json ? to_json(report) : to_text(report);
  std::fwrite(text.data(), 1, text.size(), stdout);
}

}  // namespace

void add_prepare(Command program, int&) {
  const Command command =
      program.add_subcommand("prepare", "Tokenize files into a dataset for training, or generate one");
  command.require_subcommand();
  command.footer(
      "A tokenized dataset is one HDF5 file with token ids, documents, splits, vocabulary and sources. Inputs are "
      "streamed: memory does not depend on their size. A report is printed at the end.");
  command.examples({
      "furlong prepare text book.txt",
      "furlong prepare fasta genome.fa.gz --alphabet dna --output genome.h5",
  });
  const auto text = std::make_shared<PrepareArguments>();
  add_text(command, text).action([text] { run(*text); });
  text->options.format = PrepareOptions::Format::text;
  const auto fasta = std::make_shared<PrepareArguments>();
  fasta->options.format = PrepareOptions::Format::fasta;
  add_fasta(command, fasta).action([fasta] { run(*fasta); });
  const auto labeled = std::make_shared<PrepareArguments>();
  add_labeled(command, labeled).action([labeled] { run(*labeled); });
  add_tokenizer(command);
  const auto images = std::make_shared<PrepareArguments>();
  add_images(command, images).action([images] { run(*images); });
  add_prepare_tasks(command);
}

}  // namespace furlong::command_line
