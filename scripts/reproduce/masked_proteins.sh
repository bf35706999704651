#!/usr/bin/env bash
# Masked residues of proteins in short and long sequences: held-out accuracy and time of softmax and FAVOR+.
#   scripts/reproduce/masked_proteins.sh [--help]
exec "$(dirname "${BASH_SOURCE[0]}")/start.sh" masked_proteins "$@"
