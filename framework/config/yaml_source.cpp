#include "framework/config/yaml_source.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <tuple>

#include "framework/config/nearest.h"
#include "framework/core/error.h"
#include "framework/core/file_error.h"
#include "framework/core/printable.h"

namespace furlong::config {
namespace {

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// yaml-cpp's messages and their explanations for users who do not know YAML's grammar.
constexpr std::pair<std::string_view, std::string_view> explanations[] = {
    {"illegal map value", "a key is not allowed here; check the indentation, and quote a value that contains ': '"},
    {"illegal block entry", "a list item is not allowed here; check the indentation"},
    {"end of map not found", "the indentation matches no enclosing section; keys of one section start in one column"},
    {"end of sequence not found", "the indentation matches no enclosing list; items of one list start in one column"},
    {"end of sequence flow not found", "a '[' is not closed by a ']'"},
    {"end of map flow not found", "a '{' is not closed by a '}'"},
    {"illegal flow end", "this bracket has no opening bracket; remove it or quote the text"},
    {"unknown token", "a value cannot start with this character; put it in quotes"},
    {"alias not found after *", "a '*' starts an alias of YAML; put it in quotes"},
    {"the referenced anchor is not defined",
     "this alias refers to an anchor that is not defined above it; put a text that starts with '*' in quotes"},
};

// Returns line and column (from 0) of the innermost bracket of that kind that is still open at the end of the lines.
// yaml-cpp reports only where it gave up, which may be the end of the file.
std::optional<std::pair<int, int>> open_bracket(const std::vector<std::string>& lines, char kind) {
  std::vector<std::tuple<char, int, int>> open;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    char quote = 0, before = ' ';
    for (std::size_t j = 0; j < lines[i].size(); before = lines[i][j], ++j) {
      const char c = lines[i][j];
      const bool starts_token =
          open.empty() ? before == ' ' : std::string_view(" [{,:").find(before) != std::string_view::npos;
      if (quote)
        quote = c == quote ? 0 : quote;
      else if (c == '#' && before == ' ')
        break;
      else if ((c == '"' || c == '\'') && starts_token)
        quote = c;
      else if ((c == '[' || c == '{') && starts_token)
        open.emplace_back(c, static_cast<int>(i), static_cast<int>(j));
      else if ((c == ']' || c == '}') && !open.empty())
        open.pop_back();
    }
  }
  for (auto it = open.rbegin(); it != open.rend(); ++it)
    if (std::get<0>(*it) == kind) return std::pair(std::get<1>(*it), std::get<2>(*it));
  return std::nullopt;
}

// Checks a document's syntax and stores where it starts.
struct DocumentStart : YAML::EventHandler {
  YAML::Mark mark;
  void OnDocumentStart(const YAML::Mark& start) override { mark = start; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

}  // namespace

YamlSource::YamlSource(std::string name, std::string text, bool has_lines)
    : name_(std::move(name)), lines_(split_lines(text)), has_lines_(has_lines), root_(YAML::NodeType::Map) {
  if (text.find('\0') != std::string::npos || !foreign::is_utf8(text))
    throw UserError("{}: found bytes that are not UTF-8 text; expected a YAML file", name_);
  try {
    // Not YAML::LoadAll: after a stray closing bracket its parser makes no progress, and it collects documents until
    // memory is exhausted.
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    DocumentStart document;
    if (!parser.HandleNextDocument(document)) return;
    root_ = YAML::Load(text);
    if (!parser.HandleNextDocument(document)) return;
    const auto line = static_cast<std::size_t>(std::max(document.mark.line, 0));
    const bool is_separated = line < lines_.size() && lines_[line].starts_with("---");
    throw UserError(
        "{}: {}", at(document.mark).text(),
        is_separated
            ? "a second YAML document starts here; expected one ('---' separates documents; use include: to combine "
              "files)"
            : "found text after the end of the document; check brackets and indentation");
  } catch (const YAML::Exception& problem) {
    explain(problem);
  }
}

Place YamlSource::at(const YAML::Mark& mark) const {
  if (!has_lines_) return {name_, 0, 0};
  return {name_, std::max(mark.line, 0) + 1, std::max(mark.column, 0) + 1};
}

void YamlSource::explain(const YAML::Exception& problem) const {
  // Whatever error the parser reports, a tab in the indentation of that line or the line before is the cause.
  const int last = std::min<int>(problem.mark.line, static_cast<int>(lines_.size()) - 1);
  for (int line = std::max(0, last - 1); line <= last; ++line) {
    const auto& text = lines_[static_cast<std::size_t>(line)];
    const auto tab = text.substr(0, text.find_first_not_of(" \t")).find('\t');
    if (tab == std::string::npos) continue;
    YAML::Mark mark = problem.mark;
    mark.line = line, mark.column = static_cast<int>(tab);
    throw UserError("{}: found a tab in the indentation; YAML indents with spaces only", at(mark).text());
  }
  YAML::Mark mark = problem.mark;
  const bool is_flow = problem.msg.ends_with("flow not found");
  if (const auto bracket =
          is_flow ? open_bracket(lines_, problem.msg == "end of map flow not found" ? '{' : '[') : std::nullopt)
    mark.line = bracket->first, mark.column = bracket->second;
  for (const auto& [message, meaning] : explanations)
    if (problem.msg == message) throw UserError("{}: {}", at(mark).text(), meaning);
  throw UserError("{}: this is not valid YAML: {}", at(problem.mark).text(), problem.msg);
}

void YamlSource::check_quotes(const YAML::Node& scalar) const {
  const auto mark = scalar.Mark();
  if (scalar.IsScalar() && !foreign::is_utf8(scalar.Scalar()))
    throw UserError("{}: the text has an escape that does not give UTF-8, such as \\N; write the character itself",
                    at(mark).text());
  if (mark.line < 0 || mark.line >= static_cast<int>(lines_.size())) return;
  const std::string& line = lines_[static_cast<std::size_t>(mark.line)];
  auto i = static_cast<std::size_t>(mark.column);
  if (i >= line.size() || (line[i] != '"' && line[i] != '\'')) return;
  const char quote = line[i];
  for (++i; i < line.size(); ++i) {
    const bool escape = quote == '"' ? line[i] == '\\' : line.compare(i, 2, "''") == 0;
    if (escape)
      ++i;
    else if (line[i] == quote)
      return;
  }
  throw UserError(
      "{}: the quotation mark {} that opens here is not closed on this line; close it (a line break in a text is "
      "written \"\\n\")",
      at(mark).text(), quote);
}

std::string read_config_file(const std::filesystem::path& file, const std::string& from) {
  std::error_code code;
  const auto status = std::filesystem::status(file, code);
  if (std::filesystem::is_directory(status))
    throw UserError("{}{}: found a directory; expected a YAML file", from, file.string());
  constexpr std::size_t most_bytes = std::size_t{16} << 20;
  std::ifstream stream(file, std::ios::binary);
  std::string text;
  std::vector<char> block(std::size_t{1} << 16);
  while (stream.is_open() && (stream.read(block.data(), static_cast<std::streamsize>(block.size())).gcount() > 0)) {
    text.append(block.data(), static_cast<std::size_t>(stream.gcount()));
    // Counted while reading: an endless device has no meaningful size.
    if (text.size() > most_bytes)
      throw UserError("{}{}: found more than {} bytes; expected a YAML file of at most 16 MiB", from, file.string(),
                      most_bytes);
  }
  if (stream.is_open() && !stream.bad()) return text;
  const int error = errno;
  // Names are compared without their extension, which all of them share.
  std::vector<std::filesystem::path> beside;
  const auto folder = file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
  for (std::filesystem::directory_iterator it(folder, code), end; !code && it != end; it.increment(code))
    if (it->path().extension() == ".yaml" || it->path().extension() == ".yml") beside.push_back(it->path().filename());
  std::sort(beside.begin(), beside.end());
  std::vector<std::string> stems;
  for (const auto& one : beside) stems.push_back(one.stem().string());
  const std::string similar_stem = nearest(file.stem().string(), stems);
  const auto similar = std::find_if(beside.begin(), beside.end(), [&](const auto& one) {
    return !similar_stem.empty() && one.stem() == similar_stem;
  });
  const std::string named = from + file.string();
  if (error != ENOENT) throw_file_error(named, "read", error);
  throw_missing(named, similar == beside.end()
                           ? "a YAML file"
                           : fmt::format("a YAML file, perhaps {}", (file.parent_path() / *similar).string()));
}

}  // namespace furlong::config
