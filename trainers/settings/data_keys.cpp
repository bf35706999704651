#include "trainers/settings/keys.h"

#include "datasets/vocabulary.h"

namespace furlong {

void add_data_keys(config::Table& t, DataSettings& d, bool requires_dataset) {
  t.section("data",
            "the training data; with data.sampler: random or sequential, a window can contain several documents, and "
            "attention and convolution cross the borders between them; data.packing: documents separates them; if "
            "a split has a gap, the token before the gap has no target");
  t.key("data.task", &d.task, "",
        "none: read data.dataset; copy: generate sequences <, random symbols, =, the same symbols; the loss covers the "
        "second copy (masked_tokens: which is masked); associative_recall: generate pairs of a key and a value, then "
        "the keys again in another order among random symbols; the loss covers the values after these (multi-query "
        "associative recall, Arora et al. 2023, arXiv:2312.04927)")
      .one_of({"none", "copy", "associative_recall"});
  t.key("data.task_symbols", &d.task_symbols, "symbols",
        "number of distinct symbols of the task; for associative_recall at least twice data.task_pairs")
      .within(1, static_cast<double>(Vocabulary::max_copy_symbols))
      .only_with("data.task", {"copy", "associative_recall"});
  t.key("data.task_min_symbols", &d.task_min_symbols, "symbols",
        "shortest copy in training; lengths are uniform from this to the longest that fits sequence_length")
      .within(1, 1e9)
      .zero_means("all copies have the full length")
      .only_with("data.task", {"copy"});
  t.key("data.task_pairs", &d.task_pairs, "pairs", "pairs of a key and a value in each sequence")
      .within(1, static_cast<double>(Vocabulary::max_copy_symbols / 2))
      .only_with("data.task", {"associative_recall"});
  auto& store = t.key("data.dataset", &d.dataset, "", "tokenized dataset (HDF5 file) written by furlong prepare")
                    .only_with("data.task", {"none"})
                    .elsewhere({"data_dir", "train_file", "file"});
  if (requires_dataset) store.required("data.sources");
  t.key("data.sources", &d.sources, "",
        "a mixture instead of data.dataset: training samples are drawn from tokenized datasets of one tokenizer in "
        "proportion to their weights; the first one's validation and test splits are evaluated; see docs/config.md: "
        "Mixtures; with data.sampler: random or documents")
      .fields({"dataset", "weight"})
      .only_with("data.task", {"none"})
      .elsewhere({"datasets", "dataset_mixer", "data_mixture"});
  t.key("data.sequence_length", &d.sequence_length, "tokens", "length of a training sequence")
      .within(1, 1e9)
      .elsewhere({"seq_len", "seq_length", "max_length"});
  t.key("data.batch_size", &d.batch_size, "sequences",
        "global batch size: sequences (pair_classification: pairs) of one forward and backward pass over all ranks; an "
        "optimizer step uses data.batch_size × trainer.gradient_accumulation sequences; each of R = world size / "
        "parallel.context_parallel_size groups of ranks computes its share, whose sizes may differ by one: at least R; "
        "with data.sampler: stream a multiple of R")
      .within(1, 1e6)
      .elsewhere({"per_device_train_batch_size", "micro_batch_size", "train_batch_size"});
  t.key("data.sampler", &d.sampler, "",
        "random: windows at random positions of the split; sequential: consecutive windows from its start; stream: "
        "consecutive segments of documents; the split is divided into one part for each row, and each step reads the "
        "next segment of every part; documents: one padded document per row, all once per epoch, long ones split over "
        "several rows")
      .one_of({"random", "sequential", "stream", "documents"})
      .only_with("data.task", {"none"});
  t.key("data.stateful", &d.stateful, "",
        "stateful training (truncated BPTT): a segment starts from the recurrent state of the document's previous "
        "segment; gradients stop at the segment's start; see docs/config.md: Stateful training")
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
  t.key("data.reverse_complement", &d.reverse_complement, "",
        "DNA and RNA: train on the reverse complement of half of the samples, chosen at random by the seed; labels of "
        "documents and pairs stay the same")
      .only_with("data.task", {"none"})
      .only_with("data.sampler", {"random", "sequential", "documents"})
      .only_with("objective.name", {"next_token", "masked_tokens", "classification", "pair_classification",
                                    "regression", "multi_label_classification"})
      .elsewhere({"rc_aug", "reverse_complement_aug", "rc_prob"});
  t.key("data.padding", &d.padding, "",
        "row length with data.sampler: documents or an objective over labels; longest: the batch's longest row, "
        "rounded up to a multiple of 64; sequence_length: always data.sequence_length")
      .one_of({"longest", "sequence_length"})
      .only_with("data.sampler", {"documents"})
      .or_with("objective.name", {"classification", "pair_classification", "regression", "multi_label_classification",
                                  "token_classification"});
}

void add_objective_keys(config::Table& t, ObjectiveSettings& o) {
  t.section("objective", "the training objective");
  t.key("objective.name", &o.name, "",
        "next_token: causal language modeling (decoder); masked_tokens: masked language modeling (encoder, BERT); "
        "classification: one label of a document; pair_classification: one label of a pair of documents; regression: "
        "one or several numbers of a document; multi_label_classification: any number of labels of a document; "
        "token_classification: a label of each token (all encoder)")
      .elsewhere({"task", "loss", "problem_type"});
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
      .only_with("objective.name",
                 {"classification", "pair_classification", "regression", "multi_label_classification"})
      .elsewhere({"pool", "pooling_mode"});
}

}  // namespace furlong
