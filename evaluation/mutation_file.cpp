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

Mutation parse_mutation(std::string_view text, std::uint64_t line, const std::string& file) {
  Mutation mutation{std::string(text), line, {}};
  std::set<std::int64_t> positions;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(':', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    begin = end + 1;
    Substitution one;
    const char* const last = part.data() + part.size() - 1;
    const bool letters = part.size() >= 3 && is_letter(part.front()) && is_letter(part.back());
    const auto [stop, failure] =
        letters ? std::from_chars(part.data() + 1, last, one.position) : std::from_chars_result{nullptr, std::errc{}};
    if (!letters || failure != std::errc{} || stop != last || one.position < 1)
      throw UserError("{}:{}: found '{}'; expected a mutation such as A23V, or several such as A23V:G45D", file, line,
                      foreign::printable(text));
    one.from = part.front();
    one.to = part.back();
    if (!positions.insert(one.position).second)
      throw UserError("{}:{}: '{}' changes position {} twice; expected one substitution for each position", file, line,
                      foreign::printable(text), one.position);
    mutation.substitutions.push_back(one);
  }
  return mutation;
}

std::string_view first_column(std::string_view line) {
  line = line.substr(0, line.find_first_of("\t,\r"));
  while (!line.empty() && line.front() == ' ') line.remove_prefix(1);
  while (!line.empty() && line.back() == ' ') line.remove_suffix(1);
  return line;
}

}  // namespace

std::vector<Mutation> read_mutations(const std::filesystem::path& path) {
  const std::string text = read_text_file(path, std::uint64_t{1} << 32);
  std::vector<Mutation> mutations;
  std::uint64_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view column = first_column(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
    ++number;
    if (column.empty() || column.front() == '#') continue;
    if (mutations.empty() && (column == "mutation" || column == "mutant" || column == "variant")) continue;
    mutations.push_back(parse_mutation(column, number, path.string()));
  }
  if (mutations.empty())
    throw UserError("{}: there is no mutation in it; expected one on each line, such as A23V", path.string());
  return mutations;
}

}  // namespace furlong
