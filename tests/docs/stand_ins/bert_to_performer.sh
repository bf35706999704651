# Makes data/antibodies.fa, random proteins, and data/models/antiberty, a small BERT with AntiBERTy's vocabulary,
# instead of the downloads of docs/tutorials/bert_to_performer.md.
bash "$(dirname "${BASH_SOURCE[0]}")/your_fasta.sh"
mv data/proteins.fa data/antibodies.fa
mkdir -p data/letters
printf '%s\n' '[PAD]' '[UNK]' '[CLS]' '[SEP]' '[MASK]' A C D E F G H I K L M N P Q R S T V W Y >data/letters/vocab.txt
"$FURLONG" prepare fasta data/antibodies.fa --tokenizer data/letters/vocab.txt --split-by document -o data/letters.h5
cat >data/letters/bert.yaml <<'EOF'
data: {dataset: data/letters.h5, sampler: documents, batch_size: 4}
model:
  architecture: encoder
  n_layers: 2
  d_model: 32
  n_heads: 2
  position: learned
  n_segments: 2
  norm_placement: post
  embedding_norm: true
  prediction_head: transform
  output_bias: true
objective: {name: masked_tokens}
EOF
"$FURLONG" train data/letters/bert.yaml --run-dir data/letters/run --set model.max_sequence_length=160
"$FURLONG" export data/letters/run data/models/antiberty
