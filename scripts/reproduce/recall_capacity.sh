#!/usr/bin/env bash
# Accuracy of copying and of associative recall against the number of features of linear attention, next to softmax.
#   scripts/reproduce/recall_capacity.sh [--help]
exec "$(dirname "${BASH_SOURCE[0]}")/start.sh" recall_capacity "$@"
