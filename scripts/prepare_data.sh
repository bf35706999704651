#!/usr/bin/env bash
# Fetches a data set that the configs in configs/ use and makes its token store, unless the store is there.
#   scripts/prepare_data.sh kjv|ecoli|proteins
# Works in the folder `data` of the current directory, or in $FURLONG_DATA. Exit status: 0, or that of the step that failed.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
furlong=${FURLONG:-$root/build/release/bin/furlong}
data=${FURLONG_DATA:-data}
name=${1:-}

# shellcheck disable=SC2054  # the commas are inside arguments
case "$name" in
  # The last tenth of the text is the held-out test split, the part that compressors are compared on.
  kjv) source=$data/kjv.txt
       arguments=(text "$source" --split-by span --split train:0.85,validation:0.05,test:0.1) ;;
  ecoli) source=$data/ecoli.fa
         arguments=(fasta "$source" --alphabet dna --split-by span --split train:0.9,validation:0.05,test:0.05) ;;
  proteins) source=$data/proteins.fa
            arguments=(fasta "$source" --alphabet protein --split-by document --split train:0.9,validation:0.05,test:0.05) ;;
  *) echo "prepare_data.sh: no data set \"$name\"; there are kjv, ecoli and proteins" >&2
     exit 2 ;;
esac

store=$data/$name.h5
[[ -e $store ]] && exit 0
mkdir -p "$data"
[[ -e $source ]] || "$root/scripts/fetch_data.sh" "$name" --cache "$data" >&2
echo "preparing $store from $source" >&2
"$furlong" prepare "${arguments[@]}" --output "$store" >&2
