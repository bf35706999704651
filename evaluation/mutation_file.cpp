#include "evaluation/mutation_file.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <string_view>

#include "framework/core/error.h"
#include "framework/core/printable.h"
#include "framework/io/text_file.h"

namespace furlong {
namespace {

bool is_letter(char byte) { return (byte >= 'A' && byte <= 'Z') || (byte >= 'a' && byte <= 'z') || byte == '*'; }

/// Reads a text such as A23V. Returns whether it is one.
bool read_substitution(std::string_view text, Substitution& one) {
  if (text.size() < 3 || !is_letter(text.front()) || !is_letter(text.back())) return false;
  one.from = text.front();
  one.to = text.back();
  const char* const last = text.data() + text.size() - 1;
  const auto [stop, failure] = std::from_chars(text.data() + 1, last, one.position);
  return failure == std::errc{} && stop == last && one.position >= 1;
}

Mutation parse_mutation(std::string_view text, std::uint64_t line, const std::string& file) {
  Mutation mutation{std::string(text), line, {}};
  std::set<std::int64_t> positions;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(':', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    begin = end + 1;
    Substitution one;
    if (!read_substitution(part, one))
      throw UserError("{}:{}: found '{}'; expected a mutation such as A23V, or several such as A23V:G45D", file, line,
                      foreign::printable(text));
    if (!positions.insert(one.position).second)
      throw UserError("{}:{}: '{}' changes position {} twice; expected one substitution for each position", file, line,
                      foreign::printable(text), one.position);
    mutation.substitutions.push_back(one);
  }
  return mutation;
}

/// Returns one column of a table's line, without spaces around it; empty if there are fewer.
std::string_view column_of(std::string_view line, std::size_t index) {
  for (; index > 0; --index) {
    const std::size_t end = line.find_first_of("\t,");
    line = end == std::string_view::npos ? std::string_view{} : line.substr(end + 1);
  }
  line = line.substr(0, line.find_first_of("\t,"));
  while (!line.empty() && line.front() == ' ') line.remove_prefix(1);
  while (!line.empty() && line.back() == ' ') line.remove_suffix(1);
  return line;
}

/// Throws UserError if the second column is a mutation too: of "A23V,G45D" the second would be lost.
void check_second_column(std::string_view line, std::uint64_t number, const std::string& file) {
  const std::string_view second = column_of(line, 1);
  try {
    parse_mutation(second, number, file);
  } catch (const UserError&) {
    return;  // another kind of column
  }
  throw UserError(
      "{}:{}: '{}' is a second mutation on the line; expected mutations that belong together joined by ':', "
      "such as A23V:G45D",
      file, number, foreign::printable(second));
}

}  // namespace

std::vector<Mutation> read_mutations(const std::filesystem::path& path) {
  const std::string text = read_text_file(path, std::uint64_t{1} << 32);
  std::vector<Mutation> mutations;
  std::uint64_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find('\r') != std::string_view::npos)
      throw UserError("{}:{}: found a carriage return inside a line; expected lines that end with \\n or \\r\\n",
                      path.string(), number);
    const std::string_view column = column_of(line, 0);
    if (column.empty() || column.front() == '#') continue;
    if (mutations.empty() && (column == "mutation" || column == "mutant" || column == "variant")) continue;
    mutations.push_back(parse_mutation(column, number, path.string()));
    check_second_column(line, number, path.string());
  }
  if (mutations.empty())
    throw UserError("{}: there is no mutation in it; expected one on each line, such as A23V", path.string());
  return mutations;
}

}  // namespace furlong
