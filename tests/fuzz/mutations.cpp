// The mutations of `furlong score --mutations`. Every mutation is written again from its substitutions.
#include "evaluation/mutation_file.h"

#include "tests/fuzz/target.h"

namespace fuzzing = furlong::fuzzing;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string path = fuzzing::write_input("mutations.txt", fuzzing::text_of(data, size));
  std::vector<furlong::Mutation> mutations;
  if (!fuzzing::succeeds([&] { mutations = furlong::read_mutations(path); })) return 0;
  fuzzing::expect(!mutations.empty(), "an empty list of mutations");
  std::string again;
  for (const furlong::Mutation& mutation : mutations) {
    again += again.empty() ? "" : "\n";
    for (const furlong::Substitution& one : mutation.substitutions) {
      if (&one != mutation.substitutions.data()) again += ':';
      again += fmt::format("{}{}{}", one.from, one.position, one.to);
    }
  }
  std::vector<furlong::Mutation> second;
  fuzzing::write_input("mutations.txt", again);
  fuzzing::expect(fuzzing::succeeds([&] { second = furlong::read_mutations(path); }), "written mutations are rejected");
  fuzzing::expect(second.size() == mutations.size(), "written mutations differ in number");
  for (std::size_t i = 0; i < second.size(); ++i) {
    const auto same = [](const furlong::Substitution& a, const furlong::Substitution& b) {
      return a.from == b.from && a.to == b.to && a.position == b.position;
    };
    fuzzing::expect(std::equal(second[i].substitutions.begin(), second[i].substitutions.end(),
                               mutations[i].substitutions.begin(), mutations[i].substitutions.end(), same),
                    "written mutations differ");
  }
  return 0;
}
