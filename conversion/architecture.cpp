#include "conversion/architecture.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "formats/gguf.h"
#include "framework/core/error.h"
#include "framework/core/printable.h"

namespace furlong {

std::string TensorNaming::norm(const std::string& stem, bool bias) const {
  if (gamma_beta && stem.ends_with("LayerNorm")) return stem + (bias ? ".beta" : ".gamma");
  return stem + (bias ? ".bias" : ".weight");
}

const std::vector<Architecture>& architectures() {
  // A model without origin is exported as the first family that can express it.
  static const std::vector<Architecture> all{gpt2_architecture(),    llama_architecture(),   bert_architecture(),
                                             albert_architecture(),  roberta_architecture(), esm_architecture(),
                                             mistral_architecture(), qwen2_architecture(),   qwen3_architecture()};
  return all;
}

std::string family_names() {
  std::vector<std::string> names;
  for (const Architecture& one : architectures()) names.emplace_back(one.model_type);
  return fmt::format("{}", fmt::join(names, ", "));
}

const Architecture* find_architecture(std::string_view model_type) {
  for (const Architecture& one : architectures()) {
    if (model_type == one.model_type) return &one;
  }
  return nullptr;
}

const Architecture& architecture_of(const ForeignConfig& config, const std::string& wanted) {
  const std::string families = family_names();
  if (!config.has("model_type") && wanted.empty())
    config.fail("model_type", fmt::format("this key is missing, as in older directories; name the family with "
                                          "--architecture NAME (furlong convert, embed, score), one of {}",
                                          families));
  const std::string type = config.text("model_type", wanted);
  if (!wanted.empty() && type != wanted)
    config.fail("model_type", fmt::format("found {}, but --architecture is {}; remove --architecture",
                                          foreign::printable(type), foreign::printable(wanted)));
  if (const Architecture* found = find_architecture(type)) return *found;
  if (!config.has("model_type"))
    throw UserError("--architecture: found {}; expected one of {}", foreign::printable(type), families);
  config.fail("model_type", fmt::format("found {}; expected one of {}", foreign::printable(type), families));
}

TensorNaming detect_naming(const Architecture& architecture, const TensorFile& file) {
  TensorNaming naming;
  naming.gguf = dynamic_cast<const GgufFile*>(&file) != nullptr;
  if (naming.gguf) return naming;
  for (const ForeignTensor& tensor : file.tensors()) {
    if (tensor.name.ends_with("LayerNorm.gamma")) naming.gamma_beta = true;
  }
  naming.head = architecture.head_anchor.empty() || file.find(architecture.head_anchor);
  for (const std::string& prefix : architecture.prefixes) {
    naming.prefix = prefix;
    if (file.find(prefix + architecture.anchor)) return naming;
  }
  // Tied weights may be stored under the name of the output layer alone, and the report of the import lists others.
  for (const std::string& prefix : architecture.prefixes) {
    naming.prefix = prefix;
    const auto has_prefix = [&](const ForeignTensor& tensor) { return tensor.name.starts_with(prefix); };
    if (!prefix.empty() && std::any_of(file.tensors().begin(), file.tensors().end(), has_prefix)) return naming;
  }
  throw UserError(
      "{}: tensor {}{} is missing, which every {} model has; found {} tensors{}, so check that this is the checkpoint "
      "that config.json describes",
      file.path(), architecture.prefixes[0], architecture.anchor, architecture.model_type, file.tensors().size(),
      file.tensors().empty() ? "" : " starting with " + foreign::printable(file.tensors()[0].name));
}

}  // namespace furlong
