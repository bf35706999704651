// Help pages of all subcommands, their layout, and errors of renamed options.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "cli/help_text.h"
#include "tests/cli/program.h"
#include "tests/places.h"

namespace furlong {
namespace {

using command_line::columns_of;
using testing::expect_user_error;
using testing::Finished;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// The words of a line, without punctuation.
std::set<std::string> words_of(const std::string& line) {
  const std::regex word(R"([a-z0-9_-]+)");
  return {std::sregex_token_iterator(line.begin(), line.end(), word), std::sregex_token_iterator()};
}

std::string joined(const std::vector<std::string>& words) {
  std::string text = "furlong";
  for (const std::string& word : words) text += " " + word;
  return text;
}

class HelpTest : public testing::WithProgram {
 protected:
  std::string help(std::vector<std::string> command) const {
    command.emplace_back("--help");
    const Finished found = furlong(command);
    EXPECT_EQ(found.status, 0) << found.err;
    EXPECT_EQ(found.err, "");
    return found.out;
  }

  /// Calls visit(words, page) for the program and, recursively, for all subcommands that a page lists.
  template <class Visit>
  void for_each_page(const std::vector<std::string>& command, const Visit& visit) const {
    const std::string page = help(command);
    visit(command, page);
    bool in_list = false;
    for (const std::string& line : lines_of(page)) {
      if (line == "Subcommands:") {
        in_list = true;
      } else if (in_list && line.starts_with("  ") && line[2] != ' ') {
        std::vector<std::string> subcommand = command;
        subcommand.push_back(line.substr(2, line.find(' ', 2) - 2));
        for_each_page(subcommand, visit);
      } else if (line.empty()) {
        in_list = false;
      }
    }
  }
};

TEST_F(HelpTest, PagesFit80ColumnsAndEndWithTwoExamples) {
  for_each_page({}, [&](const std::vector<std::string>& command, const std::string& page) {
    SCOPED_TRACE(joined(command));
    EXPECT_THAT(page, HasSubstr("\nUsage: " + joined(command) + " "));
    const std::vector<std::string> lines = lines_of(page);
    int examples = 0;
    bool in_examples = false;
    for (const std::string& line : lines) {
      EXPECT_LE(columns_of(line), command_line::help_width) << line;
      in_examples = in_examples || line == "Examples:";
      const std::string wanted = joined(command) + (command.empty() ? " " : "");
      const std::string alone = std::regex_replace(line, std::regex("launch --processes [0-9]+ "), "");
      const auto shows = [&](const std::string& text) { return text.find(wanted) != std::string::npos; };
      if (in_examples && (shows(line) || shows(alone))) ++examples;
    }
    EXPECT_GE(examples, 2);
    EXPECT_THAT(page, HasSubstr("\nCommon options:\n"));
    EXPECT_LT(page.find("-h, --help"), page.find("\nExamples:\n")) << "--help is the last option";
  });
}

/// Returns the words of each furlong command in the examples of a page, without "furlong".
std::vector<std::vector<std::string>> commands_in_examples(const std::string& page) {
  const std::string title = "\nExamples:\n";
  std::string text = page.substr(std::min(page.find(title) + title.size(), page.size()));
  text = std::regex_replace(text.substr(0, text.find("\n\n")), std::regex(R"(\\\n)"), " ");
  text = std::regex_replace(text, std::regex("['\"]"), "");
  std::vector<std::vector<std::string>> commands;
  for (const std::string& line : lines_of(std::regex_replace(text, std::regex(R"( ([|;>]|&&) )"), "\n"))) {
    std::istringstream stream(line);
    const std::vector<std::string> words{std::istream_iterator<std::string>(stream), {}};
    const auto program = std::find(words.begin(), words.end(), "furlong");
    if (program != words.end()) commands.emplace_back(program + 1, words.end());
  }
  return commands;
}

// Each is run with an option that does not exist, which must be the only one.
TEST_F(HelpTest, ExamplesHaveValidOptions) {
  std::set<std::vector<std::string>> tried;
  for_each_page({}, [&](const std::vector<std::string>&, const std::string& page) {
    for (std::vector<std::string> words : commands_in_examples(page)) {
      if (!tried.insert(words).second) continue;
      SCOPED_TRACE(joined(words));
      for (std::size_t i = 2; i < words.size(); ++i)
        EXPECT_FALSE(words[i - 2] == "--set" && words[i].find('=') != std::string::npos && words[i][0] != '-')
            << "--set takes one value";
      words.emplace_back("--no-such-option");
      const Finished found = furlong(words);
      EXPECT_EQ(found.status, 2);
      EXPECT_THAT(found.err, HasSubstr("error: unknown option --no-such-option"));
    }
  });
  EXPECT_GT(tried.size(), 50u);
}

TEST_F(HelpTest, CommandsPageHasARowForEverySubcommand) {
  // Rows such as: furlong prepare text\|fasta INPUT…
  std::vector<std::set<std::string>> rows;
  std::set<std::string> documented;
  std::ifstream page(testing::source_directory() / "docs/commands.md");
  const std::string start = "| `furlong ";
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with(start)) continue;
    const std::string command = line.substr(start.size(), line.find('`', start.size()) - start.size());
    rows.push_back(words_of(command));
    documented.insert(command.substr(0, command.find(' ')));
  }
  std::set<std::string> listed;
  for_each_page({}, [&](const std::vector<std::string>& command, const std::string&) {
    if (command.empty()) return;
    listed.insert(command.front());
    const auto has_all = [&](const std::set<std::string>& row) {
      return std::all_of(command.begin(), command.end(), [&](const std::string& word) { return row.contains(word); });
    };
    EXPECT_TRUE(std::any_of(rows.begin(), rows.end(), has_all)) << joined(command) << " is not in docs/commands.md";
  });
  EXPECT_EQ(listed, documented);
}

TEST_F(HelpTest, PagesUseTheProjectsTerms) {
  const std::regex unwanted(
      R"(\b(is told|tells|says|foretells?|beside|behind|mistakes?|mend(ed)?|goes on|go on|begins? from|what there is|)"
      R"(is there|not there|by turns|in turns|as it is|for itself|of its own|bodies|remake|computed again|slopes?|)"
      R"(directions|lessons?|teach|chance|averaged|averages|most[-_]features|token stores?|seen|sees|)"
      R"(in the place of|so many)\b)");
  for_each_page({}, [&](const std::vector<std::string>& command, const std::string& page) {
    std::string text;  // on one line, so that a phrase may wrap
    for (const std::string& line : lines_of(page))
      text += line.substr(std::min(line.find_first_not_of(' '), line.size())) + ' ';
    std::smatch found;
    EXPECT_FALSE(std::regex_search(text, found, unwanted)) << joined(command) << ": " << found.str();
  });
}

TEST_F(HelpTest, ErrorsNameTheNewNamesOfOptions) {
  struct Case {
    std::vector<std::string> arguments;
    std::string message;
  };
  for (const auto& [arguments, message] : std::vector<Case>{
           {{"attend", "--most-features", "9"}, "--most-features was renamed: use --max-features"},
           {{"bench", "attention", "--most-features=9"}, "--most-features was renamed: use --max-features"},
           {{"analyze", "attention", "--most-features", "9"}, "--most-features was renamed: use --search-limit"},
           {{"convert", "a", "b.h5", "--max-features", "9"}, "--max-features was renamed: use --search-limit"},
           {{"analyze", "attention", "--json", "out.json"}, "--json was renamed: use --json-file"},
           {{"bench", "comm", "--json=out.json"}, "--json was renamed: use --json-file"},
           {{"bench", "attention", "--n", "16"}, "--n was renamed: use --lengths"},
           {{"bench", "attention", "--d", "8"}, "--d was renamed: use --head-dim"},
           {{"bench", "attention", "--repeat", "2"}, "--repeat was renamed: use --repeats"},
           {{"attend", "--directions-kind", "iid"}, "--directions-kind was renamed: use --random-projection"},
           {{"analyze", "attention", "--maps", "elu1"}, "--maps was renamed: use --feature-maps"},
           {{"analyze", "attention", "--deviation", "1"}, "--deviation was renamed: use --std"},
           {{"evaluate", "run", "--weights", "averaged"}, "--weights averaged was renamed: use --weights ema"},
           {{"logits", "run", "ids.txt", "-o", "x.h5", "--dtype", "own"}, "--dtype own was renamed: use --dtype model"},
           {{"generate", "run", "--special"}, "--special was renamed: use --parse-special"},
           {{"tokenize", "t", "--framed"}, "--framed was renamed: use --add-special-tokens"}}) {
    const Finished found = furlong(arguments);
    expect_user_error(found, {message});
    EXPECT_EQ(found.err, "error: " + message + "\n");
  }
}

TEST_F(HelpTest, ParserErrorsNameFoundAndExpected) {
  struct Case {
    std::vector<std::string> arguments;
    std::string message;
  };
  for (const auto& [arguments, message] : std::vector<Case>{
           {{"export"}, "CHECKPOINT|RUN is required"},
           {{"train"}, "CONFIG is required"},
           {{"plan"}, "CONFIG is required"},
           {{"completion", "fish"}, "bash|zsh: found fish; expected bash or zsh"},
           {{"evaluate", "run", "--split", "dev"}, "--split: found dev; expected train, validation or test"},
           {{"prepare", "text", "a", "--document-separator", "x"},
            "--document-separator: found x; expected file, line or blank-line"},
           {{"generate", "run", "--max-tokens", "0"},
            "--max-tokens: found 0; expected an integer from 1 to 1000000000"},
           {{"generate", "run", "--seed", "x"}, "--seed: found x; expected an integer of at least 0"},
           {{"generate", "run", "--seed", "-1"}, "--seed: found -1; expected an integer of at least 0"},
           {{"generate", "run", "--seed", "18446744073709551616"},
            "--seed: found 18446744073709551616; expected an integer of at least 0"},
           {{"generate", "run", "--top-p", "2"}, "--top-p: found 2; expected a number from 1e-06 to 1"},
           {{"evaluate", "run", "--max-batches", "0"}, "--max-batches: found 0; expected a number above 0"},
           {{"generate", "run", "--seed"}, "--seed: its value is missing"},
           {{"generate", "run", "--seed", "1", "--seed", "2"}, "--seed: found 2 values; expected one"},
           {{"bench", "attention", "--lengths", "4q"},
            "--lengths: found 4q; expected a number of tokens such as 4096 or 4k"},
           {{"bench", "comm", "--bytes", "12Q"}, "--bytes: found 12Q; expected a size such as 64KiB or 25MB"},
           {{"train", "c.yaml", "--resum=never"}, "unknown option --resum; did you mean --resume?"},
           {{"train", "c.yaml", "--resum", "never"}, "unknown option --resum; did you mean --resume?"},
           {{"train", "c.yaml", "never"}, "unexpected argument: never"},
           {{"train", "--max-steps", "3", "c.yaml"},
            "unknown option --max-steps; did you mean --set trainer.max_steps=3?"},
           {{"train", "c.yaml", "--trainer.max_steps=3"},
            "unknown option --trainer.max_steps; did you mean --set trainer.max_steps=3?"},
           {{"train", "c.yaml", "--epochs", "2"},
            "unknown option --epochs; did you mean --set trainer.max_steps=VALUE?"},
           {{"train", "c.yaml", "--xyz", "2"}, "unknown option --xyz"},
           {{"evaluate", "run", "--samples", "2"}, "--samples requires --suite"},
           {{"plan", "c.yaml", "--utilisation", "2"}, "--utilization: found 2; expected a number from 1e-06 to 1"}}) {
    SCOPED_TRACE(joined(arguments));
    const Finished found = furlong(arguments);
    expect_user_error(found, {message});
    EXPECT_THAT(found.err, StartsWith("error: " + message + "; see furlong "));
  }
}

TEST_F(HelpTest, ListsTakeOneArgumentAndIntegersAreDecimal) {
  file("one.csv", "good text,good\nbad text,bad\n");
  file("two.csv", "more text,good\nother text,bad\n");
  const Finished prepared = furlong({"prepare", "labeled", path("one.csv"), "--labels", "good,bad", path("two.csv"),
                                     "--output", path("both.h5"), "--split", "1,0,0", "--json"});
  ASSERT_EQ(prepared.status, 0) << prepared.err;
  EXPECT_THAT(prepared.out, ::testing::HasSubstr("\"documents\": 4")) << prepared.out;
  for (const char* number : {"010", "0x10"})
    expect_user_error(furlong({"generate", path("run"), "--max-tokens", number}),
                      {"--max-tokens: found " + std::string(number)});
}

TEST_F(HelpTest, HelpIsAlsoASubcommand) {
  for (const std::vector<std::string>& command : {std::vector<std::string>{}, {"train"}, {"bench", "lra"}}) {
    std::vector<std::string> asked = command;
    asked.insert(asked.begin(), "help");
    const Finished found = furlong(asked);
    EXPECT_EQ(found.status, 0) << found.err;
    EXPECT_EQ(found.out, help(command));
  }
  expect_user_error(furlong({"help", "trian"}), {"unknown subcommand 'trian'; did you mean train?"});
  expect_user_error(furlong({"prepare", "txt"}), {"unknown subcommand 'txt'; did you mean text?"});
}

TEST_F(HelpTest, PrintsNameAndVersion) {
  EXPECT_THAT(furlong({"--version"}).out, ::testing::MatchesRegex("furlong [0-9.]+ \\([^)]*\\)\n"));
}

TEST_F(HelpTest, ShowsAmericanSpellingsOnly) {
  EXPECT_EQ(help({"prepare", "labelled"}), help({"prepare", "labeled"}));
  const std::regex british(R"((un)?labelled|utilisation|normalis|tokenis|initialis|optimis|behaviour)");
  for_each_page({}, [&](const std::vector<std::string>& command, const std::string& page) {
    std::smatch found;
    EXPECT_FALSE(std::regex_search(page, found, british)) << joined(command) << ": " << found.str();
  });
}

TEST(HelpText, WrapsCodePointsAndAlignsDefinitions) {
  EXPECT_EQ(columns_of("φ(q)²"), 5u);
  const std::string word(30, 'x');
  EXPECT_EQ(command_line::wrapped(word + " " + word + " " + word), word + " " + word + "\n" + word + "\n");
  EXPECT_EQ(command_line::wrapped("  term  " + word + " " + word + " " + word),
            "  term  " + word + " " + word + "\n        " + word + "\n");
  EXPECT_EQ(command_line::wrapped(std::string(100, 'y')), std::string(100, 'y') + "\n") << "a long word stays whole";
  EXPECT_EQ(command_line::wrapped("a\n\nb"), "a\n\nb\n");
  EXPECT_EQ(command_line::list_entry("--seed N", "Seed"), "  --seed N" + std::string(14, ' ') + "Seed\n");
  EXPECT_THAT(command_line::list_entry("--a-long-option VALUE,...", "Text"),
              StartsWith("  --a-long-option VALUE,...\n" + std::string(24, ' ') + "Text"));
}

TEST(HelpText, LongExamplesContinueAfterABackslash) {
  const std::string value(40, 'v');
  EXPECT_EQ(command_line::example_lines({"furlong train --set " + value + " --run-dir " + value}),
            "  furlong train --set " + value + " \\\n      --run-dir " + value + "\n");
}

}  // namespace
}  // namespace furlong
