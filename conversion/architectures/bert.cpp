// BERT (Devlin et al. 2019) in Hugging Face's format: BertModel, BertForMaskedLM, BertForPreTraining.
#include "conversion/architectures/encoder.h"

namespace furlong {
namespace bert {

constexpr const char *predictions = "cls.predictions.", *transform = "cls.predictions.transform.",
                     *head_anchor = "cls.predictions.transform.dense.weight";

Settings settings_of(const ForeignConfig& config, const TensorNaming& naming) {
  config.only("add_cross_attention", false, "an encoder without cross-attention");
  return encoder_settings(config, naming, {30522, 768, 12, 3072, "gelu"});
}

std::vector<Mapping> mappings_of(const layers::ModelConfig& model, const TensorNaming& naming) {
  EncoderTable table(model, naming, model.d_model);
  table.embeddings();
  table.bert_layers();
  table.head(predictions, transform);
  return table.take();
}

std::vector<Duplicate> duplicates_of(const layers::ModelConfig& model, const TensorNaming& naming) {
  return encoder_duplicates(model, naming, predictions);
}

/// The pooler, its heads (next sentence; AntiBERTy's species, chain and graft), position ids, and the bias that is
/// unused without tied embeddings.
bool is_carried(std::string_view name) {
  for (const char* part : {"pooler.dense.", "embeddings.position_ids", "embeddings.token_type_ids"}) {
    if (name.find(part) != std::string_view::npos) return true;
  }
  for (const char* head :
       {"cls.predictions.bias", "cls.seq_relationship.", "cls.species.", "cls.chain.", "cls.graft."}) {
    if (name.starts_with(head)) return true;
  }
  return false;
}

}  // namespace bert

const Architecture& bert_architecture() {
  using namespace bert;
  static const Architecture architecture{
      "bert",        "BertForMaskedLM", "BertModel", {"bert.", ""}, "embeddings.word_embeddings.weight",
      head_anchor,   settings_of,       mappings_of, duplicates_of, is_carried,
      encoder_config};
  return architecture;
}

}  // namespace furlong
