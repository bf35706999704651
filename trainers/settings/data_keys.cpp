#include "trainers/settings/keys.h"

#include "datasets/vocabulary.h"

namespace furlong {

void add_data_keys(config::Table& t, DataSettings& d, bool requires_store) {
  t.section("data",
            "the tokens to train on; unless packing separates them, windows cross the borders of documents, and "
            "attention and convolution see across them: only targets at breaks of a split are left out of the loss");
  t.key("data.task", &d.task, "",
        "none: data.store; copy: no store, but sequences made as they are needed: <, random symbols, =, the same "
        "symbols again, the second time as targets (with objective.name: masked_tokens: hidden, and to be filled in)")
      .one_of({"none", "copy"});
  t.key("data.task_symbols", &d.task_symbols, "symbols", "how many different symbols there are to copy")
      .within(1, static_cast<double>(Vocabulary::most_copy_symbols))
      .only_with("data.task", {"copy"});
  t.key("data.task_shortest", &d.task_shortest, "symbols",
        "copies to train on are of all lengths from this one to what sequence_length has room for, equally often")
      .within(1, 1e9)
      .zero_means("all have the full length")
      .only_with("data.task", {"copy"});
  auto& store = t.key("data.store", &d.store, "", "HDF5 token store that furlong prepare has written")
                    .only_with("data.task", {"none"})
                    .elsewhere({"dataset", "data_dir", "train_file", "file"});
  if (requires_store) store.required();
  t.key("data.sequence_length", &d.sequence_length, "tokens", "length of a training sequence")
      .within(1, 1e9)
      .elsewhere({"seq_len", "seq_length", "max_length"});
  t.key("data.batch_size", &d.batch_size, "sequences",
        "sequences (matching: pairs of them) in one forward and backward pass")
      .within(1, 1e6)
      .elsewhere({"per_device_train_batch_size", "micro_batch_size", "train_batch_size"});
  t.key("data.sampler", &d.sampler, "",
        "random: windows from anywhere in the split; sequential: one after another, from the start; stream: documents "
        "in consecutive segments, each row of the batch walking through a stretch of its own; documents: a row is one "
        "document, or as much of it as sequence_length has room for and the rest in further rows, padded behind, all "
        "of them once in an epoch")
      .one_of({"random", "sequential", "stream", "documents"})
      .only_with("data.task", {"none"});
  t.key("data.carry_state", &d.carry_state, "",
        "whether the recurrent state of each layer goes on from segment to segment, so that a token sees all of its "
        "document before it; gradients end at the segment. A row begins its stretch of the split with an empty state, "
        "in training wherever that is; for validation and evaluate stretches begin with a document where the documents "
        "allow rows of similar length, otherwise inside one, so that the loss then depends on the batch size (1: whole "
        "documents)")
      .only_with("data.sampler", {"stream"})
      .elsewhere({"stateful", "tbptt"});
  t.key("data.packing", &d.packing, "",
        "documents: documents that share a window do not see each other, in attention, convolution or targets, and "
        "positions, rotary ones too, begin again with each; none: they do")
      .one_of({"none", "documents"})
      .only_with("data.sampler", {"random", "sequential"})
      .only_with("objective.name", {"next_token", "masked_tokens"})
      .only_with("data.task", {"none"})
      .elsewhere({"pack_sequences", "sample_packing"});
  t.key("data.ignore_tokens", &d.ignore_tokens, "",
        "symbols of the store's alphabet that are left out of the loss, such as [N] for unknown bases")
      .only_with("objective.name", {"next_token", "masked_tokens"})
      .only_with("data.task", {"none"})
      .elsewhere({"ignore_index"});
  t.key("data.padding", &d.padding, "",
        "how long rows of one document are, with data.sampler: documents and where labels are learned: longest: as the "
        "longest of the batch, rounded up to 64; sequence_length: always that")
      .one_of({"longest", "sequence_length"})
      .only_with("data.sampler", {"documents"})
      .or_with("objective.name", {"classification", "matching"});
}

void add_objective_keys(config::Table& t, ObjectiveSettings& o) {
  t.section("objective", "what is learned");
  t.key("objective.name", &o.name, "",
        "next_token: the token that follows (decoder); encoders: masked_tokens: tokens that were hidden (BERT); "
        "classification: a document's label; matching: the label of a pair of documents")
      .elsewhere({"task", "loss"});
  t.key("objective.mask_probability", &o.mask_probability, "", "share of tokens that are to be predicted")
      .above(0)
      .below(1)
      .only_with("objective.name", {"masked_tokens"})
      .only_with("data.task", {"none"})
      .elsewhere({"mlm_probability", "mask_prob"});
  t.key("objective.mask_token_share", &o.mask_token_share, "", "share of those that the model sees as <mask>")
      .within(0, 1)
      .only_with("objective.name", {"masked_tokens"})
      .only_with("data.task", {"none"});
  t.key("objective.random_token_share", &o.random_token_share, "",
        "share of those that the model sees as another token, drawn at random; the rest stay as they are")
      .within(0, 1)
      .only_with("objective.name", {"masked_tokens"})
      .only_with("data.task", {"none"});
  t.key("objective.pooling", &o.pooling, "",
        "what stands for a document: the mean of its hidden states, or that of a <class> token in front of it")
      .one_of({"mean", "class_token"})
      .only_with("objective.name", {"classification", "matching"})
      .elsewhere({"pool", "pooling_mode"});
}

}  // namespace furlong
