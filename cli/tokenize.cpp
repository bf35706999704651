// furlong tokenize: text to the ids of a tokenizer, and back.
#include <charconv>
#include <cstdio>
#include <functional>
#include <memory>

#include "cli/command_line.h"
#include "cli/text_output.h"
#include "datasets/prepare/byte_source.h"
#include "datasets/tokenizers/tokenizer.h"
#include "framework/core/clock.h"
#include "framework/core/error.h"

namespace furlong::command_line {
namespace {

struct Options {
  std::string tokenizer, input = "-";
  bool ids = false, tokens = false, decode = false, special = false, framed = false, count = false;
};

/// Calls `line` with each line, without its LF; the last may lack one. Returns the number of bytes.
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
    // A small compressed file may hold a line without end.
    constexpr std::size_t longest_line = std::size_t{1} << 30;
    if (begun.size() > longest_line)
      throw UserError("{}: a line of more than 1 GiB; break it into shorter ones", source.name());
  }
  if (!begun.empty()) line(begun);
  return bytes;
}

std::vector<std::int32_t> parse_ids(std::string_view line, const Tokenizer& tokenizer, const std::string& input,
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
    if (failure != std::errc() || stop != line.data() + end || id < 0 || id >= tokenizer.size()) {
      throw UserError("{}, line {}: '{}' is no id of this tokenizer; expected 0 to {}", input, number,
                      line.substr(begin, end - begin), tokenizer.size() - 1);
    }
    ids.push_back(id);
    begin = end;
  }
  return ids;
}

/// What one line becomes, with its LF.
std::string answer(const Options& options, const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids) {
  std::string text;
  for (const std::int32_t id : ids) {
    if (!text.empty()) text += ' ';
    text += options.tokens ? tokenizer.token(id) : fmt::format_int(id).str();
  }
  return text + '\n';
}

void run(const Options& options) {
  const std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer(options.tokenizer);
  ByteSource source(options.input);
  const SpecialSpelling special = options.special ? SpecialSpelling::is_token : SpecialSpelling::is_text;
  std::uint64_t lines = 0, tokens = 0, unknown = 0;
  TextOutput output;
  std::string answers;
  const auto write = [&](std::string_view text) {
    answers += text;
    if (answers.size() < 1 << 16) return;
    output.write(answers);
    answers.clear();
  };
  const auto begin = Clock::now();
  const std::uint64_t bytes = for_each_line(source, [&](std::string_view line) {
    ++lines;
    if (options.decode) return write(tokenizer->decode(parse_ids(line, *tokenizer, source.name(), lines)) + '\n');
    std::vector<std::int32_t> ids = tokenizer->encode(line, special);
    if (options.framed) ids = tokenizer->framed(ids);
    if (!options.count) return write(answer(options, *tokenizer, ids));
    tokens += ids.size();
    for (const std::int32_t id : ids) unknown += id == tokenizer->special().unknown;
  });
  const double seconds = seconds_since(begin);
  if (options.count) {
    write(fmt::format(
        "{} ({} ids): {} lines, {} bytes, {} tokens, {} of them unknown; {:.3f} bytes a token; {:.1f} MB/s\n",
        tokenizer->kind(), tokenizer->size(), lines, bytes, tokens, unknown,
        static_cast<double>(bytes) / static_cast<double>(std::max<std::uint64_t>(tokens, 1)),
        static_cast<double>(bytes) * 1e-6 / std::max(seconds, 1e-9)));
  }
  output.write(answers);
  output.finish();
}

}  // namespace

void add_tokenize(Command program, int& /*status*/) {
  const Command command = program.add_subcommand(
      "tokenize", "Show the token ids that a published model's tokenizer gives to text, and text of ids");
  const auto options = std::make_shared<Options>();
  command
      .add_option("tokenizer", options->tokenizer,
                  "A model's directory, or one of its files: tokenizer.json; vocab.json (with\nmerges.txt beside it); "
                  "vocab.txt; *.model (SentencePiece); GGUF")
      .required()
      .value_name("TOKENIZER");
  command.add_option("input", options->input, "Text to read, plain, gzip or xz; - is standard input")
      .shows_default()
      .value_name("FILE|-");
  const Option ids = command.add_flag("--ids", options->ids, "Print the ids of each line on one line (the default)");
  const Option tokens =
      command.add_flag("--tokens", options->tokens, "Print tokens as the vocabulary spells them, not their ids");
  const Option decode = command.add_flag("--decode", options->decode, "Read lines of ids, and print their text");
  const Option count = command.add_flag("--count", options->count,
                                        "Print only how many lines, bytes, tokens and unknown tokens there are");
  ids.excludes(tokens).excludes(decode).excludes(count);
  tokens.excludes(decode).excludes(count);
  decode.excludes(count);
  command
      .add_flag("--special", options->special,
                "Special tokens spelled in the text (<|endoftext|>, [MASK]) are those\ntokens; otherwise they are "
                "text as any other")
      .excludes(decode);
  command
      .add_flag("--framed", options->framed,
                "With what the model wants around a text: [CLS] ... [SEP], or <s> in front")
      .excludes(decode);
  command.footer(
      "A line ends with LF; all else in it, CR included, is text.\n"
      "Example:\n  furlong tokenize models/bert --tokens <<< 'A furlong is 220 yards'\n"
      "  furlong tokenize models/smollm.gguf book.txt | furlong tokenize models/smollm.gguf --decode\n"
      "  furlong tokenize tokenizer.json book.txt.xz --count");
  command.action([options] { run(*options); });
}

}  // namespace furlong::command_line
