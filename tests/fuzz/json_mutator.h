#pragma once
// Mutates the values of a JSON document, because randomly changed bytes seldom leave valid JSON.
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "tests/fuzz/target.h"

namespace furlong::fuzzing {

/// Returns pointers to every value of the document, including the document.
inline std::vector<nlohmann::json*> values_of(nlohmann::json& document) {
  std::vector<nlohmann::json*> found{&document};
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (!found[i]->is_structured()) continue;
    for (auto& item : *found[i]) found.push_back(&item);
  }
  return found;
}

/// Replaces, removes or repeats one to three values.
inline void change(nlohmann::json& document, std::minstd_rand& random) {
  static const nlohmann::json others = nlohmann::json::parse(
      R"json([null, true, false, 0, 1, -1, 4294967296, 9223372036854775807, 1.5, "", "a", " ", "\u0000", "\u2581",
          "##", [], {}, {"String": "a"}, {"Regex": "a|\\s+(?!\\S)"}, {"Regex": "."}, {"type": "ByteLevel"},
          ["a", "b"]])json");
  for (std::size_t changes = 1 + random() % 3; changes > 0; --changes) {
    const std::vector<nlohmann::json*> values = values_of(document);
    nlohmann::json& value = *values[random() % values.size()];
    const nlohmann::json source =
        random() % 2 == 0 ? others[random() % others.size()] : *values[random() % values.size()];
    if (!value.is_structured() || value.empty() || random() % 2 == 0) {
      value = source;
    } else if (value.is_array()) {
      const auto at = value.begin() + static_cast<std::ptrdiff_t>(random() % value.size());
      random() % 2 == 0 ? value.erase(at) : value.insert(at, source);
    } else {
      const auto at = std::next(value.begin(), static_cast<std::ptrdiff_t>(random() % value.size()));
      if (random() % 2 == 0) {
        value.erase(at);
      } else {
        const std::string name = source.is_string() ? source.get<std::string>() : at.key() + "a";
        value[name] = nlohmann::json(*at);
      }
    }
  }
}

/// Mutates an input of a JSON document and a text (two_texts). Half of the mutations change bytes, by libFuzzer's
/// `mutate`; the others change the document's values.
template <class Mutate>
std::size_t mutate_document(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed,
                            const Mutate& mutate) {
  std::minstd_rand random(seed);
  const auto [file, text] = two_texts(text_of(data, size));
  nlohmann::json document = nlohmann::json::parse(file, nullptr, false);
  if (document.is_discarded() || random() % 2 == 0) return mutate(data, size, most);
  change(document, random);
  std::string changed = document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  (changed += text) += static_cast<char>(text.size());
  if (changed.size() > most) return mutate(data, size, most);
  std::copy(changed.begin(), changed.end(), data);
  return changed.size();
}

}  // namespace furlong::fuzzing

/// Defines the mutator of a target whose inputs are JSON documents.
#ifdef FURLONG_FUZZ
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);
#define FURLONG_JSON_MUTATOR                                                                             \
  extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, \
                                                 unsigned seed) {                                        \
    return furlong::fuzzing::mutate_document(data, size, most, seed, LLVMFuzzerMutate);                  \
  }
#else
#define FURLONG_JSON_MUTATOR
#endif
