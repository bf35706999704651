// furlong tokenize: converts text to the ids of a tokenizer, and back.
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>

#include "cli/command_line.h"
#include "cli/text_output.h"
#include "datasets/prepare/byte_source.h"
#include "datasets/tokenizers/tokenizer.h"
#include "datasets/tokenizers/tokenizer_kinds.h"
#include "datasets/vocabulary.h"
#include "framework/core/clock.h"
#include "framework/core/error.h"
#include "framework/io/checkpoint_file.h"
#include "framework/io/text_file.h"
#include "trainers/model/model.h"

namespace furlong::command_line {
namespace {

struct TokenizeArguments {
  std::string tokenizer, input = "-";
  bool ids = false, tokens = false, decode = false, special = false, add_special_tokens = false, count = false;
};

/// Calls `line` with each line, without its LF. The last line may lack the LF. Returns the number of bytes.
std::uint64_t for_each_line(ByteSource& source, const std::function<void(std::string_view)>& line) {
  std::string begun;
  std::vector<char> block(1 << 20);
  std::uint64_t bytes = 0;
  while (const std::size_t got = source.read(block.data(), block.size())) {
    bytes += got;
    std::string_view rest(block.data(), got);
    for (std::size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
      if (begun.empty()) {
        line(rest.substr(0, end));
      } else {
        begun += rest.substr(0, end);
        line(begun);
        begun.clear();
      }
      rest.remove_prefix(end + 1);
    }
    begun += rest;
    // A small compressed file can expand to one huge line.
    constexpr std::size_t longest_line = std::size_t{1} << 30;
    if (begun.size() > longest_line) throw UserError("{}: a line is longer than 1 GiB; split it", source.name());
  }
  if (!begun.empty()) line(begun);
  return bytes;
}

/// Returns the vocabulary of a run, a checkpoint, a directory that furlong export wrote, or a tokenizer.
Vocabulary vocabulary_of(const std::filesystem::path& path) {
  if (std::filesystem::exists(path / exported_vocabulary_file)) {
    constexpr std::uint64_t max_bytes = std::uint64_t{1} << 28;
    const std::string file = (path / exported_vocabulary_file).string();
    return Vocabulary::from_json(read_text_file(file, max_bytes), file);
  }
  const bool is_folder = std::filesystem::is_directory(path);
  const auto has = [&](const char* name) { return std::filesystem::exists(path / name); };
  const bool is_run = has("checkpoints") || has("finetune.json") || path.filename() == "checkpoints";
  if (is_folder ? !is_run : !checkpoint_checksum(path)) return Vocabulary::of_tokenizer(load_tokenizer(path));
  const std::filesystem::path checkpoint = checkpoint_of(path);
  return Vocabulary::from_json(CheckpointReader::open(checkpoint).text("vocabulary"), checkpoint.string());
}

std::vector<std::int32_t> parse_ids(std::string_view line, std::int32_t size, const std::string& input,
                                    std::uint64_t number) {
  std::vector<std::int32_t> ids;
  const auto is_space = [](char letter) { return letter == ' ' || letter == '\t' || letter == '\r' || letter == ','; };
  for (std::size_t begin = 0; begin < line.size();) {
    if (is_space(line[begin])) {
      ++begin;
      continue;
    }
    std::size_t end = begin;
    while (end < line.size() && !is_space(line[end])) ++end;
    std::int32_t id = -1;
    const auto [stop, failure] = std::from_chars(line.data() + begin, line.data() + end, id);
    if (failure != std::errc() || stop != line.data() + end || id < 0 || id >= size) {
      throw UserError("{}, line {}: '{}' is not a token id; expected 0 to {}", input, number,
                      line.substr(begin, end - begin), size - 1);
    }
    ids.push_back(id);
    begin = end;
  }
  return ids;
}

/// Returns the ids of a line of letters or bytes. Errors name the line.
std::vector<std::int32_t> symbols_of(const Vocabulary& vocabulary, std::string_view line, const std::string& input,
                                     std::uint64_t number) {
  try {
    return vocabulary.encode(line);
  } catch (const UserError& error) {
    throw UserError("{}, line {}: {}", input, number, error.what());
  }
}

/// Returns the output of one line, with its LF.
std::string output_line(const TokenizeArguments& options, const Vocabulary& vocabulary,
                        const std::vector<std::int32_t>& ids) {
  std::string text;
  for (const std::int32_t id : ids) {
    if (!text.empty()) text += ' ';
    text += options.tokens ? vocabulary.symbol(id) : fmt::format_int(id).str();
  }
  return text + '\n';
}

void run(const TokenizeArguments& options) {
  const Vocabulary vocabulary = vocabulary_of(options.tokenizer);
  const Tokenizer* tokenizer = vocabulary.tokenizer().get();
  if (!tokenizer && (options.special || options.add_special_tokens))
    throw UserError("{}: {} has a {} vocabulary and no tokenizer; remove this option",
                    options.special ? "--parse-special" : "--add-special-tokens", options.tokenizer,
                    vocabulary.kind_name());
  ByteSource source(options.input);
  const SpecialTokenMode special = options.special ? SpecialTokenMode::as_token : SpecialTokenMode::as_text;
  std::uint64_t lines = 0, text_bytes = 0, tokens = 0, unknown = 0, ignored = 0;
  TextOutput output;
  std::string buffer;
  const auto write = [&](std::string_view text) {
    buffer += text;
    if (buffer.size() < 1 << 16) return;
    output.write(buffer);
    buffer.clear();
  };
  const auto begin = Clock::now();
  const std::uint64_t bytes = for_each_line(source, [&](std::string_view line) {
    ++lines;
    text_bytes += line.size();
    if (options.decode) {
      const std::vector<std::int32_t> ids = parse_ids(line, vocabulary.size(), source.name(), lines);
      return write(vocabulary.decode(ids) + '\n');
    }
    std::vector<std::int32_t> ids =
        tokenizer ? tokenizer->encode(line, special) : symbols_of(vocabulary, line, source.name(), lines);
    if (tokenizer && !options.special) ignored += tokenizer->count_ignored(line);
    if (options.add_special_tokens) ids = tokenizer->framed(ids);
    if (!options.count) return write(output_line(options, vocabulary, ids));
    tokens += ids.size();
    for (const std::int32_t id : ids) unknown += tokenizer && id == tokenizer->special().unknown;
  });
  const double seconds = seconds_since(begin);
  if (options.count) {
    write(fmt::format("{} ({} ids): {} lines, {} bytes, {} tokens, {} unknown; {:.3f} bytes per token; {:.1f} MB/s\n",
                      tokenizer ? tokenizer->kind() : vocabulary.kind_name(), vocabulary.size(), lines, bytes, tokens,
                      unknown,
                      static_cast<double>(text_bytes) / static_cast<double>(std::max<std::uint64_t>(tokens, 1)),
                      static_cast<double>(bytes) * 1e-6 / std::max(seconds, 1e-9)));
  }
  output.write(buffer);
  output.finish();
  if (ignored > 0) log_warn("{} characters are none of the tokenizer's and were left out; check the input", ignored);
}

}  // namespace

void add_tokenize(Command program, int& /*status*/) {
  const Command command = program.add_subcommand("tokenize", "Print the token ids of text, or the text of token ids");
  const auto options = std::make_shared<TokenizeArguments>();
  command
      .add_option("tokenizer", options->tokenizer,
                  "A run directory, a checkpoint, a Hugging Face directory, or a tokenizer file: tokenizer.json; "
                  "vocab.json (with merges.txt in the same directory); vocab.txt; *.model (SentencePiece); GGUF")
      .required()
      .value_name("MODEL|TOKENIZER");
  command.add_option("input", options->input, "Text to read, plain, gzip, xz or zstd; - is standard input")
      .shows_default()
      .value_name("FILE|-");
  const Option ids = command.add_flag("--ids", options->ids, "Print the ids of each line on one line (the default)");
  const Option tokens =
      command.add_flag("--tokens", options->tokens, "Print tokens instead of ids, spelled as in the vocabulary");
  const Option decode = command.add_flag("--decode", options->decode, "Read lines of ids and print their text");
  const Option count =
      command.add_flag("--count", options->count, "Print only counts of lines, bytes, tokens and unknown tokens");
  ids.excludes(tokens).excludes(decode).excludes(count);
  tokens.excludes(decode).excludes(count);
  decode.excludes(count);
  command
      .add_flag("--parse-special", options->special,
                "Parse special tokens in the text, such as <|endoftext|> or [MASK]. Otherwise they are plain text")
      .excludes(decode);
  command
      .add_flag("--add-special-tokens", options->add_special_tokens,
                "Add the special tokens that the model expects around a text: [CLS] ... [SEP], or a leading <s>")
      .excludes(decode);
  command.footer(
      "Lines end with LF. All other characters, CR included, are text. A model without a tokenizer has the ids of its "
      "bytes or letters; between letters, spaces are ignored, and <document> is the token that ends a document.");
  command.examples({
      "furlong tokenize models/bert --tokens <<< 'A furlong is 220 yards'",
      "furlong tokenize smollm.gguf book.txt | furlong tokenize smollm.gguf --decode",
      "furlong tokenize tokenizer.json book.txt.xz --count",
      "furlong tokenize runs/protein sequences.txt > ids.txt",
  });
  command.action([options] { run(*options); });
}

}  // namespace furlong::command_line
