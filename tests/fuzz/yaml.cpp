// A configuration with included files and overrides, read into a table with keys of every type. (That of the settings
// needs the models.) Settings must be unchanged after writing and reading.
#include <array>
#include <filesystem>

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
  std::vector<config::Item> sources;
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
  table.key("trainer.store", &settings.store, "", "data").required("trainer.sources");
  table.key("trainer.sources", &settings.sources, "", "a mixture").fields({"dataset", "weight"});
  table.removed("trainer.debug", "false", "leave it out");
  table.renamed("model.place", "model.device", {{"gpu", "cuda"}});
  table.renamed("trainer.lr", "trainer.rate");
  return table;
}

/// An input: the configuration, then the included files a.yaml, b.yaml and c.yaml, then overrides. A part that starts
/// with the byte 0x1e is a file, with 0x1f an override; neither byte occurs in YAML.
struct Input {
  std::string text;
  std::vector<std::string> files{}, overrides{};

  static Input of(std::string_view bytes) {
    Input input;
    std::string* part = &input.text;
    for (const char byte : bytes) {
      if (byte == '\x1e' || byte == '\x1f')
        part = &(byte == '\x1e' ? input.files : input.overrides).emplace_back();
      else
        *part += byte;
    }
    return input;
  }

  config::Origins read(const config::Table& table) const {
    if (files.empty()) return config::read_settings_text(table, text, "config.yaml", overrides).origins;
    constexpr std::array names = {"a.yaml", "b.yaml", "c.yaml"};
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (i < files.size())
        fuzzing::write_input(names[i], files[i]);
      else
        std::filesystem::remove(fuzzing::Folder::instance().path(names[i]));
    }
    return config::read_settings(table, fuzzing::write_input("config.yaml", text), overrides).origins;
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Settings settings;
  const config::Table table = table_of(settings);
  Settings defaults;
  const config::Table table_of_defaults = table_of(defaults);
  const auto read = [&](const Input& input) {
    return fuzzing::succeeds([&] { table.check_effects(table_of_defaults, input.read(table)); });
  };
  if (!read(Input::of(fuzzing::text_of(data, size)))) return 0;
  const std::string written = config::to_yaml(table);
  settings = Settings();
  // Paths are written unchanged but expanded when read, so paths with a dollar sign differ.
  if (written.find('$') != std::string::npos) return 0;
  fuzzing::expect(read(Input{written}), "the written configuration cannot be read");
  if (config::to_yaml(table) != written) fuzzing::finding("the settings differ after writing and reading", written);
  return 0;
}
