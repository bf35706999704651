#include "datasets/prepare/prepare.h"

#include <fmt/ranges.h>

#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/command_line.h"
#include "framework/core/log.h"

namespace furlong::command_line {

namespace {

struct Arguments {
  PrepareOptions options;
  std::string split = "train:0.9,validation:0.05,test:0.05";
  std::string labelled_format = "auto";
  bool json = false;
};

/// An option whose value is one of a few words; help shows them between bars.
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

void add_common(Command command, Arguments& arguments, const std::string& split_by = "span") {
  PrepareOptions& options = arguments.options;
  using SplitBy = StoreWriterOptions::SplitBy;
  command.add_option("inputs", options.inputs, "Files to read, in order: plain, gzip or xz; - is standard input")
      .required()
      .value_name("INPUT");
  command.add_option("-o,--output", options.output, "The token store to write (HDF5); appears only when it is whole")
      .required()
      .value_name("STORE");
  command
      .add_option("--split", arguments.split,
                  "Shares of the splits, by name or as three numbers for train,\nvalidation and test; their sum is 1")
      .shows_default()
      .value_name("SHARES");
  add_choice<SplitBy>(command, "--split-by", options.store.split_by, split_by,
                      {{"span", SplitBy::span}, {"document", SplitBy::document}},
                      "span: the first tokens train, the next validate, the last test,\nand documents may be cut; "
                      "document: whole documents, by a hash\nof the seed and the document's number");
  command
      .add_option("--tokenizer", options.tokenizer,
                  "Tokens of this tokenizer in the place of bytes or letters: a Hugging Face\ndirectory, "
                  "tokenizer.json, vocab.txt, vocab.json, *.model, GGUF, or a checkpoint\nof a model that has one. "
                  "Documents are framed as the model wants them ([CLS] ... [SEP])")
      .value_name("PATH");
  command.add_option("--seed", options.store.seed, "Decides, with --split-by document, which documents go where")
      .shows_default();
  command.add_flag("--force", options.force, "Replace the output if it exists");
  command.add_flag("--json", arguments.json, "Print the report as one JSON object");
}

Command add_text(Command prepare_command, const std::shared_ptr<Arguments>& arguments) {
  const Command command =
      prepare_command.add_subcommand("text", "Any files: one token a byte, or those of a tokenizer");
  add_common(command, *arguments);
  add_choice<DocumentSeparator>(command, "--document-separator", arguments->options.separator, "file",
                                {{"file", DocumentSeparator::file},
                                 {"line", DocumentSeparator::line},
                                 {"blank-line", DocumentSeparator::blank_line}},
                                "What ends a document: the end of its file, each line, or blank\nlines. One file that "
                                "is one document has a vocabulary of 256 bytes;\n"
                                "otherwise <document>, which ends each document, comes to them. With --tokenizer "
                                "a\ndocument of more than 1 MiB is encoded in pieces, cut at line ends");
  command.footer(
      "Example:\n  furlong prepare text book.txt.xz --output book.h5 --split 0.85,0.05,0.1\n"
      "  zstdcat big.zst | furlong prepare text - --output big.h5\n"
      "  furlong prepare text articles.txt --document-separator blank-line --tokenizer models/gpt2 --output "
      "articles.h5");
  return command;
}

Command add_fasta(Command prepare_command, const std::shared_ptr<Arguments>& arguments) {
  const Command command = prepare_command.add_subcommand(
      "fasta", "DNA, RNA or protein sequences, each record a document: one token a letter,\nor those of a tokenizer");
  PrepareOptions& options = arguments->options;
  add_common(command, *arguments);
  add_choice<std::string>(command, "--alphabet", options.alphabet, "auto",
                          {{"dna", "dna"}, {"rna", "rna"}, {"protein", "protein"}, {"auto", "auto"}},
                          "dna: A C G T R Y S W K M B D H V N; rna: U for T; protein: 20 amino\nacids, X B Z J U O * "
                          "-; auto: judged by the beginning of the first\ninput. Upper and lower case are the same");
  add_choice<bool>(command, "--unknown", options.map_unknown, "error", {{"error", false}, {"map", true}},
                   "A letter that the alphabet lacks: an error that says where it is, or\nread as N (X in proteins); "
                   "with --tokenizer, its unknown token");
  command.option("--alphabet").excludes(command.option("--tokenizer"));
  command.footer(
      "Example:\n  furlong prepare fasta genome.fa.gz --alphabet dna --output genome.h5\n"
      "  furlong prepare fasta proteins.fa --alphabet protein --split-by document --output proteins.h5");
  return command;
}

Command add_labelled(Command prepare_command, const std::shared_ptr<Arguments>& arguments) {
  const Command command = prepare_command.add_subcommand(
      "labelled", "Texts with a label each, or pairs of texts, from tables or JSON lines");
  PrepareOptions& options = arguments->options;
  // A document cut by a split would lose its label.
  options.store.split_by = StoreWriterOptions::SplitBy::document;
  options.format = PrepareOptions::Format::labelled;
  add_common(command, *arguments, "document");
  command
      .add_option("--format", arguments->labelled_format,
                  "tsv: columns between tabs, nothing quoted; csv: RFC 4180; jsonl: a JSON\nobject a line; auto: by "
                  "the name of the first input")
      .one_of({"tsv", "csv", "jsonl", "auto"})
      .shows_default("auto")
      .value_name("tsv|csv|jsonl|auto");
  command
      .add_option("--text-field", options.labelled.text_field,
                  "Where the text is: a column's number from 1, or its name in the first\nline, or a key of the JSON "
                  "(default: 1, or text)")
      .value_name("FIELD");
  command
      .add_option("--second-text-field", options.labelled.second_text_field,
                  "Where the second text of a pair is, for objective.name: matching")
      .value_name("FIELD");
  command
      .add_option("--label-field", options.labelled.label_field,
                  "Where the label is (default: 2, for pairs 3, or label)")
      .value_name("FIELD");
  command
      .add_option(
          "--labels", options.labelled.labels,
          "Names of all labels, comma between them, so that several stores number\nthem alike (default: as they come)")
      .separated_by(',')
      .value_name("NAMES");
  add_choice<std::string>(command, "--alphabet", options.alphabet, "bytes",
                          {{"bytes", "auto"}, {"dna", "dna"}, {"rna", "rna"}, {"protein", "protein"}},
                          "What a text is made of: bytes, or letters, upper and lower case alike");
  add_choice<bool>(command, "--unknown", options.map_unknown, "error", {{"error", false}, {"map", true}},
                   "A letter that the alphabet lacks: an error that says where it is, or\nread as N (X in proteins)");
  for (const char* of_letters : {"--alphabet", "--unknown"})
    command.option(of_letters).excludes(command.option("--tokenizer"));
  command.footer(
      "Example:\n  furlong prepare labelled reviews.csv --text-field review --label-field sentiment --output "
      "reviews.h5\n"
      "  furlong prepare labelled pairs.tsv --text-field 4 --second-text-field 5 --label-field 1 --output pairs.h5");
  return command;
}

void run(Arguments& arguments) {
  if (arguments.options.format == PrepareOptions::Format::labelled) {
    const std::string& name = arguments.labelled_format;
    LabelledFormat& format = arguments.options.labelled;
    format.kind = name == "auto"    ? labelled_format_of(arguments.options.inputs.front())
                  : name == "csv"   ? LabelledFormat::Kind::csv
                  : name == "jsonl" ? LabelledFormat::Kind::jsonl
                                    : LabelledFormat::Kind::tsv;
  }
  arguments.options.store.shares = parse_split_shares(arguments.split);
  arguments.options.progress = [](const PrepareOptions::Progress& now) {
    log_info("prepare: {}: {:.1f} MB read, {:.1f} M tokens, {:.0f} s", now.input,
             static_cast<double>(now.file_bytes) * 1e-6, static_cast<double>(now.n_tokens) * 1e-6, now.seconds);
  };
  const PrepareReport report = prepare(arguments.options);
  const std::string text = arguments.json ? to_json(report) + "\n" : to_text(report);
  std::fwrite(text.data(), 1, text.size(), stdout);
}

}  // namespace

void add_prepare(Command program, int&) {
  const Command command = program.add_subcommand("prepare", "Turn files into a token store for training");
  command.require_subcommand();
  command.footer(
      "A token store is one HDF5 file: token ids, documents, splits, vocabulary, and where it all came from. Inputs "
      "are streamed, so that their size does not matter to memory. A report is printed at the end.");
  const auto text = std::make_shared<Arguments>();
  add_text(command, text).action([text] { run(*text); });
  text->options.format = PrepareOptions::Format::text;
  const auto fasta = std::make_shared<Arguments>();
  fasta->options.format = PrepareOptions::Format::fasta;
  add_fasta(command, fasta).action([fasta] { run(*fasta); });
  const auto labelled = std::make_shared<Arguments>();
  add_labelled(command, labelled).action([labelled] { run(*labelled); });
}

}  // namespace furlong::command_line
