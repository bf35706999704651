// config.json of an imported model: its settings, the table of its tensors, and config.json written again. The byte
// before the last chooses how its tensors are named.
#include "conversion/architecture.h"
#include "tests/fuzz/json_mutator.h"

namespace fuzzing = furlong::fuzzing;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto [text, chosen] = fuzzing::two_texts(fuzzing::text_of(data, size));
  const unsigned bits = chosen.empty() ? 0 : static_cast<unsigned char>(chosen[0]);
  const std::string path = fuzzing::write_input("config.json", text);
  fuzzing::succeeds([&] {
    const furlong::ForeignConfig config = furlong::ForeignConfig::read(path);
    const furlong::Architecture& architecture = furlong::architecture_of(config, "");
    furlong::TensorNaming naming;
    naming.prefix = architecture.prefixes[bits / 4 % architecture.prefixes.size()];
    naming.gamma_beta = (bits & 1) != 0;
    naming.head = (bits & 2) == 0;
    const furlong::Settings settings = architecture.settings(config, naming);
    if (settings.model.n_layers > 100) return;  // settings_table() allows 4,096
    for (const furlong::Mapping& mapping : architecture.mappings(settings.model, naming)) {
      fuzzing::expect(!mapping.parameter.empty(), "a tensor without a parameter");
      mapping.shape();
    }
    architecture.duplicates(settings.model, naming);
    const furlong::ForeignConfig again(architecture.config(settings.model), "config.json");
  });
  return 0;
}

FURLONG_JSON_MUTATOR
