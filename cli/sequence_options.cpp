#include "cli/sequence_options.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "cli/common_options.h"
#include "cli/held_output.h"
#include "conversion/import_model.h"
#include "framework/core/log.h"
#include "framework/core/parallel.h"
#include "framework/core/printable.h"
#include "framework/io/atomic_file.h"

namespace furlong::command_line {

namespace {

void check_separator(const SequenceOptions& options) {
  const bool reads_text = std::any_of(options.input.paths.begin(), options.input.paths.end(), [&](const auto& path) {
    return format_of_input(options.input, path) == SequenceInput::Format::text;
  });
  if (options.separator.is_given() && !reads_text)
    throw UserError("--separator has no effect: no input is read as text; remove it, or add --input-format text");
}

}  // namespace

void add_model_and_inputs(Command command, SequenceOptions& options) {
  command.add_option("model", options.model, "A run directory, a checkpoint, a Hugging Face directory or a GGUF file")
      .required()
      .value_name("MODEL");
  command
      .add_option(
          "inputs", options.input.paths,
          "Files of sequences, plain, gzip, xz or zstd; - is standard input. FASTA (.fa, .fasta, .fas, .faa, .fna, "
          ".ffn, .frn), tables (.csv, .tsv), JSON lines (.jsonl, .ndjson); other files are text with one sequence per "
          "line")
      .required()
      .value_name("INPUT");
}

void add_reading_options(Command command, SequenceOptions& options) {
  using Format = SequenceInput::Format;
  SequenceInput& input = options.input;
  command.add_choice(
      "--input-format", {"auto", "text", "fasta", "csv", "tsv", "jsonl"}, "auto",
      [&input](const std::string& word) {
        input.format = word == "text"    ? Format::text
                       : word == "fasta" ? Format::fasta
                       : word == "csv"   ? Format::csv
                       : word == "tsv"   ? Format::tsv
                       : word == "jsonl" ? Format::jsonl
                                         : Format::automatic;
      },
      "auto: from the extension of each input");
  command
      .add_option("--text-field", input.text_field,
                  "Column (number or name) or JSON key of the sequence (default: column 1, key \"text\")")
      .value_name("FIELD");
  command
      .add_option("--id-field", input.id_field,
                  "Column or JSON key of the sequence's id in the output (default: its number, from 1)")
      .value_name("FIELD");
  options.separator = command.add_choice(
      "--separator", {"line", "blank-line", "file"}, "line",
      [&input](const std::string& word) {
        input.separator = word == "file"   ? DocumentSeparator::file
                          : word == "line" ? DocumentSeparator::line
                                           : DocumentSeparator::blank_line;
      },
      "What ends a sequence in text files");
  command.add_choice(
      "--unknown", {"error", "map"}, "error", [&input](const std::string& word) { input.map_unknown = word == "map"; },
      "Letters outside the alphabet: error, or map them to N (X in proteins)");
  add_weights(command, options.weights);
  command
      .add_option("--architecture", options.architecture,
                  "model_type of MODEL, if it is a Hugging Face directory whose config.json has none")
      .value_name("NAME");
  add_device(command, options.device);
  add_threads(command, options.threads);
}

Model open_model(const SequenceOptions& options) {
  check_separator(options);
  set_thread_count(static_cast<int>(options.threads));
  const Device device = device_from_name(options.device);
  if (is_foreign_model(options.model)) {
    ImportOptions import;
    import.architecture = options.architecture;
    import.weights = weights_named(options.weights);
    Model model = open_source_model(options.model, import).model;
    return device.is_cpu() ? std::move(model) : copy_of(model, device, model.settings.model.dtype);
  }
  if (!options.architecture.empty())
    throw UserError("--architecture: {} is a Furlong checkpoint, which contains its settings; remove --architecture",
                    options.model);
  return load_model(CheckpointReader::open(checkpoint_of(options.model)), device, weights_named(options.weights),
                    [](const Parameter&) { return true; });
}

void refuse_input_as_output(const SequenceOptions& options, const std::filesystem::path& output) {
  refuse_replacing_inputs(options.input.paths, output);
  refuse_replacing_inputs(files_of_model(options.model), output);
  refuse_replacing_data(output);
}

struct SequenceProgress::State {
  std::string command;
  std::uint64_t total = 0;  // bytes of all inputs; 0: unknown
  bool terminal = isatty(STDERR_FILENO) != 0, drawn = false;
  Clock::time_point start = Clock::now(), last = start;

  bool is_due() const { return seconds_since(last) >= (terminal ? 0.2 : 10) && is_logged(LogLevel::info); }
  /// `share`: done, 0 to 1; 0: unknown. `counts` ends with a comma.
  void show(double share, const std::string& counts);
};

SequenceProgress::SequenceProgress(const std::string& command, const std::vector<std::string>& inputs)
    : state_(std::make_unique<State>()) {
  state_->command = command;
  for (const std::string& input : inputs) {
    std::error_code failure;
    const auto bytes =
        std::filesystem::is_regular_file(input, failure) ? std::filesystem::file_size(input, failure) : 0;
    if (failure || bytes == 0) {
      state_->total = 0;
      return;
    }
    state_->total += bytes;
  }
}

SequenceProgress::~SequenceProgress() {
  if (state_->drawn) std::fputs("\r\x1b[K", stderr);
}

void SequenceProgress::operator()(std::uint64_t bytes, std::uint64_t sequences) {
  if (!state_->is_due()) return;
  const double share =
      state_->total > 0 ? std::min(1.0, static_cast<double>(bytes) / static_cast<double>(state_->total)) : 0;
  state_->show(share, fmt::format("{} sequences, {:.1f} MB of input, ", sequences, static_cast<double>(bytes) * 1e-6));
}

void SequenceProgress::operator()(double share) {
  if (state_->is_due()) state_->show(share, "");
}

void SequenceProgress::State::show(double share, const std::string& counts) {
  last = Clock::now();
  const double seconds = seconds_since(start);
  std::string line = share > 0 ? fmt::format("{:3.0f} %, ", 100 * share) : "";
  line += fmt::format("{}{:.0f} s", counts, seconds);
  if (share > 0.01) line += fmt::format(", {:.0f} s left", seconds / share * (1 - share));
  if (!terminal) return log_info("{}: {}", command, line);
  if (share > 0) {
    constexpr int width = 20;
    const int filled = static_cast<int>(width * share);
    line = fmt::format("[{:=<{}}{: <{}}] ", "", filled, "", width - filled) + line;
  }
  winsize window{};
  // A line that wraps cannot be rewritten.
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 1)
    line.resize(std::min<std::size_t>(line.size(), window.ws_col - 1u));
  std::fputs(("\r" + line + "\x1b[K").c_str(), stderr);
  std::fflush(stderr);
  drawn = true;
}

void report_reading(const ReadSummary& summary, const char* empty_are) {
  if (summary.empty > 0) log_warn("empty sequences: {}, {}", summary.empty, empty_are);
  if (summary.mapped > 0) log_warn("mapped {} letters to the unknown letter", summary.mapped);
  if (summary.unknown > 0)
    log_warn(
        "{} of {} tokens are the tokenizer's unknown token; check that the input suits this model (protein models "
        "read FASTA)",
        summary.unknown, summary.tokens);
  if (summary.ignored.characters > 0)
    log_warn("{} characters of {} sequences are none of the tokenizer's and were left out; check the input",
             summary.ignored.characters, summary.ignored.documents);
  if (summary.ignored.not_utf8 > 0)
    log_warn(
        "{} of {} sequences contain bytes that are not UTF-8, which the tokenizer reads as U+FFFD or leaves out; "
        "convert the input (iconv -f latin1 -t utf8)",
        summary.ignored.not_utf8, summary.sequences);
  if (summary.cut > 0)
    log_warn(
        "{} of {} sequences have more than {} tokens, special ones included (--sequence-length, by default "
        "data.sequence_length); only the first of these were used",
        summary.cut, summary.sequences, summary.cut_tokens);
  if (summary.longer > 0)
    log_warn(
        "{} of {} sequences are longer than those that the model was trained on (data.sequence_length), and their "
        "probabilities may be far too low; score shorter ones",
        summary.longer, summary.sequences);
  if (summary.not_finite > 0)
    log_warn(
        "results of {} of {} sequences are not finite, because numbers overflow in the model; check its weights "
        "and dtype",
        summary.not_finite, summary.sequences);
  if (summary.not_finite_mutations > 0)
    log_warn(
        "scores of {} mutations are not finite, because numbers overflow in the model; check its weights and dtype",
        summary.not_finite_mutations);
  if (summary.untrained_mutations > 0)
    log_warn(
        "{} mutations are from or to tokens that training left out of its loss (data.ignore_tokens), and have "
        "arbitrary scores",
        summary.untrained_mutations);
  if (summary.first_mutations > 0)
    log_warn(
        "{} mutations change position 1, which this model gives no probability, because nothing precedes it; their "
        "scores have only the effect on later positions (--start TOKEN puts a token in front)",
        summary.first_mutations);
  if (summary.untrained.characters > 0)
    log_warn(
        "{} scored tokens of {} sequences are among those that training left out of its loss (data.ignore_tokens), "
        "and have arbitrary scores",
        summary.untrained.characters, summary.untrained.documents);
}

void print_throughput(const std::filesystem::path& output, const ReadSummary& summary, Clock::time_point start) {
  fmt::print("{}: {} sequences, {} tokens; {:.0f} tokens/s\n", output.string(), summary.sequences, summary.tokens,
             static_cast<double>(summary.tokens) / std::max(seconds_since(start), 1e-9));
}

}  // namespace furlong::command_line
