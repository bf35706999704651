#!/usr/bin/env bash
# Accuracy of the copy task against the number of features of linear attention, next to softmax.
#   scripts/reproduce/copy_capacity.sh [--help]
exec "$(dirname "${BASH_SOURCE[0]}")/start.sh" copy_capacity "$@"
