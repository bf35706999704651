#!/usr/bin/env bash
# Fetches a data set of the configs in configs/ and makes its tokenized dataset, unless it exists.
#   scripts/prepare_data.sh kjv|ecoli|proteins|all_proteins|antibodies|english|english_passages
#   scripts/prepare_data.sh kjv_tokens|kjv_sections|kjv_pairs
#   scripts/prepare_data.sh fashion|fashion_train|fashion_test|manual_pages
#   scripts/prepare_data.sh listops|listops_desk|pathfinder|pathx
#   scripts/prepare_data.sh imdb|aan|cifar10    (of the official files, which must exist)
# Works in the folder `data` of the current directory, or in $FURLONG_DATA.
# Exit status: 0, or that of the step that failed.
set -euo pipefail
shopt -s extglob

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
furlong=${FURLONG:-$root/build/release/bin/furlong}
if [[ ! -x $furlong ]] && ! furlong=$(command -v furlong); then  # an installed program
  echo "prepare_data.sh: the program furlong is neither in $root/build/release/bin nor in PATH; build it" \
    "(scripts/build.sh release), add its folder to PATH, or set FURLONG to its path" >&2
  exit 1
fi
data=${FURLONG_DATA:-data}
name=${1:-}
source=''    # a file or folder; empty: the data set is generated
official=''  # files that only their users can get; empty: fetch_data.sh fetches them

# shellcheck disable=SC2054  # the commas are inside arguments
case "$name" in
  # The last tenth of the text is the test split, on which compressors are compared.
  kjv) source=$data/kjv.txt
       arguments=(text "$source" --split-by span --split train:0.85,validation:0.05,test:0.1) ;;
  # The same in 2,048 tokens, trained on the part that is not held out.
  kjv_tokens) source=$data/kjv.txt
              arguments=(text "$source" --tokenizer "$data/kjv.model" --split-by span
                         --split train:0.85,validation:0.05,test:0.1) ;;
  ecoli) source=$data/ecoli.fa
         arguments=(fasta "$source" --alphabet dna --split-by span --split train:0.9,validation:0.05,test:0.05) ;;
  proteins) source=$data/proteins.fa
            arguments=(fasta "$source" --alphabet protein --split-by document
                       --split train:0.9,validation:0.05,test:0.05) ;;
  all_proteins) source=$data/all_proteins.fa
                arguments=(fasta "$source" --alphabet protein --split-by document
                           --split train:0.94,validation:0.03,test:0.03) ;;
  # Antibodies in the tokens of AntiBERTy, which must exist (scripts/fetch_models.sh antiberty). Similar clones may
  # occur in several splits.
  antibodies) source=$data/antibodies.fa
              arguments=(fasta "$source" --tokenizer "$data/models/antiberty" --split-by document
                         --split train:0.9,validation:0.05,test:0.05) ;;
  # English prose in the tokens of SmolLM2.
  english) source=$data/english.txt
           arguments=(text "$source" --tokenizer "$data/models/smollm2/model.gguf" --split-by span
                      --split train:0.94,validation:0.03,test:0.03) ;;
  # The same text in paragraphs and the tokens of all-MiniLM-L6-v2.
  english_passages) source=$data/english.txt
                    arguments=(text "$source" --tokenizer "$data/models/minilm" --document-separator blank-line
                               --split-by document) ;;
  # Labeled passages of the same text: scripts/label_kjv.awk.
  kjv_sections) source=$data/kjv_sections.tsv
                arguments=(labeled "$source" --split train:0.8,validation:0.1,test:0.1) ;;
  kjv_pairs) source=$data/kjv_pairs.tsv
             arguments=(labeled "$source" --second-text-field 2 --split train:0.8,validation:0.1,test:0.1) ;;
  # Pictures of 28 x 28 gray pixels with their labels. The official test pictures are a dataset of their own, whose only
  # split has the name train: furlong evaluate --data data/fashion_test.h5 --split train.
  fashion_train) source=$data/fashion_train.idx
                 arguments=(images "$source" --label-file "$data/fashion_train_labels.idx"
                            --split train:0.95,validation:0.05) ;;
  fashion_test) source=$data/fashion_test.idx
                arguments=(images "$source" --label-file "$data/fashion_test_labels.idx" --split train:1) ;;
  # Both in one dataset, whose test split has the official test pictures.
  fashion) source=$data/fashion_train.idx
           arguments=(images "$source" --test-inputs "$data/fashion_test.idx" --split train:0.95,validation:0.05
                      --label-file "$data/fashion_train_labels.idx,$data/fashion_test_labels.idx") ;;
  # Manual pages, labeled with their section.
  manual_pages) source=$data/manual_pages
                arguments=(labeled "$source" --label-from folder --split train:0.8,validation:0.1,test:0.1) ;;
  # Data of Long Range Arena, with their official test splits. Validation is a part of training.
  imdb) source=$data/aclImdb
        official='aclImdb_v1.tar.gz, unpacked (https://ai.stanford.edu/~amaas/data/sentiment/)'
        arguments=(labeled "$source/train/neg" "$source/train/pos" --label-from folder
                   --test-inputs "$source/test/neg,$source/test/pos" --split train:0.95,validation:0.05) ;;
  aan) source=$data/new_aan_pairs.train.tsv
       official='new_aan_pairs.{train,eval,test}.tsv (https://github.com/google-research/long-range-arena)'
       arguments=(labeled "$source" --text-field 4 --second-text-field 5 --label-field 1 --labels 0.0,1.0
                  --validation-inputs "$data/new_aan_pairs.eval.tsv" --test-inputs "$data/new_aan_pairs.test.tsv") ;;
  cifar10) source=$data/cifar-10-batches-bin
           official='cifar-10-binary.tar.gz, unpacked (https://www.cs.toronto.edu/~kriz/cifar.html)'
           arguments=(images "$source"/data_batch_{1,2,3,4,5}.bin --format cifar10 --grayscale
                      --test-inputs "$source/test_batch.bin" --split train:0.9,validation:0.1) ;;
  listops) arguments=(listops) ;;
  listops_desk) arguments=(listops --min-length 50 --max-length 200) ;;
  pathfinder) arguments=(pathfinder) ;;
  pathx) arguments=(pathfinder --size 128) ;;
  *) echo "prepare_data.sh: data set \"$name\" is unknown; expected kjv, ecoli, proteins, all_proteins, antibodies," \
       "english, english_passages, kjv_tokens, kjv_sections, kjv_pairs, fashion, fashion_train, fashion_test," \
       "manual_pages, imdb, aan, cifar10, listops, listops_desk, pathfinder or pathx" >&2
     exit 2 ;;
esac

store=$data/$name.h5
[[ -e $store ]] && exit 0
mkdir -p "$data"
# One process at a time: the others then find the result. On a file system without locks they end with an error.
exec 9>"$data/.prepare.lock"
flock --nonblock --conflict-exit-code 9 9 || (( $? != 9 )) || {
  echo "prepare_data.sh: waiting for another one in $data" >&2
  flock 9
}
[[ -e $store ]] && exit 0
if [[ -n $official && ! -e $source ]]; then
  echo "prepare_data.sh: $source is missing; put there $official" >&2
  exit 2
fi
if [[ $name == fashion* && ! -e $data/fashion_test_labels.idx ]] || [[ -n $source && ! -e $source ]]; then
  "$root/scripts/fetch_data.sh" "${name%%_@(tokens|sections|pairs|passages|train|test)}" --cache "$data" >&2
fi
partial=''  # of this process: another one may prepare the same
trap '[[ -z $partial ]] || rm -rf "$partial"' EXIT
if [[ $name == manual_pages && ! -e $source ]]; then
  partial=$(mktemp --directory "$source.XXXXXX.partial")
  mkdir "$partial/pages"
  tar --extract --file "$source.tar" --directory "$partial/pages" --strip-components 1
  mv --no-target-directory "$partial/pages" "$source" 2>/dev/null || [[ -e $source ]]
fi
if [[ $name == kjv_* && ! -e $source ]]; then
  partial=$(mktemp --directory "$source.XXXXXX.partial")
  awk -f "$root/scripts/label_kjv.awk" -v task="${name#kjv_}" "$data/kjv.txt" >"$partial/text"
  mv "$partial/text" "$source"
fi
if [[ $name == kjv_tokens && ! -e $data/kjv.model ]]; then
  head -c 3743750 "$source" | "$furlong" prepare tokenizer - --vocabulary-size 2048 --output "$data/kjv.model" >&2
fi
echo "preparing $store${source:+ from $source}" >&2
"$furlong" prepare "${arguments[@]}" --output "$store" >&2
