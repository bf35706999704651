#pragma once
// Reads the mutations of furlong score.
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace furlong {

/// One substitution: A23V is `from` A, at `position` 23 counted from 1, `to` V.
struct Substitution {
  std::string from, to;
  std::int64_t position = 0;
};
/// Substitutions at once: A23V:G45D.
struct Mutation {
  std::string text;
  std::uint64_t line = 0;
  std::vector<Substitution> substitutions;
};

/// The first column of each line of a file, which a tab or comma ends. Empty lines, lines that begin with '#', and a
/// header (mutation, mutant or variant) are passed over. Throws UserError naming the line.
std::vector<Mutation> read_mutations(const std::filesystem::path& path);

}  // namespace furlong
