// A configuration, read into a table with keys of every type. Settings must be unchanged after writing and reading.
#include <cmath>

#include "framework/config/reader.h"
#include "framework/config/writer.h"
#include "tests/fuzz/target.h"

namespace config = furlong::config;
namespace fuzzing = furlong::fuzzing;

namespace {

struct Settings {
  std::int64_t layers = 12, warmup = 0;
  double rate = 1.5;
  bool causal = true;
  std::string mechanism = "linear", title, device = "cpu";
  std::filesystem::path store = "tokens.h5";
  std::vector<std::string> blocks;
};

config::Table table_of(Settings& settings) {
  config::Table table;
  table.key("title", &settings.title, "", "any text");
  table.section("model", "what is trained");
  table.key("model.layers", &settings.layers, "layers", "depth").within(1, 1e15).elsewhere({"n_layer"});
  table.key("model.device", &settings.device, "", "where").like("cpu|cuda(:[0-9]+)?", {"cpu", "cuda:0"});
  table.key("model.blocks", &settings.blocks, "", "mechanisms of the layers");
  table.section("model.attention", "how tokens meet");
  table.key("model.attention.mechanism", &settings.mechanism, "", "which").one_of({"linear", "softmax"});
  table.key("model.attention.causal", &settings.causal, "", "whether only earlier tokens are seen")
      .only_with("model.attention.mechanism", {"linear"})
      .or_in_lists({"model.blocks"});
  table.section("trainer", "how");
  table.key("trainer.rate", &settings.rate, "", "learning rate").above(0).below(24);
  table.key("trainer.warmup", &settings.warmup, "steps", "until the full rate").within(2, 9).zero_means("none");
  table.key("trainer.store", &settings.store, "", "data").required();
  table.removed("trainer.debug", "false", "leave it out");
  return table;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Settings settings;
  const config::Table table = table_of(settings);
  Settings defaults;
  const config::Table table_of_defaults = table_of(defaults);
  const auto read = [&](const std::string& text) {
    return fuzzing::succeeds([&] {
      table.check_effects(table_of_defaults, config::read_settings_text(table, text, "config.yaml").origins);
    });
  };
  if (!read(std::string(fuzzing::text_of(data, size)))) return 0;
  const std::string written = config::to_yaml(table);
  settings = Settings();
  // Paths are written unchanged but expanded when read, so paths with a dollar sign differ.
  if (written.find('$') != std::string::npos) return 0;
  fuzzing::expect(read(written), "the written configuration cannot be read");
  if (config::to_yaml(table) != written) fuzzing::finding("the settings differ after writing and reading", written);
  return 0;
}
