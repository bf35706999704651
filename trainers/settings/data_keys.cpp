#include "trainers/settings/keys.h"

#include "datasets/vocabulary.h"

namespace furlong {

void add_data_keys(config::Table& t, DataSettings& d, bool requires_store) {
  t.section("data",
            "the training data; unless data.packing separates documents, windows, attention and convolution cross "
            "document boundaries; only targets at breaks of a split are excluded from the loss");
  t.key("data.task", &d.task, "",
        "none: read data.dataset; copy: generate the copy task '< symbols = symbols', whose second copy is the target "
        "(masked_tokens: is masked)")
      .one_of({"none", "copy"});
  t.key("data.task_symbols", &d.task_symbols, "symbols", "number of distinct symbols of the copy task")
      .within(1, static_cast<double>(Vocabulary::max_copy_symbols))
      .only_with("data.task", {"copy"});
  t.key("data.task_min_symbols", &d.task_min_symbols, "symbols",
        "shortest copy in training; lengths are uniform from this to the longest that fits sequence_length")
      .within(1, 1e9)
      .zero_means("all copies have the full length")
      .only_with("data.task", {"copy"});
  auto& store = t.key("data.dataset", &d.dataset, "", "tokenized dataset (HDF5 file) written by furlong prepare")
                    .only_with("data.task", {"none"})
                    .elsewhere({"data_dir", "train_file", "file"});
  if (requires_store) store.required();
  t.key("data.sequence_length", &d.sequence_length, "tokens", "length of a training sequence")
      .within(1, 1e9)
      .elsewhere({"seq_len", "seq_length", "max_length"});
  t.key("data.batch_size", &d.batch_size, "sequences",
        "sequences (pair_classification: pairs) per forward and backward pass, summed over all ranks")
      .within(1, 1e6)
      .elsewhere({"per_device_train_batch_size", "micro_batch_size", "train_batch_size"});
  t.key("data.sampler", &d.sampler, "",
        "random: windows at random positions of the split; sequential: consecutive windows from its start; stream: "
        "consecutive segments, each batch row in its own stretch of the split; documents: one padded document per row, "
        "all once per epoch, long ones split over several rows")
      .one_of({"random", "sequential", "stream", "documents"})
      .only_with("data.task", {"none"});
  t.key("data.stateful", &d.stateful, "",
        "stateful training (truncated BPTT): each layer's recurrent state continues in the next segment of a document; "
        "gradients stop at the segment; see docs/config.md: Stateful training")
      .only_with("data.sampler", {"stream"})
      .elsewhere({"tbptt"});
  t.key("data.packing", &d.packing, "",
        "none: documents in a window attend to each other; documents: attention, convolution, targets and positions "
        "are separate for each document")
      .one_of({"none", "documents"})
      .only_with("data.sampler", {"random", "sequential"})
      .only_with("objective.name", {"next_token", "masked_tokens"})
      .only_with("data.task", {"none"})
      .elsewhere({"pack_sequences", "sample_packing"});
  t.key("data.ignore_tokens", &d.ignore_tokens, "",
        "symbols of the dataset's alphabet that are excluded from the loss, such as [N] for unknown bases")
      .only_with("objective.name", {"next_token", "masked_tokens"})
      .only_with("data.task", {"none"})
      .elsewhere({"ignore_index"});
  t.key("data.padding", &d.padding, "",
        "row length with data.sampler: documents or an objective over labels; longest: the batch's longest row, "
        "rounded up to a multiple of 64; sequence_length: always data.sequence_length")
      .one_of({"longest", "sequence_length"})
      .only_with("data.sampler", {"documents"})
      .or_with("objective.name", {"classification", "pair_classification"});
}

void add_objective_keys(config::Table& t, ObjectiveSettings& o) {
  t.section("objective", "the training objective");
  t.key("objective.name", &o.name, "",
        "next_token: causal language modelling (decoder); masked_tokens: masked language modelling (encoder, BERT); "
        "classification: label of a document (encoder); pair_classification: label of a pair of documents (encoder)")
      .elsewhere({"task", "loss"});
  t.key("objective.mask_probability", &o.mask_probability, "", "fraction of tokens to predict")
      .above(0)
      .below(1)
      .only_with("objective.name", {"masked_tokens"})
      .only_with("data.task", {"none"})
      .elsewhere({"mlm_probability", "mask_prob"});
  t.key("objective.mask_token_fraction", &o.mask_token_fraction, "",
        "fraction of the tokens to predict that are replaced by <mask>")
      .within(0, 1)
      .only_with("objective.name", {"masked_tokens"})
      .only_with("data.task", {"none"});
  t.key("objective.random_token_fraction", &o.random_token_fraction, "",
        "fraction of the tokens to predict that are replaced by a random token; the rest stay unchanged")
      .within(0, 1)
      .only_with("objective.name", {"masked_tokens"})
      .only_with("data.task", {"none"});
  t.key("objective.pooling", &o.pooling, "",
        "document representation; mean: mean of its hidden states; class_token: hidden state of a <class> token at its "
        "start")
      .one_of({"mean", "class_token"})
      .only_with("objective.name", {"classification", "pair_classification"})
      .elsewhere({"pool", "pooling_mode"});
}

}  // namespace furlong
